"""`resume=` has one meaning: for each kind of open call, in each method that runs agents, and in records."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

from aswarm import (
    Agent,
    Approve,
    AsyncSwarm,
    ConfigurationError,
    Hold,
    Reply,
    Response,
    Swarm,
    agent_tool,
    current_call,
    external_tool,
    tool,
)
from aswarm.batch import Item
from aswarm.conversations import MemoryStore
from aswarm.middleware import Handlers, ToolCall, ToolOutcome
from aswarm.testing import ScriptedModel, call
from tests.support.run.one_turn import contents

USER = {"role": "user", "content": "Go"}


class Desk:
    """Functions that note their calls. `history`: the messages that end with an open call with the id "c"."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.history: list[Any] = [USER]

        async def look() -> str:
            self.ran.append("look")
            return "seen"

        @tool(approve=True)
        async def pay() -> str:
            self.ran.append("pay")
            return "paid"

        @tool(may_wait=True)
        async def ask() -> str:
            if not current_call().is_approved:
                raise Hold("Which account?")
            self.ran.append("ask")
            return "asked"

        nothing: dict[str, Any] = {"type": "object", "properties": {}}
        locate = external_tool(name="locate", description="Where the user is.", parameters=nothing)
        payer = Agent(name="Payer", instructions="payer", functions=[pay])
        self.agent = Agent(name="Desk", functions=[look, pay, ask, locate, agent_tool(payer)])

    async def leave_open(self, name: str, *, has_asked: bool) -> None:
        """Run until the call is open. `has_asked`: whether the call waits, or its turn was not run."""
        arguments = {"request": "Pay"} if name == "payer" else {}
        model = ScriptedModel([call(name, call_id="c", **arguments), call("pay", call_id="p")])
        response = await AsyncSwarm(model.client()).run(self.agent, "Go", execute_tools=has_asked)
        self.history = json.loads(json.dumps([USER, *response.messages]))


def answering() -> Any:
    return ScriptedModel(lambda request: "Done.").client()


async def by_run(desk: Desk, resume: Any, folder: Path) -> Response:
    return await AsyncSwarm(answering()).run(desk.agent, desk.history, resume=resume)


async def by_stream(desk: Desk, resume: Any, folder: Path) -> Response:
    async with AsyncSwarm(answering()).stream(desk.agent, desk.history, resume=resume) as run:
        _ = [event async for event in run]
    return run.response


async def by_run_and_stream(desk: Desk, resume: Any, folder: Path) -> Response:
    chunks = [each async for each in AsyncSwarm(answering()).run_and_stream(desk.agent, desk.history, resume=resume)]
    response: Response = chunks[-1]["response"]
    return response


async def by_conversation(desk: Desk, resume: Any, folder: Path) -> Response:
    chat = MemoryStore().conversation("a", AsyncSwarm(answering()), agent=desk.agent)
    await chat.replace(desk.history)
    return await chat.resume(resume)


async def by_conversation_stream(desk: Desk, resume: Any, folder: Path) -> Response:
    chat = MemoryStore().conversation("a", AsyncSwarm(answering()), agent=desk.agent)
    await chat.replace(desk.history)
    async with chat.resume_stream(resume) as run:
        _ = [event async for event in run]
    return run.response


async def by_swarm(desk: Desk, resume: Any, folder: Path) -> Response:
    with Swarm(answering()) as swarm:
        # In a thread without an event loop, as programs use Swarm.
        return await anyio.to_thread.run_sync(partial(swarm.run, desk.agent, desk.history, resume=resume))


async def by_batch(desk: Desk, resume: Any, folder: Path) -> Response:
    """A batch with a journal, and the same batch again: the journal answers it, and nothing runs twice."""
    responses: list[Response] = []
    for _ in range(2):
        items = [Item(desk.history, id="a", resume=resume)]
        async with AsyncSwarm(answering()).batch(desk.agent, items, journal=folder / "run.sqlite") as outcomes:
            [outcome] = [each async for each in outcomes]
        if outcome.error is not None:
            raise outcome.error
        responses.append(outcome.response)
    assert responses[0].messages == responses[1].messages
    return responses[1]


FACES: list[Callable[[Desk, Any, Path], Awaitable[Response]]] = [
    by_run,
    by_stream,
    by_run_and_stream,
    by_conversation,
    by_conversation_stream,
    by_swarm,
    by_batch,
]
# For each kind of open call: the function that runs under True, under {"c": True} and under Approve.all().
KINDS: Mapping[str, tuple[str, bool, str, str, str]] = {
    "a call that came to no turn": ("look", False, "look", "look", "look"),
    "a call that has not asked for its approval": ("pay", False, "", "pay", "pay"),
    "a call that waits for an approval": ("pay", True, "", "pay", "pay"),
    "a question": ("ask", True, "", "ask", "ask"),
    "an external tool": ("locate", True, "", "error", ""),
    "an external tool that was not run": ("locate", False, "", "error", ""),
    "an agent whose call waits": ("payer", True, "", "pay", "pay"),
}
VALUES: Mapping[str, tuple[Any, int]] = {
    "True": (True, 2),
    "no decisions": ({}, 2),
    "a decision": ({"c": True}, 3),
    "all": (Approve.all(), 4),
}


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_value_has_one_meaning(kind: str, value: str, face: Any, tmp_path: Path) -> None:
    """True runs what needs no decision, a decision runs its call, and `Approve.all()` runs all that can run here."""
    case, (resume, column) = KINDS[kind], VALUES[value]
    desk, expected = Desk(), str(case[column])
    await desk.leave_open(case[0], has_asked=case[1])
    if expected == "error":
        with pytest.raises(ConfigurationError, match="external tool 'locate'"):
            await face(desk, resume, tmp_path)
        assert desk.ran == []
        return
    response = await face(desk, resume, tmp_path)
    assert desk.ran == [expected] * bool(expected)
    assert (response.stop, [each.id for each in response.open_calls]) == (
        ("answer", []) if expected else ("waiting", ["c"])
    )


async def test_true_runs_the_calls_that_come_before_a_call_that_needs_a_decision() -> None:
    """Beside a call that needs no decision, a call that needs one is asked about, and keeps its question."""
    desk = Desk()
    model = ScriptedModel([[call("look", call_id="l"), call("pay", call_id="c"), call("look", call_id="m")]])
    response = await AsyncSwarm(model.client()).run(desk.agent, "Go", execute_tools=False)
    desk.history += response.messages
    response = await AsyncSwarm(answering()).run(desk.agent, desk.history, resume=True)
    assert (response.open_calls[0].id, response.open_calls[0].reason) == ("c", "needs approval")
    before = list(desk.ran)
    desk.history += json.loads(json.dumps(response.messages))
    again = await AsyncSwarm(answering()).run(desk.agent, desk.history, resume=True)
    assert (again.stop, again.open_calls, desk.ran) == ("waiting", response.open_calls, before)
    done = await AsyncSwarm(answering()).run(desk.agent, desk.history, resume={"c": True})
    assert (done.text, sorted(desk.ran)) == ("Done.", ["look", "look", "pay"])


async def test_true_does_not_reach_the_run_inside_a_call_that_waits() -> None:
    """The calls inside stay as they are: those that need no decision have run, and another run of them would wait again."""
    desk = Desk()
    inner = Agent(name="Inner", instructions="inner", functions=desk.agent.functions[:2])
    outer = Agent(name="Outer", functions=[agent_tool(inner)])
    calls = [call("look", call_id="l"), call("pay", call_id="p")]
    first = await AsyncSwarm(ScriptedModel([call("inner", call_id="c", request="x"), calls]).client()).run(outer, "Go")
    history = json.loads(json.dumps([USER, *first.messages]))
    assert desk.ran == ["look"]
    for resume in (True, {"c": Reply({})}):
        model = ScriptedModel([])
        response = await AsyncSwarm(model.client()).run(outer, history, resume=resume)
        assert (response.stop, response.open_calls[0].data, desk.ran) == ("waiting", first.open_calls[0].data, ["look"])
        assert not model.requests
    response = await AsyncSwarm(answering()).run(outer, history, resume=Approve.all())
    assert (response.text, desk.ran) == ("Done.", ["look", "pay"])


async def test_a_handler_that_answers_gets_no_call_that_needs_a_decision() -> None:
    """Under True, a call that waits reaches no middleware; under `Approve.all()`, the middleware answers it."""
    asked: list[str] = []

    def answers(handlers: Handlers) -> Handlers:
        async def call_tool(made: ToolCall, *_: Any) -> ToolOutcome:
            asked.append(made.name)
            return ToolOutcome("from the middleware")

        return dataclasses.replace(handlers, call_tool=call_tool)

    desk = Desk()
    await desk.leave_open("ask", has_asked=True)
    swarm = AsyncSwarm(answering(), middleware=[answers])
    assert ((await swarm.run(desk.agent, desk.history, resume=True)).stop, asked) == ("waiting", [])
    response = await swarm.run(desk.agent, desk.history, resume=Approve.all())
    assert (contents(response)[0], asked, desk.ran) == ("from the middleware", ["ask"], [])


@pytest.mark.parametrize("wrong", [{"c": Approve.all()}, {"c": Reply(Approve.all())}, "all", None])
async def test_approving_all_is_a_value_of_its_own(wrong: Any) -> None:
    """It is no decision on one call, and no other value means it."""
    desk = Desk()
    await desk.leave_open("payer", has_asked=True)
    with pytest.raises(ConfigurationError, match=r"a decision is True|has no decisions|Approve.all\(\)"):
        await AsyncSwarm(answering()).run(desk.agent, desk.history, resume=wrong)
    assert desk.ran == []
