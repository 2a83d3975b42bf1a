"""`LocalRuns` over a database that fails, and beside other programs that write to it."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from aswarm import StoreError
from aswarm.runs import AnswersRefused, Limits, Run, ShuttingDown, fold
from aswarm.testing import Failure, ScriptedAnswer, call
from tests.support.runs.kept_runs import Workshop, elsewhere, entries_of, in_file, in_memory, reading, types_of
from tests.support.runtime.virtual_time import jump
from tests.support.sql.hooks import Failures, before_statements

APPEND, END, LOAD = (
    "SELECT id, ?, ?, ?, ? FROM aswarm_run",
    "SET status = ?, reason = ?, waits = ?, ended",
    "length, stop",
)


async def until_failed(failures: Failures, *texts: str) -> None:
    """Wait until all these failures have happened. The clock skips the seconds before the next attempts."""
    with anyio.fail_after(10_000):
        while any(failures[text] > 0 for text in texts):
            await anyio.sleep(0.02)
            jump(1)


async def test_a_log_that_fails_for_a_moment_loses_nothing(
    tmp_path: Path, failures: Failures, workshop: Workshop, caplog: pytest.LogCaptureFixture
) -> None:
    """The next attempt writes the entries: in the middle of a run, before a call, and at the end."""
    async with in_file(tmp_path, [call("slow"), "Done."], workshop) as place:
        failures[APPEND] = failures[END] = 3
        run = await place.start()
        await until_failed(failures, APPEND)
        jump(1)
        await workshop.began.wait()
        workshop.go.set()
        await until_failed(failures, END)
        jump(1)
        live = await entries_of(run)
        assert live == await entries_of(run)
        assert live[-1].type == "RunFinished"
        assert (await place.history())[-1]["content"] == "Done."
    assert "another attempt follows" in caplog.text


async def test_a_call_is_announced_after_the_commit_of_its_start(
    tmp_path: Path, failures: Failures, workshop: Workshop
) -> None:
    """Until then, a process that dies would leave no trace of the call. Then readers get everything, in order."""
    seen: list[str] = []

    async def read(run: Run) -> None:
        async for entry in run.entries():
            seen.append(entry.type)  # noqa: PERF401 - the list is read meanwhile

    async with in_file(tmp_path, [call("slow"), "Done."], workshop) as place:
        failures[APPEND] = 1_000
        run = await place.start()
        async with anyio.create_task_group() as group:
            group.start_soon(read, run)
            with anyio.fail_after(10_000):
                while failures[APPEND] > 995 or "CompletionFinished" not in seen:
                    await anyio.sleep(0.02)
                    jump(1)
                assert "ToolCallStarted" not in seen
                failures.clear()
                while not workshop.began.is_set() or "ToolCallStarted" not in seen:
                    await anyio.sleep(0.02)
                    jump(1)
            workshop.go.set()
        assert [kind for kind in seen if "Delta" not in kind] == [
            kind for kind in types_of(await entries_of(run)) if "Delta" not in kind
        ]


async def test_a_run_whose_end_cannot_be_written_is_ended_by_the_next_process(
    tmp_path: Path, failures: Failures, workshop: Workshop, caplog: pytest.LogCaptureFixture
) -> None:
    """The process ends all the same; the next one gives the run its one end, with everything that is recorded."""
    async with in_file(tmp_path, ["Done."], workshop) as place:
        failures[END] = 1_000
        run = await place.start()
        while failures[END] == 1_000:
            await anyio.sleep(0.01)
    assert "cannot be recorded" in caplog.text
    failures.clear()
    async with in_file(tmp_path, [], workshop) as place:
        found = await entries_of(elsewhere(run, place))
        assert found[-1].type == "RunFinished", types_of(found)  # all of it is recorded
        assert fold(found).messages == await place.history()
        assert (await place.history())[-1]["content"] == "Done."


async def test_failures_of_the_background_end_nothing(
    tmp_path: Path, failures: Failures, workshop: Workshop, caplog: pytest.LogCaptureFixture
) -> None:
    """They are logged; afterwards another process stops one run, and the other run ends without a reader."""
    texts = (
        "AND cancel IS NOT NULL",
        "SELECT last_read",
        "DISTINCT owner",
        "WHERE ended IS NOT NULL AND",
        "SET last_read",
    )
    async with (
        in_file(
            tmp_path, [call("slow"), call("slow")], workshop, failover_seconds=0.02, limits=Limits(kept_runs=9)
        ) as one,
        in_file(tmp_path, [], workshop) as two,
    ):
        run, unread = await one.start(), await one.start(conversation="d", on_disconnect=0.01)
        for text in texts:
            failures[text] = 4
        jump(61)
        with reading(elsewhere(unread, two)):
            await until_failed(failures, *texts[:3], texts[4])
        jump(61)
        await until_failed(failures, texts[3])
        with anyio.fail_after(10_000):
            assert (await elsewhere(run, two).cancel("enough")).reason == "enough"
            assert (await unread.last_entry()).fields["reason"] == "no_reader"
    for text in ("cannot be read; another", "readers of a run", "readers of runs", "old runs", "other processes"):
        assert text in caplog.text


async def test_an_end_that_cannot_be_made_ends_only_its_run(
    tmp_path: Path, workshop: Workshop, caplog: pytest.LogCaptureFixture
) -> None:
    """The run fails with that error; the others go on."""

    def text(error: BaseException) -> str:
        return "a fault" if isinstance(error, ZeroDivisionError) else str(1 / 0)

    script = [Failure(400, "broken"), call("slow"), "Done."]
    async with in_file(tmp_path, script, workshop, error_text=text) as place:
        with anyio.fail_after(60):
            last = await (await place.start(conversation="broken")).last_entry()
        assert (last.type, last.fields["error"]["type"]) == ("RunFailed", "ZeroDivisionError")
        run = await place.start()
        workshop.go.set()
        assert (await run.last_entry()).type == "RunFinished"
    assert "cannot be recorded" in caplog.text


async def test_a_store_that_fails_starts_nothing(failures: Failures, workshop: Workshop) -> None:
    """The error reaches the caller as a StoreError, and the conversation is free."""
    async with in_memory(["Here."], workshop) as place:
        for text in (LOAD, "insert INTO aswarm_conversation"):
            failures[text] = 1
            with pytest.raises(StoreError):
                await place.start()
            assert await place.runs.list(user="ann") == []
        assert (await (await place.start()).last_entry()).type == "RunFinished"


ERASE = [call("erase", call_id="e", name="draft"), "It is gone."]


async def test_a_store_that_fails_is_no_request_that_was_sent_twice(failures: Failures, workshop: Workshop) -> None:
    """The same answers again get the known run only if the calls are answered; an error of the store is raised."""
    async with in_memory(ERASE, workshop) as place:
        asked = await place.waiting()
        answered = await asked.answer({"e": True})
        await answered.last_entry()
        failures[LOAD] = 1
        with pytest.raises(StoreError):
            await asked.answer({"e": True})
        assert (await asked.answer({"e": True})).id == answered.id


# --- other writers of the conversation --------------------------------------------------------------------------------


def overtaken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the statements of another program, which run once, between a load of the conversation and the next write."""
    loaded, others = list[bool](), list[str]()

    def act(connection: sqlite3.Connection, statement: str) -> None:
        if LOAD in statement:
            loaded.append(True)
        elif others and loaded and statement.startswith("BEGIN IMMEDIATE"):
            changes = others.copy()
            others.clear()
            for change in changes:
                connection.execute(change)

    before_statements(monkeypatch, act)
    return others


async def test_an_approval_is_for_the_calls_that_its_user_saw(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If another writer changes the call before the run starts, the answer is refused, and no call runs."""
    others = overtaken(monkeypatch)
    async with in_memory(ERASE, workshop) as place:
        asked = await place.waiting()
        others += [
            "UPDATE aswarm_conversation SET revision = 'other'",
            "UPDATE aswarm_message SET data = replace(data, 'draft', 'everything')",
        ]
        with pytest.raises(AnswersRefused, match="another program has just changed the conversation"):
            await asked.answer({"e": True})
        assert workshop.erased == []
        assert len(await place.runs.list(user="ann")) == 1


async def test_a_conversation_that_changes_while_a_run_starts(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run starts after the messages of another writer that came between the load and the first write."""
    others = overtaken(monkeypatch)
    async with in_memory(["First.", "Yes."], workshop) as place:
        await (await place.start("One.")).last_entry()
        others += [
            "UPDATE aswarm_conversation SET revision = 'other', agent = 'Clerk'",
            "UPDATE aswarm_message SET data = replace(data, 'First.', 'Changed.')",
        ]
        await (await place.start("Two.")).last_entry()
        assert [message["content"] for message in await place.history()] == ["One.", "Changed.", "Two.", "Yes."]
        assert (await place.history())[3]["sender"] == "Clerk"


async def test_draining_waits_for_a_run_that_is_about_to_start(
    tmp_path: Path, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program holds the file meanwhile. The run is recorded and stopped, or refused; none starts later."""
    starts = threading.Event()
    with closing(sqlite3.connect(tmp_path / "chats.sqlite", isolation_level=None)) as other:
        before_statements(
            monkeypatch, lambda _, text: text == "BEGIN IMMEDIATE" and other.in_transaction and starts.set()
        )
        async with in_file(tmp_path, ["Here."], workshop) as place:
            other.execute("BEGIN IMMEDIATE")
            async with anyio.create_task_group() as group:
                group.start_soon(place.start)
                await anyio.to_thread.run_sync(starts.wait)
                group.start_soon(place.runs.drain, 0)
                await anyio.sleep(0.1)
                other.execute("ROLLBACK")
            (record,) = await place.runs.list(user="ann")
            assert (record.status, record.reason) == ("stopped", "shutdown")
            with pytest.raises(ShuttingDown):
                await place.start()


async def test_a_log_that_cannot_be_written_has_a_limit_too(
    tmp_path: Path, failures: Failures, workshop: Workshop
) -> None:
    """Entries that wait for the disk count: the run is stopped before it fills the memory."""
    limits = Limits(log_bytes=20_000)
    async with in_file(tmp_path, [ScriptedAnswer("x" * 20_000)], workshop, limits=limits) as place:
        failures[APPEND] = 1_000
        last = await (await place.start()).last_entry()
        assert (last.type, last.fields["reason"]) == ("RunStopped", "log_too_long")
