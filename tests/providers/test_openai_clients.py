"""Real clients of the openai package: Azure, subclasses, request options, environment; all through the SDK's `post`."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncAzureOpenAI, AsyncOpenAI
from pydantic import BaseModel

from aswarm import Agent, AsyncSwarm, CompletionError, ConfigurationError
from aswarm.testing import ScriptedAnswer, ScriptedModel
from tests.support.providers.loopback import spoken


class Recorder(httpx.AsyncBaseTransport):
    """Answers "Hi" to everything, as asked, and keeps the requests."""

    def __init__(self) -> None:
        self.requests: list[httpx.Request] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(await request.aread())
        self.requests.append(request)
        reply = spoken(ScriptedAnswer("Hi"), body, cut=1)
        return httpx.Response(200, content=b"".join(reply.pieces), headers={"content-type": reply.content_type})

    @property
    def http(self) -> Any:  # openai 3.x takes one of httpx too, but its type hint is httpx2
        return httpx.AsyncClient(transport=self)


async def both_ways(client: Any, agent: Agent | None = None) -> None:
    """One whole completion and one stream."""
    swarm = AsyncSwarm(client=client)
    assert (await swarm.run(agent or Agent(), "Hello")).text == "Hi"
    async with swarm.stream(agent or Agent(), "Hello") as run:
        async for _ in run:
            pass
    assert run.response.text == "Hi"


async def test_azure() -> None:
    """Azure's deployment is in the URL, its key in `api-key`, its version in the query."""
    seen = Recorder()
    client = AsyncAzureOpenAI(
        azure_endpoint="https://azure.test", api_key="secret", api_version="2024-10-21", http_client=seen.http
    )
    await both_ways(client, Agent(model="my-deployment"))
    for request in seen.requests:
        assert request.url.path == "/openai/deployments/my-deployment/chat/completions"
        assert dict(request.url.params) == {"api-version": "2024-10-21"}
        assert request.headers["api-key"] == "secret"
        assert json.loads(request.content)["model"] == "my-deployment"


async def test_azure_with_a_fixed_deployment_and_a_token() -> None:
    """A deployment of the client wins over the model, and a token provider takes the place of the key."""

    async def token() -> str:
        return "token"

    seen = Recorder()
    client = AsyncAzureOpenAI(
        azure_endpoint="https://azure.test",
        azure_deployment="fixed",
        azure_ad_token_provider=token,
        api_version="2024-10-21",
        http_client=seen.http,
    )
    await both_ways(client)
    assert {request.url.path for request in seen.requests} == {"/openai/deployments/fixed/chat/completions"}
    assert {request.headers["authorization"] for request in seen.requests} == {"Bearer token"}


async def test_a_subclass_keeps_its_own_ways() -> None:
    """A subclass of AsyncOpenAI is used like it: its overrides (here its headers) hold."""

    class Tenant(AsyncOpenAI):
        @property
        def default_headers(self) -> dict[str, Any]:
            return {**super().default_headers, "x-tenant": "t1"}

    seen = Recorder()
    await both_ways(Tenant(api_key="k", base_url="https://sub.test/v1", http_client=seen.http))
    assert {request.headers["x-tenant"] for request in seen.requests} == {"t1"}
    assert {str(request.url) for request in seen.requests} == {"https://sub.test/v1/chat/completions"}


async def test_an_admin_key_does_not_replace_the_api_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """With OPENAI_ADMIN_KEY in the environment, requests still carry the API key."""
    monkeypatch.setenv("OPENAI_ADMIN_KEY", "admin")
    seen = Recorder()
    await both_ways(AsyncOpenAI(api_key="mine", base_url="https://one.test/v1", http_client=seen.http))
    assert {request.headers["authorization"] for request in seen.requests} == {"Bearer mine"}


async def test_a_key_that_is_a_function_is_asked_every_time() -> None:
    """An API key may be an async function (short-lived tokens): it is called for each request."""
    keys = iter(["first", "second"])

    async def key() -> str:
        return next(keys)

    seen = Recorder()
    await both_ways(AsyncOpenAI(api_key=key, base_url="https://one.test/v1", http_client=seen.http))
    assert [request.headers["authorization"] for request in seen.requests] == ["Bearer first", "Bearer second"]


async def test_request_options_in_model_settings() -> None:
    """`extra_headers`, `extra_query`, `extra_body` and `timeout` act as they do on `create`; the rest is the body."""
    seen = Recorder()
    client = AsyncOpenAI(api_key="k", base_url="https://one.test/v1", http_client=seen.http)
    settings = {
        "extra_headers": {"x-trace": "t"},
        "extra_query": {"q": "1"},
        "extra_body": {"top_k": 5, "temperature": 0.9},
        "timeout": 7.5,
        "temperature": 0.1,
        "seed": 3,
    }
    await both_ways(client, Agent(model_settings=settings))
    for request in seen.requests:
        body = json.loads(request.content)
        assert request.headers["x-trace"] == "t"
        assert request.url.params["q"] == "1"
        assert (body["top_k"], body["temperature"], body["seed"]) == (5, 0.9, 3)
        assert not {"extra_headers", "extra_query", "extra_body", "timeout"} & set(body)
        assert request.extensions["timeout"]["read"] == 7.5


async def test_options_mean_the_same_as_on_create() -> None:
    """`post` sends the same request as `create`: URL, headers and body."""
    seen = Recorder()
    client = AsyncOpenAI(
        api_key="k", organization="o", project="p", base_url="https://one.test/v1", http_client=seen.http
    )
    agent = Agent(model_settings={"temperature": 0.5, "stop": ["x"], "metadata": {"a": "b"}, "logit_bias": {"1": 2}})
    await both_ways(client, agent)
    body = {
        "model": "gpt-6-luna",
        "messages": [{"role": "system", "content": "You are a helpful agent."}, {"role": "user", "content": "Hello"}],
        **agent.model_settings,
    }
    await client.chat.completions.create(**body, stream=False)
    (ours, _, theirs) = seen.requests
    assert json.loads(ours.content) == json.loads(theirs.content)
    assert ours.url == theirs.url
    ignored = ("x-stainless-read-timeout", "x-stainless-raw-response", "content-length")
    assert {key: value for key, value in ours.headers.items() if key not in ignored} == {
        key: value for key, value in theirs.headers.items() if key not in ignored
    }


@pytest.mark.skipif(int(openai.__version__.partition(".")[0]) < 3, reason="openai 2 cannot write them either")
async def test_values_that_only_the_sdk_can_write_are_left_to_it() -> None:
    """A date and a model object are sent as `create` sends them; a value that nobody can write is an error of the request."""

    class Schema(BaseModel):
        kind: str = "json_object"
        strict: bool | None = None

    seen = Recorder()
    client = AsyncOpenAI(api_key="x", base_url="http://a.test/v1", http_client=seen.http)
    settings = {"response_format": Schema(kind="text"), "metadata": {"day": [datetime(2026, 1, 2, tzinfo=UTC)]}}
    await both_ways(client, Agent(model_settings=settings))
    for request in seen.requests:
        body = json.loads(request.content)
        assert body["response_format"] == {"kind": "text"}
        assert body["metadata"] == {"day": ["2026-01-02T00:00:00+00:00"]}
    with pytest.raises(ConfigurationError, match="not JSON serializable"):
        await AsyncSwarm(client).run(Agent(), [{"role": "user", "content": [{"type": "text", "text": object()}]}])


async def test_settings_that_are_not_given_are_not_sent() -> None:
    """openai's own NOT_GIVEN in `model_settings` means the same as on `create`: the key is left out."""
    from openai import NOT_GIVEN

    model = ScriptedModel(["Hi"])
    await AsyncSwarm(client=model.client()).run(Agent(model_settings={"temperature": NOT_GIVEN}), "Hello")
    assert "temperature" not in model.requests[0].body


async def test_a_closed_client_is_a_completion_error() -> None:
    """A client that somebody closed is a CompletionError with the SDK's exception as its cause."""
    client = ScriptedModel(["Hi"]).client()
    await client.close()
    with pytest.raises(CompletionError) as caught:
        await AsyncSwarm(client=client).run(Agent(), "Hello")
    assert caught.value.__cause__ is not None
