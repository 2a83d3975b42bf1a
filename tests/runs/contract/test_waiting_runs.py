"""A run that waits for an answer is kept as long as it waits, and an answer never reaches another question."""

from __future__ import annotations

import pytest

from aswarm import AsyncSwarm, Reply
from aswarm.conversations import Conversation
from aswarm.runs import AnswersRefused, CallAnswer, Limits, NewRun
from aswarm.testing import ScriptedModel, call
from tests.support.runs.kept_runs import Open, Workshop, also_durable

BOOK = [call("book", call_id="b"), "Booked."]
NOTHING_KEPT = Limits(kept_runs=0, kept_seconds=0, kept_bytes=0)


async def test_a_repeated_answer_does_not_answer_the_next_question(place: Open, workshop: Workshop) -> None:
    """Also after the logs were deleted. The second question keeps its run, and gets its own answer."""
    async with place(BOOK, limits=NOTHING_KEPT) as it:
        first = await it.waiting()
        day = NewRun("ann", "c", answers=[CallAnswer("b", run_id=first.id, data="Monday")])
        second = await it.runs.start(day)
        assert (await second.result()).stop == "waiting"
        await it.forget_old()
        assert (await it.has(first), await it.has(second)) == (False, True)
        again = await it.runs.start(day)
        assert (again.id, again.record.is_new, workshop.booked) == (second.id, False, [])
        with pytest.raises(AnswersRefused) as refused:
            await first.answer({"b": Reply("Tuesday")})
        assert (refused.value.code, workshop.booked) == ("call_not_open", [])
        third = await second.answer({"b": Reply("8")})
        assert (await third.result()).text == "Booked."
        assert workshop.booked == [("Monday", "8")]


async def test_an_answer_to_a_run_without_a_record_is_refused(place: Open, workshop: Workshop) -> None:
    """A run that is named must exist, also if the conversation still has the open call."""
    async with place(BOOK) as it:
        run = await it.waiting()
        await it.runs.forget("c", user="ann")
        with pytest.raises(AnswersRefused) as refused:
            await run.answer({"b": Reply("Monday")})
        assert (refused.value.code, workshop.booked) == ("call_not_open", [])


@also_durable("sqlite")
async def test_a_run_that_waits_is_kept(place: Open) -> None:
    """Whatever the limits of ended runs are. When it no longer waits, they apply."""
    async with place([BOOK[0], "Hello.", "Closed."], limits=NOTHING_KEPT) as it:
        run, other = await it.waiting(), await it.start(conversation="d")
        await other.last_entry()
        await it.forget_old()
        assert (await it.has(run), await it.has(other)) == (True, False)
        later = await it.start("Never mind.")
        await later.last_entry()
        await it.forget_old()
        assert (await it.has(run), await it.has(later)) == (False, False)


@also_durable("sqlite")
async def test_a_stopped_run_whose_call_waits_is_kept(place: Open, workshop: Workshop) -> None:
    """A request has stopped the run while another call was running. The waiting call can still be answered."""
    calls = [call("book", call_id="b"), call("slow", call_id="s")]
    async with place([calls, "Booked."], limits=Limits(kept_runs=0)) as it:
        run = await it.start_slow()
        wrong = [CallAnswer("other", run_id=run.id, approve=True)]
        with pytest.raises(AnswersRefused):
            await it.runs.start(NewRun("ann", "c", answers=wrong, while_running="replace"))
        assert (await run.last_entry()).fields["reason"] == "replaced"
        await it.forget_old()
        second = await run.answer({"b": Reply("Monday")})
        assert (await second.result()).stop == "waiting"
        with pytest.raises(AnswersRefused):
            await run.answer({"b": Reply("Tuesday")})
        assert workshop.booked == []


async def test_a_user_has_a_limited_number_of_waiting_runs(place: Open) -> None:
    """The oldest run is stopped, and its call is closed. The runs of other users stay."""
    async with place(lambda _: BOOK[0], limits=Limits(waiting_runs_per_user=1)) as it:
        old, new = await it.waiting("old"), await it.waiting("new")
        other = await it.waiting(user="bob")
        await it.forget_old()
        reasons = [(await it.runs.get(run.id, user=run.record.user)).reason for run in (old, new, other)]
        assert reasons == ["too_many_waiting", "waiting", "waiting"]
        with pytest.raises(AnswersRefused):
            await old.answer({"b": Reply("Monday")})
        assert (await it.history(conversation="old"))[-1]["role"] == "tool"


async def test_no_run_waits_in_a_deleted_conversation(place: Open) -> None:
    """A program has deleted the conversation alone. No answer can reach its run, so the log is an old log."""
    async with place(BOOK, limits=NOTHING_KEPT) as it:
        run = await it.waiting()
        await it.store.delete("ann/c")
        await it.forget_old()
        assert not await it.has(run)


@also_durable("postgres")
async def test_another_program_has_answered_the_question(place: Open, workshop: Workshop) -> None:
    """A `Conversation` has answered, and the next question waits. An answer to the run does not reach this question."""
    async with place([BOOK[0]]) as it, AsyncSwarm(ScriptedModel([]).client()) as swarm:
        run, (boss, clerk) = await it.waiting(), workshop.agents()
        chat = Conversation(it.store, "ann/c", swarm, agent=boss, agents=[clerk])
        assert (await chat.resume({"b": Reply("Monday")})).stop == "waiting"
        with pytest.raises(AnswersRefused) as refused:
            await run.answer({"b": Reply("Monday")})
        assert (refused.value.code, workshop.booked) == ("call_not_open", [])


async def test_a_copy_of_a_conversation_has_its_own_questions(place: Open, workshop: Workshop) -> None:
    """No run has asked them, so an answer must not name a run; repeated, it does not answer the next question."""
    async with place([*BOOK, "Again."]) as it:
        run = await it.waiting()
        await it.store.fork("ann/c", "ann/d")
        with pytest.raises(AnswersRefused) as refused:
            await it.runs.start(NewRun("ann", "d", answers=[CallAnswer("b", run_id=run.id, data="Monday")]))
        assert refused.value.code == "call_not_open"
        day = NewRun("ann", "d", answers=[CallAnswer("b", data="Monday")])
        second = await it.runs.start(day)
        assert (await second.result()).stop == "waiting"
        assert (await it.runs.start(day)).id == second.id
        with pytest.raises(AnswersRefused, match="does not name the run that waits"):
            await it.runs.start(NewRun("ann", "d", answers=[CallAnswer("b", data="Tuesday")]))
        assert workshop.booked == []
        await (await run.answer({"b": Reply("Friday")})).result()  # the questions of the original stay
