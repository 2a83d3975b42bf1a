"""Errors of a request: the error shows the provider's text for any form of the body, on each transport."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from aswarm import Agent, AsyncSwarm, CompletionError
from aswarm.sources import completion_error
from tests.support.providers.loopback import Reply, serve
from tests.support.providers.transports import Transport, client_at, on_each_transport

SAID = "Model not found: m-9"
NESTED = {"error": {"error": {"message": SAID, "code": "no_model"}}}
RAW = {"message": "Provider returned error", "code": 400, "metadata": {"provider_name": "G", "raw": SAID}}
BODIES: dict[str, Any] = {
    "openai": {"error": {"message": SAID, "type": "invalid_request_error", "code": "no_model"}},
    "error is a text": {"code": "no_model", "error": SAID},
    "detail is a text": {"detail": SAID},
    "detail is a list": {"detail": [{"loc": ["body", "model"], "msg": SAID, "type": "value_error"}]},
    "detail is an object": {"detail": {"message": SAID, "code": "no_model"}},
    "detail in error": {"error": {"detail": SAID}},
    "message": {"message": SAID, "type": "Bad Request", "code": 400},
    "errors": {"errors": [{"message": SAID, "code": 7003}], "success": False, "result": None},
    "texts": {"errors": [SAID]},
    "error in error": NESTED,
    "error as a JSON text": {"error": json.dumps(NESTED)},
    "a list": [{"error": {"code": 400, "message": SAID, "status": "INVALID_ARGUMENT"}}],
    "raw": {"error": RAW},
    "raw is JSON": {"error": {**RAW, "metadata": {"raw": json.dumps({"error": {"message": SAID}})}}},
    "raw is an object": {"error": {**RAW, "metadata": {"raw": {"detail": SAID}}}},
    "msg": {"code": 20012, "msg": SAID, "data": None},
    "OAuth": {"error": "invalid_request", "error_description": SAID},
    "beside error": {"error": {"code": "invalid"}, "detail": SAID},
    "a problem (RFC 9457)": {"type": "about:blank", "title": "Bad Request", "detail": SAID},
    "Gemini": {"error": {"code": 400, "message": SAID, "details": [{"@type": "x", "reason": "NOT_FOUND"}]}},
    "unknown keys": {"fault": {"faultstring": SAID}},
    "a JSON text": SAID,
    "text": SAID.encode(),
    "HTML": f"<!doctype html><style>a {{ color: red }}</style><title>400</title><p>{SAID}</p>".encode(),
}


@on_each_transport
@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_the_text_of_the_provider_is_shown(api: Any, transport: Transport) -> None:
    """Each of these bodies has the same text, and the error shows it once; streamed and whole."""
    shown: dict[str, str] = {}
    body = b""
    refusal = lambda _: Reply([body], status="400 Bad Request", content_type="application/json")  # noqa: E731
    async with serve(refusal) as server, client_at(server.base_url, transport, api) as client:
        swarm = AsyncSwarm(client, api=api)
        for name, each in BODIES.items():
            body = each if isinstance(each, bytes) else json.dumps(each).encode()
            with pytest.raises(CompletionError) as caught:
                await swarm.run(Agent(), "Hi")
            shown[name] = str(caught.value)
            assert (caught.value.status_code, caught.value.retryable) == (400, False)
            with pytest.raises(CompletionError) as streamed:
                async for _ in swarm.run(Agent(), "Hi", stream=True):
                    pass
            assert str(streamed.value) == shown[name]
    most = 2 if openai.__version__.startswith("2.") else 1  # openai 2 shows the `repr` of the body
    assert {name for name, text in shown.items() if not 1 <= text.count(SAID) <= most} == set()


def test_a_code_beside_the_text_is_shown() -> None:
    """xAI sends the code beside `error`; an unknown shape of JSON is quoted."""
    response = httpx.Response(400, json={"code": "no-model", "error": SAID}, request=httpx.Request("POST", "http://x"))
    assert "(code no-model)" in str(completion_error(StatusError(response)))


def test_a_long_text_is_shortened() -> None:
    """An HTML page or a text of any length gives a short error, in linear time."""
    for body in (
        "<p>x</p>" * 100_000,
        "<script" * 100_000,
        "<!--" * 100_000,
        "x" * 1_000_000,
        "[" * 100_000,
        '{"a": ' * 9_999,
    ):
        response = httpx.Response(502, text=body, request=httpx.Request("POST", "http://x"))
        assert len(str(completion_error(StatusError(response)))) < 2_000
        assert len(str(completion_error(StatusError(response, body)))) < 4_000


class StatusError(Exception):
    """An exception of an SDK with the response, like the exceptions of openai."""

    def __init__(self, response: httpx.Response, text: str = "failed") -> None:
        super().__init__(text)
        self.response = response


@pytest.mark.asyncio
async def test_the_advice_reads_the_text() -> None:
    """The usual cause is found in each form of the body."""
    refusal = Reply(
        [b'{"error": "The model m-9 does not exist"}'], status="404 Not Found", content_type="application/json"
    )
    async with serve(lambda _: refusal) as server, client_at(server.base_url) as client:
        with pytest.raises(CompletionError, match=r"choose another one with Agent\(model=...\)"):
            await AsyncSwarm(client).run(Agent(model="m-9"), "Hi")
