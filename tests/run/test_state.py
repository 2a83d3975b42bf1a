"""The response of a run at any moment: its messages, its context, its agent, and the reason of its stop."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, ConfigurationError, Response, Result
from aswarm.testing import ScriptedCall, ScriptedModel, call, check_history
from tests.support.run.ways_to_run import cancel_when

USER = {"role": "user", "content": "Hi"}
OPEN: dict[str, Any] = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
}


async def look() -> str:
    """Look."""
    return "seen"


async def run(*steps: Any, history: Any = "Hi", **options: Any) -> Response:
    return await AsyncSwarm(ScriptedModel(steps).client()).run(Agent(name="A", functions=[look]), history, **options)


async def test_a_response_is_a_snapshot() -> None:
    """A response that a reader gets during the run does not grow, and is no way to change the context of the run."""
    swarm = AsyncSwarm(ScriptedModel([call("look"), "Hello"], cut=2).client())
    async with swarm.stream(Agent(functions=[look]), "Hi", {"seen": [1]}) as stream:
        before = stream.response
        before.context_variables["seen"].append(2)
        async for _ in stream:
            messages = stream.response.messages
            check_history(messages, allow_open=True)
            assert stream.partial not in [message["content"] for message in messages]
    assert before.messages == []
    assert (stream.partial, stream.response.context_variables) == ("", {"seen": [1]})
    assert stream.response is stream.response


async def test_a_function_that_was_added_during_the_run_is_checked() -> None:
    """A function that cannot be offered is an error before the next request."""

    def add() -> str:
        agent.functions.append(lambda: "no name")
        return "added"

    agent, model = Agent(functions=[add]), ScriptedModel([call("add"), "never"])
    with pytest.raises(ConfigurationError, match="name"):
        await AsyncSwarm(model.client()).run(agent, "Hi")
    assert len(model.requests) == 1


async def test_a_call_of_another_type_never_runs_a_function() -> None:
    """A custom call with the name of a function is answered as an unknown tool."""
    response = await run(ScriptedCall("look", "text", "c", kind="custom"), "Done.")
    assert response.messages[1]["content"].startswith("Error: Tool look not found")


# --- the stop ---


@pytest.mark.parametrize(
    ("options", "steps", "stop"),
    [
        ({"max_turns": 0}, [], "max_turns"),
        ({"max_turns": 1}, [call("look")], "max_turns"),
        ({"max_turns": 1}, ["Hello"], "answer"),
        ({"max_turns": 1, "execute_tools": False}, [call("look")], "tool_calls"),
        ({"max_turns": 0, "execute_tools": False, "resume": True}, [], "max_turns"),
        ({"max_turns": 9, "execute_tools": False, "resume": True}, [call("look")], "tool_calls"),
    ],
)
async def test_the_reason_of_a_stop(options: Any, steps: list[Any], stop: str) -> None:
    """Calls run whatever the limit of turns; resumed calls run also with `execute_tools=False`, later calls do not."""
    resumes = options.get("resume", False)
    response = await run(*steps, history=[USER, OPEN] if resumes else "Hi", **options)
    answered = [message for message in response.messages if message["role"] == "tool"]
    assert response.stop == stop
    assert len(answered) == resumes + (stop == "max_turns" and len(steps))


# --- early exits ---


async def test_the_changes_of_a_group_are_merged_once() -> None:
    """A later function of the turn may replace a change of an earlier group, also if the run is then cancelled."""
    written = anyio.Event()

    async def one() -> Result:
        return Result(context_variables={"k": "first"})

    async def write(context_variables: dict[str, Any]) -> None:
        context_variables["k"] += " and later"
        written.set()
        await anyio.sleep_forever()

    swarm = AsyncSwarm(ScriptedModel([[call("one"), call("write")]]).client())
    response = await cancel_when(written.is_set, swarm, Agent(functions=[one, write]), "stream")
    assert response.context_variables == {"k": "first and later"}


async def test_a_finished_handoff_settles_the_turn() -> None:
    """After a cancellation, a finished handoff closes the calls that have not started, and the agent is the new one."""
    leaving, hanging = anyio.Event(), anyio.Event()
    target = Agent(name="B")

    async def leave() -> Result:
        leaving.set()
        return Result(value="to B", agent=target)

    async def hang() -> None:
        hanging.set()
        await anyio.sleep_forever()

    def late() -> None:
        raise AssertionError

    calls = [call("leave", call_id="1"), call("hang", call_id="2"), call("late", call_id="3")]
    swarm = AsyncSwarm(ScriptedModel([calls]).client())
    agent = Agent(name="A", functions=[late, leave, hang])
    response = await cancel_when(lambda: leaving.is_set() and hanging.is_set(), swarm, agent, "stream")
    told = [message["content"] for message in response.messages[1:]]
    assert told == ["to B", "cancelled; its outcome is unknown", "not run: interrupted"]
    assert [made.id for made in response.unknown_calls] == ["2"]
    assert response.agent is target
    check_history([USER, *response.messages])


# --- handoffs ---


@pytest.mark.parametrize(
    ("targets", "answers", "winner"),
    [
        ("B", ["to B"], "B"),
        ("BC", ["to B", "to C (replaces the handoff to B)"], "C"),
        ("BB", ["to B", "to B"], "B"),
        ("BA", ["to B", "to A (replaces the handoff to B)"], "A"),
        ("A", ["to A"], "A"),
    ],
)
async def test_the_last_handoff_of_a_turn_wins(targets: str, answers: list[str], winner: str) -> None:
    """The message of the last handoff in call order names the agent that it replaces; the next request is the winner's."""

    async def leave(to: str) -> Result:
        return Result(value=f"to {to}", agent=agents[to])

    agents = {name: Agent(name=name, model=f"model-{name}", functions=[leave, look]) for name in "ABC"}
    model = ScriptedModel([[*(call("leave", to=name) for name in targets), call("look")], "Hello"])
    async with AsyncSwarm(model.client()).stream(agents["A"], "Go") as stream:
        handed_off = [event async for event in stream if type(event).__name__ == "HandedOff"]
    assert [message["content"] for message in stream.response.messages[1:-1]] == [*answers, "seen"]
    assert stream.response.agent is agents[winner]
    assert stream.response.messages[-1]["sender"] == winner
    assert [request.body["model"] for request in model.requests] == ["model-A", f"model-{winner}"]
    assert len(handed_off) == (winner != "A")
