"""`Agent(history=...)`: the messages in the requests of an agent, and the errors of a function that cannot be used."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from aswarm import Agent, AsyncSwarm, ConfigurationError, RunError
from aswarm.conversations import MessageBlock, last, own_turns, since_handoff, without_tool_results
from aswarm.testing import ScriptedModel, call, check_history
from tests.support.wire.response_bodies import check_body

Json = dict[str, Any]
USER = {"role": "user", "content": "Hi"}
LONG = "a long result " * 5


async def look() -> str:
    """Look."""
    return LONG


def questions(count: int) -> list[Json]:
    """A history of questions and answers."""
    roles = ("user", "assistant")
    return [{"role": roles[at % 2], "content": f"message {at}"} for at in range(2 * count)]


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("stream", [False, True])
async def test_only_the_request_is_shortened(api: Any, stream: bool) -> None:
    """The response has the same messages as without the function, over both APIs."""
    model = ScriptedModel([*(call("look") for _ in range(6)), "Done."], api=api)
    agent = Agent(functions=[look], history=last(4))
    history = [*questions(10), USER]
    before = copy.deepcopy(history)
    run = AsyncSwarm(model.client()).stream(agent, history, deltas=stream)
    async with run:
        async for _ in run:
            pass
    assert history == before
    assert len(run.response.messages) == 13
    for request in model.requests:
        check_history(request.messages)
        assert USER in request.messages
        assert len([message for message in request.messages if message["role"] != "tool"]) <= 1 + 1 + 4
        if api == "responses":
            check_body(request.body)


async def test_each_agent_has_its_own_view() -> None:
    """After a handoff the function of the next agent decides; an agent without one is sent everything."""
    orders = Agent(name="orders", functions=[look], history=since_handoff)
    whole = Agent(name="whole")
    orders.functions.append(whole)
    triage = Agent(name="triage", functions=[look, orders])
    script = [call("look"), call("transfer_to_orders"), call("look"), call("transfer_to_whole"), "Done."]
    model = ScriptedModel(script)
    await AsyncSwarm(model.client()).run(triage, [*questions(2), USER])
    sent = [[message["role"] for message in request.messages] for request in model.requests]
    turn = ["assistant", "tool"]
    assert [len(roles) for roles in sent[:2]] == [6, 8]
    assert sent[2] == ["system", "user"]
    assert sent[3] == ["system", "user", *turn]
    assert len(sent[4]) == 6 + 4 * 2


async def test_a_block_of_the_function_s_own_is_sent_if_it_is_valid() -> None:
    """A call whose answer the function removes is answered as interrupted, so that the request is valid."""

    def changed(blocks: list[MessageBlock], _agent: Agent) -> list[MessageBlock]:
        note = MessageBlock({"role": "user", "content": "A note."})
        return [note, *(replace(block, answers=[]) for block in blocks)]

    model = ScriptedModel([call("look"), "Done."])
    await AsyncSwarm(model.client()).run(Agent(functions=[look], history=changed), "Hi")
    messages = model.requests[1].messages
    check_history(messages)
    assert (messages[1]["content"], messages[-1]["content"]) == ("A note.", "not run: interrupted")


async def _coroutine(blocks: list[MessageBlock], agent: Agent) -> list[MessageBlock]:
    return blocks


class Chooser:
    """A function without a name."""

    def __call__(self, blocks: list[MessageBlock], agent: Agent) -> list[MessageBlock]:
        return []

    def __repr__(self) -> str:
        return "Chooser()"


LOOSE: Any = {"role": "user", "content": "Hi"}


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (
            lambda _b, _a: None,
            r"<lambda> of the agent 'A' returned None; it must be a plain function that returns a list",
        ),
        (lambda _b, _a: [LOOSE], r"returned \[\{'role': 'user', 'content': 'Hi'\}\]; it must be"),
        (lambda blocks, _a: (block for block in blocks), "returned <generator"),
        (
            lambda messages: messages[-5:],
            "<lambda> of the agent 'A' cannot be called: .*; it gets a list of blocks, and the agent$",
        ),
        (_coroutine, r"_coroutine of the agent 'A' returned <coroutine"),
        (
            Chooser(),
            r"function Chooser\(\) of the agent 'A' left out the last message of the user, or changed it.*: 'Hi'$",
        ),
        (
            lambda blocks, _a: [MessageBlock({"role": "user", "content": "changed"})],
            "left out the last message of the user",
        ),
        (
            lambda blocks, _a: [*blocks, MessageBlock({"role": "nobody"})],
            "a block that cannot be sent: .*has the role 'nobody'",
        ),
        (
            lambda blocks, _a: [*blocks, MessageBlock("text")],
            "a block that cannot be sent: a MessageBlock has a message",
        ),  # type: ignore[arg-type]
        (lambda blocks, _a: [*blocks, MessageBlock(LOOSE, "text")], "and a list of tool messages"),  # type: ignore[arg-type]
    ],
)
async def test_a_function_that_cannot_be_used_is_named(function: Callable[..., Any], text: str) -> None:
    """The error names the function, its agent, and the value that it must return."""
    swarm = AsyncSwarm(ScriptedModel([]).client())
    with pytest.raises(ConfigurationError, match=text):
        await swarm.run(Agent(name="A", history=function), [*questions(2), USER])


async def test_a_type_error_inside_of_the_function_is_raised() -> None:
    swarm = AsyncSwarm(ScriptedModel([]).client())
    with pytest.raises(RunError, match="TypeError: can only concatenate"):
        await swarm.run(Agent(history=lambda blocks, _a: blocks + None), [USER])  # type: ignore[operator]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: last(0), r"last\(n\) must be a whole number from 1, not 0"),
        (lambda: last(True), "not True"),
        (lambda: last(4, step=0), r"last\(step=...\) must be a whole number"),
        (lambda: last(4, step=5), "would omit more than it keeps; use a step up to 4"),
        (lambda: without_tool_results(0), r"without_tool_results\(keep\) must be"),
        (lambda: without_tool_results(step=-1), r"without_tool_results\(step=...\) must be"),
    ],
)
def test_wrong_numbers_are_refused(make: Callable[[], Any], text: str) -> None:
    """A number out of range is an error when the function is made."""
    with pytest.raises(ConfigurationError, match=text):
        make()


@pytest.mark.parametrize("function", [last(3), own_turns, since_handoff, without_tool_results(2)])
def test_an_agent_with_a_ready_function_can_be_copied_compared_and_pickled(function: Any) -> None:
    agent = Agent(history=function)
    assert pickle.loads(pickle.dumps(agent)) == copy.deepcopy(agent) == agent
    assert agent != Agent(history=last(4))
