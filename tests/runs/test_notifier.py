"""The notifier against a serial oracle: no wake-up is lost, and nobody who left keeps it awake."""

from __future__ import annotations

import random
import sqlite3
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from aswarm.runs import Entry, Run
from aswarm.runs._live import LiveEntries
from aswarm.serve import NativeWire, frames
from aswarm.serve.wires.turns import RECONNECT
from aswarm.testing import call
from tests.support.runs.kept_runs import Workshop, elsewhere, entries_of, in_file, in_memory, reading
from tests.support.sql.hooks import before_statements


@pytest.mark.parametrize("seed", range(20))
async def test_readers_in_any_order_see_each_entry_once(seed: int) -> None:
    """Readers and the writer yield at random places; a reader that is cancelled goes on where it was."""
    chance = random.Random(seed)
    live, found = LiveEntries(), [list[int]() for _ in range(20)]

    async def write() -> None:
        for number in range(50):
            for _ in range(chance.choice((0, 0, 1, 3))):
                await checkpoint()
            live.add(Entry(number, 0, "TextDelta", {}))
        live.end()

    async def read(seen: list[int]) -> None:
        entries: Any = None
        while entries != ():
            with anyio.CancelScope() as scope:
                if chance.random() < 0.2:
                    scope.cancel()
                entries = await live.next(len(seen) - 1, chance.choice((0, 0.001, float("inf"))))
                seen += [entry.seq for entry in entries or ()]
            for _ in range(chance.choice((0, 1, 3))):
                await checkpoint()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(write)
            for seen in found:
                group.start_soon(read, seen)
    assert found == [list(range(50))] * 20


async def test_an_entry_wakes_each_reader_once() -> None:
    """However many readers wait."""
    live, woken = LiveEntries(), list[int]()

    async def read() -> None:
        await live.next(-1)
        woken.append(1)

    async with anyio.create_task_group() as group:
        for _ in range(1_000):
            group.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        live.add(Entry(0, 0, "TextDelta", {}))
        await anyio.wait_all_tasks_blocked()
        assert len(woken) == 1_000


async def test_readers_of_another_process_that_come_and_go_miss_nothing(tmp_path: Path, workshop: Workshop) -> None:
    """They are cancelled at any time, and go on after their last entry."""
    chance = random.Random(7)
    script = [call("look", number=1), call("slow"), "word " * 300]
    async with in_file(tmp_path, script, workshop) as one, in_file(tmp_path, [], workshop) as two:
        run = await one.start_slow()
        found = [list[Entry]() for _ in range(10)]

        async def read(entries: list[Entry]) -> None:
            while not (entries and entries[-1].is_last):
                with anyio.move_on_after(chance.choice((0, 0.001, 0.02, 10))):
                    entries += await elsewhere(run, two).read(entries[-1].seq if entries else -1)

        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                for entries in found:
                    group.start_soon(read, entries)
                await anyio.sleep(0.1)
                workshop.go.set()
        assert found == [await entries_of(run)] * 10


def _waits(run: Run) -> list[Callable[[], Coroutine[Any, Any, object]]]:
    async def counted() -> None:
        with reading(run):
            await run.read(1_000_000)

    return [run.last_entry, counted, lambda: run._registry.notifier.end_of(run.id)]


@pytest.mark.parametrize("kind", range(3))
async def test_a_wait_that_is_cancelled_at_any_place_leaves_nothing(
    tmp_path: Path, workshop: Workshop, monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    """Afterwards the process polls no more."""
    polled = set[sqlite3.Connection]()

    def note(connection: sqlite3.Connection, statement: str) -> None:
        if "data_version" in statement or "last_read" in statement:
            polled.add(connection)

    before_statements(monkeypatch, note)
    async with in_file(tmp_path, [call("slow")], workshop) as one, in_file(tmp_path, [], workshop) as two:
        run = await one.start_slow(on_disconnect=3600)
        await anyio.sleep(0.2)
        owner = set(polled)
        for steps in range(40):
            async with anyio.create_task_group() as group:
                group.start_soon(_waits(elsewhere(run, two))[kind])
                for _ in range(steps):
                    await checkpoint()
                group.cancel_scope.cancel()
        await anyio.sleep(0.1)
        polled.clear()
        await anyio.sleep(1.2)
        assert len(owner) == 1
        assert polled == owner


async def test_draining_ends_the_stream_of_a_run_of_another_process(tmp_path: Path, workshop: Workshop) -> None:
    """The reader reconnects, and the run goes on."""
    async with in_file(tmp_path, [call("slow"), "Done."], workshop) as one, in_file(tmp_path, [], workshop) as two:
        run, sent = await one.start_slow(), list[bytes]()

        async def read(run: Run) -> None:
            sent.extend([data async for data in frames(run, NativeWire())])

        with anyio.fail_after(10):
            async with anyio.create_task_group() as group:
                for reader in (elsewhere(run, two), elsewhere(run, two)):
                    group.start_soon(read, reader)
                await anyio.sleep(0.2)
                await two.runs.drain(10)
        assert sent.count(RECONNECT) == 2
        workshop.go.set()
        assert (await run.last_entry()).type == "RunFinished"


async def test_other_runs_do_not_end_a_silent_wait_early(tmp_path: Path, workshop: Workshop) -> None:
    """Their entries wake the readers of the log, which wait on; so a client gets no more heartbeats."""
    async with (
        in_file(tmp_path, [call("slow"), *["word " * 50] * 40], workshop) as one,
        in_file(tmp_path, [], workshop) as two,
    ):
        silent = await one.start_slow()
        last = (await one.runs.get(silent.id, user="ann")).last
        async with anyio.create_task_group() as group:

            async def talk() -> None:
                while True:
                    await (await one.start(conversation="other")).last_entry()

            group.start_soon(talk)
            start = anyio.current_time()
            registry = two.runs.registry
            assert await registry.next(silent.id, last, silent.record.user, 0.4) is None
            assert anyio.current_time() - start >= 0.39
            group.cancel_scope.cancel()


async def test_a_reader_that_comes_back_in_the_last_moment_keeps_the_run(
    tmp_path: Path, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes while the database is asked for readers."""
    asked, came = threading.Event(), threading.Event()

    def note(_: sqlite3.Connection, statement: str) -> None:
        if statement.startswith("SELECT last_read"):
            asked.set()
            came.wait(60)

    before_statements(monkeypatch, note)
    async with in_file(tmp_path, [call("slow"), "Done."], workshop) as place:
        run = await place.start(on_disconnect=0.5)
        with reading(run):
            await workshop.began.wait()
        while not asked.is_set():
            await checkpoint()
        with reading(run):
            came.set()
            await anyio.sleep(0.2)
            assert (await place.runs.get(run.id, user="ann")).is_running
            workshop.go.set()
            assert (await run.last_entry()).type == "RunFinished"


async def test_a_scope_that_opens_while_the_process_drains_is_stopped_too(workshop: Workshop) -> None:
    """For example, that of a client whose request arrives in the last moment and that reads no frame."""
    async with in_memory([], workshop) as place:
        notifier = place.runs.registry.notifier
        await place.runs.drain(0)
        with anyio.fail_after(10), anyio.CancelScope() as scope, notifier.stops_scope(scope, 0.01):
            await anyio.sleep_forever()
        assert scope.cancelled_caught
