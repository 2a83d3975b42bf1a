"""A run that is stopped while one of its calls waits has one answer for each call, in its log and in its conversation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, Hold, Reply, RunError, agent_tool, current_call, tool
from aswarm.conversations import Change, Conflict, Conversation, MemoryStore, Stored
from aswarm.middleware import Handlers, Started, ToolCall, ToolOutcome
from aswarm.runs import AnswersRefused, CallAnswer, Limits, LocalRuns, NewRun, Run
from aswarm.testing import ScriptedModel, call, check_history
from aswarm.tools import ToolFailure
from aswarm.types import UnknownCall
from tests.support.runtime.virtual_time import jump

INTERRUPTED, OUTCOME_UNKNOWN = "not run: interrupted", "cancelled; its outcome is unknown"
HI = {"role": "user", "content": "Hi"}


@tool(approve=True)
async def pay() -> str:
    return "paid"


async def look() -> str:
    return "looked"


async def started(runs: LocalRuns, conversation: str | None = "c") -> Run:
    return await runs.start(NewRun("ann", conversation, messages="Hi"))


async def history_of(runs: LocalRuns) -> Stored:
    stored = await runs.store.load("ann/c")
    assert stored is not None
    return stored


async def test_an_answer_to_a_run_whose_call_waits_in_a_later_run() -> None:
    """An approved call asks a question, so the later run waits for it. The error names the remedy."""

    @tool(approve=True, may_wait=True)
    async def pay_to() -> str:
        raise Hold("to whom?")

    model = ScriptedModel([call("pay_to", call_id="1"), "Paid."])
    async with LocalRuns(AsyncSwarm(model.client()), agents=Agent(functions=[pay_to])) as runs:
        run = await started(runs)
        assert (await run.result()).stop == "waiting"
        later = await run.answer({"1": True})
        assert (await later.result()).stop == "waiting"
        with pytest.raises(
            AnswersRefused, match="Another run waits for this call: load the open calls, and answer that run"
        ):
            await run.answer({"1": "Ann"})
        assert (await (await later.answer({"1": "Ann"})).result()).text == "Paid."


async def test_a_run_that_is_cancelled_while_a_call_waits_and_others_run_leaves_no_call_open() -> None:
    """Nobody can approve the call afterwards. A repeatable call that had started has an unknown outcome."""
    began = anyio.Event()

    @tool(repeatable=True)
    async def poll() -> str:
        began.set()
        await anyio.sleep_forever()
        return "polled"

    model = ScriptedModel([[call("pay", call_id="1"), call("poll", call_id="2"), call("look", call_id="3")]])
    agent = Agent(functions=[pay, poll, look])
    async with LocalRuns(AsyncSwarm(model.client()), agents=agent) as runs:
        run = await started(runs)
        await began.wait()
        assert (await run.cancel()).reason == "cancelled"
        response = await run.result()
        with pytest.raises(AnswersRefused, match="does not wait for an answer"):
            await run.answer({"1": True})
        stored = await history_of(runs)
    assert (response.stop, response.open_calls, stored.open_calls) == ("cancelled", [], [])
    for history in (response.messages, stored.messages[1:]):
        answers = {each["tool_call_id"]: each["content"] for each in history if each["role"] == "tool"}
        assert answers == {"1": INTERRUPTED, "2": OUTCOME_UNKNOWN, "3": "looked"}
        check_history(history)
    assert [each.id for each in response.unknown_calls] == ["2"]
    assert stored.unknown_calls == response.unknown_calls


@pytest.mark.parametrize("ends", ["time_limit", "failure"])
async def test_the_open_calls_of_a_run_that_ended_otherwise_can_be_closed(ends: str) -> None:
    """Its end does not change. A second cancel changes nothing."""

    async def work() -> str:
        if ends == "failure":
            raise LookupError
        jump(60)
        await anyio.sleep_forever()
        return "worked"

    model = ScriptedModel([[call("pay", call_id="1"), call("work", call_id="2")]])

    def end_run(failure: ToolFailure) -> str:
        raise failure.error

    swarm = AsyncSwarm(model.client(), tool_error=end_run)
    async with LocalRuns(swarm, agents=Agent(functions=[pay, work]), limits=Limits(run_seconds=60)) as runs:
        run = await started(runs)
        before = await run.last_entry()
        assert [each["id"] for each in before.response["waiting"]] == ["1"]
        first = await run.cancel()
        after = await run.last_entry()
        assert await run.cancel() == first
        with pytest.raises(AnswersRefused):
            await run.answer({"1": True})
        stored = await history_of(runs)
    assert (after.type, after.fields.get("reason")) == (before.type, before.fields.get("reason"))
    assert after.response["stop"] == before.response["stop"]
    assert (after.response["waiting"], stored.open_calls, stored.stop) == ([], [], before.response["stop"])


async def test_an_answer_that_replaces_a_run_continues_its_waiting_call() -> None:
    """Only `cancel()` closes the open calls. A request that stops the run may answer them."""
    began = anyio.Event()

    async def work() -> str:
        began.set()
        await anyio.sleep_forever()
        return "worked"

    model = ScriptedModel([[call("pay", call_id="1"), call("work", call_id="2")], "Paid."])
    async with LocalRuns(AsyncSwarm(model.client()), agents=Agent(functions=[pay, work])) as runs:
        run = await started(runs)
        await began.wait()
        answers = [CallAnswer("1", run_id=run.id, approve=True)]
        later = await runs.start(NewRun("ann", "c", answers=answers, while_running="replace"))
        assert (await later.result()).text == "Paid."
        assert (await run.last_entry()).fields["reason"] == "replaced"


async def test_a_resumed_run_has_its_answers_in_the_order_of_the_calls() -> None:
    """It has answered the last call, and its first two calls wait again."""

    @tool(may_wait=True)
    async def ask(number: int) -> str:
        if current_call().answer != "go":
            raise Hold(f"{number}?")
        return f"{number}!"

    model = ScriptedModel([[call("ask", call_id=str(number), number=number) for number in (1, 2, 3)]])
    async with LocalRuns(AsyncSwarm(model.client()), agents=Agent(functions=[ask])) as runs:
        first = await started(runs)
        await first.result()
        second = await first.answer({"1": Reply("wait"), "2": Reply("wait"), "3": Reply("go")})
        assert [each.id for each in (await second.result()).open_calls] == ["1", "2"]
        await second.cancel()
        response, stored = await second.result(), await runs.store.load("ann/c")
    assert stored is not None
    assert [message["tool_call_id"] for message in response.messages] == ["1", "2", "3"]
    assert response.messages == stored.messages[2:]
    assert [message["content"] for message in response.messages] == [INTERRUPTED, INTERRUPTED, "3!"]
    check_history(stored.messages)


async def test_a_run_that_a_conversation_has_answered_is_not_stopped() -> None:
    """A `Conversation` over the same store leaves no mark in the log of the run. Its own calls stay open."""
    model = ScriptedModel([call("pay", call_id="1"), call("pay", call_id="2"), "Paid twice."])
    async with (
        MemoryStore() as store,
        AsyncSwarm(model.client()) as swarm,
        LocalRuns(swarm, store=store, agents=(agent := Agent(functions=[pay]))) as runs,
    ):
        run = await started(runs)
        await run.last_entry()
        chat = Conversation(store, "ann/c", swarm, agent=agent)
        assert (await chat.resume({"1": True})).stop == "waiting"
        before = await store.load("ann/c")
        assert (await run.cancel()).reason == "waiting"
        assert await store.load("ann/c") == before
        assert (await chat.resume({"2": True})).text == "Paid twice."


@pytest.mark.parametrize("conversation", ["c", None])
async def test_a_call_in_which_a_function_has_run_has_an_unknown_outcome(conversation: str | None) -> None:
    """It is listed, so that a program does not repeat the effect."""
    inner = Agent(name="Inner", functions=[pay, look])
    outer = Agent(functions=[agent_tool(inner)])
    model = ScriptedModel([call("inner", call_id="i", request="Go"), [call("look"), call("pay", call_id="p")]])
    async with LocalRuns(AsyncSwarm(model.client()), agents=outer) as runs:
        run = await started(runs, conversation)
        assert (await run.result()).stop == "waiting"
        await run.cancel()
        response = await run.result()
        stored = await runs.store.load("ann/c")
    assert response.messages[-1]["content"] == OUTCOME_UNKNOWN
    assert [each.id for each in response.unknown_calls] == ["i"]
    assert stored is None if conversation is None else stored and stored.unknown_calls == response.unknown_calls


@pytest.mark.parametrize("is_answered", [True, False])
async def test_a_call_with_the_id_of_an_unknown_call_did_not_run(is_answered: bool) -> None:
    """A provider may give all calls of a message one id; only the call that has started has an unknown outcome."""
    calls = [
        {"id": "same", "type": "function", "function": {"name": name, "arguments": f'{{"n": {number}}}'}}
        for number, name in enumerate(("look", "pay", "look"))
    ]
    head = {"role": "assistant", "content": None, "tool_calls": calls}
    answer = {"role": "tool", "tool_call_id": "same", "tool_name": "look", "content": OUTCOME_UNKNOWN}
    unknown = [UnknownCall("same", "look", '{"n": 0}', "Agent")]
    # The process died while the first function ran; its answer was recorded, or not yet.
    messages = [HI, head, *([answer] if is_answered else [])]
    async with MemoryStore() as store, AsyncSwarm(ScriptedModel(["As you like."]).client()) as swarm:
        await store.write("c", Change("", "1", 0, messages, "Agent", {}, "waiting", unknown))
        await Conversation(store, "c", swarm, agent=Agent(functions=[pay, look])).run("Never mind")
        stored = await store.load("c")
    assert stored is not None
    texts = [message["content"] for message in stored.messages if message["role"] == "tool"]
    assert texts == [OUTCOME_UNKNOWN, INTERRUPTED, INTERRUPTED]


def loses_the_first_call(handlers: Handlers) -> Handlers:
    """Wrap a run with a middleware for which the outcome of the first call is unknown."""

    async def call_tool(each: ToolCall, context: dict[str, Any], started: Started, /) -> ToolOutcome:
        if each.index == 0:
            return ToolOutcome(OUTCOME_UNKNOWN, unknown=True)
        return await handlers.call_tool(each, context, started)

    return replace(handlers, call_tool=call_tool)


async def test_a_call_that_waits_beside_an_unknown_call_with_its_id_did_not_run() -> None:
    """The log tells the two calls apart by their positions, as the conversation does."""
    model = ScriptedModel([[call("pay", call_id="same"), call("pay", call_id="same")]])
    swarm = AsyncSwarm(model.client(), middleware=[loses_the_first_call])
    async with LocalRuns(swarm, agents=Agent(functions=[pay])) as runs:
        run = await started(runs)
        assert [each.index for each in (await run.result()).open_calls] == [1]
        await run.cancel()
        response, stored = await run.result(), await history_of(runs)
    assert [message["content"] for message in response.messages[1:]] == [OUTCOME_UNKNOWN, INTERRUPTED]
    assert stored.messages[1:] == response.messages
    assert stored.unknown_calls == response.unknown_calls == [UnknownCall("same", "pay", "{}", "Agent")]


async def test_a_resumed_run_that_is_cancelled_has_its_answers_after_those_of_the_earlier_run() -> None:
    """The conversation is the messages of the two runs, one after the other."""

    @tool(may_wait=True)
    async def ask() -> str:
        raise Hold(f"{current_call().answer}?")

    model = ScriptedModel([[call("ask", call_id="1"), call("look", call_id="2")], "Never."])
    async with LocalRuns(AsyncSwarm(model.client()), agents=Agent(functions=[ask, look])) as runs:
        first = await started(runs)
        asked = (await first.result()).messages
        assert [message["content"] for message in asked[1:]] == ["looked"]
        second = await first.answer({"1": Reply("wait")})
        await second.result()
        await second.cancel()
        response, stored = await second.result(), await history_of(runs)
    assert stored.messages == [HI, *asked, *response.messages]
    check_history(stored.messages, ordered=False)


async def test_a_cancel_beside_a_write_of_another_program_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first transaction finds the change of the other program, and the second one closes the call."""
    swarm = AsyncSwarm(ScriptedModel([call("pay", call_id="1")]).client())
    async with LocalRuns(swarm, agents=Agent(functions=[pay])) as runs:
        run = await started(runs)
        await run.result()
        submit, conflicts = runs._database.submit, [Conflict("ann/c", None)]

        async def fail_once(work: Any, **options: bool) -> Any:
            if options.get("durable") and conflicts:
                raise conflicts.pop()
            return await submit(work, **options)

        monkeypatch.setattr(runs._database, "submit", fail_once)
        assert (await run.cancel()).status == "stopped"
        stored = await history_of(runs)
    assert (stored.open_calls, conflicts) == ([], [])


async def test_a_run_that_cannot_start_leaves_the_call_open_until_it_is_cancelled() -> None:
    """Its agent is invalid now. The run has no messages."""

    def other() -> str:
        return "paid twice"

    agent = Agent(functions=[pay])
    async with LocalRuns(AsyncSwarm(ScriptedModel([call("pay", call_id="1")]).client()), agents=agent) as runs:
        run = await started(runs)
        await run.result()
        agent.functions = [pay, tool(name="pay")(other)]
        failed = await run.answer({"1": True})
        with pytest.raises(RunError, match="two different functions named 'pay'"):
            await failed.result()
        assert [each.id for each in (await history_of(runs)).open_calls] == ["1"]
        assert (await failed.cancel()).state == "failed (ConfigurationError)"
        stored = await history_of(runs)
    assert stored.open_calls == []
    assert stored.messages[-1]["content"] == INTERRUPTED
