"""Completions through `chat.completions.create` or `responses.create` of any client that has it, and how blocking clients are called.

Decides whether a reply of such a client is whole or a stream, and reads objects of any kind. Knows nothing of openai.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Mapping
from contextlib import aclosing
from typing import Any, Protocol, TypeVar

import anyio

from aswarm._errors import AswarmError, CompletionError, StreamInterrupted
from aswarm._json import is_array, is_object
from aswarm._messages import as_plain
from aswarm._tools.tool import is_async
from aswarm._wire.failures import headers_of, hide_header_values, may_pass, retry_after, should_retry
from aswarm._wire.request import CompletionRequest

from .apis import CHAT, Api
from .usual_causes import where_and_why

T = TypeVar("T")

# A close that hangs must not hold up a cancelled run for ever.
CLOSE_SECONDS = 2.0


class BlockingCall(Protocol):
    """How the code of a blocking client is called."""

    async def __call__(self, work: Callable[[], T], /, *, must_run: bool = False) -> T:
        """Call `work` in a place where it may block, and return its value. `must_run`: also while the run is left."""
        ...


async def call_directly(work: Callable[[], T], *, must_run: bool = False) -> T:
    """Call `work` on the event loop."""
    return work()


class CompatibleClientSource:
    """Completions through `create` of a mock, a patched client, or another library."""

    def __init__(
        self,
        client: Any,
        call: BlockingCall,
        without_retries: Callable[[], Any] | None = None,
        api: Api = CHAT,
        *,
        include_usage: bool = False,
    ) -> None:
        self._client = client
        self._call = call
        self._without_retries = without_retries
        self._api = api
        self._include_usage = include_usage

    @property
    def max_retries(self) -> int:
        """How often the client sends a request again by itself, if it can be told not to; else 0."""
        return 0 if self._without_retries is None else self._client.max_retries

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yield the chunks of the reply as dicts. A stream that ends without a finish reason has finished."""
        reply, was_awaited = await self._ask(request)
        read = self._api.make_reader()
        if _is_whole(reply):
            for chunk in read(_as_chunk(reply)):
                yield {"choices": (), **chunk}
            return
        has_begun = has_finished = False
        # Instrumentation wraps streams in objects that seem to iterate in both ways. Only the client knows which one works.
        is_blocking = not hasattr(reply, "__aiter__") or (
            not was_awaited and self._call is not call_directly and hasattr(reply, "__iter__")
        )
        async with aclosing(_chunks(reply, self._call, request, is_blocking=is_blocking)) as events:
            async for event in events:
                for chunk in read(event):
                    choices: Iterable[Any] = chunk.get("choices") or ()
                    has_begun = has_begun or bool(choices)
                    has_finished = has_finished or any(choice.get("finish_reason") for choice in choices)
                    yield chunk
        if has_begun and not has_finished and self._api.ends_silently:
            yield {"choices": [{"delta": {}, "finish_reason": "stop"}]}

    async def reply(self, request: CompletionRequest) -> Any:
        """What `create` returns: a completion, or a stream of chunks. Raises `CompletionError`."""
        reply, _ = await self._ask(request)
        return reply

    async def _ask(self, request: CompletionRequest) -> tuple[Any, bool]:
        """The reply, and whether it had to be awaited."""
        try:
            client = self._without_retries() if request.max_retries == 0 and self._without_retries else self._client
            create = self._api.create_of(client)
            body = self._api.body(request)
            arguments = body if self._include_usage or _names_stream_options(create) else _without_stream_options(body)
            create = functools.partial(create, **arguments)
            reply: Any = create() if is_async(create) else await self._call(functools.partial(_call_create, create))
            was_awaited = inspect.isawaitable(reply)
            return (await reply if was_awaited else reply), was_awaited
        except AswarmError:
            raise
        except Exception as error:
            raise failed_request(error, request) from error


def _without_stream_options(body: dict[str, Any]) -> dict[str, Any]:
    # Many mocks and libraries do not know it.
    return {key: value for key, value in body.items() if key != "stream_options"}


# Whether a function names it: reading a signature takes longer than the rest of a request here.
_naming_stream_options: weakref.WeakKeyDictionary[Callable[..., Any], bool] = weakref.WeakKeyDictionary()


def _names_stream_options(create: Callable[..., Any]) -> bool:
    try:
        # Each access makes a new bound method, and a new wrapper of instrumentation. The function inside stays.
        create = inspect.unwrap(create, stop=_has_signature)
        create = getattr(create, "__func__", create)
        if create not in _naming_stream_options:
            _naming_stream_options[create] = _reads_stream_options(create)
        return _naming_stream_options[create]
    except (TypeError, ValueError):  # no hash, no weak references, or a chain of wrappers without an end
        return _reads_stream_options(create)


def _has_signature(create: Callable[..., Any]) -> bool:
    return hasattr(create, "__signature__")


def _reads_stream_options(create: Callable[..., Any]) -> bool:
    try:
        return "stream_options" in inspect.signature(create).parameters
    except (TypeError, ValueError):  # a callable without a signature
        return False


def _call_create(create: Callable[[], Any]) -> Any:
    try:
        return create()
    except StopIteration as error:  # a mock at the end of its replies; a coroutine cannot raise StopIteration
        raise completion_error(error) from error


def _is_whole(reply: Any) -> bool:
    is_completion = is_object(reply) or hasattr(reply, "choices") or hasattr(reply, "output")
    return is_completion or not isinstance(reply, AsyncIterable | Iterable)


async def _chunks(
    reply: Any, call: BlockingCall, request: CompletionRequest, *, is_blocking: bool
) -> AsyncGenerator[Mapping[str, Any], None]:
    stream: AsyncIterable[Any] = _iterate(reply, call) if is_blocking else reply
    has_begun = False
    try:
        async for chunk in stream:
            has_begun = True
            yield _as_chunk(chunk)
    except AswarmError:
        raise
    except Exception as error:
        # Some libraries, LiteLLM for Gemini among them, send the request at the first step of the stream.
        if not has_begun and getattr(failed := failed_request(error, request), "status_code", None) is not None:
            raise failed from error
        raise StreamInterrupted(f"the stream broke: {error_text(error)}") from error
    finally:
        await close_reply(reply, call)


async def _iterate(items: Iterable[Any], call: BlockingCall) -> AsyncGenerator[Any, None]:
    end = object()
    step = functools.partial(next, iter(items), end)
    while (item := await call(step)) is not end:
        yield item


async def close_reply(stream: Any, call: BlockingCall) -> None:
    """Close a stream that `create` returned, if it can be closed."""
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
    """Dicts, pydantic objects and attribute objects (such as SimpleNamespace) as plain dicts and lists."""
    plain = as_plain(item)
    if is_array(plain):
        return [_plain_tree(value) for value in plain]
    fields = plain if is_object(plain) else getattr(plain, "__dict__", None)
    if fields is None:
        return plain
    return {key: _plain_tree(value) for key, value in fields.items() if not key.startswith("_")}


# Errors of openai, of httpx and of Python that mean: no connection, or no answer in time.
_LOST = frozenset(
    {
        "APIConnectionError",
        "APITimeoutError",
        "ConnectionError",
        "NetworkError",
        "RemoteProtocolError",
        "TimeoutError",
        "TimeoutException",
    }
)


_STATUSES = range(100, 600)


def completion_error(error: Exception) -> AswarmError:
    """The exception of a provider or of its client, as an error of aswarm; an error of aswarm comes back as it is.

    `status_code`: that of the error or of its `response`; google-genai calls it `code`, aiohttp `status`. `retryable`: 408,
    409, 429, 5xx, and a connection that failed or timed out (errors of openai, httpx and Python); the text of the
    provider and `x-should-retry` can decide otherwise. `retry_after`: from the headers of `response`. The text has the
    code of the provider. The caller raises it: `raise completion_error(error) from error`.
    """
    if isinstance(error, AswarmError):
        return error
    status = _status_of(error)
    body = getattr(error, "body", None)
    code = body.get("code") if is_object(body) else None
    headers = headers_of(error)
    is_lost = any(base.__name__ in _LOST for base in type(error).__mro__)
    text = error_text(error)
    shown_code = f" (code {code})" if code and str(code) not in text else ""
    return CompletionError(
        f"the provider failed: {text}{shown_code}",
        status_code=status,
        retryable=may_pass(f"{error} {code}", status, code, True if is_lost else should_retry(headers)),
        retry_after=retry_after(headers),
    )


def _status_of(error: Exception) -> int | None:
    """The HTTP status: `status_code` (openai and most others), `code` (google-genai) or `status` (aiohttp)."""
    for owner in (error, getattr(error, "response", None)):
        for name in ("status_code", "code", "status"):
            status = getattr(owner, name, None)
            if isinstance(status, int) and status in _STATUSES:
                return status
    return None


def failed_request(error: Exception, request: CompletionRequest) -> AswarmError:
    """`completion_error` for a request of a client, whose text also names the server, the model and the usual cause."""
    made = completion_error(error)
    if isinstance(made, CompletionError) and made is not error:
        made.args = (f"{made}{where_and_why(error, made.status_code, request.body.get('model'))}",)
    return made


def error_text(error: Exception) -> str:
    """The type and text of the error, and those of its cause if the text does not contain them; no header values."""
    hide_header_values(error)
    cause = error.__cause__
    hidden = cause is not None and str(cause) not in str(error)
    return f"{type(error).__name__}: {error}" + (f" ({type(cause).__name__}: {cause})" if hidden else "")
