"""`HTTPSource`: its requests, its retries, and settings that it refuses."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

from aswarm import Agent, AsyncSwarm, CompletionError, ConfigurationError
from aswarm.middleware import CompletionRequest
from aswarm.sources import HTTPSource
from aswarm.testing import ScriptedAnswer
from tests.support.providers.loopback import Reply, serve, spoken, whole
from tests.support.providers.transports import Transport, client_at, on_each_transport


async def test_the_request_has_the_headers_of_the_sdk() -> None:
    """Key, organization and project, and the caller's own headers."""
    async with (
        serve(lambda _: whole(ScriptedAnswer("hello"))) as server,
        HTTPSource(server.base_url, "key", organization="o", project="p", headers={"x-own": "1"}) as source,
    ):
        assert (await AsyncSwarm(source).run(Agent(), "hi")).text == "hello"
    lines = {line.lower() for line in server.heads[0].split("\r\n")}
    assert {"authorization: bearer key", "openai-organization: o", "openai-project: p", "x-own: 1"} <= lines


@pytest.mark.skipif(openai.__version__.startswith("2."), reason="openai 2 sends its own Authorization beside that one")
@pytest.mark.parametrize("client", ["openai", "direct"])
async def test_headers_of_the_environment(client: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """OPENAI_CUSTOM_HEADERS replaces the standard headers, and the caller's headers replace both, as with openai's client."""
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "x-env: e\nauthorization: Bearer env\nX-Both: env")
    async with serve(lambda _: whole(ScriptedAnswer("hello"))) as server:
        for more in ({"x-both": "own"}, {"x-both": "own", "Authorization": "Bearer own"}):
            source: Any = (
                HTTPSource(server.base_url, "key", headers=more)
                if client == "direct"
                else openai.AsyncOpenAI(base_url=server.base_url, api_key="key", default_headers=more)
            )
            await AsyncSwarm(source).run(Agent(), "hi")
            await (source.aclose() if client == "direct" else source.close())
    for head, bearer in zip(server.heads, ("env", "own"), strict=True):
        sent = [line.lower() for line in head.split("\r\n")]
        assert {"x-env: e", "x-both: own"} <= set(sent)
        assert [line for line in sent if line.startswith("authorization:")] == [f"authorization: bearer {bearer}"]


@on_each_transport
@pytest.mark.parametrize("status", ["301 Moved Permanently", "302 Found", "303 See Other"])
async def test_a_redirect_that_drops_the_request_is_an_error(status: str, transport: Transport) -> None:
    """A client asks the new address with GET, as browsers do: the error names the status of the target."""
    refusal = Reply([b'{"error": {"message": "use POST"}}'], status="405 Method Not Allowed")
    async with serve(lambda _: refusal) as target, serve(lambda _: moved) as server:
        moved = Reply([], status=status, headers={"location": f"{target.base_url}/chat/completions"})
        async with client_at(server.base_url, transport) as client:
            with pytest.raises(CompletionError, match="use POST") as caught:
                await AsyncSwarm(client).run(Agent(), "hi")
    assert (caught.value.status_code, caught.value.retryable) == (405, False)
    assert [head.split()[0] for head in target.heads] == ["GET"]
    assert not [head for head in target.heads if "authorization" in head.lower()]


async def test_the_options_of_a_request() -> None:
    """Headers, query and body of one request, as on the SDK's `create`."""
    settings = {"extra_headers": {"x-trace": "t"}, "extra_query": {"q": "1"}, "extra_body": {"top_k": 5}, "timeout": 60}
    async with serve(lambda _: whole(ScriptedAnswer("hello"))) as server, HTTPSource(server.base_url, "key") as source:
        await AsyncSwarm(source).run(Agent(model_settings=settings), "hi")
    assert server.heads[0].startswith("POST /v1/chat/completions?q=1 ")
    assert "x-trace: t" in server.heads[0].lower()
    assert server.requests[0]["top_k"] == 5
    assert not settings.keys() & server.requests[0].keys()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failed_request_is_sent_again(stream: bool) -> None:
    """As often as the source may, after the time that the server asks for."""

    def reply(body: dict[str, Any]) -> Reply:
        if len(server.requests) < 3:
            return Reply([b"{}"], status="503 Busy", headers={"retry-after-ms": "1"})
        return spoken(ScriptedAnswer("hello"), body)

    async with (
        serve(reply) as server,
        HTTPSource(server.base_url, "key") as source,
        AsyncSwarm(source).stream(Agent(), "hi", deltas=stream) as run,
    ):
        async for _ in run:
            pass
    assert run.response.text == "hello"
    assert len(server.requests) == 3


async def test_a_refused_request_is_sent_once() -> None:
    """The error has the status, the words and the code of the server, and names its address."""
    refusal = Reply([b'{"error": {"message": "no such model", "code": "model_not_found"}}'], status="404 Not Found")
    async with serve(lambda _: refusal) as server, HTTPSource(server.base_url, "key") as source:
        with pytest.raises(CompletionError, match=r"404 - no such model \(code model_not_found\)") as caught:
            await AsyncSwarm(source).run(Agent(), "hi")
    assert (caught.value.status_code, caught.value.retryable, len(server.requests)) == (404, False, 1)
    assert server.base_url in str(caught.value)


async def test_a_wait_of_more_than_two_minutes_is_the_callers() -> None:
    """The error has the seconds."""
    busy = Reply([b"{}"], status="429 Too Many", headers={"retry-after": "500"})
    async with serve(lambda _: busy) as server, HTTPSource(server.base_url, "key") as source:
        with pytest.raises(CompletionError) as caught:
            await AsyncSwarm(source).run(Agent(), "hi")
    assert (caught.value.retry_after, len(server.requests)) == (500, 1)


async def test_a_large_request() -> None:
    """Of more bytes than aiohttp writes in one piece."""
    async with serve(lambda _: whole(ScriptedAnswer("hello"))) as server, HTTPSource(server.base_url, "key") as source:
        await AsyncSwarm(source).run(Agent(), "x" * 1_500_000)
    assert len(server.requests[0]["messages"][-1]["content"]) == 1_500_000


@pytest.mark.parametrize("value", [float("nan"), {1, 2}], ids=repr)
async def test_a_setting_that_is_not_json_is_refused(value: object) -> None:
    """Before anything is sent."""
    source = HTTPSource("http://127.0.0.1:9/v1", "key", max_retries=0)
    with pytest.raises(ConfigurationError, match="not JSON"):
        await AsyncSwarm(source).run(Agent(model_settings={"metadata": value}), "hi")
    await source.aclose()


@pytest.mark.parametrize("more", [{"x": object()}, {"messages": [{"content": float("nan")}]}])
async def test_a_request_that_is_not_json_is_refused(more: Any) -> None:
    """A middleware may add any value to the body."""
    source = HTTPSource("http://127.0.0.1:9/v1", "key", max_retries=0)
    with pytest.raises(ConfigurationError, match="not JSON"):
        await anext(source.complete(CompletionRequest(Agent(), {"model": "m", "messages": [], **more})))
    await source.aclose()


async def test_a_text_with_the_letters_nan() -> None:
    async with serve(lambda _: whole(ScriptedAnswer("hello"))) as server, HTTPSource(server.base_url, "key") as source:
        await AsyncSwarm(source).run(Agent(model_settings={"stop": "NaN"}), "NaN")
    assert server.requests[0]["stop"] == "NaN"


async def test_the_timeout_of_a_source() -> None:
    """Seconds, or a timeout of httpx."""
    await HTTPSource("http://127.0.0.1:9/v1", "key", timeout=httpx.Timeout(5)).aclose()  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="timeout must be a number of seconds or None, not 'soon'"):
        HTTPSource("http://127.0.0.1:9/v1", "key", timeout="soon")  # type: ignore[arg-type]


def test_what_only_the_sdk_can_do_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a pointer to its client."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigurationError, match=r"use the client of the openai package instead"):
        HTTPSource(api_key=lambda: "token")  # type: ignore[arg-type]
    for url in ("ftp://host/v1", "https://user:secret@host/v1", "https://host/v1?api-version=1", "host"):
        with pytest.raises(ConfigurationError, match="base_url must be an address") as caught:
            HTTPSource(url, "key")
        assert "secret@" not in str(caught.value)
    with pytest.raises(ConfigurationError, match="set OPENAI_API_KEY"):
        HTTPSource()
