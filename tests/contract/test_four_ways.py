"""One table of conversations, each run through every face over every wire: the outcome is always the same.

Faces: `run`, `run(stream=True)`, `run_and_stream` and `stream()`. Wires: as asked for; whole JSON, also where a stream
was asked for; chunks, also where a whole completion was asked for; chunks cut into single bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from aswarm import Agent, AsyncSwarm, Response, Result, RunFinished
from aswarm.testing import RawAnswer, Request, ScriptedAnswer, ScriptedModel, call, check_history
from tests.support.providers.bodies import chunks, completion
from tests.support.sampling import every

Face = Literal["run", "run(stream=True)", "run_and_stream", "stream"]
Wire = Literal["as asked", "whole", "chunks", "bytes"]
USAGE = {
    "prompt_tokens": 7,
    "completion_tokens": 3,
    "total_tokens": 10,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 1},
}


def add(a: int, b: int) -> int:
    return a + b


def remember(context_variables: dict[str, Any], what: str) -> str:
    context_variables.setdefault("seen", []).append(what)
    return "ok"


def fail() -> str:
    raise ValueError("no luck")


def promote() -> Result:
    return Result(value="promoted", agent=Agent(name="B"), context_variables={"level": 2})


def one_agent() -> Agent:
    return Agent(name="A", functions=[add, remember, fail, promote])


def two_handoffs() -> Agent:
    return Agent(name="A", functions=[Agent(name="B"), Agent(name="C")])


@dataclass(frozen=True)
class Conversation:
    """A script, the agent it is for, and how the run ends."""

    script: list[ScriptedAnswer]
    agent: Callable[[], Agent] = one_agent
    stop: str = "answer"
    agent_name: str = "A"
    context: dict[str, Any] = field(default_factory=dict)
    text: str = "Done"
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def roles(self) -> list[str]:
        """The roles of the messages: each call has its answer, unless the calls are left to the caller."""
        answered = 0 if self.stop == "tool_calls" else 1
        return [role for each in self.script for role in ("assistant", *["tool"] * (answered * len(each.calls)))]


def calls(*made: Any, text: str | None = None, **more: Any) -> ScriptedAnswer:
    return ScriptedAnswer(text, calls=made, usage=USAGE, **more)


DONE = ScriptedAnswer("Done", usage=USAGE)
UNUSUAL = "Ça va? 你好 👩‍🚀\u2028\r\n\n"
SUM = call("add", a=1, b=2, call_id="c1")
TABLE = {
    "an answer": Conversation([DONE]),
    "no text at all": Conversation([ScriptedAnswer("", usage=USAGE)], text=""),
    "no usage": Conversation([ScriptedAnswer("Done", usage=None)]),
    "not ASCII": Conversation([ScriptedAnswer(UNUSUAL, usage=USAGE)], text=UNUSUAL),
    "reasoning": Conversation([ScriptedAnswer("Done", usage=USAGE, extra={"reasoning_content": "Hm, well"})]),
    "a refusal": Conversation([ScriptedAnswer(None, usage=USAGE, extra={"refusal": "I cannot"})], text=""),
    "cut by its length": Conversation([ScriptedAnswer("Done", usage=USAGE, finish_reason="length")]),
    "a call": Conversation([calls(SUM), DONE]),
    "a call with text": Conversation([calls(SUM, text="So:"), DONE]),
    "calls of one id": Conversation(
        [calls(call("remember", what="x", call_id="c"), call("add", a=1, b=1, call_id="c")), DONE],
        context={"seen": ["x"]},
    ),
    "calls that go wrong": Conversation(
        [calls(call("fail", call_id="1"), call("nobody", call_id="2"), call("add", "{", call_id="3")), DONE]
    ),
    "empty arguments": Conversation([calls(call("fail", "", call_id="1")), DONE]),
    "a handoff with context": Conversation(
        [calls(call("promote", call_id="1")), DONE], agent_name="B", context={"level": 2}
    ),
    "two handoffs": Conversation(
        [calls(call("transfer_to_b", call_id="1"), call("transfer_to_c", call_id="2")), DONE],
        two_handoffs,
        agent_name="C",
    ),
    "a limit": Conversation([calls(SUM)], stop="max_turns", text="", options={"max_turns": 1}),
    "no turns": Conversation([], stop="max_turns", text="", options={"max_turns": 0}),
    "tools left to the caller": Conversation(
        [calls(SUM)], stop="tool_calls", text="", options={"execute_tools": False}
    ),
}


@pytest.mark.parametrize(("name", "anyio_backend"), every(2, TABLE, ["asyncio", "trio"]))
async def test_every_face_and_wire_gives_the_same(name: str) -> None:
    """Messages, agent, context, usage and stop are the same through every face over every wire."""
    conversation = TABLE[name]
    expected = await _outcome(conversation, "run", "whole")
    response, requests = expected
    assert [message["role"] for message in response.messages] == conversation.roles
    assert response.stop == conversation.stop
    assert response.agent is not None and response.agent.name == conversation.agent_name
    assert response.context_variables == conversation.context
    assert response.text == conversation.text
    assert response.usage.requests == len(conversation.script) == len(requests)
    check_history(response.messages, allow_open=conversation.stop == "tool_calls")
    for face in ("run", "run(stream=True)", "run_and_stream", "stream"):
        for wire in ("as asked", "whole", "chunks", "bytes"):
            other, others_requests = await _outcome(conversation, face, wire)
            assert _comparable(other) == _comparable(response), (face, wire)
            assert others_requests == requests, (face, wire)


async def test_usage_is_summed_with_its_details() -> None:
    """Usage is the sum of the reports of the provider over the completions, details under the provider's own keys."""
    response, _ = await _outcome(TABLE["a call"], "stream", "bytes")
    usage = response.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens, usage.requests) == (14, 6, 20, 2)
    assert usage.details == {
        "prompt_tokens_details": {"cached_tokens": 8},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }


def _comparable(response: Response) -> dict[str, Any]:
    agent = response.agent.name if response.agent else None
    return {**response.model_dump(exclude={"agent"}), "agent": agent}


async def _outcome(conversation: Conversation, face: Face, wire: Wire) -> tuple[Response, list[list[Any]]]:
    model = ScriptedModel([_step(answer, wire) for answer in conversation.script], cut=2)
    swarm = AsyncSwarm(client=model.client())
    agent, messages = conversation.agent(), [{"role": "user", "content": "Go"}]
    response = await _through(swarm, face, agent, messages, conversation.options)
    assert model.open_streams == 0
    assert all(request.body["stream"] == (face != "run") for request in model.requests)
    return response, [request.messages for request in model.requests]


def _step(answer: ScriptedAnswer, wire: Wire) -> ScriptedAnswer | RawAnswer | Callable[[Request], RawAnswer]:
    if wire == "as asked":
        return answer
    if wire == "whole":
        return RawAnswer([json.dumps(completion(answer)).encode()], content_type="application/json")
    events = [f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n".encode() for chunk in chunks(answer, 1)]
    body = b"".join([*events, b"data: [DONE]\n\n"])
    return RawAnswer([bytes([byte]) for byte in body] if wire == "bytes" else [body])


async def _through(
    swarm: AsyncSwarm, face: Face, agent: Agent, messages: list[dict[str, Any]], options: Mapping[str, Any]
) -> Response:
    if face == "run":
        response: Response = await swarm.run(agent, messages, **options)
        return response
    if face == "stream":
        async with swarm.stream(agent, messages, **options) as run:
            events = [event async for event in run]
        assert isinstance(events[-1], RunFinished)
        assert events[-1].response is run.response
        return run.response
    streamed = swarm.run_and_stream if face == "run_and_stream" else _streaming(swarm)
    dicts = [event async for event in streamed(agent, messages, **options)]
    last: Response = dicts[-1]["response"]
    return last


def _streaming(swarm: AsyncSwarm) -> Callable[..., Any]:
    return lambda *args, **options: swarm.run(*args, stream=True, **options)
