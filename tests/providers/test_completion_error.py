"""`completion_error`: the exception of any SDK as a `CompletionError`, for a `CompletionSource` of a user's own."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from types import SimpleNamespace
from typing import Any

import httpx
import openai
import pytest

from aswarm import Agent, AsyncSwarm, CompletionError, ConfigurationError
from aswarm._providers.compatible import failed_request
from aswarm.errors import StreamInterrupted
from aswarm.middleware import retry
from aswarm.sources import CompletionRequest, completion_error
from aswarm.testing import Failure, ScriptedModel

REQUEST = httpx.Request("POST", "http://api.test/v1/chat/completions")


class OtherStatusError(Exception):
    """As an SDK of another provider has it: a status, headers on a response, a body."""

    def __init__(self, status: Any, body: object = None, **headers: str) -> None:
        super().__init__(f"status {status}")
        self.status_code = status
        self.body = body
        self.response = SimpleNamespace(headers={name.replace("_", "-"): value for name, value in headers.items()})


class APITimeoutError(Exception):
    """As every SDK that was generated like openai's names it."""


def with_status(**fields: Any) -> Exception:
    """As an SDK has it that calls the status something else."""
    error = Exception("from another")
    vars(error).update(fields)
    return error


def of_openai(status: int, **headers: str) -> openai.APIStatusError:
    answer = httpx.Response(status, headers=headers, request=REQUEST)
    return openai.APIStatusError("from openai", response=answer, body=None)  # type: ignore[arg-type,unused-ignore]


@pytest.mark.parametrize(
    ("error", "status", "retryable", "retry_after"),
    [
        (OtherStatusError(503), 503, True, None),
        (OtherStatusError(429, retry_after="7"), 429, True, 7.0),
        (OtherStatusError(400), 400, False, None),
        (OtherStatusError(400, {"code": "tool_use_failed"}), 400, True, None),
        (OtherStatusError(429, {"code": "insufficient_quota"}), 429, False, None),
        (OtherStatusError("teapot"), None, False, None),
        (with_status(code=429, status="RESOURCE_EXHAUSTED"), 429, True, None),
        (with_status(status=503), 503, True, None),
        (with_status(code=7), None, False, None),
        (with_status(response=SimpleNamespace(status=400)), 400, False, None),
        (of_openai(500), 500, True, None),
        (of_openai(401), 401, False, None),
        (APITimeoutError("took too long"), None, True, None),
        (openai.APIConnectionError(request=REQUEST), None, True, None),  # type: ignore[arg-type,unused-ignore]
        (ValueError("odd"), None, False, None),
    ],
    ids=str,
)
def test_an_exception_of_an_sdk(
    error: Exception, status: int | None, retryable: bool, retry_after: float | None
) -> None:
    """Status, whether to try again, and when, are read from what SDKs put on their exceptions; the text has the type."""
    made = completion_error(error)
    assert isinstance(made, CompletionError)
    assert (made.status_code, made.retryable, made.retry_after) == (status, retryable, retry_after)
    body = getattr(error, "body", None) or {}
    code = f" (code {body['code']})" if "code" in body else ""
    assert str(made) == f"the provider failed: {type(error).__name__}: {error}{code}"
    assert made.response is None


@pytest.mark.parametrize(("message", "added"), [("not this one", True), ("model_not_found: not this one", False)])
async def test_the_code_of_the_provider_is_in_the_text(message: str, added: bool) -> None:
    """openai 3 has the message only, and openai 2 has the whole body; a code in the text is not repeated."""
    swarm = AsyncSwarm(ScriptedModel([Failure(400, message, code="model_not_found")]).client())
    with pytest.raises(CompletionError) as caught:
        await swarm.run(Agent(model="m"), "Hi")
    assert ("(code model_not_found)" in str(caught.value)) is (added and not openai.__version__.startswith("2."))
    assert "model_not_found" in str(caught.value)
    assert "the server does not have this model" in str(caught.value)


@pytest.mark.parametrize(
    "error",
    [CompletionError("busy", retryable=True), StreamInterrupted("broke"), ConfigurationError("no key")],
    ids=str,
)
def test_an_error_of_aswarm_stays_as_it_is(error: Exception) -> None:
    """So that it can be called on whatever was caught."""
    assert completion_error(error) is error


class OtherSource:
    """A source as a user writes it, on an SDK that fails once."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        try:
            if self.failures:
                raise self.failures.pop(0)
        except Exception as error:
            raise completion_error(error) from error
        yield {"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]}


async def test_a_source_that_uses_it_is_retried() -> None:
    """`retry` reads the error that it returns; the exception of the SDK is the cause."""
    source = OtherSource(OtherStatusError(503, retry_after_ms="1"))
    response = await AsyncSwarm(source, middleware=[retry(2)]).run(Agent(), "Hello")
    assert response.text == "Hi"
    failure = OtherStatusError(400)
    with pytest.raises(CompletionError) as caught:
        await AsyncSwarm(OtherSource(failure), middleware=[retry(2)]).run(Agent(), "Hello")
    assert caught.value.status_code == 400
    assert caught.value.__cause__ is failure
    assert caught.value.response is not None


# --- what is a source, and what is a client ---------------------------------------------------------------------------


class OldStyle:
    """A client that has both: `complete` is the old API of many providers, and no `CompletionSource`."""

    def __init__(self) -> None:
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self._create))
        self.asked: list[str] = []

    async def _create(self, **body: Any) -> dict[str, Any]:
        self.asked.append(body["model"])
        return {"choices": [{"message": {"content": "from create"}, "finish_reason": "stop"}]}

    def complete(self, prompt: str) -> str:
        raise AssertionError("the old API was called")


async def test_a_client_with_both_is_a_client() -> None:
    """It is called through `chat.completions.create`."""
    client = OldStyle()
    response = await AsyncSwarm(client).run(Agent(model="m"), "Hello")
    assert response.text == "from create"
    assert client.asked == ["m"]


async def test_an_error_of_aswarm_passes_through_the_source_of_a_client() -> None:
    """A client of the user may raise it, with its own text."""
    error = CompletionError("the gateway is closed")
    assert failed_request(error, CompletionRequest(Agent(), {"messages": []})) is error
    assert str(error) == "the gateway is closed"
