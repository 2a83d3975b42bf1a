"""Selection of the completion source for a client, and the source for openai's own clients.

A source yields chunks as plain dicts, and turns the exceptions of a client into `CompletionError`. The SDK itself retries a
request before the first byte of the answer.

There are four kinds of client:
- openai's `AsyncOpenAI`, or a subclass such as Azure's, if `create`, `post` and `request` are not patched. The source calls
  the public `client.post` and parses the raw response. So the SDK's authentication, retries, paths and errors apply. Two slow
  steps of `create` are skipped: the walk over every parameter of every message, and the model object for every chunk.
- any other client with `chat.completions.create` or `responses.create`. The source calls this method.
- a client of anthropic, or another object with `messages.create`; see `anthropic`.
- a `CompletionSource`, which needs no adapter.

A blocking `OpenAI` is an error, unless the caller passes a function that calls blocking code.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import TYPE_CHECKING, Any, cast, final

from aswarm._values.errors import ConfigurationError
from aswarm._values.json import is_json
from aswarm._values.settings import ApiName
from aswarm._wire.request import CompletionRequest, CompletionSource

from . import prompt_cache
from .answers import HttpxResponse, streamed
from .anthropic import AnthropicSource, anthropic_source, is_blocking_anthropic, is_for_anthropic
from .apis import (
    APIS,
    BUILT,
    CHAT,
    OPTIONS,
    RESPONSES,
    Api,
    chat_api,
    is_blocking_openai,
    is_plain_openai,
    is_unpatched_instance,
    responses_api,
    type_of,
)
from .compatible import BlockingCall, BlockingPost, CompatibleClientSource, call_directly, failed_request
from .http import HTTPSource
from .own_clients import http_package

if TYPE_CHECKING:
    from openai import AsyncOpenAI


# `create` passes the same option. Without it, an admin key in the environment would replace the API key.
_SECURITY = {"security": {"bearer_auth": True}}


def source_for(
    client: Any, blocking: BlockingCall | None = None, api: ApiName = "auto", *, include_usage: bool = False
) -> CompletionSource:
    """Return the completion source of a client. Raises ConfigurationError for a value that is not a client.

    `blocking`: calls the code of a blocking client; None: a blocking `OpenAI` is an error.
    `api`: "auto" means the Responses API for an unpatched client of openai, with a host of OpenAI or with Azure's v1 API.
    For any other client, "auto" means Chat Completions.
    `include_usage`: send `stream_options` to any client, even if its `create` has no such parameter.
    """
    if type_of(client) is HTTPSource and api in ("auto", client.api):
        return cast("HTTPSource", client)
    if isinstance(client, ResponsesSource):
        if api == "chat":
            raise ConfigurationError(
                f"api={api!r} and ResponsesSource(client) name two APIs; pass the client itself, or leave out api"
            )
        client, api = client.client, "responses"
    kind = type_of(client)
    if is_for_anthropic(client, api):
        return _anthropic_source(client, blocking, api)
    chosen = _chosen_api(client, api)
    has_create = callable(chosen.create_of(client))
    # Look up `complete` on the type, because an instance of MagicMock has every attribute.
    if callable(getattr(kind, "complete", None)) and not has_create:
        if api != "auto":
            raise ConfigurationError(
                f"api={api!r} is for a client; a CompletionSource chooses its API itself, so leave out api="
            )
        return cast("CompletionSource", client)
    is_blocking = is_blocking_openai(kind)
    if is_blocking and blocking is None:
        raise ConfigurationError(
            "AsyncOpenAI is needed here: a blocking OpenAI would block the whole event loop; pass AsyncOpenAI(...). Only "
            "Swarm(client=...) accepts a blocking client"
        )
    if is_plain_openai(client, chosen):
        return OpenAISource(BlockingPost(client, blocking) if is_blocking and blocking is not None else client, chosen)
    if has_create:
        return CompatibleClientSource(
            client, blocking or call_directly, _without_retries(client, chosen), chosen, include_usage=include_usage
        )
    remedy = "; a model is AsyncSwarm(model=...)" if kind is str else ""
    raise ConfigurationError(
        f"client must be an AsyncOpenAI, have {chosen.resource}.create, or be a CompletionSource; got {kind.__name__}{remedy}"
    )


def _anthropic_source(client: Any, blocking: BlockingCall | None, api: ApiName) -> CompletionSource:
    if isinstance(client, AnthropicSource):
        client = client.client
    if blocking is None and is_blocking_anthropic(client):
        raise ConfigurationError(
            "AsyncAnthropic is needed here: a blocking Anthropic would block the whole event loop. Only Swarm(client=...) accepts "
            "a blocking client"
        )
    if api in ("auto", "anthropic"):
        return anthropic_source(client, blocking)
    raise ConfigurationError(f"api={api!r} is not an API of {type_of(client).__name__}; leave out api=")


def is_responses(source: object) -> bool:
    """Return whether a source of aswarm sends its requests to the Responses API."""
    api = _api_of(source)
    return api is not None and api.path == RESPONSES.path


def is_openai(source: object) -> bool:
    """Return whether a source sends its requests to a host of OpenAI itself, not to Azure, a proxy or another provider."""
    api = _api_of(source)
    return api is not None and api.is_openai


def takes_breakpoints(source: object, model: str) -> bool:
    """Return whether the requests of a source may have `prompt_cache_breakpoint`: at OpenAI, for the models that are known to accept it."""
    return is_openai(source) and prompt_cache.has_breakpoints(model)


def _api_of(source: object) -> Api | None:
    source = source._source if isinstance(source, ResponsesSource) else source
    api = source._api if isinstance(source, OpenAISource | HTTPSource) else getattr(source, "api", None)
    return api if isinstance(api, Api) else None


def _chosen_api(client: Any, api: ApiName) -> Api:
    base_url = getattr(client, "base_url", None)
    responses = responses_api(getattr(base_url, "host", None), getattr(base_url, "path", None))
    if api == "responses":
        return responses or RESPONSES
    if api == "chat" or responses is None:
        return chat_api(responses)
    is_plain = all(is_plain_openai(client, known_api) for known_api in APIS.values())
    return responses if is_plain else chat_api(responses)


@final
class ResponsesSource:
    """A `CompletionSource` that uses the Responses API, for any server that has this API.

        swarm = AsyncSwarm(ResponsesSource(AsyncOpenAI(base_url="http://127.0.0.1:8080/v1", api_key="none")))

    `client`: an `AsyncOpenAI` (for `Swarm` also a blocking `OpenAI`), or any object with `responses.create`. The caller closes
    the client. Raises ConfigurationError for any other value.

    For a single client, `AsyncSwarm(client, api="responses")` has the same effect. Use this class for an alternative in
    `fallback`, or inside your own source.
    """

    def __init__(self, client: Any) -> None:
        self.client = client
        self._source = source_for(client, call_directly, "responses")

    @property
    def max_retries(self) -> int:
        """The number of the client's own retries. `request.max_retries` overrides it."""
        retries: int = getattr(self._source, "max_retries", 0)
        return retries

    def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yield the chunks of one completion; see `CompletionSource`."""
        return self._source.complete(request)


def _without_retries(client: Any, api: Api) -> Callable[[], Any] | None:
    """Return a function that makes a copy of the client without retries, or None if the copy could lose a patch."""
    may_be_copied = is_unpatched_instance(client, api) and type(client).__module__.partition(".")[0] == "openai"
    return functools.partial(client.with_options, max_retries=0) if may_be_copied else None


class OpenAISource:
    """Source of completions through `post` of a client of openai."""

    def __init__(self, client: AsyncOpenAI | BlockingPost, api: Api = CHAT) -> None:
        self._client = client
        self._api = api
        self._sender = client.client if isinstance(client, BlockingPost) else client

    @property
    def max_retries(self) -> int:
        """The number of the client's own retries. `request.max_retries` overrides it."""
        return self._client.max_retries

    def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yield the chunks, or one whole completion, as the server sent them."""
        if request.stream:
            return streamed(functools.partial(self._open, request), self._api.make_decoder)
        return self._whole(request)

    async def _whole(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        response = await self._post(request)
        for chunk in self._api.read_whole(response.content):
            yield chunk

    async def _open(self, request: CompletionRequest) -> HttpxResponse:
        return HttpxResponse(await self._post(request))

    async def _post(self, request: CompletionRequest) -> Any:
        """Return the raw response. The body of a stream is not read yet."""
        import openai  # noqa: PLC0415 - the client has already imported it

        if self._api.is_openai:
            request = prompt_cache.accepted(self._sender, request)
        body, options = self._api.body(request), dict[str, Any]()
        if not OPTIONS.keys().isdisjoint(body):
            options = {OPTIONS[key]: value for key, value in body.items() if key in OPTIONS}
            body = {key: value for key, value in body.items() if key not in OPTIONS}
        if request.max_retries is not None:
            options["max_retries"] = request.max_retries
        arguments: dict[str, Any] = {
            **_content(self._client, request, body),
            "cast_to": http_package(openai.__version__).Response,
            "options": {**options, **_SECURITY} if options else _SECURITY,
            **({"stream": True, "stream_cls": openai.AsyncStream} if request.stream else {}),
        }
        try:
            return await self._client.post(self._api.path, **arguments)
        except Exception as error:
            failed = failed_request(error, request)
            plainer = prompt_cache.repeatable(self._sender, request, failed) if self._api.is_openai else None
            if plainer is None:
                raise failed from error
        return await self._post(plainer)


def _content(client: AsyncOpenAI | BlockingPost, request: CompletionRequest, body: dict[str, Any]) -> dict[str, Any]:
    """Return the body as an argument of `post`: bytes, or a dict if the SDK has to read the body."""
    # Only the SDK can convert dates and pydantic models in its own way, and merge an `extra_body`.
    if not BUILT.issuperset(body) and not all(is_json(value) for key, value in body.items() if key not in BUILT):
        return {"body": body}
    if "extra_body" in request.body or not _accepts_bytes(type_of(client)):
        return {"body": body}
    try:
        return {"content": request.json(body)}
    except ValueError:  # the SDK can encode the value, or raises an error that names it
        return {"body": body}


@functools.cache
def _accepts_bytes(kind: type) -> bool:
    # Azure's subclass computes the path from the body. Other subclasses may also read the body. openai 2.0 has no `content`.
    from openai import AsyncOpenAI  # noqa: PLC0415 - the client has already imported it

    return kind is AsyncOpenAI and "content" in inspect.signature(kind.post).parameters


# The sources of aswarm that do not change a request.
OWN_SOURCES = OpenAISource | HTTPSource | AnthropicSource
