"""Completions through `chat.completions.create` or `responses.create` of any client, async or blocking.

The module finds out whether a reply is a completion or a stream, and reads objects of any class. It does not import openai.
"""

from __future__ import annotations

import functools
import inspect
import json
import math
import socket
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import anyio

from aswarm._runtime import seams
from aswarm._tools.tool import is_async
from aswarm._values.errors import AswarmError, CompletionError, ConfigurationError, StreamInterrupted, named
from aswarm._values.json import is_array, is_object
from aswarm._values.messages import as_plain
from aswarm._values.text import shortened
from aswarm._wire.accumulator import provider_error
from aswarm._wire.failures import headers_of, hide_header_values, may_pass, provider_texts, retry_after, should_retry
from aswarm._wire.request import CompletionRequest
from aswarm._wire.sse import DONE, whole

from . import prompt_cache
from .apis import CHAT, Api, is_of_openai, type_of
from .usual_causes import place_and_cause

T = TypeVar("T")

# The limit for closing a response: a close that hangs must not block a cancelled run forever.
CLOSE_SECONDS = 2.0
_LONGEST = 2000  # characters of the text of an exception; some contain a whole HTML page


class BlockingCall(Protocol):
    """Protocol of a function that calls the code of a blocking client."""

    async def __call__(self, work: Callable[[], T], /, *, must_run: bool = False) -> T:
        """Call `work` in a place where it may block, and return its value. With `must_run`, call it even in a cancelled run."""
        ...


class _End:
    """Whether a stream of objects has ended. Mocks and some libraries end a stream without a finish reason.

    The SDK does not show `[DONE]`, and also ends silently if the connection was cut. But a stream whose only usage is in its last
    chunk is whole; the accumulator checks that it is the only one.
    """

    def __init__(self) -> None:
        self._has_started = self._has_finished = self.is_missing = self.is_at_usage = False

    def note(self, chunk: Mapping[str, Any]) -> None:
        self.is_at_usage = self._has_started and bool(chunk.get("usage"))
        choices: Iterable[Any] = chunk.get("choices") or ()
        self._has_started = self._has_started or bool(choices)
        self._has_finished = self._has_finished or any(choice.get("finish_reason") for choice in choices)
        self.is_missing = self._has_started and not self._has_finished


async def call_directly(work: Callable[[], T], *, must_run: bool = False) -> T:
    """Call `work` on the event loop."""
    return work()


@dataclass(frozen=True, eq=False)
class CompatibleClientSource:
    """Source of completions through `create` of a mock, a patched openai client, or a client of another library."""

    client: Any
    call: BlockingCall
    without_retries: Callable[[], Any] | None = None
    api: Api = CHAT
    include_usage: bool = field(default=False, kw_only=True)

    @property
    def max_retries(self) -> int:
        """The retries that the rate limiter makes in place of the client; 0 if the client's retries cannot be turned off."""
        return 0 if self.without_retries is None else self.client.max_retries

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yield the chunks of the reply as dicts. A stream may end without a finish reason."""
        reply = await self._ask(request)
        read = self.api.make_reader()
        if reply.is_whole:
            for chunk in read(whole(_as_chunk(reply.value))):
                yield {"choices": (), **chunk}
            return
        end = _End()
        async with aclosing(_chunks(reply.value, self.call, request, is_blocking=reply.is_blocking)) as events:
            async for event in events:
                for chunk in read(event):
                    end.note(chunk)
                    yield chunk
        if end.is_missing and self.api.ends_silently:
            if not is_of_openai(type_of(self.client)):
                yield {"choices": [{"delta": {}, "finish_reason": "stop"}]}
            elif end.is_at_usage:
                yield {"choices": [], DONE: True}

    async def reply(self, request: CompletionRequest) -> Any:
        """Return the result of `create`: a completion, or a stream of chunks. Raises `CompletionError`."""
        return (await self._ask(request)).value

    async def _ask(self, request: CompletionRequest) -> ClientReply:
        try:
            client = self.without_retries() if request.max_retries == 0 and self.without_retries else self.client
            create = self.api.create_of(client)
            if self.api.is_openai:
                request = prompt_cache.accepted(self.client, request)
            body = self.api.body(request)
            if not (self.include_usage or _names_stream_options(create)):  # many mocks and libraries reject it
                body = {key: value for key, value in body.items() if key != "stream_options"}
            return await asked(functools.partial(create, **body), self.call)
        except AswarmError:
            raise
        except Exception as error:
            failed = failed_request(error, request)
            plainer = prompt_cache.repeatable(self.client, request, failed) if self.api.is_openai else None
            if plainer is None:
                raise failed from error
        return await self._ask(plainer)


@dataclass(frozen=True, slots=True)
class ClientReply:
    """The result of `create`. `is_blocking`: whether its items must be read with blocking calls."""

    value: Any
    call: BlockingCall
    is_blocking: bool

    @property
    def is_whole(self) -> bool:
        """Whether it is a whole completion, not a stream."""
        reply = self.value
        is_completion = is_object(reply) or any(hasattr(reply, name) for name in ("choices", "output", "content"))
        return is_completion or not isinstance(reply, AsyncIterable | Iterable)

    async def chunks(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yield the items as dicts: the only one of a whole completion, or those of a stream, which is closed at the end."""
        if self.is_whole:
            yield _as_chunk(self.value)
            return
        async with aclosing(_chunks(self.value, self.call, request, is_blocking=self.is_blocking)) as chunks:
            async for chunk in chunks:
                yield chunk


async def asked(create: Callable[[], Any], call: BlockingCall) -> ClientReply:
    """Call `create`, which is async, or runs in the place for blocking code."""
    reply: Any = create() if is_async(create) else await call(functools.partial(_call_create, create))
    if inspect.isawaitable(reply):
        value = await reply
        return ClientReply(value, call, not hasattr(value, "__aiter__"))
    # Instrumentation wraps a stream in an object with both `__iter__` and `__aiter__`. Only the method that suits the client works.
    may_block = call is not call_directly and hasattr(reply, "__iter__")
    return ClientReply(reply, call, may_block or not hasattr(reply, "__aiter__"))


def _names_stream_options(create: Callable[..., Any]) -> bool:
    try:
        # The key is the inner function: each access to `create` makes a new bound method, or a new wrapper of instrumentation.
        create = inspect.unwrap(create, stop=lambda wrapper: hasattr(wrapper, "__signature__"))
        return _reads_stream_options(getattr(create, "__func__", create))
    except (TypeError, ValueError):  # no hash, or an endless chain of wrappers
        return _reads_stream_options.__wrapped__(create)


@functools.lru_cache(maxsize=64)  # the inspection is slow; limited, because each mock has a function of its own
def _reads_stream_options(create: Callable[..., Any]) -> bool:
    try:
        return "stream_options" in inspect.signature(create).parameters
    except (TypeError, ValueError):  # a callable without a signature
        return False


def _call_create(create: Callable[[], Any]) -> Any:
    try:
        return create()
    except StopIteration as error:  # a mock has no more replies; a coroutine must not raise StopIteration (PEP 479)
        raise completion_error(error) from error


async def _chunks(
    reply: Any, call: BlockingCall, request: CompletionRequest, *, is_blocking: bool
) -> AsyncGenerator[Mapping[str, Any], None]:
    stream: AsyncIterable[Any] = _iterate(reply, call) if is_blocking else reply
    has_started = False
    try:
        async for chunk in stream:
            has_started = True
            yield _as_chunk(chunk)
    except AswarmError:
        raise
    except Exception as error:
        if (inside := _error_inside(error)) is not None:
            raise provider_error(inside) from error
        # Some libraries, such as LiteLLM for Gemini, send the request only at the first step of the iteration.
        if not has_started and getattr(failed := failed_request(error, request), "status_code", None) is not None:
            raise failed from error
        raise StreamInterrupted(f"the stream was cut: {error_text(error)}") from error
    finally:
        await close_reply(reply, call)


def _error_inside(error: Exception) -> Any:
    """Return the error of the provider inside a stream: the SDK raises an exception that has it as `body`, and no response."""
    status = getattr(error, "status_code", None)
    has_response = status is not None or getattr(error, "response", None) is not None
    if isinstance(status, int) and status < _FIRST_ERROR:  # the client of anthropic shows the response of the stream
        has_response = False
    return None if has_response or _has_base(error, _LOST) else getattr(error, "body", None) or None


async def _iterate(items: Iterable[Any], call: BlockingCall) -> AsyncGenerator[Any, None]:
    end = object()
    step = functools.partial(next, iter(items), end)
    while (item := await call(step)) is not end:
        yield item


async def close_reply(stream: Any, call: BlockingCall) -> None:
    """Close a stream that `create` returned, if it has a method for this."""
    close = getattr(stream, "aclose", None) or getattr(stream, "close", None)
    if callable(close):
        with anyio.move_on_after(CLOSE_SECONDS, shield=True):
            closing = await call(close, must_run=True)
            if inspect.isawaitable(closing):
                await closing


def _as_chunk(item: Any) -> Mapping[str, Any]:
    chunk = _plain_tree(item)
    if not is_object(chunk):
        raise CompletionError(f"the client answered with {type(item).__name__}, which is not a completion")
    return chunk


def _plain_tree(item: Any) -> Any:
    """Convert a dict, a pydantic object or an object with attributes, such as SimpleNamespace, to plain dicts and lists."""
    plain = as_plain(item)
    if is_array(plain):
        return [_plain_tree(value) for value in plain]
    fields = plain if is_object(plain) else getattr(plain, "__dict__", None)
    if fields is None:
        return plain
    return {key: _plain_tree(value) for key, value in fields.items() if not key.startswith("_")}


# Names of the exceptions of openai, httpx, aiohttp and Python for a lost connection or a timeout.
_LOST = frozenset(
    {"APIConnectionError", "APITimeoutError", "ConnectionError", "NetworkError", "RemoteProtocolError"}
    | {"ClientConnectionError", "ClientPayloadError"}
    | {"TimeoutError", "TimeoutException"}
)
# If the answer is not HTTP, aiohttp raises a ClientResponseError with an invented status. Its cause has one of these names.
_NOT_HTTP = frozenset({"HttpProcessingError"})
_STATUSES = range(100, 600)
_FIRST_ERROR = 400
# Exceptions of encoders. No client raises exactly these classes for a failure of the server.
_LOCAL_FAULTS = frozenset({UnicodeEncodeError, RecursionError})
# aiohttp and httpx raise also these classes only before they send the request: for a value without a JSON form, an invalid header
# or timeout. But a transport that a user passes to an SDK may raise them at any time.
_FAULTS_OF_POST = frozenset({*_LOCAL_FAULTS, TypeError, ValueError, AttributeError})
_NOT_IN_BODY = frozenset({"timeout", "extra_headers", "extra_query"})
_REMEDY = "; the model and the model_settings of the agent, and what a middleware adds, must be JSON with text that UTF-8 can encode"


def completion_error(error: Exception) -> AswarmError:
    """Return a `CompletionError` for the exception of a provider or its client. Return an error of aswarm unchanged.

        raise completion_error(error) from error

    `status_code` is the HTTP status of the exception or of its `response`, from `status_code`, `status` or `code`.
    `retryable` is true for the statuses 408, 409, 429 and 5xx, and for a connection that failed or timed out (exceptions of
    openai, httpx, aiohttp and Python). The text of the provider and the header `x-should-retry` override these rules.
    `retry_after` comes from the headers of `response`. The text contains the provider's code.
    """
    if isinstance(error, AswarmError):
        return error
    is_not_http = _has_base(error.__cause__, _NOT_HTTP)
    status = None if is_not_http else _status_of(error)
    body = _body_of(error)
    code = _code_in(body)
    headers = headers_of(error)
    is_lost = is_not_http or _has_base(error, _LOST)
    text = _with_text_of(body, error_text(error))
    shown_code = f" (code {code})" if code and str(code) not in text else ""
    return CompletionError(
        f"the provider failed: {text}{shown_code}",
        status_code=status,
        retryable=may_pass(f"{error} {text} {code}", status, code, True if is_lost else should_retry(headers)),
        retry_after=retry_after(headers),
    )


def _body_of(error: Exception) -> Any:
    """Return the body of an error response: JSON if possible, a text, or None."""
    # The SDK sets `body` to the value of "error" only. The response has the keys beside it.
    body: Any = getattr(error, "body", None)
    response: Any = getattr(error, "response", None)
    with suppress(Exception):  # no response, a response that was not read, or a mock
        body = response.text or body
        body = json.loads(response.text)
    return body if is_object(body) or is_array(body) or isinstance(body, str) else None


def _code_in(body: Any) -> Any:
    for part in (body, body.get("error")) if is_object(body) else ():
        code = part.get("code") if is_object(part) else None
        if isinstance(code, str | int):
            return code
    return None


def _with_text_of(body: Any, text: str) -> str:
    """Return the text of an exception with the text of the provider, if it is not in it already. An HTML page is shortened."""
    text = shortened(text, _LONGEST)
    # openai 2 shows the `repr` of the body, in which quotes and line breaks are escaped.
    missing = [said for said in provider_texts(body) if said not in text and repr(said)[1:-1] not in text]
    return f"{text} - {shortened('; '.join(missing), _LONGEST // 2)}" if missing else text


def _has_base(error: BaseException | None, names: frozenset[str]) -> bool:
    return any(base.__name__ in names for base in type(error).__mro__)


def _status_of(error: Exception) -> int | None:
    """Return the HTTP status: `status_code` (openai and most others), `status` (aiohttp) or `code` (google-genai)."""
    # `code` is last, because aiohttp emits a DeprecationWarning for it.
    for owner in (error, getattr(error, "response", None)):
        for name in ("status_code", "status", "code"):
            status = getattr(owner, name, None)
            if isinstance(status, int) and status in _STATUSES:
                return status
    return None


def failed_request(error: Exception, request: CompletionRequest, url: str = "") -> AswarmError:
    """Return the `completion_error` of a request. Its text also names the server, the model and the usual cause.

    `url`: the address of the request; by default the address in the exception.
    """
    failure = completion_error(error)
    if type(error) in _LOCAL_FAULTS or (type(error) in _FAULTS_OF_POST and not _has_json(request.body)):
        return _local_fault(error)
    if isinstance(failure, CompletionError) and failure is not error:
        cause = place_and_cause(error, failure.status_code, request.body.get("model"), url, str(failure))
        failure.args = (f"{failure}{cause}",)
    return failure


def failed_post(error: Exception, request: CompletionRequest, url: str = "") -> AswarmError:
    """Return `failed_request` for an exception of a client of aswarm; a ConfigurationError if the request cannot be built."""
    return _local_fault(error) if type(error) in _FAULTS_OF_POST else failed_request(error, request, url)


def _local_fault(error: Exception) -> ConfigurationError:
    return ConfigurationError(f"the request cannot be built: {error_text(error)}{_REMEDY}")


def _has_json(body: Mapping[str, Any]) -> bool:
    try:
        json.dumps({key: value for key, value in body.items() if key not in _NOT_IN_BODY}, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def error_text(error: Exception) -> str:
    """Return class and text of the error, without header values. Add its cause if the text does not contain the cause."""
    hide_header_values(error)
    cause = error.__cause__
    return named(error) + ("" if cause is None or str(cause) in str(error) else f" ({named(cause)})")


@dataclass(frozen=True, eq=False)
class BlockingPost:
    """An async `post`, like the method of an async client, for a blocking client: the only method that completions need.

    `Swarm` decides in which thread the code of the client is called. A thread is chosen here only for the end of a response.
    """

    client: Any
    call: BlockingCall

    @property
    def max_retries(self) -> int:
        retries: int = self.client.max_retries
        return retries

    async def post(self, path: str, **options: Any) -> _BlockingResponse:
        """Send a request and return the raw response. The client ignores `stream_cls` for a raw response."""
        response = await self.call(functools.partial(self.client.post, path, **options))
        return _BlockingResponse(response, self.call)


@dataclass(frozen=True, eq=False)
class _BlockingResponse:
    """A blocking raw response with the methods of an async response."""

    response: Any
    call: BlockingCall

    @property
    def content(self) -> bytes:
        content: bytes = self.response.content
        return content

    async def aiter_bytes(self) -> AsyncGenerator[bytes, None]:
        read = functools.partial(next, self.response.iter_bytes(), None)
        while (piece := await self._read(read)) is not None:
            yield piece

    async def _read(self, read: Callable[[], bytes | None]) -> bytes | None:
        if anyio.current_effective_deadline() == math.inf:
            return await self.call(read)
        # With a deadline (see `DRAIN_SECONDS`), the read must end in time. A blocking read cannot be cancelled, so it runs in
        # a thread that can be abandoned.
        try:
            return await seams.run_sync(read, abandon_on_cancel=True)
        except anyio.get_cancelled_exc_class():
            self._hang_up()
            raise

    def _hang_up(self) -> None:
        # `close` alone does not close the connection while the abandoned thread still reads from it.
        stream = self.response.extensions.get("network_stream")  # documented by httpx; absent with some transports
        connection = None if stream is None else stream.get_extra_info("socket")
        with suppress(OSError):
            if connection is not None:
                connection.shutdown(socket.SHUT_RDWR)

    async def aclose(self) -> None:
        await self.call(self.response.close, must_run=True)
