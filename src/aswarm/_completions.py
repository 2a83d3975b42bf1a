"""The first door: asking a provider for a completion. With `_client`, the only importer of openai.

Decides how a given client is called, and turns whatever it raises into `CompletionError`. Yields chunks as plain
dicts; what they mean is the accumulator's business. Retries before the first byte are the SDK's own.

Three kinds of client:
- openai's `AsyncOpenAI` (or a subclass, Azure included) that nobody has patched: through its public `client.post`, with
  the raw response parsed here. The SDK's auth, retries, paths and errors hold, without its walk over every parameter of
  every message and without a model object for every chunk.
- anything else that has `.chat.completions.create`: through that.
- a `CompletionSource`: as it is.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Mapping
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, cast

import anyio
from pydantic_core import to_json

from ._backend import Unlisted
from ._client import http_package
from ._errors import AswarmError, CompletionError, ConfigurationError, StreamInterrupted, is_retryable_status
from ._json import is_array, is_json, is_object
from ._messages import as_plain
from ._request import CompletionRequest, CompletionSource
from ._sse import AnswerDecoder

if TYPE_CHECKING:
    from openai import AsyncOpenAI

# Parameters of `create` that are options of the request, and their names in `post`.
_OPTIONS = {"extra_headers": "headers", "extra_query": "params", "extra_body": "extra_json", "timeout": "timeout"}
# What `create` passes: without it, an admin key in the environment would take the place of the API key.
_SECURITY = {"security": {"bearer_auth": True}}
# A close that hangs must not hold a cancelled run for ever.
_CLOSE_SECONDS = 2.0
# A server that says [DONE] and keeps the body open is not waited for; the connection is then not used again.
_DRAIN_SECONDS = 0.1


def source_for(client: Any) -> CompletionSource:
    """The completion source of a client. Raises ConfigurationError for what is no client."""
    # On the type, because a MagicMock has every attribute that it is asked for.
    kind = _type_of(client)
    if callable(getattr(kind, "complete", None)):
        return cast("CompletionSource", client)
    if _is_plain_openai(client):
        return OpenAISource(client)
    if callable(getattr(getattr(getattr(client, "chat", None), "completions", None), "create", None)):
        return CreateSource(client)
    raise ConfigurationError(
        f"client must be an AsyncOpenAI, have chat.completions.create, or be a CompletionSource; got {kind.__name__}"
    )


def _type_of(client: object) -> type:
    return type(client)  # not `__class__`, which a mock with a spec feigns


def _is_plain_openai(client: Any) -> bool:
    kinds = _type_of(client).__mro__
    if not any(kind.__module__.partition(".")[0] == "openai" for kind in kinds):
        return False
    from openai import AsyncOpenAI, OpenAI  # noqa: PLC0415 - loaded by now
    from openai.resources.chat import AsyncChat  # noqa: PLC0415
    from openai.resources.chat.completions import AsyncCompletions  # noqa: PLC0415

    if OpenAI in kinds:
        raise ConfigurationError("AsyncSwarm needs AsyncOpenAI: a blocking OpenAI would stop the whole event loop")
    if AsyncOpenAI not in kinds:
        return False
    if type(client.chat) is not AsyncChat or type(client.chat.completions) is not AsyncCompletions:
        return False
    return "create" not in vars(client.chat.completions) and _is_openais_own(vars(AsyncCompletions).get("create"))


def _is_openais_own(create: object) -> bool:
    # Instrumentation copies names and modules onto its wrappers; where the code lives it cannot copy.
    if not isinstance(create, types.FunctionType):
        return False
    return str(create.__globals__["__name__"]).partition(".")[0] == "openai"


class OpenAISource:
    """Completions through `AsyncOpenAI.post`."""

    def __init__(self, client: AsyncOpenAI) -> None:
        self._client = client

    def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yield the chunks, or the one whole completion, as the server sent them."""
        arguments = _arguments_of_post(self._client, request)
        return self._streamed(arguments) if request.stream else self._whole(arguments)

    async def _whole(self, arguments: dict[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
        response = await _post(self._client, arguments)
        decoder = AnswerDecoder()
        for chunk in (*decoder.feed(response.content), *decoder.end()):
            yield chunk

    async def _streamed(self, arguments: dict[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
        response = await _post(self._client, arguments)
        decoder = AnswerDecoder()
        try:
            async with aclosing(response.aiter_bytes()) as pieces:
                piece = await _first(pieces)
                while piece is not None:
                    for chunk in decoder.feed(piece):
                        yield chunk
                    piece = None if decoder.is_done else await anext(pieces, None)
                await _drain(pieces)
            for chunk in decoder.end():
                yield chunk
        except AswarmError:
            raise
        except Exception as error:
            raise StreamInterrupted(f"the stream broke: {_text(error)}") from error
        finally:
            with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
                await response.aclose()


async def _post(client: AsyncOpenAI, arguments: dict[str, Any]) -> Any:
    """The raw response: read to its end, or, for a stream, open."""
    try:
        return await client.post("/chat/completions", **arguments)
    except Exception as error:
        raise _completion_error(error) from error


def _arguments_of_post(client: AsyncOpenAI, request: CompletionRequest) -> dict[str, Any]:
    import openai  # noqa: PLC0415 - loaded by now

    body = {key: value for key, value in request.body.items() if key not in _OPTIONS}
    options = {_OPTIONS[key]: value for key, value in request.body.items() if key in _OPTIONS}
    return {
        **_content(client, request, body),
        "cast_to": http_package(openai.__version__).Response,
        "options": {**options, **_SECURITY} if options else _SECURITY,
        **({"stream": True, "stream_cls": openai.AsyncStream} if request.stream else {}),
    }


def _content(client: AsyncOpenAI, request: CompletionRequest, body: dict[str, Any]) -> dict[str, Any]:
    """What is sent, as an argument of `post`: ready bytes where nothing of the SDK's has to read it, else a dict."""
    # The SDK has its own ways to write dates and models, and merges an `extra_body`.
    settings = request.agent.model_settings
    if "extra_body" not in settings and is_json(settings) and _takes_bytes(_type_of(client)):
        with suppress(ValueError):  # it is for the SDK to say what cannot be sent
            return {"content": to_json(body)}
    return {"body": body}


@functools.cache
def _takes_bytes(kind: type) -> bool:
    # Azure finds its path in the body, and so may any subclass; openai 2 has no `content`.
    from openai import AsyncOpenAI  # noqa: PLC0415 - loaded by now

    return kind is AsyncOpenAI and "content" in inspect.signature(kind.post).parameters


async def _first(pieces: AsyncGenerator[bytes, None]) -> bytes | None:
    # httpx nests generators, which begin here, and drops them half read; it is the response that is closed.
    return await Unlisted(anext(pieces, None), forgotten=True)


async def _drain(pieces: AsyncGenerator[bytes, None]) -> None:
    """Read what follows the last event, normally nothing: a body that was read to its end leaves the connection usable."""
    with anyio.move_on_after(_DRAIN_SECONDS):
        async for _ in pieces:
            pass


class CreateSource:
    """Completions through `chat.completions.create` of whatever has it: a mock, a patched client, another library."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yield the reply's chunks as dicts. A stream that ends without a finish reason has finished."""
        # No stream_options: many a mock and library does not know it.
        arguments = {key: value for key, value in request.body.items() if key != "stream_options"}
        try:
            reply = self._client.chat.completions.create(**arguments)
            reply = await reply if inspect.isawaitable(reply) else reply
        except Exception as error:
            raise _completion_error(error) from error
        if _is_whole(reply):
            yield {"choices": (), **_as_chunk(reply)}
            return
        has_begun = has_finished = False
        async with aclosing(_chunks(reply)) as chunks:
            async for chunk in chunks:
                choices: Iterable[Any] = chunk.get("choices") or ()
                has_begun = has_begun or bool(choices)
                has_finished = has_finished or any(choice.get("finish_reason") for choice in choices)
                yield chunk
        if has_begun and not has_finished:
            yield {"choices": [{"delta": {}, "finish_reason": "stop"}]}


def _is_whole(reply: Any) -> bool:
    return is_object(reply) or hasattr(reply, "choices") or not isinstance(reply, AsyncIterable | Iterable)


async def _chunks(reply: Any) -> AsyncGenerator[Mapping[str, Any], None]:
    stream: AsyncIterable[Any] = reply if hasattr(reply, "__aiter__") else _stepwise(reply)
    try:
        async for chunk in stream:
            yield _as_chunk(chunk)
    except AswarmError:
        raise
    except Exception as error:
        raise StreamInterrupted(f"the stream broke: {_text(error)}") from error
    finally:
        await _close(reply)


async def _stepwise(items: Iterable[Any]) -> AsyncGenerator[Any, None]:
    for item in items:
        yield item


async def _close(stream: Any) -> None:
    close = getattr(stream, "aclose", None) or getattr(stream, "close", None)
    if callable(close):
        with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
            closing = close()
            if inspect.isawaitable(closing):
                await closing


def _as_chunk(item: Any) -> Mapping[str, Any]:
    chunk = _plain_tree(item)
    if not is_object(chunk):
        raise CompletionError(f"the client answered with {type(item).__name__}, which is no completion")
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


def _completion_error(error: Exception) -> CompletionError | ConfigurationError:
    if isinstance(error, AswarmError):
        return cast("CompletionError", error)
    status = getattr(error, "status_code", None)
    status = status if isinstance(status, int) else None
    lost = type(error).__name__ in ("APIConnectionError", "APITimeoutError")
    retryable = lost or is_retryable_status(status) or _is_failed_generation(error)
    return CompletionError(f"the provider failed: {_text(error)}", status_code=status, retryable=retryable)


def _is_failed_generation(error: Exception) -> bool:
    # Groq answers 400 where the model wrote a call that does not parse; the next attempt usually does.
    body = getattr(error, "body", None)
    return is_object(body) and body.get("code") == "tool_use_failed"


def _text(error: Exception) -> str:
    cause = error.__cause__
    hidden = cause is not None and str(cause) not in str(error)
    return f"{type(error).__name__}: {error}" + (f" ({type(cause).__name__}: {cause})" if hidden else "")
