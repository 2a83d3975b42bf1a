"""The real `AsyncOpenAI` and a server that others made, over both APIs, by one set of fixtures."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from openai import AsyncOpenAI

from aswarm import Agent, AsyncSwarm, CompletionError
from tests.support.interoperability.aimock import Relay
from tests.support.interoperability.weather import QUESTION, WAYS, ask, check_weather, look

APIS = ("chat", "responses")
AGENT = Agent(model="gpt-6-luna", functions=[look])


@pytest.fixture
async def client(server: Relay) -> AsyncIterator[AsyncOpenAI]:
    """A client of that server."""
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("api", APIS)
async def test_parallel_calls_and_an_answer(api: Any, way: str, client: AsyncOpenAI, server: Relay) -> None:
    """Messages, usage and reasoning are the same over both APIs, whole and streamed."""
    response, reasoning = await ask(AsyncSwarm(client, api=api), way, AGENT)
    check_weather(response)
    assert reasoning in ("", "I should look at both.Easy.")
    assert (reasoning == "") == (way != "stream")
    path = "/v1/responses" if api == "responses" else "/v1/chat/completions"
    assert [seen.path for seen in server.seen] == [path] * 2


@pytest.mark.parametrize("way", WAYS)
async def test_reasoning_items_go_back_in_their_order(way: str, client: AsyncOpenAI, server: Relay) -> None:
    """The second request has the items of the first answer, byte for byte: reasoning, message, calls."""
    response, _ = await ask(AsyncSwarm(client, api="responses"), way, AGENT)
    items = response.messages[0]["responses_output"]
    assert [item["type"] for item in items] == ["reasoning", "message", "function_call", "function_call"]
    assert items[0]["encrypted_content"]
    asked, *replayed = server.seen[1].body["input"]
    assert (asked["role"], replayed[:4]) == ("user", items)
    assert [item["type"] for item in replayed[4:]] == ["function_call_output"] * 2


@pytest.mark.parametrize("first", APIS)
async def test_a_history_continues_over_the_other_api(first: Any, client: AsyncOpenAI) -> None:
    """The other API reads the history of the first."""
    second: Any = APIS[first == "chat"]
    response, _ = await ask(AsyncSwarm(client, api=first), "run", AGENT)
    history = [{"role": "user", "content": QUESTION}, *response.messages, {"role": "user", "content": "Many thanks!"}]
    for way in WAYS:
        answer, _ = await ask(AsyncSwarm(client, api=second), way, AGENT, history)
        assert answer.text == "You are welcome."


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("status", "words", "retryable", "retry_after"),
    [(429, "slow down", True, 1), (500, "out of order", True, None), (400, "not so", False, None)],
)
async def test_an_error(
    status: int, words: str, retryable: bool, retry_after: float | None, api: Any, way: str, client: AsyncOpenAI
) -> None:
    """Status, words, whether and when to try again."""
    with pytest.raises(CompletionError, match=words) as caught:
        await ask(AsyncSwarm(client, api=api), way, AGENT, f"status {status}")
    error = caught.value
    assert (error.status_code, error.retryable, error.retry_after) == (status, retryable, retry_after)
    assert error.response is not None and error.response.messages == []
