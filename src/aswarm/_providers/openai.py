"""The completion source of a client, and completions through openai's own clients.

Decides how a given client is called, and turns its exceptions into `CompletionError`. Yields chunks as plain dicts; the
accumulator decides what they mean. The SDK retries before the first byte, as it does by itself.

Three kinds of client:
- openai's `AsyncOpenAI` (or a subclass, Azure included) without a patch of `create`, `post` or `request`: called through its public `client.post`;
  the raw response is parsed here. So the SDK's auth, retries, paths and errors hold, and there is no walk over every
  parameter of every message and no model object for every chunk.
- anything else that has `.chat.completions.create`: called through that.
- a `CompletionSource`: used as it is.

A blocking `OpenAI` is refused, unless the caller says how blocking code is called.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, cast

import anyio
from pydantic_core import to_json

from aswarm._errors import AswarmError, ConfigurationError, StreamInterrupted
from aswarm._json import is_json
from aswarm._runtime.backend import HiddenGenerators
from aswarm._wire.request import CompletionRequest, CompletionSource
from aswarm._wire.sse import AnswerDecoder

from .blocking_openai import BlockingPost
from .compatible import CLOSE_SECONDS, BlockingCall, CompatibleClientSource, call_directly, error_text, failed_request
from .default_client import http_package

if TYPE_CHECKING:
    from openai import AsyncOpenAI

# Methods of a client below `create`. A hook in their place reads the body as a dict, and the answer as an object of the SDK.
_SENDING = ("post", "request")
# Parameters of `create` that are options of the request, and their names in `post`.
_OPTIONS = {"extra_headers": "headers", "extra_query": "params", "extra_body": "extra_json", "timeout": "timeout"}
# What `create` passes: without it, an admin key in the environment would take the place of the API key.
_SECURITY = {"security": {"bearer_auth": True}}
# What Python writes for numbers that are not in JSON. If a text contains them, the way of the SDK is only slower.
_NO_JSON = (b"NaN", b"Infinity")
# Parts of a body that the run builds from JSON. The other parts are settings of the user, and may hold anything.
_BUILT = frozenset({"model", "messages", "tools", "stream", "stream_options", "parallel_tool_calls"})
# For a server that sends [DONE] and keeps the body open. After that the connection is not used again.
_DRAIN_SECONDS = 0.1


def source_for(client: Any, blocking: BlockingCall | None = None) -> CompletionSource:
    """The completion source of a client. Raises ConfigurationError for a value that is not a client.

    `blocking`: how the code of a blocking client is called; without it, a blocking `OpenAI` is refused.
    """
    # Looked up on the type, because a MagicMock has every attribute.
    kind = _type_of(client)
    has_create = callable(getattr(getattr(getattr(client, "chat", None), "completions", None), "create", None))
    if callable(getattr(kind, "complete", None)) and not has_create:
        return cast("CompletionSource", client)
    is_blocking = _is_blocking_openai(kind)
    if is_blocking and blocking is None:
        raise ConfigurationError(
            "AsyncSwarm needs AsyncOpenAI: a blocking OpenAI would stop the whole event loop; pass AsyncOpenAI(...), or use Swarm"
        )
    if _is_plain_openai(client):
        return OpenAISource(BlockingPost(client, blocking) if is_blocking and blocking is not None else client)
    if has_create:
        return CompatibleClientSource(client, blocking or call_directly, _without_retries(client))
    raise ConfigurationError(
        f"client must be an AsyncOpenAI, have chat.completions.create, or be a CompletionSource; got {kind.__name__}"
    )


def _type_of(client: object) -> type:
    return type(client)  # not `__class__`, which a mock with a spec replaces


def _is_of_openai(kind: type) -> bool:
    return any(base.__module__.partition(".")[0] == "openai" for base in kind.__mro__)


def _is_blocking_openai(kind: type) -> bool:
    if not _is_of_openai(kind):
        return False
    from openai import OpenAI  # noqa: PLC0415 - loaded by now

    return issubclass(kind, OpenAI)


def _is_plain_openai(client: Any) -> bool:
    """Whether it is an `AsyncOpenAI` or `OpenAI` that was not patched."""
    return (
        _is_unpatched_instance(client)
        and _is_defined_by_openai(vars(_type_of(client.chat.completions)).get("create"))
        and all(_is_defined_by_openai(getattr(_type_of(client), name, None)) for name in _SENDING)
    )


def _without_retries(client: Any) -> Callable[[], Any] | None:
    """Makes a copy of the client that sends a request only once; None if a copy would lose a patch of the instance."""
    may_be_copied = _is_unpatched_instance(client) and type(client).__module__.partition(".")[0] == "openai"
    return functools.partial(client.with_options, max_retries=0) if may_be_copied else None


def _is_unpatched_instance(client: Any) -> bool:
    """Whether it is an `AsyncOpenAI` or `OpenAI` that was not patched on the instance; its classes may be."""
    kind = _type_of(client)
    if not _is_of_openai(kind):
        return False
    from openai import AsyncOpenAI, OpenAI  # noqa: PLC0415 - loaded by now
    from openai.resources.chat import AsyncChat, Chat  # noqa: PLC0415
    from openai.resources.chat.completions import AsyncCompletions, Completions  # noqa: PLC0415

    if not issubclass(kind, AsyncOpenAI | OpenAI):
        return False
    chat, completions = (AsyncChat, AsyncCompletions) if issubclass(kind, AsyncOpenAI) else (Chat, Completions)
    if type(client.chat) is not chat or type(client.chat.completions) is not completions:
        return False
    return "create" not in vars(client.chat.completions) and not any(name in vars(client) for name in _SENDING)


def _is_defined_by_openai(method: object) -> bool:
    # Not isinstance: a wrapper of wrapt has the `__class__` of a function. Other instrumentation copies name and module to
    # its wrappers, but not the globals of the code.
    return type(method) is types.FunctionType and str(method.__globals__["__name__"]).partition(".")[0] == "openai"


class OpenAISource:
    """Completions through `AsyncOpenAI.post`."""

    def __init__(self, client: AsyncOpenAI | BlockingPost) -> None:
        self._client = client

    @property
    def max_retries(self) -> int:
        """How often the client sends a request again by itself, unless the request sets it."""
        return self._client.max_retries

    def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yield the chunks, or the one whole completion, as the server sent them."""
        arguments = _arguments_of_post(self._client, request)
        return self._streamed(arguments, request) if request.stream else self._whole(arguments, request)

    async def _whole(
        self, arguments: dict[str, Any], request: CompletionRequest
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        response = await _post(self._client, arguments, request)
        decoder = AnswerDecoder()
        for chunk in (*decoder.feed(response.content), *decoder.end()):
            yield chunk

    async def _streamed(
        self, arguments: dict[str, Any], request: CompletionRequest
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        response = await _post(self._client, arguments, request)
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
            raise StreamInterrupted(f"the stream broke: {error_text(error)}") from error
        finally:
            with anyio.move_on_after(CLOSE_SECONDS, shield=True):
                await response.aclose()


async def _post(client: AsyncOpenAI | BlockingPost, arguments: dict[str, Any], request: CompletionRequest) -> Any:
    """The raw response: read to its end, or open for a stream."""
    try:
        return await client.post("/chat/completions", **arguments)
    except Exception as error:
        raise failed_request(error, request) from error


def _arguments_of_post(client: AsyncOpenAI | BlockingPost, request: CompletionRequest) -> dict[str, Any]:
    import openai  # noqa: PLC0415 - loaded by now

    body = {key: value for key, value in request.body.items() if key not in _OPTIONS}
    options = {_OPTIONS[key]: value for key, value in request.body.items() if key in _OPTIONS}
    if request.max_retries is not None:
        options["max_retries"] = request.max_retries
    return {
        **_content(client, request, body),
        "cast_to": http_package(openai.__version__).Response,
        "options": {**options, **_SECURITY} if options else _SECURITY,
        **({"stream": True, "stream_cls": openai.AsyncStream} if request.stream else {}),
    }


def _content(client: AsyncOpenAI | BlockingPost, request: CompletionRequest, body: dict[str, Any]) -> dict[str, Any]:
    """The body as an argument of `post`: ready bytes, or a dict if the SDK has to read it."""
    # The SDK writes dates and models in its own way, and merges an `extra_body`.
    as_dict = {"body": body}
    if "extra_body" in request.body or not _takes_bytes(_type_of(client)):
        return as_dict
    for key, value in body.items():
        if key not in _BUILT and not is_json(value):
            return as_dict
    try:
        content = to_json(body)
    except ValueError:  # the SDK says what cannot be sent
        return as_dict
    return as_dict if any(map(content.__contains__, _NO_JSON)) else {"content": content}


@functools.cache
def _takes_bytes(kind: type) -> bool:
    # Azure, and perhaps any subclass, reads the path from the body; openai 2.0 has no `content`.
    from openai import AsyncOpenAI  # noqa: PLC0415 - loaded by now

    return kind is AsyncOpenAI and "content" in inspect.signature(kind.post).parameters


async def _first(pieces: AsyncGenerator[bytes, None]) -> bytes | None:
    # httpx nests generators, begins them here and drops them half read; closing the response is enough.
    return await HiddenGenerators(anext(pieces, None), finalize=False)


async def _drain(pieces: AsyncGenerator[bytes, None]) -> None:
    """Read the bytes after the last event, normally none, so that the connection can be used again."""
    with anyio.move_on_after(_DRAIN_SECONDS), suppress(Exception):
        async for _ in pieces:
            pass
