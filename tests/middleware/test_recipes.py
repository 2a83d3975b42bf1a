"""Middleware of users beside the middleware of aswarm, over every kind of client."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, CompletionError, Response
from aswarm.middleware import (
    CompletionRequest,
    Handlers,
    Middleware,
    Started,
    ToolCall,
    ToolOutcome,
    cache,
    fallback,
    redact,
)
from aswarm.testing import Failure, ScriptedModel, call, check_history, check_middleware
from tests.support.providers.sources import KINDS, client_of, script_of
from tests.support.run.ways_to_run import FACES, consume
from tests.support.sampling import listed


def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


async def run(swarm: AsyncSwarm, face: str, **options: Any) -> Response:
    left: list[Response] = []
    await consume(swarm, Agent(functions=[pay]), face, left, **options)
    check_history(left[0].messages)
    return left[0]


def timing(times: list[tuple[str, str, float]]) -> Middleware:
    """Notes how long each completion and each call took."""

    def wrap(handlers: Handlers) -> Handlers:
        async def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            start = anyio.current_time()
            async with aclosing(handlers.complete(request)) as chunks:
                async for chunk in chunks:
                    yield chunk
            times.append((handlers.run.run_id, "completion", anyio.current_time() - start))

        async def call_tool(call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
            start = anyio.current_time()
            outcome = await handlers.call_tool(call, context, started)
            times.append((handlers.run.run_id, call.name, anyio.current_time() - start))
            return outcome

        return replace(handlers, complete=complete, call_tool=call_tool)

    return wrap


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
async def test_a_guard_answers_a_call_that_it_does_not_allow(face: str) -> None:
    """The third payment of a run is refused, and another run starts at nothing."""
    steps = [[call("pay", amount=4), call("pay", amount=4), call("pay", amount=4)], "Done."]
    swarm = AsyncSwarm(ScriptedModel(steps * 2).client(), middleware=[allowing(10)])
    for _ in range(2):
        response = await run(swarm, face)
        results = [message["content"] for message in response.messages if message["role"] == "tool"]
        assert results == ["paid 4", "paid 4", "Not allowed: at most 10."]


RECIPES: dict[str, Any] = {"timing": lambda: timing([]), "guard": lambda: allowing(10)}


@pytest.mark.parametrize("recipe", listed(RECIPES, ["timing"]))
def test_the_check_finds_nothing_wrong(recipe: str) -> None:
    """`check_middleware` finds no fault in the middleware of users."""
    check_middleware(RECIPES[recipe]())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("face", FACES)
async def test_five_middlewares_work_together(face: str, kind: str) -> None:
    """Each does its part: the second run asks nothing, and no request has the card number."""
    times: list[tuple[str, str, float]] = []
    failure = Failure(503) if kind == "openai" else CompletionError("down", status_code=503, retryable=True)
    first, second = script_of([call("pay", amount=4111, call_id="c1"), failure]), script_of(["Paid."])
    middleware = [timing(times), allowing(9000), cache(), fallback((second.client(), "llama")), redact("4111")]
    swarm = AsyncSwarm(client_of(kind, first), middleware=middleware)
    responses = [await run(swarm, face, run_id="mine") for _ in range(2)]
    assert [response.text for response in responses] == ["Paid.", "Paid."]
    assert "4111" in json.dumps(responses[0].messages)
    assert "4111" not in json.dumps(first.bodies + second.bodies)
    assert [entry[:2] for entry in times] == [("mine", "completion"), ("mine", "pay"), ("mine", "completion")] * 2
    assert all(0 <= seconds < 120 for *_, seconds in times)
