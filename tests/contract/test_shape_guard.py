"""The cost of a turn and of a chunk, counted and not timed: a change of shape fails here, noise does not.

Calls are Python frames of aswarm that start or continue (a frame resumed after an await counts again, for that is work
too). Steps are its lines, where every round of a loop and of a comprehension is one more. Nothing in the counted tests
waits for anything outside the process, so the counts are the same on every run. The bounds are a little above the
measured counts; newer versions of Python make fewer frames. Where a bound is passed for a good reason, raise it in the change
that has the reason.
"""

from __future__ import annotations

import gc
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import anyio
import anyio.abc
import pydantic
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream
from openai import AsyncOpenAI

import aswarm
from aswarm import Agent, AsyncSwarm
from aswarm.conversations import last
from aswarm.testing import RawAnswer, ScriptedAnswer, ScriptedModel, call
from tests.support.contract.counting import ASWARM, counting
from tests.support.providers.loopback import spoken, sse, sse_response

pytestmark = pytest.mark.asyncio
Api = Literal["chat", "responses"]

CALLS_PER_TURN = 162  # 5 of them for the transitions of calls, see docs/design/calls.md
CALLS_PER_CHUNK = {
    ("classic", "chat"): 13,
    ("typed", "chat"): 16,
    ("classic", "responses"): 16,
    ("typed", "responses"): 19,
}
# Of the history, in a whole run. A plain message has only a role and a text; a recorded one comes from an earlier run.
STEPS_PER_MESSAGE = {
    ("plain", "chat"): 0,
    ("plain", "responses"): 6,
    ("recorded", "chat"): 28,
    ("recorded", "responses"): 34,
}

STEPS_PER_MESSAGE_IN_BLOCKS = 8  # the same, of an agent that is sent the last ones

SCHEMA_BUILDER = str(Path(pydantic.__file__).parent / "_internal" / "_generate_schema.py")


@contextmanager
def stepping() -> Iterator[Counter[str]]:
    """Counts the steps of aswarm, by function. The tracer that was there, of a debugger or of coverage, comes back."""
    counts: Counter[str] = Counter()

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.startswith(ASWARM):
            return None
        counts[frame.f_code.co_qualname] += 1
        return trace

    previous = sys.gettrace()
    gc.collect()
    gc.disable()  # the garbage of other tests would be counted
    sys.settrace(trace)
    try:
        yield counts
    finally:
        sys.settrace(previous)
        gc.enable()


# --- the conversation of the benchmarks -------------------------------------------------------------------------------

TURNS = [call("get_weather", city="Oslo"), call("transfer_to_b"), [call("get_time"), call("get_news")], "It is sunny."]


async def get_weather(city: str) -> str:
    return "sunny"


async def get_time() -> str:
    return "noon"


async def get_news() -> str:
    return "none"


def conversation(api: Api = "chat") -> tuple[Agent, ScriptedModel]:
    b = Agent(name="b", functions=[get_time, get_news])
    return Agent(name="a", functions=[get_weather, b]), ScriptedModel(TURNS * 2, api=api)


def history(length: int, kind: type[dict[str, Any]] = dict) -> list[dict[str, Any]]:
    roles = ("assistant", "user")
    return [kind(role=roles[position % 2], content=f"message {position}") for position in range(length)]


def recorded_history(length: int) -> list[dict[str, Any]]:
    """The same messages as of earlier runs, whose assistant messages have two more keys."""
    recorded = {"sender": "a", "tool_calls": None}
    return [message if message["role"] == "user" else {**message, **recorded} for message in history(length)]


async def counted_run(length: int) -> Counter[str]:
    """The counts of a run after `length` messages, the second of its kind: what is made once is made."""
    agent, model = conversation()
    swarm = AsyncSwarm(client=model.client())
    await swarm.run(agent, history(length))
    with counting() as counts:
        response = await swarm.run(agent, history(length))
    assert response.text == "It is sunny."
    return counts


async def test_a_turn_makes_a_bounded_number_of_calls():
    counts = await counted_run(0)
    assert counts.total() / len(TURNS) <= CALLS_PER_TURN, counts.most_common(20)


async def test_the_counts_are_the_same_on_every_run():
    assert await counted_run(3) == await counted_run(3)


async def steps_by_phase(
    length: int, api: Api, earlier: Callable[[int], list[dict[str, Any]]] = history
) -> tuple[Counter[str], Counter[str]]:
    """The steps of a run after `length` messages: in the first completion, and in all that follows."""
    agent, model = conversation(api)
    with stepping() as counts:
        async for event in AsyncSwarm(client=model.client()).run(agent, earlier(length), stream=True):
            if event == {"delim": "end"} and not any(
                message["role"] == "tool" for message in model.requests[-1].messages
            ):
                first = counts.copy()
    assert len(model.requests[-1].messages) == length + 8
    return first, counts - first


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize(("kind", "earlier"), [("plain", history), ("recorded", recorded_history)])
async def test_a_message_of_the_history_is_walked_over_in_the_first_turn_only(kind, earlier, api: Api):
    await steps_by_phase(0, api, earlier)  # what is made once is made
    few, few_later = await steps_by_phase(10, api, earlier)
    many, many_later = await steps_by_phase(1010, api, earlier)
    assert many_later == few_later
    more = many - few
    assert more.total() / 1000 <= STEPS_PER_MESSAGE[kind, api], more.most_common(20)


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_an_agent_that_is_sent_the_last_messages_walks_over_the_others_in_the_first_turn_only(api: Api):
    async def steps(length: int) -> tuple[Counter[str], Counter[str]]:
        agent, model = conversation(api)
        agent.history = last(20)
        agent.functions[1].history = last(20)
        with stepping() as counts:
            first = Counter[str]()
            async for event in AsyncSwarm(client=model.client()).run(agent, history(length), stream=True):
                if event == {"delim": "end"}:
                    first = first or counts.copy()
        return first, counts - first

    await steps(1000)  # what is made once is made
    (few, few_later), (many, many_later) = await steps(1000), await steps(2000)
    assert many_later == few_later
    more = many - few
    assert more.total() / 1000 <= STEPS_PER_MESSAGE_IN_BLOCKS, more.most_common(20)


# --- chunks -----------------------------------------------------------------------------------------------------------


async def drain_classic(swarm: AsyncSwarm, agent: Agent) -> int:
    return sum([1 async for event in swarm.run(agent, "Hi", stream=True) if event.get("content")])


async def drain_typed(swarm: AsyncSwarm, agent: Agent) -> int:
    async with swarm.stream(agent, "Hi") as run:
        return sum([1 async for event in run if isinstance(event, aswarm.TextDelta)])


def burst(length: int, api: Api = "chat") -> RawAnswer:
    """A streamed answer in one piece."""
    reply = (sse if api == "chat" else sse_response)(ScriptedAnswer("x" * length), cut=1)
    return RawAnswer([b"".join(piece[piece.index(b"data: ") :] for piece in reply.pieces)])


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize(("view", "drain"), [("classic", drain_classic), ("typed", drain_typed)])
async def test_a_chunk_makes_a_bounded_number_of_calls(
    view, drain: Callable[[AsyncSwarm, Agent], Awaitable[int]], api: Api
):
    model = ScriptedModel([burst(length, api) for length in (100, 100, 1100)], api=api)
    swarm, agent = AsyncSwarm(client=model.client()), Agent()
    await drain(swarm, agent)
    with counting() as few:
        assert await drain(swarm, agent) == 100
    with counting() as many:
        assert await drain(swarm, agent) == 1100
    more = many - few
    assert more.total() / 1000 <= CALLS_PER_CHUNK[view, api], more.most_common(20)


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("drain", [drain_classic, drain_typed])
async def test_nothing_is_walked_over_again_at_every_chunk(
    drain: Callable[[AsyncSwarm, Agent], Awaitable[int]], api: Api
):
    model = ScriptedModel([burst(length, api) for length in (100, 100, 1100, 2100)], api=api)
    swarm, agent = AsyncSwarm(client=model.client()), Agent()
    await drain(swarm, agent)
    steps: list[Counter[str]] = []
    for _ in range(3):
        with stepping() as counts:
            await drain(swarm, agent)
        steps.append(counts)
    few, many, very_many = steps
    assert many - few == very_many - many  # the second thousand costs as much as the first


# --- what is made once ------------------------------------------------------------------------------------------------


async def test_schemas_are_built_once():
    async def look_up(order_id: int) -> str:
        return "found"

    agent = Agent(functions=[look_up])
    model = ScriptedModel([call("look_up", order_id=1), "done"] * 2)
    with counting(SCHEMA_BUILDER) as first:
        await AsyncSwarm(client=model.client()).run(agent, "Hi")
    with counting(SCHEMA_BUILDER) as second:
        await AsyncSwarm(client=model.client()).run(agent, "Hi")
    assert first.total() > 0
    assert second.total() == 0


async def test_a_run_leaves_no_object_behind():
    agent, _ = conversation()
    model = ScriptedModel(TURNS * 60)
    swarm = AsyncSwarm(client=model.client())

    async def run(times: int) -> int:
        for _ in range(times):
            await swarm.run(agent, "Hi")
        model.requests.clear()
        gc.collect()
        return len(gc.get_objects())

    before = await run(20)
    assert await run(40) - before < 40


# --- the wire ---------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def kept_alive() -> AsyncIterator[tuple[str, Counter[str]]]:
    """A server that keeps connections open and counts them and the requests. It answers as `TURNS`, whole or streamed."""
    seen: Counter[str] = Counter()

    async def handle(stream: anyio.abc.SocketStream) -> None:
        seen["connections"] += 1
        received = BufferedByteReceiveStream(stream)
        async with stream:
            with suppress(anyio.EndOfStream, anyio.IncompleteRead):
                while True:
                    body = await _body(received)
                    seen["requests"] += 1
                    await stream.send(_http(_next_answer(body["messages"]), stream=body["stream"]))

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, handle)
        yield f"http://127.0.0.1:{port}/v1", seen
        group.cancel_scope.cancel()


async def _body(received: BufferedByteReceiveStream) -> dict[str, Any]:
    head = (await received.receive_until(b"\r\n\r\n", 2**16)).lower()
    length = head.partition(b"content-length:")[2].split(b"\r\n")[0]
    return json.loads(await received.receive_exactly(int(length)))


def _next_answer(messages: list[dict[str, Any]]) -> ScriptedAnswer:
    step = TURNS[min(sum(message["role"] == "tool" for message in messages), 3)]
    return (
        ScriptedAnswer(step)
        if isinstance(step, str)
        else ScriptedAnswer(calls=step if isinstance(step, list) else [step])
    )


def _http(answer: ScriptedAnswer, *, stream: bool) -> bytes:
    pieces = spoken(answer, {"messages": [], "stream": stream}).pieces
    if not stream:
        return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(pieces[0]), pieces[0])
    framed = b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in pieces)
    return b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n%b0\r\n\r\n" % framed


@pytest.mark.parametrize("stream", [False, True])
async def test_a_run_sends_one_request_for_each_turn_over_one_connection(stream):
    agent, _ = conversation()
    async with kept_alive() as (url, seen), AsyncOpenAI(base_url=url, api_key="x") as client:
        swarm = AsyncSwarm(client=client)
        for _ in range(2):
            if stream:
                async for _ in swarm.run(agent, "Hi", stream=True):
                    pass
            else:
                await swarm.run(agent, "Hi")
    assert seen == {"connections": 1, "requests": 2 * len(TURNS)}
