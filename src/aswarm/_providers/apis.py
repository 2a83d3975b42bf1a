"""The two APIs of openai's clients: the path of a request, the form of its body, and how the answer is read.

Decides nothing about a client. What sends the request and reads the bytes is the same for both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Literal, Protocol, TypeAlias, get_args

from aswarm._errors import ConfigurationError
from aswarm._wire.request import CompletionRequest, openai_body
from aswarm._wire.responses_events import ResponseReader, ResponsesDecoder
from aswarm._wire.sse import AnswerDecoder

ApiName: TypeAlias = Literal["auto", "chat", "responses"]


def checked_api(api: ApiName) -> ApiName:
    """The name as it is. Raises ConfigurationError if there is no such API."""
    if api not in get_args(ApiName):
        raise ConfigurationError(f"api must be 'auto', 'chat' or 'responses', not {api!r}")
    return api


class Decoder(Protocol):
    """Decodes the bytes of one answer into chunks; see `AnswerDecoder`."""

    @property
    def is_done(self) -> bool: ...
    def feed(self, piece: bytes) -> Iterator[Mapping[str, Any]]: ...
    def end(self) -> Iterator[Mapping[str, Any]]: ...


@dataclass(frozen=True, slots=True)
class Api:
    """One API. `resource`: where a client has its `create`. `body`: a request as it takes one; the request is not changed.

    `make_decoder` makes what reads one answer from bytes, `make_reader` what reads one from objects. `ends_silently`:
    clients of other libraries may end its streams without saying that the answer is whole.
    """

    path: str
    resource: str
    body: Callable[[CompletionRequest], dict[str, Any]]
    make_decoder: Callable[[], Decoder]
    make_reader: Callable[[], Callable[[Mapping[str, Any]], Iterable[Mapping[str, Any]]]]
    ends_silently: bool

    def resource_of(self, client: Any) -> Any:
        """The object of the client that has `create`; None if the client has none."""
        try:
            return attrgetter(self.resource)(client)
        except AttributeError:
            return None

    def create_of(self, client: Any) -> Any:
        """The method of the client that asks for a completion; None if it has none."""
        return getattr(self.resource_of(client), "create", None)


def _as_it_is(chunk: Mapping[str, Any]) -> tuple[Mapping[str, Any]]:
    return (chunk,)


CHAT = Api(
    path="/chat/completions",
    resource="chat.completions",
    body=CompletionRequest.chat_body,
    make_decoder=AnswerDecoder,
    make_reader=lambda: _as_it_is,
    ends_silently=True,
)
RESPONSES = Api(
    path="/responses",
    resource="responses",
    body=CompletionRequest.responses_body,
    make_decoder=ResponsesDecoder,
    make_reader=lambda: ResponseReader().read,
    ends_silently=False,
)
# The Responses API of OpenAI's own servers, which take more than others.
OPENAI_RESPONSES = replace(RESPONSES, body=openai_body)
APIS: Mapping[str, Api] = {"chat": CHAT, "responses": RESPONSES}
