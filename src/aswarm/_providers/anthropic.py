"""`AnthropicSource`: completions of Claude over Anthropic's Messages API, through a client of the anthropic package.

The module sends the body of a request, and decides when a completion needs another request. As for openai, an unpatched client is
called through `post`, so the SDK's authentication, retries, paths and errors apply; any other client through `messages.create`.
The clients of the clouds read the body and compute the path from it, so they get a dict. Importing this module does not import
anthropic.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, final
from urllib.parse import urlsplit

from aswarm._runtime.backend import HiddenGenerators
from aswarm._values.errors import CompletionError, ConfigurationError
from aswarm._values.settings import ApiName
from aswarm._wire.accumulator import Accumulator
from aswarm._wire.request import CompletionRequest
from aswarm._wire.responses_events import EventDecoder

from .answers import HttpxResponse, streamed
from .apis import OPTIONS, has_unpatched_class, is_of, is_unpatched, type_of
from .compatible import BlockingCall, BlockingPost, asked, call_directly, failed_request

if TYPE_CHECKING:
    from aswarm._wire.anthropic_events import AnthropicReader

_PACKAGE = "anthropic"
_PATH = "/v1/messages"
_BETA = "anthropic-beta"
_MOST_PARTS = 6  # of an answer: the server may pause five times
_BAD_REQUEST = 400
# Parts of the texts of a 400 for thinking that the model cannot read, or whose prefix has changed; all in lower case. A server
# that cannot drop such blocks names `block_binding`, which is sent only beside thinking.
_REFUSED_THINKING = (
    ("thinking", "signature"), ("thinking", "cannot be modified"), ("thinking", "bound to"), ("block_binding",),
)  # fmt: skip
# The ends of the names of the clients whose servers have the newest features; see `anthropic_request`. On 2026-11-27, those of
# Foundry, Google and the older Bedrock do not have all of them.
_NEWEST = ("AWS", "Mantle", "MantleClient")


def is_for_anthropic(client: Any, api: ApiName) -> bool:
    """Return whether a client is for the Messages API: of the anthropic package, or with `messages.create` and no other API."""
    kind = type_of(client)
    if kind is AnthropicSource or is_of(kind, _PACKAGE):
        return True
    if callable(getattr(kind, "complete", None)):
        return False  # another source
    if api != "auto":
        return api == "anthropic"
    return callable(_create_of(client)) and not any(hasattr(client, name) for name in ("chat", "responses"))


def is_blocking_anthropic(client: Any) -> bool:
    """Return whether a client is a blocking one of the anthropic package."""
    return is_of(kind := type_of(client), _PACKAGE) and not _has_base(kind, "AsyncAPIClient")


@final
class AnthropicSource:
    """A `CompletionSource` for Claude, with all features of Anthropic's own API. It needs the extra `anthropic`.

        swarm = AsyncSwarm(AnthropicSource(AsyncAnthropic()))

    `client`: an `AsyncAnthropic`, or a client of the same package for Foundry, AWS, Vertex, Mantle or Bedrock (for `Swarm` also a
    blocking one), or any object with `messages.create`. The caller closes the client. Raises ConfigurationError for any other
    value.

    `AsyncSwarm(client)` has the same effect. Use this class inside your own source, or for an object with two APIs.
    """

    def __init__(self, client: Any) -> None:
        if not callable(_create_of(client)):
            raise ConfigurationError(
                f"AnthropicSource needs a client with messages.create; got {type_of(client).__name__}"
            )
        self.client = client
        self._call: BlockingCall = call_directly
        self._is_own = is_of(type_of(client), _PACKAGE)
        self._may_copy = self._is_own and is_unpatched(client, client.messages, _PACKAGE)
        self._is_plain = (
            self._may_copy and has_unpatched_class(client, client.messages, _PACKAGE) and not _is_bedrock(client)
        )
        self._is_claude_api = self._is_own and _is_at_anthropic(client)

    @property
    def base_url(self) -> str:
        """The address of the API, for the prices; empty if the client has none."""
        return str(getattr(self.client, "base_url", ""))

    @property
    def max_retries(self) -> int:
        """The number of the client's own retries. `request.max_retries` overrides it."""
        return self.client.max_retries if self._is_own else 0

    def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yield the chunks of one completion; see `CompletionSource`."""
        return self._answer(request) if request.stream else self._whole_answer(request)

    async def _whole_answer(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        accumulator, facts = Accumulator(), dict[str, Any]()
        async with aclosing(self._answer(request)) as chunks:
            async for chunk in chunks:
                accumulator.feed(chunk)
                facts |= {key: chunk[key] for key in ("id", "model") if key in chunk}
        yield {**facts, **accumulator.finish().as_chunk()}

    async def _answer(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yield the chunks. If the API refuses thinking of the history, send the request once more, without this thinking."""
        has_started = False
        try:
            async with aclosing(self._parts(request)) as chunks:
                async for chunk in chunks:
                    has_started = True
                    yield chunk
        except CompletionError as error:
            if has_started or not _is_refused_thinking(error):
                raise
        else:
            return
        await _admitted(request)
        async with aclosing(self._parts(request, thinking=False)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _parts(
        self, request: CompletionRequest, *, thinking: bool = True
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yield the chunks of one answer. After a pause of the server, the next request continues the answer."""
        # Imported here, because most programs have no client of Anthropic.
        from aswarm._wire.anthropic_events import AnthropicReader  # noqa: PLC0415
        from aswarm._wire.anthropic_request import anthropic_request, continued  # noqa: PLC0415

        sent = request if self._is_plain else request.copy()  # another client may change the body
        body, origin = anthropic_request(sent, is_claude_api=self._is_claude_api, thinking=thinking)
        reader = AnthropicReader(origin)
        for part in range(_MOST_PARTS):
            if part:
                if request._may_continue is not None and not request._may_continue():
                    break
                await _admitted(request)
                reader.resume()
                body = continued(body, reader.blocks, reader.container)
            # The retries of others stop at the first chunk of an answer, so the client itself retries a later part.
            retries = None if part else request.max_retries
            async with aclosing(self._part(request, body, reader, retries)) as chunks:
                async for chunk in chunks:
                    yield chunk
            if not reader.is_paused:
                break
        for chunk in reader.finish():
            yield chunk

    def _part(
        self, request: CompletionRequest, body: dict[str, Any], reader: AnthropicReader, retries: int | None
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        """Return the chunks of the answer to one request of the API."""
        from aswarm._wire.anthropic_request import betas_of, needs_stream  # noqa: PLC0415 - as above

        is_streamed = needs_stream(body)
        body = {**body, "stream": is_streamed}
        if betas := betas_of(body):
            body["extra_headers"] = _with_betas(self.client, body.get("extra_headers") or {}, betas)
        if not self._is_plain:
            return self._created(request, body, reader, retries)
        if not is_streamed:
            return self._whole(request, body, reader, retries)
        return streamed(functools.partial(self._open, request, body, retries), functools.partial(EventDecoder, reader))

    # --- through `post` ---

    async def _open(self, request: CompletionRequest, body: dict[str, Any], retries: int | None) -> HttpxResponse:
        return HttpxResponse(await self._post(request, body, retries))

    async def _whole(
        self, request: CompletionRequest, body: dict[str, Any], reader: AnthropicReader, retries: int | None
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        response = await self._post(request, body, retries)
        for chunk in EventDecoder(reader).whole(response.content):
            yield chunk

    async def _post(self, request: CompletionRequest, body: dict[str, Any], retries: int | None) -> Any:
        """Return the raw response. The body of a stream is not read yet."""
        import anthropic  # noqa: PLC0415 - the client has already imported it

        options: dict[str, Any] = {OPTIONS[key]: value for key, value in body.items() if key in OPTIONS}
        if retries is not None:
            options["max_retries"] = retries
        sender = BlockingPost(self.client, self._call) if is_blocking_anthropic(self.client) else self.client
        try:
            return await sender.post(
                _PATH,
                cast_to=_response_class(anthropic.DefaultHttpxClient),
                body={key: value for key, value in body.items() if key not in OPTIONS},
                options=options,  # without the name of a span, because the run has its own
                **({"stream": True, "stream_cls": anthropic.AsyncStream} if body["stream"] else {}),
            )
        except Exception as error:
            raise failed_request(error, request) from error

    # --- through `create` ---

    async def _created(
        self, request: CompletionRequest, body: dict[str, Any], reader: AnthropicReader, retries: int | None
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        create = _create_of(self._for_create(retries))
        try:
            reply = await asked(functools.partial(create, **_arguments(create, body)), self._call)
        except Exception as error:
            raise failed_request(error, request) from error
        async with aclosing(reply.chunks(request)) as events:
            # The SDK drops its inner generators after an error, and closes the response itself.
            while (event := await HiddenGenerators(_next_event(events, reader), finalize=False)) is not None:
                for chunk in reader.read(event):
                    yield chunk

    def _for_create(self, retries: int | None) -> Any:
        """Return the client with these retries, and without its own spans, because the run has spans."""
        if not self._may_copy:
            return self.client
        changes: dict[str, Any] = {} if retries is None else {"max_retries": retries}
        if _is_bedrock(self.client) and "open_telemetry" in inspect.signature(self.client.copy).parameters:
            changes["open_telemetry"] = False
        return self.client.with_options(**changes) if changes else self.client


def anthropic_source(client: Any, call: BlockingCall | None) -> AnthropicSource:
    """Return the source of a client. `call`: calls the code of a blocking client."""
    source = AnthropicSource(client)
    source._call = call or call_directly
    return source


async def _next_event(events: AsyncGenerator[Mapping[str, Any], None], reader: AnthropicReader) -> Any:
    """Return the next event, or None at the end. The SDK cannot read the `[DONE]` of a gateway, but the answer is whole then."""
    try:
        return await anext(events, None)
    except CompletionError:
        if reader.is_done:
            return None
        raise


async def _admitted(request: CompletionRequest) -> None:
    """Wait until the rate limits allow one more request for the same completion."""
    if request._admit_next is not None:
        await request._admit_next()


def _is_refused_thinking(error: CompletionError) -> bool:
    text = str(error).lower()
    return error.status_code == _BAD_REQUEST and any(all(word in text for word in words) for words in _REFUSED_THINKING)


def _create_of(client: Any) -> Any:
    return getattr(getattr(client, "messages", None), "create", None)


@functools.cache
def _response_class(client_class: type) -> Any:
    """Return the class of raw responses, of httpx or httpx2: the package of the SDK's own HTTP client."""
    names = (base.__module__.partition(".")[0] for base in client_class.__mro__)
    return importlib.import_module(next(name for name in names if name.startswith("httpx"))).Response


def _is_bedrock(client: Any) -> bool:
    """Return whether the client streams the frames of AWS, which only the SDK can decode."""
    return _has_base(type_of(client), "BaseBedrockClient")


def _has_base(kind: type, name: str) -> bool:
    return any(base.__name__ == name for base in kind.__mro__)


def _is_at_anthropic(client: Any) -> bool:
    """Return whether the client sends its requests to Anthropic, or to a server with the same features."""
    host = urlsplit(str(client.base_url)).hostname or ""
    return host.endswith("anthropic.com") or any(base.__name__.endswith(_NEWEST) for base in type_of(client).__mro__)


def _with_betas(client: Any, headers: Mapping[str, Any], betas: list[str]) -> dict[str, Any]:
    """Return the headers with more values of `anthropic-beta`, besides those of the user or of the client."""
    of_client: Mapping[str, Any] = getattr(client, "_custom_headers", None) or {}
    given = next((value for each in (headers, of_client) for key, value in each.items() if key.lower() == _BETA), "")
    rest = {key: value for key, value in headers.items() if key.lower() != _BETA}
    return {**rest, _BETA: ",".join(dict.fromkeys([*filter(None, str(given).split(",")), *betas]))}


def _arguments(create: Callable[..., Any], body: dict[str, Any]) -> dict[str, Any]:
    """Return the body as arguments of `create`. Fields that it does not have are in `extra_body`."""
    try:
        parameters = inspect.signature(create).parameters
    except (TypeError, ValueError):
        return body
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    if takes_any or "extra_body" not in parameters:
        return body
    known = {key: value for key, value in body.items() if key in parameters}
    more = {key: value for key, value in body.items() if key not in parameters}
    return {**known, "extra_body": {**more, **(known.get("extra_body") or {})}} if more else known
