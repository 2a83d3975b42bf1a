"""Middleware as a user writes it, in ten lines each: a cache, a fallback, redaction, timing, and a guard of calls."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, CompletionError, CompletionSource, Response, StreamInterrupted
from aswarm._providers.openai import source_for
from aswarm.middleware import CompletionRequest, Handlers, Middleware, Started, ToolCall, ToolOutcome
from aswarm.testing import Failure, ScriptedAnswer, ScriptedModel, call, check_history, check_middleware
from tests.support.providers.sources import KINDS, Script, client_of, script_of
from tests.support.run.ways_to_run import FACES, consume
from tests.support.sampling import listed

pytestmark = pytest.mark.anyio


def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


async def run(swarm: AsyncSwarm, face: str, agent: Agent | None = None, **options: Any) -> Response:
    left: list[Response] = []
    await consume(swarm, agent or Agent(functions=[pay]), face, left, **options)
    check_history(left[0].messages)
    return left[0]


# --- a cache ----------------------------------------------------------------------------------------------------------


def caching(kept: dict[str, list[Any]]) -> Middleware:
    """Answers a request that was asked before from `kept`."""

    def wrap(handlers: Handlers) -> Handlers:
        async def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            key = json.dumps(request.body, sort_keys=True)
            if key not in kept:
                async with aclosing(handlers.complete(request)) as chunks:
                    kept[key] = [chunk async for chunk in chunks]
            for chunk in kept[key]:
                yield chunk

        return replace(handlers, complete=complete)

    return wrap


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("face", FACES)
async def test_a_cache_answers_what_was_asked_before(face: str, kind: str) -> None:
    """A second run asks nothing, says the same, and its usage is that of the answers."""
    script = script_of([call("pay", amount=1, call_id="c1"), "Paid."])
    swarm = AsyncSwarm(client_of(kind, script), middleware=[caching({})])
    first, second = [await run(swarm, face) for _ in range(2)]
    assert first == second
    assert len(script.bodies) == 2


async def test_what_is_done_to_a_response_does_not_reach_a_cache() -> None:
    """A cache hands out the same chunks again; a run makes messages of its own from them."""
    parts = [
        {"type": "text", "text": "Hello"},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
    ]
    message = {"content": parts, "tool_calls": None, "reasoning_details": [{"type": "x", "text": "hm"}]}
    chunk = {"choices": [{"message": message, "finish_reason": "stop"}]}
    kept = {"any": [chunk]}

    def canned(handlers: Handlers) -> Handlers:
        async def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            for each in kept["any"]:
                yield each

        return replace(handlers, complete=complete)

    before = copy.deepcopy(kept)
    swarm = AsyncSwarm(script_of([]).client(), middleware=[canned])
    response = await swarm.run(Agent(), "Hi")
    assert response.text == "Hello"
    (made,) = response.messages
    made["content"][0]["text"] = "changed"
    made["reasoning_details"][0]["text"] = "changed"
    made["content"].append("more")
    assert kept == before


# --- a fallback -------------------------------------------------------------------------------------------------------


def falling_back_to(source: CompletionSource) -> Middleware:
    """Asks `source` where the first client fails before its first chunk."""

    def wrap(handlers: Handlers) -> Handlers:
        async def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            has_begun = False
            try:
                async with aclosing(handlers.complete(request)) as chunks:
                    async for chunk in chunks:
                        has_begun = True
                        yield chunk
            except CompletionError:
                if has_begun:
                    raise
            if not has_begun:
                async with aclosing(source.complete(request)) as chunks:
                    async for chunk in chunks:
                        yield chunk

        return replace(handlers, complete=complete)

    return wrap


class Second:
    """A source that answers from a script."""

    def __init__(self, script: Script) -> None:
        self._source = source_for(script.client())

    def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        return self._source.complete(request)


@pytest.mark.parametrize("face", FACES)
async def test_a_fallback_answers_in_the_place_of_a_failure(face: str) -> None:
    """The first client fails in the second turn; the second one is sent that turn, and the run ends as usual."""
    second = script_of(["From the second."])
    first = script_of([call("pay", amount=1), Failure(500)])
    swarm = AsyncSwarm(first.client(), middleware=[falling_back_to(Second(second))])
    response = await run(swarm, face)
    assert response.text == "From the second."
    assert (len(first.bodies), len(second.bodies)) == (2, 1)
    assert second.bodies[0]["messages"] == first.bodies[1]["messages"]


@pytest.mark.parametrize("face", FACES[1:])
async def test_a_fallback_leaves_an_answer_that_has_begun(face: str) -> None:
    """After the first chunk nothing can be taken back: the break is the error of the run."""
    second = script_of([])
    swarm = AsyncSwarm(
        script_of([ScriptedAnswer("Hello", break_after=2)]).client(), middleware=[falling_back_to(Second(second))]
    )
    left: list[Response] = []
    with pytest.raises(StreamInterrupted) as caught:
        await consume(swarm, Agent(), face, left)
    assert caught.value.partial == "Hel"
    assert second.bodies == []


# --- redaction --------------------------------------------------------------------------------------------------------


def redacting(pattern: str) -> Middleware:
    """Keeps what matches from the provider, in requests and in the results of functions."""

    def wrap(handlers: Handlers) -> Handlers:
        def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            for message in request.body["messages"]:
                message["content"] = re.sub(pattern, "***", message["content"] or "") or None
            return handlers.complete(request)

        async def call_tool(call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
            outcome = await handlers.call_tool(call, context, started)
            return replace(outcome, content=re.sub(pattern, "***", outcome.content))

        return replace(handlers, complete=complete, call_tool=call_tool)

    return wrap


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("face", FACES)
async def test_redaction_keeps_numbers_from_the_provider(face: str, kind: str) -> None:
    """Nothing that matches is in any request; the caller's messages and what the function gets are whole."""
    paid: list[int] = []

    def pay_to(amount: int) -> str:
        paid.append(amount)
        return f"paid {amount} to 4111"

    script = script_of([call("pay_to", amount=7), "Paid."])
    swarm = AsyncSwarm(client_of(kind, script), middleware=[redacting(r"\d{4}")])
    left: list[Response] = []
    history = [{"role": "user", "content": "Take 4000 from 1234"}, {"role": "assistant", "content": "Sure, 9999."}]
    given = copy.deepcopy(history)
    agent = Agent(functions=[pay_to])
    if face == "run":
        left.append(await swarm.run(agent, [*history, {"role": "user", "content": "Go 5678"}]))
    else:
        async with swarm.stream(agent, [*history, {"role": "user", "content": "Go 5678"}]) as streamed:
            async for _ in streamed:
                pass
        left.append(streamed.response)
    sent = [message["content"] for body in script.bodies for message in body["messages"] if message.get("content")]
    assert not re.search(r"\d{4}", " ".join(sent))
    assert "Take *** from ***" in sent
    assert paid == [7]
    assert [message["content"] for message in left[0].messages if message["role"] == "tool"] == ["paid 7 to ***"]
    assert history == given


# --- timing -----------------------------------------------------------------------------------------------------------


def timing(times: list[tuple[str, str, float]]) -> Middleware:
    """Notes how long each completion and each call took."""

    def wrap(handlers: Handlers) -> Handlers:
        async def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            begun = anyio.current_time()
            async with aclosing(handlers.complete(request)) as chunks:
                async for chunk in chunks:
                    yield chunk
            times.append((handlers.run.run_id, "completion", anyio.current_time() - begun))

        async def call_tool(call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
            begun = anyio.current_time()
            outcome = await handlers.call_tool(call, context, started)
            times.append((handlers.run.run_id, call.name, anyio.current_time() - begun))
            return outcome

        return replace(handlers, complete=complete, call_tool=call_tool)

    return wrap


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("face", FACES)
async def test_timing_notes_each_step_once(face: str, kind: str) -> None:
    """Completions and calls, in their order, under the id of the run."""
    times: list[tuple[str, str, float]] = []
    swarm = AsyncSwarm(client_of(kind, script_of([call("pay", amount=1), "Paid."])), middleware=[timing(times)])
    await run(swarm, face, run_id="mine")
    assert [entry[:2] for entry in times] == [("mine", "completion"), ("mine", "pay"), ("mine", "completion")]
    assert all(0 <= seconds < 120 for *_, seconds in times)


# --- a guard of calls -------------------------------------------------------------------------------------------------


def allowing(most: int) -> Middleware:
    """Lets each run pay at most so much in all."""

    def wrap(handlers: Handlers) -> Handlers:
        paid = 0

        async def call_tool(call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
            nonlocal paid
            amount = json.loads(call.arguments)["amount"] if call.name == "pay" else 0
            if paid + amount > most:
                return ToolOutcome(f"Not allowed: at most {most}.")
            paid += amount
            return await handlers.call_tool(call, context, started)

        return replace(handlers, call_tool=call_tool)

    return wrap


@pytest.mark.parametrize("face", FACES)
async def test_a_guard_answers_what_it_does_not_allow(face: str) -> None:
    """The third payment is refused in this run; another run begins at nothing."""
    steps = [[call("pay", amount=4), call("pay", amount=4), call("pay", amount=4)], "Done."]
    swarm = AsyncSwarm(ScriptedModel(steps * 2).client(), middleware=[allowing(10)])
    for _ in range(2):
        response = await run(swarm, face)
        told = [message["content"] for message in response.messages if message["role"] == "tool"]
        assert told == ["paid 4", "paid 4", "Not allowed: at most 10."]


# --- all of them together, and checked --------------------------------------------------------------------------------


RECIPES: dict[str, Any] = {
    "cache": lambda: caching({}),
    "fallback": lambda: falling_back_to(Second(script_of(lambda request: "From the second."))),
    "redaction": lambda: redacting(r"\d{4}"),
    "timing": lambda: timing([]),
    "guard": lambda: allowing(10),
}


@pytest.mark.parametrize("recipe", listed(RECIPES, ["redaction"]))
def test_the_check_finds_nothing_wrong(recipe: str) -> None:
    """Each of them passes `check_middleware`."""
    check_middleware(RECIPES[recipe]())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("face", FACES)
async def test_all_of_them_together(face: str, kind: str) -> None:
    """A stack of all five gives the answer of the model."""
    script = script_of([call("pay", amount=1), "Paid."])
    swarm = AsyncSwarm(client_of(kind, script), middleware=[make() for make in RECIPES.values()])
    assert (await run(swarm, face)).text == "Paid."
