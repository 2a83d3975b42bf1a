"""A conversation is deleted in one transaction with its runs: beside a message or an answer, one of the two is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from aswarm.runs import AnswersRefused, CallAnswer, ConversationNotFound, NewRun, RequestRefused, RunActive
from aswarm.testing import call
from tests.support.runs.kept_runs import Open, Workshop, also_durable

ERASE = [call("erase", name="a file", call_id="e"), "It is gone."]


def before(monkeypatch: pytest.MonkeyPatch, runs: Any, method: str, act: Callable[[], Any]) -> None:
    """Call `act` once, directly before a method of the runs."""
    original, acts = getattr(runs, method), [act]

    async def call_first(*arguments: Any) -> Any:
        if acts:
            await acts.pop()()
        return await original(*arguments)

    monkeypatch.setattr(runs, method, call_first)


@also_durable("postgres")
async def test_a_deleted_conversation_leaves_nothing(place: Open) -> None:
    """Neither its runs nor its messages. An unknown conversation cannot be deleted."""
    async with place(["Hello.", "Hello again."]) as it:
        runs = [await it.start(), await it.start(conversation="other")]
        for run in runs:
            await run.last_entry()
        with pytest.raises(ConversationNotFound):
            await it.runs.delete_conversation("c", user="bob")
        await it.runs.delete_conversation("c", user="ann")
        assert [await it.has(run) for run in runs] == [False, True]
        assert await it.store.load("ann/c") is None
        assert await it.store.load("ann/other") is not None
        with pytest.raises(ConversationNotFound):
            await it.runs.delete_conversation("c", user="ann")


async def test_a_conversation_with_an_active_run_is_not_deleted(place: Open, workshop: Workshop) -> None:
    """Its earlier runs stay too."""
    async with place(["Hello.", call("slow"), "Done."]) as it:
        await (await it.start()).last_entry()
        run = await it.start_slow()
        with pytest.raises(RunActive):
            await it.runs.delete_conversation("c", user="ann")
        workshop.go.set()
        await run.last_entry()
        assert len(await it.runs.list(user="ann")) == 2
        roles = [message["role"] for message in await it.history()]
        assert roles == ["user", "assistant", "user", "assistant", "tool", "assistant"]


@pytest.mark.parametrize("request_", ["answer", "message", "regenerate"])
async def test_a_request_beside_a_faster_deletion_starts_nothing(
    place: Open, workshop: Workshop, monkeypatch: pytest.MonkeyPatch, request_: str
) -> None:
    """It has loaded the conversation, which is deleted before its run is recorded."""
    async with place(lambda _: ERASE[0]) as it:
        run = await it.waiting()
        before(monkeypatch, it.runs.registry, "start", lambda: it.runs.delete_conversation("c", user="ann"))
        new = {
            "answer": NewRun("ann", "c", answers=[CallAnswer("e", run_id=run.id, approve=True)]),
            "message": NewRun("ann", "c", "And now?"),
            "regenerate": NewRun("ann", "c", regenerate=True),
        }[request_]
        with pytest.raises(RequestRefused) as refused:
            await it.runs.start(new)
        assert refused.value.code in ("conversation_not_found", "nothing_new")
        assert (workshop.erased, await it.runs.list(user="ann")) == ([], [])
        assert await it.store.load("ann/c") is None


@pytest.mark.parametrize("forgets", [False, True])
async def test_a_deletion_beside_a_faster_answer_deletes_nothing(
    place: Open, workshop: Workshop, monkeypatch: pytest.MonkeyPatch, forgets: bool
) -> None:
    """The answer has started its run before the deletion reaches the database."""
    async with place(ERASE) as it:
        run, runs = await it.waiting(), []

        async def answer() -> None:
            runs.append(await run.answer({"e": True}))

        before(monkeypatch, it.runs.registry.deleter, "before", answer)
        with pytest.raises(RunActive):
            await (it.runs.forget if forgets else it.runs.delete_conversation)("c", user="ann")
        assert (await runs[0].result()).text == "It is gone."
        assert (workshop.erased, await it.has(run), len(await it.history())) == (["a file"], True, 4)


async def test_a_message_that_waited_does_not_continue_a_deleted_conversation(place: Open, workshop: Workshop) -> None:
    """Its conversation is deleted before the end of the run that it waits for, so the message is refused."""
    async with place([call("slow"), "Done.", "And now this."]) as it:
        run = await it.start_slow()
        refusals: list[RequestRefused] = []

        async def wait() -> None:
            with pytest.raises(RequestRefused) as refused:
                await it.start("And now?", while_running="wait")
            refusals.append(refused.value)

        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await anyio.sleep(0.1)
            await it.store.delete("ann/c")
            workshop.go.set()
            await run.last_entry()
        assert isinstance(refusals[0], ConversationNotFound)


async def test_a_cancel_beside_an_answer(place: Open, workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancel that is faster refuses the answer; a cancel that is later does not stop the run of the answer."""
    async with place([ERASE[0], *ERASE]) as it:
        run = await it.waiting()
        before(monkeypatch, it.runs.registry, "start", lambda: it.runs.cancel(run.id, user="ann"))
        with pytest.raises(AnswersRefused):
            await run.answer({"e": True})
        assert (workshop.erased, (await it.runs.get(run.id, user="ann")).status) == ([], "stopped")
        run = await it.waiting()
        answered = await run.answer({"e": True})
        assert (await it.runs.cancel(run.id, user="ann")).status == "finished"
        assert (await answered.result()).text == "It is gone."


@also_durable("sqlite")
async def test_old_runs_are_deleted_beside_an_answer(
    place: Open, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run of the answer stays, and the run that has waited may be deleted."""
    async with place(["Hello.", *ERASE]) as it:
        old, runs = await it.start(conversation="old"), []
        await old.last_entry()
        run = await it.waiting()

        async def answer() -> None:
            runs.append(await run.answer({"e": True}))

        before(monkeypatch, it.runs.registry.deleter, "before", answer)
        monkeypatch.setattr(it.runs.registry.deleter, "limits", type(it.runs.limits)(kept_runs=0))
        await it.forget_old()
        assert not await it.has(old)
        assert (await runs[0].result()).text == "It is gone."
        assert workshop.erased == ["a file"]


async def test_a_run_beyond_the_limits_may_be_deleted_meanwhile(place: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its calls are closed no more."""
    async with place([ERASE[0]]) as it:
        await it.waiting()
        before(monkeypatch, it.runs.registry.deleter, "delete", lambda: it.runs.delete_conversation("c", user="ann"))
        monkeypatch.setattr(it.runs.registry.deleter, "limits", type(it.runs.limits)(waiting_runs_per_user=0))
        await it.forget_old()
        assert await it.runs.list(user="ann") == []
