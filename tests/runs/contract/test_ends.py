"""The end of a run: promises of every implementation of `Runs` about results, cancelling, readers and the end of the process."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from aswarm import RunError
from aswarm.runs import Limits, ShuttingDown, TooManyRuns
from aswarm.testing import Failure, call
from tests.support.runs.kept_runs import Open, Workshop, also_durable, entries_of


async def test_a_cancelled_run_lists_its_unknown_calls(place: Open) -> None:
    """Stopping returns after the end of the tools; the first reason counts, and the conversation goes on."""
    async with place([call("slow"), "Go on."]) as it:
        run = await it.start_slow()
        record = await run.cancel()
        assert record == run.record == await it.runs.get(run.id, user="ann")
        assert (record.status, record.reason) == ("stopped", "cancelled")
        last, response = await run.last_entry(), await run.result()
        assert (last.type, last.fields["reason"], response.stop) == ("RunStopped", "cancelled", "cancelled")
        assert [each.name for each in response.unknown_calls] == ["slow"]
        assert (await run.cancel("again")).reason == "cancelled"
        assert (await (await it.start("And?")).last_entry()).type == "RunFinished"


@also_durable("postgres")
@pytest.mark.parametrize(
    ("script", "status"), [(["Done."], "finished"), ([call("look", number=1), Failure(400, "broken")], "failed")]
)
async def test_cancelling_an_ended_run_changes_nothing(place: Open, script: Any, status: str) -> None:
    """It does not raise the error of a failed run either. `result` does."""
    async with place(script) as it:
        run = await it.start()
        await run.last_entry()
        assert (await run.cancel()).status == (await it.runs.get(run.id, user="ann")).status == status
        if status == "failed":
            with pytest.raises(RunError, match="broken") as raised:
                await run.result()
            assert raised.value.response is not None
            assert raised.value.response.messages[-1]["content"] == "found 1"


@also_durable("sqlite")
@pytest.mark.parametrize("wait", ["entries", "last_entry", "result", "cancel"])
async def test_the_record_of_a_run_is_current_after_its_end(place: Open, wait: str) -> None:
    """Each method that waits for the end updates it."""
    async with place() as it:
        run = await it.start()
        await (entries_of(run) if wait == "entries" else getattr(run, wait)())
        assert run.record == await it.runs.get(run.id, user="ann")
        assert not run.record.is_running


@also_durable("sqlite")
async def test_a_run_has_a_response(place: Open) -> None:
    """`result` is the response of a run without a record: messages, agent, context variables, usage, stop."""
    async with place() as it:
        run = await it.start()
        response = await run.result()
        assert (response.text, response.stop, response.agent.name) == ("All is well.", "answer", "Clerk")
        assert response.run_id == run.id
        assert response.messages == (await it.history())[1:]
        assert response.usage.requests == 3


async def test_the_end_is_read_without_the_whole_log(place: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """`last_entry`, and cancelling a run that is over, read the last entry only."""
    async with place() as it:
        run = await it.start()
        last = await run.last_entry()
        read, positions = it.runs.registry.read, list[int]()

        async def counted(run_id: str, after: int, user: str) -> Any:
            positions.append(after)
            return await read(run_id, after, user)

        monkeypatch.setattr(it.runs.registry, "read", counted)
        assert await run.last_entry() == last
        await run.cancel()
        assert set(positions) == {last.seq - 1}


@also_durable("sqlite")
async def test_a_run_that_fails_is_kept(place: Open) -> None:
    """The log ends with the error; the text for readers contains nothing of it, and the conversation goes on."""
    async with place([Failure(400, "secret"), "Better."]) as it:
        last = await (await it.start()).last_entry()
        assert last.type == "RunFailed"
        assert "secret" in last.fields["error"]["message"]
        assert "secret" not in last.fields["error"]["public_message"]
        assert (await it.runs.list(user="ann"))[0].status == "failed"
        assert (await (await it.start("Again")).last_entry()).response["text"] == "Better."


# --- readers that leave -----------------------------------------------------------------------------------------------


async def test_a_run_may_end_with_its_last_reader(place: Open) -> None:
    """With "cancel" the run is stopped when the last of two readers leaves."""
    async with place([call("slow")]) as it:
        run = await it.start_slow(on_disconnect="cancel")
        with run._registry.notifier.reading(run.record):
            with run._registry.notifier.reading(run.record):
                pass
            await anyio.sleep(0.05)
            assert (await it.runs.get(run.id, user="ann")).is_running
        last = await run.last_entry()
        assert (last.type, last.fields["reason"]) == ("RunStopped", "no_reader")


async def test_a_run_may_wait_for_a_reader_for_some_seconds(place: Open, workshop: Workshop) -> None:
    """With a number it is stopped after so many seconds without a reader; a reader that returns in time keeps it."""
    async with place([call("slow"), call("slow")]) as it:
        kept = await it.start(conversation="kept", on_disconnect=3600)
        stopped = await it.start(on_disconnect=0.2)
        with kept._registry.notifier.reading(kept.record):
            await workshop.began.wait()
        assert (await stopped.last_entry()).fields["reason"] == "no_reader"
        with kept._registry.notifier.reading(kept.record):
            assert (await it.runs.get(kept.id, user="ann")).is_running


# --- the end of the process -------------------------------------------------------------------------------------------


@also_durable("sqlite")
async def test_draining_starts_nothing_and_stops_slow_runs(place: Open) -> None:
    """A new run is refused; a run that does not end in time is stopped and kept, or requeued, also if its reader leaves."""
    async with place([call("slow")]) as it:
        run = await it.start_slow(on_disconnect="cancel")
        async with anyio.create_task_group() as group:
            with run._registry.notifier.reading(run.record):
                group.start_soon(it.runs.drain, 0.2)
                await anyio.wait_all_tasks_blocked()
                assert run._registry.notifier.is_draining
            with pytest.raises(ShuttingDown):
                await it.start(conversation="other")
        if it.hands_back:
            assert (await it.runs.get(run.id, user="ann")).is_running
            return
        last = await run.last_entry()
        assert (last.type, last.fields["reason"]) == ("RunStopped", "shutdown")
        assert "unknown" in (await it.history())[-1]["content"]


@also_durable("postgres")
@pytest.mark.parametrize("while_running", ["wait", "replace"])
async def test_draining_refuses_a_message_that_waits(place: Open, while_running: str) -> None:
    """The message waits for the active run, which draining stops; then it starts no run."""
    async with place([call("slow"), "Yes."], limits=Limits(runs_per_user=1)) as it:
        run, refused = await it.start_slow(), list[type[Exception]]()

        async def ask() -> None:
            try:
                await it.start("Are you there?", while_running=while_running)
            except (ShuttingDown, TooManyRuns) as error:
                refused.append(type(error))

        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                group.start_soon(ask)
                if while_running == "wait":
                    group.start_soon(ask)
                    while not refused:  # then the other message waits
                        await anyio.sleep(0.005)
                await it.runs.drain(0)
        assert refused == ([TooManyRuns, ShuttingDown] if while_running == "wait" else [ShuttingDown])
        assert [record.id for record in await it.runs.list(user="ann")] == [run.id]


async def test_draining_waits_for_runs_that_end(place: Open, workshop: Workshop) -> None:
    """A run that ends in time is whole."""
    async with place([call("slow"), "Done."]) as it:
        run = await it.start_slow()
        workshop.go.set()
        await it.runs.drain(10)
        assert (await run.last_entry()).type == "RunFinished"
