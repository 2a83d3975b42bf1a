"""The two APIs of openai's clients, Chat Completions and Responses: path and body of a request, decoder of the answer.

The sources, which send the request and receive the bytes, work with either API. The second part checks whether a client is an
object of openai without patched methods. Instrumentation copies the names of a function, and imitates its `__class__`, so the
checks read types and the globals of functions, which instrumentation does not imitate.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any, get_args
from urllib.parse import urlsplit

from aswarm._values.errors import ConfigurationError
from aswarm._values.settings import ApiName
from aswarm._wire.request import CompletionRequest
from aswarm._wire.responses_events import EventDecoder, ResponseReader, responses_decoder
from aswarm._wire.sse import AnswerDecoder, whole_answer

from . import prompt_cache


def checked_api(api: ApiName, *, for_openai: bool = False) -> ApiName:
    """Return the name. Raises ConfigurationError if there is no such API. `for_openai`: it must be an API of OpenAI."""
    if api not in get_args(ApiName) or (for_openai and api == "anthropic"):
        names = "'auto', 'chat' or 'responses'" if for_openai else "'auto', 'chat', 'responses' or 'anthropic'"
        raise ConfigurationError(f"api must be {names}, not {api!r}")
    return api


@dataclass(frozen=True, slots=True)
class Api:
    """One API.

    `resource`: the attribute of a client that has the method `create`.
    `body`: returns the body for a request, and does not change the request.
    `make_decoder`: returns a decoder for the bytes of one streamed answer.
    `read_whole`: returns the chunks of an answer that was not streamed, from its bytes.
    `make_reader`: returns a reader for one answer of a client that returns objects.
    `ends_silently`: whether some clients end a stream without a finish reason.
    `is_openai`: whether it is the API of OpenAI's own servers. Some models refuse fields of its bodies; see `prompt_cache`.
    """

    path: str
    resource: str
    body: Callable[[CompletionRequest], dict[str, Any]]
    make_decoder: Callable[[], AnswerDecoder | EventDecoder]
    read_whole: Callable[[bytes], Iterable[Mapping[str, Any]]]
    make_reader: Callable[[], Callable[[Mapping[str, Any]], Iterable[Mapping[str, Any]]]]
    ends_silently: bool
    is_openai: bool = False

    def resource_of(self, client: Any) -> Any:
        """Return the object of the client that has `create`, or None."""
        try:
            return attrgetter(self.resource)(client)
        except AttributeError:
            return None

    def create_of(self, client: Any) -> Any:
        return getattr(self.resource_of(client), "create", None)


CHAT = Api(
    path="/chat/completions",
    resource="chat.completions",
    body=CompletionRequest.chat_body,
    make_decoder=partial(AnswerDecoder, reports_done=True),
    read_whole=whole_answer,
    make_reader=lambda: lambda chunk: (chunk,),
    ends_silently=True,
)
RESPONSES = Api(
    path="/responses",
    resource="responses",
    body=CompletionRequest.responses_body,
    make_decoder=responses_decoder,
    read_whole=lambda body: responses_decoder().whole(body),
    make_reader=lambda: ResponseReader().read,
    ends_silently=False,
)
# The APIs of OpenAI's own servers. Only these servers support a schema in a request with tools, and cache breakpoints.
OPENAI_CHAT = replace(CHAT, body=prompt_cache.chat_body, is_openai=True)
OPENAI_RESPONSES = replace(RESPONSES, body=prompt_cache.responses_body, is_openai=True)
APIS: Mapping[str, Api] = {"chat": CHAT, "responses": RESPONSES}

_OPENAI_HOST = ".api.openai.com"  # also with a region, such as eu.api.openai.com
_AZURE_HOSTS = (".openai.azure.com", ".openai.azure.us", ".services.ai.azure.com", ".cognitiveservices.azure.com")
# Parameters of `create` that are not part of the body, and their names in the options of `post`.
OPTIONS = {"extra_headers": "headers", "extra_query": "params", "extra_body": "extra_json", "timeout": "timeout"}
# Keys of a body with values that aswarm builds. So these values are JSON. The values of other keys are settings of the user,
# and can be any object.
BUILT = frozenset(
    {"model", "messages", "tools", "stream", "stream_options", "parallel_tool_calls"}
    | {"include", "input", "instructions", "store"}
)


def api_at(base_url: str, api: ApiName) -> Api:
    """Return the API of a server. `api`: the name that the user chose."""
    parts = urlsplit(base_url)
    responses = responses_api(parts.hostname, parts.path)
    if api == "responses":
        return responses or RESPONSES
    return chat_api(responses) if api == "chat" or responses is None else responses


def chat_api(responses: Api | None) -> Api:
    """Return the Chat Completions of a server. `responses`: its Responses API, or None."""
    return OPENAI_CHAT if responses is OPENAI_RESPONSES else CHAT


def responses_api(host: Any, path: Any) -> Api | None:
    """Return the Responses API for OpenAI or the v1 API of Azure. Return None for other servers, which may not have it."""
    host = f".{host}"
    if host.endswith(_OPENAI_HOST):
        return OPENAI_RESPONSES
    is_azure = host.endswith(_AZURE_HOSTS) and path.rstrip("/").endswith("/openai/v1")
    return RESPONSES if is_azure else None


# --- patched clients --------------------------------------------------------------------------------------------------

# Returns the real type of a client: a mock with a `spec` replaces its `__class__`. A name with a type hint, because the type of an
# `Any` would be unknown.
type_of: Callable[[object], type] = type

# Methods that `create` calls. A patched method expects the body as a dict, and the answer as an object of the SDK.
_SENDING = ("post", "request")


def is_blocking_openai(kind: type) -> bool:
    """Return whether the class is `OpenAI`, the blocking client, or a subclass."""
    if not is_of_openai(kind):
        return False
    from openai import OpenAI  # noqa: PLC0415 - the client has already imported it

    return issubclass(kind, OpenAI)


def is_plain_openai(client: Any, api: Api) -> bool:
    """Return whether the client is an `AsyncOpenAI` or `OpenAI`, and no method that sends requests is patched."""
    if not is_unpatched_instance(client, api):
        return False
    return has_unpatched_class(client, api.resource_of(client), "openai")


def is_unpatched_instance(client: Any, api: Api) -> bool:
    """Return whether the client is an `AsyncOpenAI` or `OpenAI` without patches on the instance. Its class may be patched."""
    kind = type_of(client)
    if not is_of_openai(kind):
        return False
    from openai import AsyncOpenAI, OpenAI  # noqa: PLC0415 - the client has already imported it

    if not issubclass(kind, AsyncOpenAI | OpenAI):
        return False
    return is_unpatched(client, api.resource_of(client), "openai")


def is_unpatched(client: Any, resource: Any, package: str) -> bool:
    """Return whether no method that sends requests is patched on the client or on its resource. Their classes may be patched."""
    if _package(type_of(resource)) != package or "create" in vars(resource):
        return False
    return "post" not in vars(client) and "request" not in vars(client)


def has_unpatched_class(client: Any, resource: Any, package: str) -> bool:
    """Return whether the package itself defines all methods that send requests."""
    kind = type_of(client)
    for name in _SENDING:  # not `all`, whose generator would have a frame for each method, in each run
        if not _is_defined_by(package, getattr(kind, name, None)):
            return False
    return _is_defined_by(package, getattr(type_of(resource), "create", None))


def is_of_openai(kind: type) -> bool:
    """Return whether the class is a class of the openai package, or a subclass."""
    return is_of(kind, "openai")


@lru_cache(maxsize=64)  # limited, because each mock has a class of its own
def is_of(kind: type, package: str) -> bool:
    """Return whether the class is a class of this package, or a subclass."""
    return any(_package(base) == package for base in kind.__mro__)


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _is_defined_by(package: str, method: object) -> bool:
    # `isinstance` would accept a wrapper of wrapt, which imitates the `__class__` of a function.
    return type(method) is types.FunctionType and str(method.__globals__["__name__"]).partition(".")[0] == package
