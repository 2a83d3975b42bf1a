"""The first door: asking a provider for a completion. With `_client`, the only importer of openai.

Decides how a given client is called, and turns whatever it raises into `CompletionError`. Yields chunks as plain
dicts; what they mean is the accumulator's business. Retries before the first byte are the SDK's own.

Three kinds of client:
- openai's `AsyncOpenAI` (or a subclass, Azure included) that nobody has patched: through its public `client.post`, with
  the raw response parsed here. The SDK's auth, retries, paths and errors hold, without its walk over every parameter of
  every message and without a model object for every chunk.
- anything else that has `.chat.completions.create`: through that.
- a `CompletionSource`: as it is.

A blocking `OpenAI` is refused, unless the front says how what blocks is called.
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
from .compatible import CLOSE_SECONDS, BlockingCall, CompatibleClientSource, call_directly, completion_error, error_text
from .default_client import http_package

if TYPE_CHECKING:
    from openai import AsyncOpenAI

# Parameters of `create` that are options of the request, and their names in `post`.
_OPTIONS = {"extra_headers": "headers", "extra_query": "params", "extra_body": "extra_json", "timeout": "timeout"}
# What `create` passes: without it, an admin key in the environment would take the place of the API key.
_SECURITY = {"security": {"bearer_auth": True}}
# What Python writes for numbers that JSON has not; where they stand in a text, the SDK's way is only slower.
_NO_JSON = (b"NaN", b"Infinity")
# The parts of a body that are JSON however a request was made; the rest is settings of the user.
_BUILT = frozenset({"model", "messages", "tools", "stream", "stream_options", "parallel_tool_calls"})
# A server that says [DONE] and keeps the body open is not waited for; the connection is then not used again.
_DRAIN_SECONDS = 0.1


def source_for(client: Any, blocking: BlockingCall | None = None) -> CompletionSource:
    """The completion source of a client. Raises ConfigurationError for what is no client.

    `blocking`: how the code of a blocking client is called; without it, a blocking `OpenAI` is refused.
    """
    # On the type, because a MagicMock has every attribute.
    kind = _type_of(client)
    has_create = callable(getattr(getattr(getattr(client, "chat", None), "completions", None), "create", None))
    if callable(getattr(kind, "complete", None)) and not has_create:
        return cast("CompletionSource", client)
    is_blocking = _is_blocking_openai(kind)
    if is_blocking and blocking is None:
        raise ConfigurationError("AsyncSwarm needs AsyncOpenAI: a blocking OpenAI would stop the whole event loop")
    if _is_plain_openai(client):
        return OpenAISource(BlockingPost(client, blocking) if is_blocking and blocking is not None else client)
    if has_create:
        return CompatibleClientSource(client, blocking or call_directly, _without_retries(client))
    raise ConfigurationError(
        f"client must be an AsyncOpenAI, have chat.completions.create, or be a CompletionSource; got {kind.__name__}"
    )


def _type_of(client: object) -> type:
    return type(client)  # not `__class__`, which a mock with a spec feigns


def _is_of_openai(kind: type) -> bool:
    return any(base.__module__.partition(".")[0] == "openai" for base in kind.__mro__)


def _is_blocking_openai(kind: type) -> bool:
    if not _is_of_openai(kind):
        return False
    from openai import OpenAI  # noqa: PLC0415 - loaded by now

    return issubclass(kind, OpenAI)


def _is_plain_openai(client: Any) -> bool:
    """Whether it is an `AsyncOpenAI` or `OpenAI` that nobody has patched."""
    return _is_openai_itself(client) and _is_openais_own(vars(_type_of(client.chat.completions)).get("create"))


def _without_retries(client: Any) -> Callable[[], Any] | None:
    """How to get a copy of the client that sends once; None where a copy would lack what somebody patched."""
    may_be_copied = _is_openai_itself(client) and type(client).__module__.partition(".")[0] == "openai"
    return functools.partial(client.with_options, max_retries=0) if may_be_copied else None


def _is_openai_itself(client: Any) -> bool:
    """Whether it is an `AsyncOpenAI` or `OpenAI` of which nothing was patched but, at most, the classes."""
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
    return "create" not in vars(client.chat.completions)


def _is_openais_own(create: object) -> bool:
    # Instrumentation copies names and modules onto its wrappers; where the code lives it cannot copy.
    if not isinstance(create, types.FunctionType):
        return False
    return str(create.__globals__["__name__"]).partition(".")[0] == "openai"


class OpenAISource:
    """Completions through `AsyncOpenAI.post`."""

    def __init__(self, client: AsyncOpenAI | BlockingPost) -> None:
        self._client = client

    @property
    def max_retries(self) -> int:
        """How often the client tries again by itself, unless a request says otherwise."""
        return self._client.max_retries

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
            raise StreamInterrupted(f"the stream broke: {error_text(error)}") from error
        finally:
            with anyio.move_on_after(CLOSE_SECONDS, shield=True):
                await response.aclose()


async def _post(client: AsyncOpenAI | BlockingPost, arguments: dict[str, Any]) -> Any:
    """The raw response: read to its end, or, for a stream, open."""
    try:
        return await client.post("/chat/completions", **arguments)
    except Exception as error:
        raise completion_error(error) from error


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
    """What is sent, as an argument of `post`: ready bytes, or a dict where the SDK has to read the body."""
    # The SDK has its own ways to write dates and models, and merges an `extra_body`.
    as_dict = {"body": body}
    if "extra_body" in request.body or not _takes_bytes(_type_of(client)):
        return as_dict
    for key, value in body.items():
        if key not in _BUILT and not is_json(value):
            return as_dict
    try:
        content = to_json(body)
    except ValueError:  # it is for the SDK to say what cannot be sent
        return as_dict
    return as_dict if any(map(content.__contains__, _NO_JSON)) else {"content": content}


@functools.cache
def _takes_bytes(kind: type) -> bool:
    # Azure finds its path in the body, and so may any subclass; openai 2.0 has no `content`.
    from openai import AsyncOpenAI  # noqa: PLC0415 - loaded by now

    return kind is AsyncOpenAI and "content" in inspect.signature(kind.post).parameters


async def _first(pieces: AsyncGenerator[bytes, None]) -> bytes | None:
    # httpx nests generators, which begin here, and drops them half read; it is the response that is closed.
    return await HiddenGenerators(anext(pieces, None), finalize=False)


async def _drain(pieces: AsyncGenerator[bytes, None]) -> None:
    """Read what follows the last event, normally nothing: a body that was read to its end leaves the connection usable."""
    with anyio.move_on_after(_DRAIN_SECONDS), suppress(Exception):
        async for _ in pieces:
            pass
