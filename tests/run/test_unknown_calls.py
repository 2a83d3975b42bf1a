"""Calls whose outcome is unknown: which ones a response lists, and which ones run again because they are repeatable."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, Response, ToolError, UnknownCall, function_tool, tool
from aswarm._run.outcome import ToolOutcome
from aswarm.middleware import Handlers, Started, ToolCall
from aswarm.testing import ScriptedModel, call, check_history
from tests.support.run.recording import USER, complete, contents, finish, one_turn, run_of, wire_call
from tests.support.run.ways_to_run import FACES, answers, cancel_when, swarm_of

UNKNOWN = "cancelled; its outcome is unknown"


@tool(repeatable=True)
async def search() -> str:
    """Search, with no effect."""
    return "found"


async def pay() -> str:
    """Pay."""
    return "paid"


BUYER = Agent(name="Buyer", functions=[search, pay])


def unknown(*positions: str, name: str = "pay") -> list[UnknownCall]:
    return [UnknownCall(position, name, "{}", "Buyer") for position in positions]


# --- what is listed ---


def test_a_call_that_was_cut_is_unknown() -> None:
    """It has begun and has no outcome. A call that ended, and one that never began, are not unknown."""
    state = run_of(agent=BUYER)
    complete(state, wire_call("1", "pay"), wire_call("2", "pay", '{"to": 7}'), wire_call("3", "pay"))
    assert state.response.unknown_calls == []
    finish(state.turn.calls[0])
    state.turn.calls[1].arguments = "changed by a middleware"
    state.turn.calls[1].start()
    assert state.response.unknown_calls == [UnknownCall("2", "pay", '{"to": 7}', "Buyer")]


def test_unknown_calls_of_earlier_turns_stay_listed() -> None:
    """The list is that of the whole run, in the order of the calls."""
    state = run_of(agent=BUYER)
    complete(state, wire_call("1", "pay"), wire_call("2", "pay"))
    state.turn.calls[0].finish(ToolOutcome("perhaps", unknown=True))
    state.turn.calls[1].finish(ToolOutcome("timed out", still_running=True))
    state.end_turn()
    one_turn(state, Agent(name="Other"))
    complete(state, content="Done.")
    assert state.response.unknown_calls == unknown("1", "2")


def test_the_message_of_a_call_is_not_searched() -> None:
    """A function may return this very text."""
    state = run_of(agent=BUYER)
    complete(state, wire_call("1", "pay"))
    finish(state.turn.calls[0], UNKNOWN)
    state.end_turn()
    assert state.response.unknown_calls == []


@pytest.mark.anyio
@pytest.mark.parametrize("face", FACES)
async def test_a_cancelled_run_lists_the_call(face: str) -> None:
    """Whichever way it runs."""
    begun = anyio.Event()

    async def work() -> str:
        begun.set()
        await anyio.sleep_forever()
        return ""

    response = await cancel_when(begun.is_set, swarm_of("work"), Agent(name="A", functions=[work]), face)
    assert [(made.name, made.agent) for made in response.unknown_calls] == [("work", "A")]


@pytest.mark.anyio
async def test_a_function_that_was_left_behind_is_unknown() -> None:
    """Its call has timed out, and it may still be running; the same where `tool_error` then ends the run."""
    released = threading.Event()

    @tool(timeout=0.01)
    def work() -> str:
        released.wait(120)
        return ""

    def end(_: object) -> str:
        raise ToolError("over")

    for hook in (None, end):
        model = ScriptedModel([call("work"), "Done."])
        try:
            response: Any = await AsyncSwarm(model.client(), tool_error=hook).run(Agent(functions=[work]), "Hi")
        except Exception as error:
            response = getattr(error, "response", None)
        assert [made.name for made in response.unknown_calls] == ["work"]
    released.set()


@pytest.mark.anyio
async def test_a_middleware_can_say_so() -> None:
    """One that stores calls elsewhere, and finds one that has begun and has no result."""

    def durable(handlers: Handlers) -> Handlers:
        async def call_tool(call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
            return ToolOutcome("It may have been paid.", unknown=True)

        return replace(handlers, call_tool=call_tool)

    model = ScriptedModel([call("pay"), "Done."])
    response = await AsyncSwarm(model.client(), middleware=[durable]).run(BUYER, "Hi")
    assert [made.name for made in response.unknown_calls] == ["pay"]
    assert response.stop == "answer"


def test_an_unknown_call_is_a_frozen_value() -> None:
    """It can be compared, put into a set, and not changed."""
    assert len({*unknown("1"), *unknown("1")}) == 1
    with pytest.raises(AttributeError):
        unknown("1")[0].id = "2"  # type: ignore[misc]


def test_unknown_calls_are_part_of_a_response() -> None:
    """They count when two are compared, and `model_dump()` always has them."""
    plain, uncertain = Response(), Response(unknown_calls=unknown("1"))
    assert plain != uncertain
    assert "unknown_calls" in plain.model_dump()
    assert uncertain.model_dump()["unknown_calls"] == [{"id": "1", "name": "pay", "arguments": "{}", "agent": "Buyer"}]
    assert Response.model_validate(uncertain.model_dump()) == uncertain


@pytest.mark.parametrize("began", [True, False])
@pytest.mark.parametrize("name", ["search", "pay"])
@pytest.mark.parametrize(
    ("outcome", "is_unknown"),
    [
        (ToolOutcome("found"), False),
        (ToolOutcome("perhaps", unknown=True), True),
        (ToolOutcome("timed out", still_running=True), True),
        (None, None),
    ],
    ids=["ended", "unknown", "still_running", "none"],
)
def test_one_rule(name: str, outcome: ToolOutcome | None, is_unknown: bool | None, began: bool) -> None:
    """A call that began and has no outcome is unknown, also if it is repeatable. An outcome says itself whether it is known."""
    state = run_of(agent=BUYER)
    complete(state, wire_call("1", name))
    (made,) = state.turn.calls
    if began:
        made.start()
    if outcome is not None:
        made.finish(outcome)
    expected = unknown("1", name=name) if (began if is_unknown is None else is_unknown) else []
    assert state.response.unknown_calls == expected
    state.end_turn()
    assert state.response.unknown_calls == expected


# --- repeatable ---


def test_a_repeatable_call_that_was_cut_stays_open() -> None:
    """It is unknown like any call that began, but not answered: running it again does no harm."""
    state = run_of(agent=BUYER)
    complete(state, wire_call("1", "search"), wire_call("2", "pay"))
    for made in state.turn.calls:
        made.start()
    assert contents(state) == [("2", UNKNOWN)]
    assert state.response.unknown_calls == [*unknown("1", name="search"), *unknown("2")]
    assert [made.id for made in run_of(USER, *state.response.messages, agent=BUYER, resume=True).turn.calls] == ["1"]


def test_a_repeatable_call_beside_a_handoff_is_answered() -> None:
    """After a handoff nothing may stay open: the new agent may not have the function."""
    state = run_of(agent=BUYER)
    complete(state, wire_call("1", "search"), wire_call("2", "pay"))
    state.turn.calls[0].start()
    finish(state.turn.calls[1], "over", agent=Agent(name="Other"))
    assert contents(state) == [("1", UNKNOWN), ("2", "over")]
    assert state.response.unknown_calls == unknown("1", name="search")


@pytest.mark.parametrize("last", ["running", "answered", "refused"])
def test_calls_of_one_id_and_name(last: str) -> None:
    """A call before one that has an answer is answered too: a resumed run would take the answer of the later one."""
    state = run_of(agent=BUYER)
    complete(state, *[wire_call("1", "search")] * 3)
    first, second, third = state.turn.calls
    first.start()
    second.start()
    if last == "running":
        third.start()
    else:
        third.finish(ToolOutcome("found" if last == "answered" else "Error: not JSON"))
    found = contents(state)
    assert [content for _, content in found[:2]] == ([] if last == "running" else [UNKNOWN, UNKNOWN])
    assert len(state.response.unknown_calls) == (3 if last == "running" else 2)
    check_history([USER, *state.response.messages], allow_open=True)


@pytest.mark.anyio
@pytest.mark.parametrize("face", FACES)
async def test_a_resumed_run_runs_it_again(face: str) -> None:
    """Cut in the middle, and then resumed: it runs twice, its real result is in the history, and nothing is unknown."""
    begun = anyio.Event()
    runs: list[int] = []

    async def look(city: str) -> str:
        runs.append(len(runs))
        begun.set()
        if len(runs) == 1:
            await anyio.sleep_forever()
        return f"sunny in {city}"

    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    made = function_tool(look, name="look", description="", parameters=schema, repeatable=True)
    agent = Agent(functions=[made])
    model = ScriptedModel([call("look", city="Oslo"), "Sunny."])
    response = await cancel_when(begun.is_set, AsyncSwarm(model.client()), agent, face)
    assert answers(response) == {}
    assert [made.name for made in response.unknown_calls] == ["look"]
    end = await AsyncSwarm(model.client()).run(agent, [USER, *response.messages], resume=True)
    assert (answers(end), end.text, runs) == ({"look": "sunny in Oslo"}, "Sunny.", [0, 1])
    assert end.unknown_calls == []
