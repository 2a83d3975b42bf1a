"""One request for a completion, built from an agent, the history on the wire and the settings of the run.

The module decides the body of the request, and never sends it. Only the completion source reads the field that asks for an
answer in chunks.
"""

import operator
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Any, Protocol, runtime_checkable

from aswarm._values.agent import Agent, model_of
from aswarm._values.content import Part, described, text_part
from aswarm._values.errors import ConfigurationError
from aswarm._values.json import is_array, is_object
from aswarm._values.messages import Message, text_of

from .body_json import body_json
from .responses_items import OUTPUT_ITEMS
from .responses_request import KnownHistory, responses_body

# Keys that the run decides; `model_settings` does not override them.
_DECIDED = frozenset({"messages", "stream", "tools"})
_CONTENT = operator.methodcaller("get", "content")
_ATOMS = (str, int, float, type(None))
# Keys of messages from the Responses API. Servers of Chat Completions reject unknown keys.
_RESPONSES_KEYS = frozenset({OUTPUT_ITEMS, "reasoning_content"})


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """One request for a completion.

    Args:
        agent: The active agent.
        body: The keyword arguments of `chat.completions.create`. A middleware or a source may change it: neither the history
            nor another request shares it. Its messages may have content for the Responses API only; see `chat_body`.
        max_retries: The number of retries allowed inside the client; None lets the client decide. It is 0 if rate limits or
            middleware retry the request.
    """

    agent: Agent
    body: dict[str, Any]
    max_retries: int | None = None
    # None if other code may have changed the messages: then each message is checked.
    _known: KnownHistory | None = field(default=None, repr=False, compare=False)
    # Sends the request instead of the client of the swarm, behind all middleware: an alternative of `fallback`.
    _send: Callable[["CompletionRequest"], AsyncGenerator[Mapping[str, Any], None]] | None = field(
        default=None, repr=False, compare=False
    )
    # The rate limits call it with True when they send the request, and with False when the request must wait.
    _on_sending: Callable[[bool], None] | None = field(default=None, repr=False, compare=False)
    # Whether `Output(mode="schema")` added a schema to a request with tools.
    _has_schema_beside_tools: bool = field(default=False, repr=False, compare=False)

    @property
    def stream(self) -> bool:
        """Whether the answer should be streamed."""
        return bool(self.body.get("stream"))

    def chat_body(self) -> dict[str, Any]:
        """Return the body for any server of Chat Completions; `body` does not change.

        Output items of the Responses API (`responses_output`) are left out, and the images and files of tool messages
        follow in a message of the user. The result is `body` itself if there is nothing to change. Raises
        ConfigurationError if `Output(mode="schema")` needs a schema in a request with tools.
        """
        self._check_schema()
        messages = self.body["messages"]
        if (self._known and self._known.is_chat) or is_chat(messages):
            return self.body
        return {**self.body, "messages": [*_media_after_results(without_items(messages))]}

    def responses_body(self) -> dict[str, Any]:
        """Return the same request as a body for the Responses API; `body` does not change.

        Raises ConfigurationError if the Responses API does not have a setting or a part of a message, and if
        `Output(mode="schema")` needs a schema in a request with tools.
        """
        self._check_schema()
        return responses_body(self.body, self._known)

    def json(self, body: Mapping[str, Any]) -> bytes:
        """Return `chat_body()` or `responses_body()` as JSON. Raises ValueError if it has no JSON form."""
        return body_json(body, self._known)

    def _check_schema(self) -> None:
        if self._has_schema_beside_tools:
            raise ConfigurationError(
                f'mode="schema" cannot be used by agent {self.agent.name!r}, which has functions: most servers suppress or '
                "force calls if a request has both. Only OpenAI's Responses API supports both. Use "
                'mode="auto" or mode="tool"'
            )

    def copy(self) -> "CompletionRequest":
        """Return a copy that shares no dict and no list with this request."""
        return replace(self, body=_copied(self.body), _known=None)  # the owner of the copy may change the messages


def streamed(request: CompletionRequest, include_usage: bool) -> CompletionRequest:
    """Return the request for a stream, with the `stream_options` of the agent, or else with its usage if wanted."""
    options = request.agent.model_settings.get("stream_options", {"include_usage": True} if include_usage else None)
    added = {} if options is None else {"stream_options": options}
    return replace(request, body={**request.body, "stream": True, **added})


def openai_body(request: CompletionRequest) -> dict[str, Any]:
    """Return the body as `CompletionRequest.responses_body`, for OpenAI's servers: they support a schema with tools."""
    return responses_body(request.body, request._known)  # noqa: SLF001 - a class of this module


def with_schema(request: CompletionRequest, response_format: Mapping[str, Any]) -> CompletionRequest:
    """Return the request with a schema for its answer. With tools, only OpenAI's servers support it."""
    request.body["response_format"] = response_format
    return replace(request, _has_schema_beside_tools=True) if request.body.get("tools") else request


def _copied(value: Any) -> Any:
    if is_object(value):
        # Most values are texts and numbers: a function call for each would be most of the cost.
        return {key: item if isinstance(item, _ATOMS) else _copied(item) for key, item in value.items()}
    # A caller may write the parts of a message as a tuple, and change the dicts in it.
    return [_copied(item) for item in value] if is_array(value) else value


@runtime_checkable
class CompletionSource(Protocol):
    """Protocol of sources of completions, which `AsyncSwarm(client=...)` accepts instead of an openai client.

    A source may have an attribute `max_retries` (int): the number of its own retries if `request.max_retries` is None; 0
    without the attribute. If `request.max_retries` is 0, a source must send the request only once, because rate limits or
    `aswarm.middleware.retry` retry it.
    """

    def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yield the chunks of one completion (`choices[0].delta`), or one whole completion (`choices[0].message`).

        `request.chat_body()` is the body for a server of Chat Completions. The last chunks must have a `finish_reason`. The
        source may change the request. Closing the generator must release its resources, such as a connection.

        Raises CompletionError if the provider failed: `status_code`, `retryable` and `retry_after` decide whether and when
        the request is retried, as long as no part of the answer was shown. `aswarm.completion_error` makes this error from
        the exception of an SDK. Raises StreamInterrupted if an answer starts and does not finish. Any other exception ends
        the run as a RunError, without a retry.
        """
        ...


@dataclass(frozen=True, slots=True)
class RequestSettings:
    """Settings of all requests of a run."""

    stream: bool
    model_override: str | None = None
    include_usage: bool = True
    default_model: str | None = None  # for agents without a model


def build_request(
    agent: Agent,
    instructions: Any,
    messages: Sequence[Message],
    tools: Iterable[dict[str, Any]],
    tool_choice: Any,
    settings: RequestSettings,
    *,
    known: KnownHistory | None = None,
) -> CompletionRequest:
    """Return the request for one completion. `messages` have wire form. `instructions` None means no system message."""
    system: list[Message] = [] if instructions is None else [{"role": "system", "content": instructions}]
    body: dict[str, Any] = {
        "model": model_of(agent, settings.default_model or agent.model),
        "tool_choice": tool_choice,
        "parallel_tool_calls": agent.parallel_tool_calls,
        **{key: value for key, value in agent.model_settings.items() if key not in _DECIDED},
        "tools": [*tools, *(agent.model_settings.get("tools") or ())],
        "messages": [*system, *messages],
        "stream": settings.stream,
    }
    if tool_choice is not None:
        body["tool_choice"] = tool_choice  # the run relaxed it, and `model_settings` must not force it again
    if settings.model_override:
        body["model"] = settings.model_override
    if not settings.stream:
        body.pop("stream_options", None)  # OpenAI rejects it without `stream`
    elif settings.include_usage:
        body.setdefault("stream_options", {"include_usage": True})
    if not body["tools"]:
        # DashScope and DeepSeek reject `tools: []`; OpenAI rejects the other two without tools.
        for key in ("tools", "tool_choice", "parallel_tool_calls"):
            del body[key]
    sent = {key: value for key, value in body.items() if value is not None}
    return CompletionRequest(agent, sent, _known=known)


def is_forced(tool_choice: Any) -> bool:
    """Return whether the choice makes the model call a tool: "required", a function by name, or a server's own value."""
    if (allowed := _allowed_tools(tool_choice)) is not None:
        return is_forced(allowed.get("mode"))
    return tool_choice not in (None, "auto", "none")


def relaxed(tool_choice: Any) -> Any:
    """Return the choice as "auto", with the same allowed tools."""
    if not is_forced(tool_choice):
        return tool_choice
    allowed = _allowed_tools(tool_choice)
    if allowed is None:
        return "auto"
    auto = {**allowed, "mode": "auto"}
    return auto if allowed is tool_choice else {**tool_choice, "allowed_tools": auto}


def _allowed_tools(tool_choice: Any) -> Mapping[str, Any] | None:
    """Return the fields of a choice among some tools: an inner object in Chat Completions, flat in the Responses API."""
    if not is_object(tool_choice) or tool_choice.get("type") != "allowed_tools":
        return None
    inner = tool_choice.get("allowed_tools")
    return inner if is_object(inner) else tool_choice


# --- messages that a server of Chat Completions can read --------------------------------------------------------------


def is_chat(messages: Sequence[Message]) -> bool:
    """Return whether a server of Chat Completions can read these messages as they are."""
    # Without a loop in Python, because histories are long.
    if any(map(operator.contains, messages, repeat(OUTPUT_ITEMS))):
        return False
    if list not in map(type, map(_CONTENT, messages)):
        return True
    return not any(isinstance(message.get("content"), list) and message.get("role") == "tool" for message in messages)


def without_items(messages: Sequence[Message]) -> list[Message]:
    """Return the messages without items of the Responses API, which only the provider of the answer can read.

    A message without other content, such as an image from the provider, is left out.
    """
    stripped = (_without_items(message) if OUTPUT_ITEMS in message else message for message in messages)
    return [message for message in stripped if message]


def chunk_without_items(chunk: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the chunk of a completion without items of the Responses API."""
    choices = chunk.get("choices")
    return {**chunk, "choices": [*map(_choice_without_items, choices)]} if is_array(choices) else chunk


def _choice_without_items(choice: Any) -> Any:
    for key in ("message", "delta"):
        wire = choice.get(key) if is_object(choice) else None
        if is_object(wire) and OUTPUT_ITEMS in wire:
            return {**choice, key: {name: value for name, value in wire.items() if name not in _RESPONSES_KEYS}}
    return choice


def _without_items(message: Message) -> Message:
    rest = {key: value for key, value in message.items() if key not in _RESPONSES_KEYS}
    return rest if any(value for key, value in rest.items() if key != "role") else {}


def _media_after_results(messages: Sequence[Message]) -> Iterator[Message]:
    """Yield tool messages of text only; images and files follow in a message of the user, after all answers of the block."""
    media: list[Part] = []
    for message in messages:
        if media and message.get("role") != "tool":
            yield {"role": "user", "content": media}
            media = []
        if not (isinstance(message.get("content"), list) and message.get("role") == "tool"):
            yield message
            continue
        parts: list[Any] = message["content"]
        own: list[Any] = [part for part in parts if is_object(part) and part.get("type") != "text"]
        if own:
            media += [text_part(f"From the result of the tool call {message['tool_call_id']}:"), *own]
        yield {**message, "content": described(parts) if own else text_of(parts)}
    if media:
        yield {"role": "user", "content": media}
