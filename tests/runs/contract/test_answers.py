"""Calls that wait, and their answers: promises of every implementation of `Runs`."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import anyio
import pytest

from aswarm import ConfigurationError, RunError, tool
from aswarm.middleware import Handlers
from aswarm.runs import AnswersRefused, CallAnswer, ConversationNotFound, NewRun, Run, RunRecord, fold
from aswarm.testing import call
from tests.support.runs.kept_runs import Open, Workshop, also_durable, entries_of

ERASE = [call("erase", call_id="e", name="draft"), "It is gone."]


@also_durable("postgres")
async def test_an_answer_resumes_the_conversation(place: Open, workshop: Workshop) -> None:
    """The answer is a new run. The same answer again gives that run, and runs nothing twice."""
    async with place(ERASE) as it:
        asked = await it.waiting()
        answered = await asked.answer({"e": True})
        assert (await answered.last_entry()).response["text"] == "It is gone."
        assert (await asked.answer({"e": True})).id == answered.id
        assert workshop.erased == ["draft"]


@also_durable("postgres")
@pytest.mark.processes
@pytest.mark.parametrize("message", [None, "Never mind."])
async def test_a_run_that_was_answered_waits_no_more(place: Open, message: str | None) -> None:
    """Its record has the status "waiting" until the next run of the conversation answers its calls, or closes them."""
    async with place(ERASE) as it:
        asked = await it.waiting()
        record = await it.runs.get(asked.id, user="ann")
        assert (record.status, record.reason, record.state) == ("waiting", "waiting", "waiting")
        assert (asked.record.status, asked.record.state) == ("waiting", "waiting")
        next_run = await (asked.answer({"e": True}) if message is None else it.start(message))
        assert (await it.runs.get(asked.id, user="ann")).state == "finished (continued)"
        await next_run.last_entry()
        assert [each.reason for each in await it.runs.list(user="ann")] == [None, "continued"]
        assert (await asked.last_entry()).response["stop"] == "waiting"


@also_durable("sqlite")
@pytest.mark.parametrize("own", [False, True])
async def test_settings_and_notes_outlive_a_question(place: Open, own: bool) -> None:
    """The run that answers has the settings of the run that waits, or its own. Later runs have none of them."""
    requests: list[Any] = []

    def script(request: Any) -> Any:
        requests.append(request.body)
        return ERASE[0] if len(requests) == 1 else ERASE[1]

    def notes(text: str) -> list[dict[str, Any]]:
        return [{"role": "user", "content": text}]

    async with place(script) as it:
        asked = await it.waiting(settings={"temperature": 0.1}, notes=notes("Page 1"))
        if own:
            answer = CallAnswer("e", run_id=asked.id, approve=True)
            new = NewRun("ann", "c", answers=[answer], settings={"temperature": 0.2}, notes=notes("Page 2"))
            answered = await it.runs.start(new)
        else:
            answered = await asked.answer({"e": True})
        await answered.last_entry()
        await (await it.start("Thanks.")).last_entry()
        assert "Page" not in str(await it.history())
    sent = [[each["content"] for each in body["messages"] if "Page" in str(each["content"])] for body in requests]
    assert sent == [["Page 1"], ["Page 2" if own else "Page 1"], []]
    assert [body.get("temperature") for body in requests] == [0.1, 0.2 if own else 0.1, None]


@also_durable("sqlite")
async def test_a_waiting_run_that_is_cancelled_has_closed_calls(place: Open, workshop: Workshop) -> None:
    """They did not run, and a later answer is refused. A second cancel changes nothing, and the conversation goes on."""
    calls = [ERASE[0], call("look", number=1), call("erase", call_id="f", name="note")]
    async with place([calls, "As you like."]) as it:
        asked = await it.waiting()
        assert (await asked.cancel("too late")).state == "stopped (too late)"
        assert (await asked.cancel()).reason == "too late"
        last, response = await asked.last_entry(), await asked.result()
        assert (last.type, response.stop, response.open_calls) == ("RunStopped", "cancelled", [])
        answers = [message["content"] for message in response.messages[1:]]
        assert answers == ["not run: interrupted", "found 1", "not run: interrupted"]
        assert (await it.history())[1:] == response.messages == fold(await entries_of(asked)).response_messages
        for decisions in ({"e": True, "f": True}, {"e": False, "f": False}):
            with pytest.raises(AnswersRefused, match="does not wait for an answer") as refused:
                await asked.answer(decisions)
            assert refused.value.code == "call_not_open"
        again = await it.start("Never mind.")
        assert (await again.result()).text == "As you like."
        assert workshop.erased == []


@also_durable("sqlite")
async def test_an_answer_that_is_sent_again_gets_the_active_run(place: Open, workshop: Workshop) -> None:
    """A user may click twice while the run of the first click goes on."""
    async with place([ERASE[0], call("slow"), "It is gone."]) as it:
        asked = await it.waiting()
        answered = await asked.answer({"e": True})
        await workshop.began.wait()
        assert (await asked.answer({"e": True})).id == answered.id
        with pytest.raises(AnswersRefused):
            await asked.answer({"e": False})
        workshop.go.set()
        await answered.last_entry()
        assert workshop.erased == ["draft"]


@also_durable("sqlite")
async def test_an_answer_must_fit(place: Open, workshop: Workshop) -> None:
    """Unknown calls, missing answers, invalid decisions and unknown conversations are refused before anything starts."""
    async with place([[call("erase", call_id="1", name="a"), call("erase", call_id="2", name="b")]]) as it:
        asked = await it.waiting()
        for call_id, code in [("9", "call_not_open"), ("1", "answers_missing")]:
            with pytest.raises(AnswersRefused) as refused:
                await asked.answer({call_id: True})
            assert refused.value.code == code
        for wrong, text in (
            ({"1": {"denied": "no"}}, "a decision is True, False"),
            (True, "needs a dict of decisions by call"),
        ):
            with pytest.raises(ConfigurationError, match=text):
                await asked.answer(wrong)
        with pytest.raises(ConversationNotFound):
            await it.runs.start(NewRun("ann", "none", answers=[CallAnswer("1", approve=True)]))
        assert workshop.erased == []
        assert len(await it.runs.list(user="ann")) == 1


async def test_a_new_message_closes_open_calls(place: Open, workshop: Workshop) -> None:
    """After a message in place of an answer, the history and the log have the call as not run."""
    async with place([ERASE[0], "As you like."]) as it:
        await it.waiting()
        folded = fold(await entries_of(await it.start("Never mind.")))
        assert (await it.history())[2:] == folded.messages
        assert "not run" in folded.messages[0]["content"]
        assert workshop.erased == []


@also_durable("sqlite")
async def test_two_cancels_of_a_waiting_run_at_once(place: Open, workshop: Workshop) -> None:
    """Both return the stopped run, and its calls are closed once."""
    async with place(ERASE) as it:
        run = await it.waiting()
        records: list[RunRecord] = []

        async def cancel() -> None:
            records.append(await it.runs.cancel(run.id, user="ann"))

        async with anyio.create_task_group() as group:
            group.start_soon(cancel)
            group.start_soon(cancel)
        assert [record.status for record in records] == ["stopped", "stopped"]
        roles = [message["role"] for message in await it.history()]
        assert (workshop.erased, roles.count("tool")) == ([], 1)


@also_durable("sqlite")
async def test_an_answer_whose_run_had_no_middleware_can_be_sent_again(place: Open, workshop: Workshop) -> None:
    """A middleware fails before the call starts, and is mended. A click on the first question then runs the call."""
    is_mended = True

    def connects(handlers: Handlers) -> Handlers:
        if not is_mended:
            raise ConfigurationError("no connection")
        return handlers

    async with place(ERASE, middleware=[connects]) as it:
        asked = await it.waiting()
        is_mended = False
        for _ in range(2):
            with pytest.raises(RunError, match="no connection"):
                await (await asked.answer({"e": True})).result()
        is_mended = True
        answered = await asked.answer({"e": True})
        assert (await answered.result()).text == "It is gone."
        assert (await asked.answer({"e": True})).id == answered.id
        assert workshop.erased == ["draft"]


@also_durable("sqlite")
async def test_an_answer_whose_run_did_nothing_can_be_sent_again(place: Open, workshop: Workshop) -> None:
    """The agent was invalid, and has been mended. Only the `key` of a request still gives the failed run."""
    boss, clerk = workshop.agents()
    functions = boss.functions
    async with place(ERASE, agents=[boss, clerk]) as it:
        asked = await it.waiting()
        boss.functions = [*functions, tool(name="erase")(lambda: "erased twice")]
        failed: list[Run] = []
        for key in (None, None, "k"):
            failed.append(await asked.answer({"e": True}, key=key))
            with pytest.raises(RunError, match="two different functions named 'erase'"):
                await failed[-1].result()
        assert len({run.id for run in failed}) == 3
        boss.functions = functions
        assert (await asked.answer({"e": True}, key="k")).id == failed[2].id
        answered: list[Run] = []

        async def answer(run: Run) -> None:
            answered.append(await run.answer({"e": True}))

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(answer, asked)
        assert {(await run.result()).text for run in answered} == {"It is gone."}
        for run in (asked, *failed):
            with suppress(AnswersRefused):
                await answer(run)
        assert {run.id for run in answered} - {run.id for run in failed} == {answered[0].id}
        assert workshop.erased == ["draft"]
