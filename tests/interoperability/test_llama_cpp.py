"""llama.cpp's own server with a real, small model, over both APIs: protocol and arguments, never the prose."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel

from aswarm import Agent, AsyncSwarm, Response, TextDelta
from aswarm.testing import check_history
from tests.support.interoperability.weather import WAYS, ask

sys.path.append(str(Path(__file__).parents[2] / "examples/demo"))
from model_server import ModelUnavailableError, model_server

APIS = ("chat", "responses")
QUESTION = "Please refund my order 4711, the lamp is broken."


def refund(order_id: int) -> str:
    """Refund an order."""
    return f"Refunded order {order_id}."


# The model is too small to choose. `tool_choice` relaxes after the call, and it answers with a text.
FORCED = Agent(
    name="Refunds",
    model="smollm2",
    functions=[refund],
    tool_choice="required",
    parallel_tool_calls=False,
    model_settings={"temperature": 0, "max_tokens": 40},
)


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    """The address of the server."""
    try:
        with model_server() as running:
            yield running
    except ModelUnavailableError as error:
        pytest.skip(f"{error}; `nox -s demo -- --live` installs it")


@pytest.fixture
async def client(url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AsyncOpenAI]:
    """A client that does not keep a connection: the server closes connections that it promised to keep."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    options: dict[str, Any] = {"default_headers": {"Connection": "close"}, "max_retries": 0, "timeout": 120}
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", **options) as made:
        yield made


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("api", APIS)
async def test_a_forced_call(api: Any, way: str, client: AsyncOpenAI) -> None:
    """The model fills in the arguments, sees the result, and answers with a text; the tokens of both turns are counted."""
    response, _ = await ask(AsyncSwarm(client, api=api), way, FORCED, QUESTION)
    check_history(response.messages)
    made, result, said = response.messages
    function = made["tool_calls"][0]["function"]
    assert (function["name"], json.loads(function["arguments"])) == ("refund", {"order_id": 4711})
    assert (result["content"], response.stop) == ("Refunded order 4711.", "answer")
    assert said["content"]
    assert response.usage.requests == 2
    assert min(response.usage.prompt_tokens, response.usage.completion_tokens) > 0
    if api == "responses":
        assert [item["type"] for item in made["responses_output"]] == ["function_call"]
        assert [item["type"] for item in said["responses_output"]] == ["message"]


class Refund(BaseModel):
    """A refund that was made."""

    order_id: int
    is_refunded: bool


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_a_schema_without_functions(streamed: bool, client: AsyncOpenAI) -> None:
    """The server holds the model to the schema, over Chat Completions: the first answer has the type."""
    agent = Agent(model="smollm2", output=Refund, model_settings=FORCED.model_settings)
    response = await answered(AsyncSwarm(client, api="chat"), agent, streamed)
    assert isinstance(response.output, Refund)
    assert response.usage.requests == 1


async def answered(
    swarm: AsyncSwarm, agent: Agent, streamed: bool, question: str = QUESTION, max_turns: int | None = None
) -> Response:
    """The response of a run that is read whole, or as a stream."""
    if not streamed:
        return await swarm.run(agent, question, max_turns=max_turns)
    async with swarm.stream(agent, question, max_turns=max_turns) as run:
        async for _ in run:
            pass
    check_history(run.response.messages)
    return run.response


@pytest.mark.parametrize("api", APIS)
async def test_leaving_early_ends_the_work_of_the_server(api: Any, client: AsyncOpenAI, url: str) -> None:
    """The server stops in the middle of its answer: most of the tokens that it was asked for remain."""
    settings = {"max_tokens": 1500, "temperature": 0, "extra_body": {"ignore_eos": True}}
    talker = Agent(model="smollm2", model_settings=settings)
    async with httpx.AsyncClient(base_url=url, trust_env=False, headers={"connection": "close"}) as direct:
        async with AsyncSwarm(client, api=api).stream(talker, "Tell me a very long story.") as run:
            async for event in run:
                if isinstance(event, TextDelta):
                    assert (await slot(direct))["is_processing"]
                    break
        with anyio.fail_after(60):
            while (left := await slot(direct))["is_processing"]:
                await anyio.sleep(0.02)
    assert left["next_token"][0]["has_next_token"]
    assert left["next_token"][0]["n_remain"] > 1000
    assert run.response.stop == "cancelled"
    assert run.partial


async def slot(direct: httpx.AsyncClient) -> dict[str, Any]:
    """Return the current or last work of the server: it does one thing at a time."""
    (only,) = (await direct.get("/slots")).json()
    return dict(only)
