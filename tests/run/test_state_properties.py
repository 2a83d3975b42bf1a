"""Drawn runs: at any moment the response is a valid history, and each request is valid and complete."""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aswarm import Agent, AsyncSwarm, Result
from aswarm.events import TurnStarted
from aswarm.middleware import CompletionRequest
from aswarm.testing import check_history

pytestmark = pytest.mark.slow
Json = dict[str, Any]
USER = {"role": "user", "content": "Hi"}

_ids = st.sampled_from(["x", "y", "z"])
_made = st.builds(
    lambda call_id, name, arguments: {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    },
    _ids,
    st.sampled_from(["look", "note", "fail", "plain", "leave", "missing", "cut"]),
    st.sampled_from(["", "{}", "{"]),
)
_calls = st.lists(_made, max_size=3)


@st.composite
def block(draw: st.DrawFn) -> list[Json]:
    """An assistant message with some of its answers, or another message, or an answer without its call."""
    kind = draw(st.sampled_from(["user", "text", "nothing", "calls", "calls", "orphan"]))
    if kind == "user":
        return [USER]
    if kind == "orphan":
        return [told(draw(_ids))]
    calls = draw(_calls) if kind == "calls" else []
    content = "Hello" if kind == "text" else None
    message = {"role": "assistant", "content": content, "sender": "A", "reasoning_content": "Hm"}
    answers = [told(made["id"], tool_name=made["function"]["name"]) for made in calls if draw(st.booleans())]
    return [{**message, "tool_calls": calls or None}, *draw(st.permutations(answers))]


def told(call_id: str, **more: Any) -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": "seen", **more}


_histories = st.lists(block(), max_size=5).map(lambda blocks: [message for part in blocks for message in part])


class World:
    """A source that makes the drawn calls, and the functions. `cut` cancels the run."""

    def __init__(self, turns: list[list[Json]]) -> None:
        self.turns = turns
        self.requests: list[list[Json]] = []
        self.scope: Any = None  # needs an event loop
        self.agent = Agent(name="A", functions=[self.look, self.note, self.fail, self.plain, self.leave, self.cut])

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        self.requests.append(copy.deepcopy(request.body["messages"]))
        calls = self.turns.pop(0) if self.turns else []
        message = {"role": "assistant", "content": None if calls else "Done.", "tool_calls": calls or None}
        yield {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}

    async def look(self) -> str:
        await anyio.lowlevel.checkpoint()
        return "looked"

    async def note(self, context_variables: Json) -> Result:
        return Result(value="noted", context_variables={"notes": context_variables.get("notes", 0) + 1})

    async def fail(self) -> str:
        raise ValueError("no")

    def plain(self) -> str:
        return "plain"

    async def leave(self) -> Result:
        return Result(value="over", agent=Agent(name="B", functions=self.agent.functions))

    async def cut(self) -> str:
        self.scope.cancel()
        await anyio.lowlevel.checkpoint()
        return "never"


def check_tail(messages: list[Json]) -> None:
    """The messages of this run are valid; calls may be open only without a handoff in their turn."""
    first = next((place for place, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
    last = max((place for place, message in enumerate(messages) if message["role"] == "assistant"), default=0)
    has_left = any(message["role"] == "tool" and message["content"].startswith("over") for message in messages[last:])
    check_history(messages[first:], allow_open=not has_left)


def check_sent(sent: list[Json]) -> None:
    """A request is valid, has no keys of ours, and no nulls but the content beside calls."""
    check_history(sent)
    for message in sent:
        assert not {"sender", "tool_name"} & message.keys()
        assert message.get("content") is not None or message.get("tool_calls")
        assert all(value is not None for key, value in message.items() if key != "content")
        assert "tool_calls" not in message or message["tool_calls"]
        assert all(made["function"]["arguments"] for made in message.get("tool_calls", ()))


def parts(messages: Iterable[Json]) -> list[Any]:
    """Return the texts of users and models, and the ids of the calls."""
    found: list[Any] = []
    for message in messages:
        if message["role"] in ("user", "assistant"):
            found += [message["content"]] if message["content"] else []
            found += [made["id"] for made in message.get("tool_calls") or []]
    return found


@given(_histories, st.lists(_calls.filter(bool), max_size=4), st.none() | st.integers(0, 40))
def test_every_snapshot_is_valid_and_every_request_too(
    history: list[Json], turns: list[list[Json]], leave_at: int | None
) -> None:
    """At any moment of any run the response continues the history validly, and a request has the whole of it."""
    kept, world = copy.deepcopy(history), World(turns)

    async def main() -> list[Json]:
        before, number = list[Json](), 0
        world.scope = anyio.CancelScope()
        run = AsyncSwarm(world).stream(world.agent, history, resume=True, deltas=False)
        with world.scope:
            async with run:
                async for event in run:
                    messages = run.response.messages
                    check_tail(messages)
                    assert messages[: len(before)] == before
                    if isinstance(event, TurnStarted):
                        before = messages
                    if number == leave_at:
                        break
                    number += 1
        assert run.response.messages[: len(before)] == before
        check_tail(run.response.messages)
        return run.response.messages

    messages = anyio.run(main)
    for sent in world.requests:
        check_sent(sent)
        whole = parts([*kept, *messages])
        assert parts(sent) == whole[: len(parts(sent))]
        assert len(parts(sent)) >= len(parts(kept))
    assert history == kept
