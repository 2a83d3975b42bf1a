"""One request for a completion, built from an agent, the history in wire form and the settings of the run.

The module builds the body of the request, and never sends it. Only the completion source reads `stream`. The JSON of the
messages in the previous request of the run is copied, not encoded again: the run stores only its last body, which the client
holds in memory anyway.
"""

import operator
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from operator import is_
from typing import Any, Protocol, runtime_checkable

from pydantic_core import to_json

from aswarm._values.agent import Agent, model_of
from aswarm._values.content import Part, described, text_part
from aswarm._values.errors import ConfigurationError
from aswarm._values.json import is_array, is_object, sendable_data
from aswarm._values.messages import INSTRUCTING, Message, call_name, text_of
from aswarm._values.wire_messages import BLOCKS, OUTPUT_ITEMS, without_items

from .responses_request import KnownHistory, SentItems, responses_body

# Keys that only the run sets; `model_settings` does not override them.
_DECIDED = frozenset({"messages", "stream", "tools"})
_CONTENT = operator.methodcaller("get", "content")
_ATOMS = (str, int, float, type(None))


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A request for one completion, which a middleware or a completion source gets.

    Args:
        agent: The active agent.
        body: The keyword arguments of `chat.completions.create`. A middleware or a source may change this dict: the history
            and other requests do not share it. The messages may have content that only the Responses API accepts, and
            "tool_choice" a form that only OpenAI's own servers accept; see `chat_body`.
        max_retries: The number of retries that the client may make; None lets the client decide. It is 0 if rate limits or
            a middleware retry the request.
        source: The source that sends the request, instead of the client of the swarm and without its rate limits. None: the
            client of the swarm. The middleware `fallback` sets it for its alternatives.
        on_sending: The rate limits call it with True when they send the request, and with False when the request must wait.
        tool_search: Whether a request to the Responses API may have OpenAI's client-executed tool search in place of the functions
            `search_tools` and `call_tool`, for models that know it.
    """

    agent: Agent
    body: dict[str, Any]
    max_retries: int | None = None
    source: "CompletionSource | None" = field(default=None, repr=False, compare=False)
    on_sending: Callable[[bool], None] | None = field(default=None, repr=False, compare=False)
    tool_search: bool = field(default=False, repr=False, compare=False)
    # Facts about the messages. None if other code may have changed the messages, so that each message must be checked.
    _known: KnownHistory | None = field(default=None, repr=False, compare=False)
    # Whether `Output(mode="schema")` added a schema to a request with tools.
    _has_schema_beside_tools: bool = field(default=False, repr=False, compare=False)
    # The function that `requiring` forces. A server without "allowed_tools" gets no other function.
    _required: str | None = field(default=None, repr=False, compare=False)
    # Whether the instructions may end with a cache breakpoint, at servers that have breakpoints.
    _may_share_prefix: bool = field(default=False, repr=False, compare=False)
    # A source calls it before it continues a completion that the provider has paused, and ends the completion after False. A budget
    # sets it.
    _may_continue: Callable[[], bool] | None = field(default=None, repr=False, compare=False)
    # A source awaits it before it sends a further request for the same completion. The rate limits set it.
    _admit_next: "Callable[[], Awaitable[None]] | None" = field(default=None, repr=False, compare=False)
    # Whether a middleware sends the request for itself, outside of the conversation.
    _is_of_middleware: bool = field(default=False, repr=False, compare=False)

    @property
    def stream(self) -> bool:
        """Whether the answer should be streamed."""
        return bool(self.body.get("stream"))

    def chat_body(self) -> dict[str, Any]:
        """Return the body for any server of Chat Completions; `body` does not change.

        The result has no output items of the Responses API (`responses_output`), and no blocks of Claude (`anthropic_output`). Images and files of tool messages move to a
        message of the user after the tool messages. If the run forces a typed answer, its function is the only one. If there is nothing to change, the result is `body` itself. Raises
        ConfigurationError if `Output(mode="schema")` needs a schema in a request with tools.
        """
        return openai_chat_body(self if self._required is None else narrowed(self))

    def responses_body(self) -> dict[str, Any]:
        """Return the body of this request for any server of the Responses API; `body` does not change.

        Raises ConfigurationError for a setting or a part of a message that the Responses API does not support. Also raises
        ConfigurationError if `Output(mode="schema")` needs a schema in a request with tools.
        """
        self._check_schema()
        return openai_body(self if self._required is None else narrowed(self))

    def _sendable_body(self) -> dict[str, Any]:
        # A middleware may have written text that UTF-8 cannot encode. Text of the run itself was repaired when it was recorded.
        return sendable_data(self.body) if self._known is None else self.body

    def json(self, body: Mapping[str, Any]) -> bytes:
        """Return the result of `chat_body()` or `responses_body()` as JSON. Raises ValueError if it has no JSON form."""
        return body_json(body, self._known)

    def _check_schema(self) -> None:
        if self._has_schema_beside_tools:
            raise ConfigurationError(
                f'mode="schema" cannot be used by agent {self.agent.name!r}, which has functions: most servers suppress or '
                "force calls if a request has functions and a schema. Only OpenAI's Responses API supports both. Use "
                'mode="auto" or mode="tool"'
            )

    def copy(self) -> "CompletionRequest":
        """Return a copy that shares no dict and no list with this request."""
        return replace(self, body=_copied(self.body), _known=None)  # other code may change the messages of the copy

    def for_agent(self, agent: Agent, messages: Sequence[Message]) -> "CompletionRequest":
        """Return a request for another completion of the middleware itself, such as a summary of `messages`.

        The request is sent in the same way: streamed or not, to the same source, with the same retries. The functions of the
        agent are not offered, and its instructions must not be a function. An agent without a model gets the model of this
        request. If this request has a `source`, so does any other agent, because the source may not have its model.
        """
        body = self.body
        settings = RequestSettings(
            self.stream,
            None if self.source is None else body["model"],
            "stream_options" in body,
            body["model"],
            self._may_share_prefix,
        )
        request = build_request(agent, agent.instructions, messages, [], None, settings)
        return replace(request, max_retries=self.max_retries, source=self.source, _is_of_middleware=True)


def streamed(request: CompletionRequest, include_usage: bool) -> CompletionRequest:
    """Return the request with streaming. `include_usage`: ask for the usage, if the agent has no own `stream_options`."""
    options = request.agent.model_settings.get("stream_options", {"include_usage": True} if include_usage else None)
    added = {} if options is None else {"stream_options": options}
    return replace(request, body={**request.body, "stream": True, **added})


def openai_body(request: CompletionRequest) -> dict[str, Any]:
    """Return the `CompletionRequest.responses_body` for OpenAI's own servers.

    They support a schema together with tools, and a choice of the type "allowed_tools".
    """
    return responses_body(request._sendable_body(), request._known, may_search=request.tool_search)


def openai_chat_body(request: CompletionRequest) -> dict[str, Any]:
    """Return the `CompletionRequest.chat_body` for OpenAI's own servers, which support "allowed_tools"."""
    request._check_schema()
    body, known = request._sendable_body(), request._known
    messages = body["messages"]
    if (known and known.is_chat) or is_chat(messages):
        return body
    return {**body, "messages": [*_media_after_results(without_items(messages))]}


def requiring(request: CompletionRequest, name: str) -> CompletionRequest:
    """Return the request with a forced call of this function. The other functions stay, because they are in the prompt prefix.

    Some servers ignore a `tool_choice` with the name of a function, so other servers than OpenAI's get only this function; see
    `narrowed`.
    """
    if len(request.body["tools"]) == 1:
        request.body["tool_choice"] = "required"
        return request
    request.body["tool_choice"] = _allowed_only(name)
    return replace(request, _required=name)


def is_requiring(request: CompletionRequest) -> bool:
    """Return whether the request has the choice that `requiring` made. A middleware may have replaced it."""
    return request._required is not None and request.body.get("tool_choice") == _allowed_only(request._required)


def narrowed(request: CompletionRequest) -> CompletionRequest:
    """Return the request with only the function that `requiring` forces, for a server without "allowed_tools"."""
    return without_allowed_tools(request) if is_requiring(request) else request


def has_allowed_tools(request: CompletionRequest) -> bool:
    """Return whether the choice of the request is of the type "allowed_tools"."""
    return _allowed_tools(request.body.get("tool_choice")) is not None


def without_allowed_tools(request: CompletionRequest) -> CompletionRequest:
    """Return the request with only the tools that its choice allows, for a server without "allowed_tools"."""
    body = request.body
    if (choice := _allowed_tools(body.get("tool_choice"))) is None:
        return request
    allowed = [*map(_reference, choice.get("tools") or ())]
    tools = [tool for tool in body.get("tools", ()) if _reference(tool) in allowed]
    return replace(request, body={**body, "tools": tools, "tool_choice": choice.get("mode")}, _required=None)


def _reference(tool: Mapping[str, Any]) -> tuple[Any, ...]:
    return (tool.get("type"), call_name(tool) or tool.get("name"), tool.get("server_label"))


def _allowed_only(name: str) -> dict[str, Any]:
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": name}}]}
    return {"type": "allowed_tools", "allowed_tools": allowed}


def with_schema(request: CompletionRequest, response_format: Mapping[str, Any]) -> CompletionRequest:
    """Return the request with a schema for its answer. Only OpenAI's servers support a schema together with tools."""
    request.body["response_format"] = response_format
    return replace(request, _has_schema_beside_tools=True) if request.body.get("tools") else request


def _copied(value: Any) -> Any:
    if is_object(value):
        # Most values are texts and numbers. For speed, they are copied without a function call.
        return {key: item if isinstance(item, _ATOMS) else _copied(item) for key, item in value.items()}
    # A caller may write the parts of a message as a tuple, and change the dicts in it.
    return [_copied(item) for item in value] if is_array(value) else value


@runtime_checkable
class CompletionSource(Protocol):
    """Protocol of a source of completions. `AsyncSwarm(client=...)` accepts a source instead of an openai client.

    If `request.max_retries` is None, the source itself decides how often it retries. Its optional attribute `max_retries`
    (int) has this number; without the attribute, aswarm assumes 0. If `request.max_retries` is 0, the source must send the
    request only once, because rate limits or `aswarm.middleware.retry` retry the request.
    """

    def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yield the chunks of one completion (`choices[0].delta`), or one whole completion (`choices[0].message`).

        `request.chat_body()` is the body for a server of Chat Completions. The last chunks must have a `finish_reason`. The
        source may change the request. Closing the generator must release its resources, such as a connection.

        Raises CompletionError if the provider failed. Its `status_code`, `retryable` and `retry_after` decide whether and
        when the request is retried. There is no retry once a part of the answer was shown. `aswarm.sources.completion_error` makes
        this error from the exception of an SDK. Raises StreamInterrupted if an answer starts and does not finish. Any other
        exception ends the run as a RunError, without a retry.
        """
        ...


@dataclass(frozen=True, slots=True)
class RequestSettings:
    """Settings of all requests of a run."""

    stream: bool
    model_override: str | None = None
    include_usage: bool = True
    default_model: str | None = None  # for agents without a model
    may_share_prefix: bool = False  # see `CompletionRequest._may_share_prefix`
    more: Mapping[str, Any] = field(default_factory=dict[str, Any])  # overrides `model_settings`


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
    """Return the request for one completion. `messages`: in wire form. `instructions`: None for no system message."""
    if not (isinstance(instructions, str) and instructions.isascii()):
        instructions = sendable_data(instructions)
    system: list[Message] = [] if instructions is None else [{"role": "system", "content": instructions}]
    own = agent.model_settings
    body: dict[str, Any] = {
        "model": model_of(agent, settings.default_model or agent.model),
        "tool_choice": tool_choice,
        "parallel_tool_calls": agent.parallel_tool_calls,
        **({key: value for key, value in own.items() if key not in _DECIDED} if own else {}),
        **settings.more,
        "tools": [*tools, *(own.get("tools") or ())],
        "messages": [*system, *messages],
        "stream": settings.stream,
    }
    if tool_choice is not None:  # overrides `model_settings`, because the run may have relaxed the choice to "auto"
        body["tool_choice"] = tool_choice
    if settings.model_override:
        body["model"] = settings.model_override
    if not settings.stream:
        body.pop("stream_options", None)  # OpenAI rejects it without `stream`
    elif settings.include_usage:
        body.setdefault("stream_options", {"include_usage": True})
    if not body["tools"]:
        # DashScope and DeepSeek reject `tools: []`. OpenAI rejects the two other keys in a request without tools.
        for key in ("tools", "tool_choice", "parallel_tool_calls"):
            del body[key]
    for key, value in [*body.items()]:
        if value is None:
            del body[key]
    return CompletionRequest(agent, body, _known=known, _may_share_prefix=settings.may_share_prefix)


def is_forced(tool_choice: Any) -> bool:
    """Return whether the choice forces the model to call a tool: "required", the name of a function, or a server's value."""
    if (allowed := _allowed_tools(tool_choice)) is not None:
        return is_forced(allowed.get("mode"))
    return tool_choice not in (None, "auto", "none")


def relaxed(tool_choice: Any) -> Any:
    """Return the choice as "auto", with the same allowed tools."""
    if not is_forced(tool_choice):
        return tool_choice
    if (allowed := _allowed_tools(tool_choice)) is None:
        return "auto"
    auto = {**allowed, "mode": "auto"}
    return auto if allowed is tool_choice else {**tool_choice, "allowed_tools": auto}


def _allowed_tools(tool_choice: Any) -> Mapping[str, Any] | None:
    """Return the fields of an "allowed_tools" choice, or None. Chat Completions has these fields in an inner object."""
    if not is_object(tool_choice) or tool_choice.get("type") != "allowed_tools":
        return None
    inner = tool_choice.get("allowed_tools")
    return inner if is_object(inner) else tool_choice


# --- messages that a server of Chat Completions can read --------------------------------------------------------------


def is_chat(messages: Sequence[Message]) -> bool:
    """Return whether a server of Chat Completions can read these messages as they are."""
    # For long histories, `map` is faster than a loop in Python.
    has_items = any(map(operator.contains, messages, repeat(OUTPUT_ITEMS)))
    if has_items or any(map(operator.contains, messages, repeat(BLOCKS))):
        return False
    if list not in map(type, map(_CONTENT, messages)):
        return True
    return not any(isinstance(message.get("content"), list) and message.get("role") == "tool" for message in messages)


def _media_after_results(messages: Sequence[Message]) -> Iterator[Message]:
    """Yield the messages. Move images and files of tool messages to a message of the user, after all answers of the block."""
    media: list[Part] = []
    for message in messages:
        if media and message.get("role") != "tool":
            yield {"role": "user", "content": media}
            media = []
        if not (isinstance(message.get("content"), list) and message.get("role") == "tool"):
            yield message
            continue
        parts: list[Any] = message["content"]
        media_parts: list[Any] = [part for part in parts if is_object(part) and part.get("type") != "text"]
        if media_parts:
            media += [text_part(f"From the result of the tool call {message['tool_call_id']}:"), *media_parts]
        yield {**message, "content": described(parts) if media_parts else text_of(parts)}
    if media:
        yield {"role": "user", "content": media}


def body_json(body: Mapping[str, Any], known: KnownHistory | None) -> bytes:
    """Return the body for one of the two APIs as JSON. `known`: the known history of the run, which stores the result.

    Raises ValueError for a value without a JSON form, such as NaN, but also for a text that contains "NaN" or "Infinity".
    """
    if known is None:
        return _encoded(body)
    key = "messages" if "messages" in body else "input"
    items: Sequence[Any] = body[key]
    # The instructions, a system or developer message, are a new object in each request, so their JSON is never reused.
    count = int(bool(items) and items[0].get("role") in INSTRUCTING)
    instructions, items = items[:count], items[count:]
    start = _encoded({name: value for name, value in body.items() if name != key} | {key: instructions})[:-2]
    earlier = known.sent
    if earlier is None or len(earlier.items) > len(items) or not all(map(is_, earlier.items, items)):
        history: tuple[bytes | memoryview, ...] = (_encoded(items)[1:-1],)
    else:
        sent = memoryview(earlier.content)[earlier.start : earlier.end]  # copied only once, by the join
        new = _encoded(items[len(earlier.items) :])[1:-1]
        history = (sent, b",", new) if sent and new else (sent, new)
    size = sum(map(len, history))
    content = b"".join((start, b"," if instructions and size else b"", *history, b"]}"))
    end = len(content) - 2
    known.sent = SentItems(items, content, end - size, end)
    return content


def _encoded(value: Any) -> bytes:
    encoded = to_json(value)
    if b"NaN" in encoded or b"Infinity" in encoded:  # pydantic-core writes these numbers, which are not JSON
        raise ValueError("not a JSON number")
    return encoded
