"""`Limits`: no limit by default, the values of a web service, and the bounds of runs in memory."""

from __future__ import annotations

import dataclasses
import logging
import math
import sqlite3
import threading
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from aswarm import Agent, AsyncSwarm, ConfigurationError
from aswarm.conversations import MemoryStore
from aswarm.runs import Limits, LocalRuns, NewRun, Runs, TooManyRuns
from aswarm.serve import Service, create_app, local_only
from aswarm.testing import ScriptedModel
from tests.support.runs.kept_runs import Workshop, in_file
from tests.support.sql.hooks import before_statements


def test_no_limit_is_the_default() -> None:
    """A program that sets one limit changes no other limit. A web service has a value for each limit."""
    assert set(dataclasses.asdict(Limits()).values()) == {None}
    assert None not in dataclasses.asdict(Limits.web()).values()
    changed = dataclasses.replace(Limits.web(), max_turns=3)
    assert (changed.max_turns, changed.runs_per_user) == (3, 4)


NAMES = [field.name for field in dataclasses.fields(Limits)]


@pytest.mark.parametrize("kind", ["memory", "file"])
@pytest.mark.parametrize("name", NAMES)
def test_each_limit_is_set_alone(name: str, kind: str, tmp_path: Path) -> None:
    """The other limits have the values that they have without it: none, except for the bounds of runs in memory."""
    alone = {name: 7}
    runs = [opened(kind, tmp_path, limits) for limits in (Limits(), Limits(**alone))]
    without, with_it = [dataclasses.asdict(each.limits) for each in runs]
    assert with_it == {**without, **alone}
    in_memory = {"kept_runs": 10_000, "waiting_runs_per_user": 10_000} if kind == "memory" else {}
    assert without == {**dict.fromkeys(NAMES), **in_memory}


def opened(kind: str, folder: Path, limits: Limits) -> Any:
    swarm = AsyncSwarm(ScriptedModel([]).client())
    return LocalRuns(swarm, agents=Agent(), store=folder / "runs" if kind == "file" else None, limits=limits)


async def test_the_search_for_old_runs_delays_no_run(
    tmp_path: Path, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads the rows of all ended runs, beside the transactions of the active runs."""
    searching, has_ended = threading.Event(), threading.Event()

    def wait(_: sqlite3.Connection, statement: str) -> None:
        if "WHERE ended IS NOT NULL AND" in statement:
            searching.set()
            assert has_ended.wait(60)

    before_statements(monkeypatch, wait)
    async with (
        in_file(tmp_path, ["Hello."], workshop, limits=Limits(kept_runs=9)) as it,
        anyio.create_task_group() as group,
    ):
        group.start_soon(it.forget_old)
        await anyio.to_thread.run_sync(searching.wait)
        assert (await (await it.start()).result()).text == "Hello."
        has_ended.set()


async def test_a_limit_of_zero_runs_is_a_limit() -> None:
    """With `runs_per_user=0` or `runs=0`, no run starts."""
    for limits in (Limits(runs_per_user=0), Limits(runs=0)):
        async with LocalRuns(AsyncSwarm(ScriptedModel([]).client()), agents=Agent(), limits=limits) as runs:
            with pytest.raises(TooManyRuns):
                await runs.start(NewRun("ann", "c", "Hi"))
    async with LocalRuns(
        AsyncSwarm(ScriptedModel(["Hello."]).client()), agents=Agent(), limits=Limits(runs=float("inf"))
    ) as runs:
        await (await runs.start(NewRun("ann", "c", "Hi"))).result()


@pytest.mark.slow
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("conversations", [True, False])
async def test_runs_in_memory_delete_old_runs_while_many_runs_end(conversations: bool) -> None:
    """The limits apply after each thousand ended runs. The newest runs and their conversations stay."""
    swarm = AsyncSwarm(ScriptedModel(lambda _: "Hello.").client())
    async with LocalRuns(swarm, agents=Agent(), limits=Limits(kept_runs=20)) as runs:
        for number in range(1_000):
            name = f"c{number}" if conversations else None
            await (await runs.start(NewRun("ann", name, "Hi"))).result()
        await anyio.wait_all_tasks_blocked()
        assert len(await runs.list(user="ann", limit=2_000)) == 20
        assert not conversations or await runs.store.load("ann/c999")


async def test_a_conversation_stays_with_its_newest_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the old runs of a conversation are deleted. The conversations of a store of the caller always stay."""
    monkeypatch.setattr("aswarm.runs._local_runs._MOST_IN_MEMORY", 2)
    for store in (None, MemoryStore()):
        model = ScriptedModel(lambda _: "Hello.")
        async with LocalRuns(AsyncSwarm(model.client()), agents=Agent(), store=store) as runs:
            assert (runs.limits.kept_runs, runs.limits.waiting_runs_per_user) == (2, 2)
            for name in ("old", "c", "c", "c"):
                await (await runs.start(NewRun("ann", name, "Hi"))).result()
            await runs.registry.deleter.forget_old()
            assert len(await runs.list(user="ann")) == 2
            stored = await runs.store.load("ann/c")
            assert stored is not None
            assert len(stored.messages) == 6
            assert (await runs.store.load("ann/old") is None) == (store is None)


@pytest.mark.parametrize("max_turns", [math.inf, -1, 2.5, True])
def test_limits_of_turns_that_count_nothing(max_turns: Any) -> None:
    """When the limits are made, and not only when a run starts."""
    with pytest.raises(ConfigurationError, match="max_turns must be a whole number"):
        Limits(max_turns=max_turns)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@pytest.mark.parametrize(
    ("limits", "missing"),
    [
        (Limits(), "runs_per_user, run_seconds, max_turns"),
        (Limits(max_turns=3), "runs_per_user, run_seconds"),
        (dataclasses.replace(Limits.web(), run_seconds=None), "run_seconds"),
        (Limits(runs_per_user=1, run_seconds=1, max_turns=1), None),
    ],
)
async def test_a_service_without_limits_logs_one_warning(
    caplog: pytest.LogCaptureFixture, limits: Limits, missing: str | None
) -> None:
    """It names the limits that are missing."""
    runs: Runs = LocalRuns(AsyncSwarm(ScriptedModel([]).client()), agents=Agent(), limits=limits)
    async with Service(runs, auth=local_only).lifespan():
        pass
    texts = warnings(caplog)
    assert len(texts) == (missing is not None)
    assert missing is None or f"no limit for {missing}, so" in texts[0]


async def test_a_service_in_one_call_has_the_limits_of_a_web_service(caplog: pytest.LogCaptureFixture) -> None:
    """It logs no warning."""
    service = create_app(AsyncSwarm(ScriptedModel([]).client()), agents=Agent(), auth=local_only)
    async with service.lifespan():
        assert service.runs.limits == Limits.web()
    assert not warnings(caplog)
