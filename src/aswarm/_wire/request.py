"""One request for a completion, built from an agent, the history on the wire and the settings of the run.

Decides the body. Never sends it. Whether the answer comes whole or in chunks is a field that only the completion source
reads.
"""

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from aswarm._agent import Agent, model_of
from aswarm._errors import ConfigurationError
from aswarm._json import is_array, is_object
from aswarm._messages import Message

from .chat_request import chat_messages, is_chat
from .responses_input import KnownHistory
from .responses_request import responses_body

# Decided by the run; `model_settings` does not override them.
_DECIDED = frozenset({"messages", "stream", "tools"})


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """One request for a completion.

    `agent`: the active agent. `body`: the keyword arguments of `chat.completions.create`. A middleware or a source may
    change it: neither the history nor another request shares it. Its messages may have what only the Responses API
    takes; see `chat_body`. `max_retries`: how often the client may send the request again by itself; None leaves that to
    the client. It is 0 if limits or retries outside of the client see to it.
    """

    agent: Agent
    body: dict[str, Any]
    max_retries: int | None = None
    # None where other code may have changed the messages: then each of them is looked at.
    _known: KnownHistory | None = field(default=None, repr=False, compare=False)
    # Whether `Output(mode="schema")` has put a schema beside the tools.
    _has_schema_beside_tools: bool = field(default=False, repr=False, compare=False)

    @property
    def stream(self) -> bool:
        """Whether the answer should come in chunks."""
        return bool(self.body.get("stream"))

    def chat_body(self) -> dict[str, Any]:
        """The body for a server of Chat Completions that knows no more than that API; `body` stays as it is.

        Output items of the Responses API (`responses_output`) are left out, and the images and files of tool messages
        stand in a message of the user after them. The same dict as `body` if there is nothing to change. Raises
        ConfigurationError if `Output(mode="schema")` asks for a schema beside tools.
        """
        if self._has_schema_beside_tools:
            raise _schema_beside_tools(self.agent)
        messages = self.body["messages"]
        if (self._known and self._known.is_chat) or is_chat(messages):
            return self.body
        return {**self.body, "messages": chat_messages(messages)}

    def responses_body(self) -> dict[str, Any]:
        """The body for the Responses API that asks for what `body` asks of Chat Completions; `body` stays as it is.

        Raises ConfigurationError that names a setting, or a part of a message, that the Responses API does not have, and if
        `Output(mode="schema")` asks for a schema beside tools.
        """
        if self._has_schema_beside_tools:
            raise _schema_beside_tools(self.agent)
        return responses_body(self.body, self._known)

    def copy(self) -> "CompletionRequest":
        """The same request, which shares no dict and no list with this one."""
        return replace(self, body=_copied(self.body), _known=None)  # its owner may change the messages


def _schema_beside_tools(agent: Agent) -> ConfigurationError:
    return ConfigurationError(
        f'mode="schema" cannot be used by agent {agent.name!r}, which has functions: most servers suppress or force calls '
        'if a request has both. Only the Responses API on a host of OpenAI takes it. Use mode="auto" or mode="tool"'
    )


def openai_body(request: CompletionRequest) -> dict[str, Any]:
    """As `CompletionRequest.responses_body`, for OpenAI's own servers: they take a schema beside tools."""
    return responses_body(request.body, request._known)  # noqa: SLF001 - what this module knows of its own class


def with_schema(request: CompletionRequest, response_format: Mapping[str, Any]) -> CompletionRequest:
    """The request, which asks for an answer of a schema. Beside tools it can be sent only to OpenAI's own servers."""
    request.body["response_format"] = response_format
    return replace(request, _has_schema_beside_tools=True) if request.body.get("tools") else request


def _copied(value: Any) -> Any:
    if is_object(value):
        # Most values are texts: a call for each would be most of the cost.
        return {key: item if isinstance(item, str) else _copied(item) for key, item in value.items()}
    # A caller may write the parts of a message as a tuple, and change the dicts in it.
    return [_copied(item) for item in value] if is_array(value) else value


@runtime_checkable
class CompletionSource(Protocol):
    """Answers requests. `AsyncSwarm(client=...)` takes a source in place of an openai client.

    A source may have an attribute `max_retries` (int): how often it sends a request again by itself if
    `request.max_retries` is None; without the attribute that is 0. A source that retries must send a request only once if
    `request.max_retries` is 0, because limits or `aswarm.middleware.retry` then send it again.
    """

    def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yield the chunks of one completion (`choices[0].delta`), or one whole completion (`choices[0].message`).

        `request.chat_body()` is what a server of Chat Completions understands. The last chunks must have a
        `finish_reason`. The source may change the request. Closing the generator must free
        what it holds, such as a connection.

        Raises CompletionError if the provider failed: `status_code`, `retryable` and `retry_after` decide whether and when
        the request is sent again, which happens only before the first chunk. `aswarm.completion_error` makes this error
        from the exception of an SDK. Raises StreamInterrupted if an answer has begun and does not end. Any other exception
        ends the run as a RunError, without a retry.
        """
        ...


@dataclass(frozen=True, slots=True)
class RequestSettings:
    """The settings that are the same for every request of a run."""

    stream: bool
    model_override: str | None = None
    include_usage: bool = True
    default_model: str | None = None  # of agents whose own model was not set


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
    """The request for one completion. `messages` are in wire form. Without `instructions` (None) no system message is sent."""
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
        body["tool_choice"] = tool_choice  # the run has relaxed it; `model_settings` must not force it again
    if settings.model_override:
        body["model"] = settings.model_override
    if not settings.stream:
        body.pop("stream_options", None)  # OpenAI refuses it without `stream`
    elif settings.include_usage:
        body.setdefault("stream_options", {"include_usage": True})
    if not body["tools"]:
        # DashScope and DeepSeek refuse `tools: []`; OpenAI refuses the other two without tools.
        for key in ("tools", "tool_choice", "parallel_tool_calls"):
            del body[key]
    sent = {key: value for key, value in body.items() if value is not None}
    return CompletionRequest(agent, sent, _known=known)


def is_forced(tool_choice: Any) -> bool:
    """Whether the choice makes the model call a tool: "required", a function by name, or a value of a server's own."""
    if (allowed := _allowed_tools(tool_choice)) is not None:
        return is_forced(allowed.get("mode"))
    return tool_choice not in (None, "auto", "none")


def relaxed(tool_choice: Any) -> Any:
    """The choice without the force. The tools that it allows stay the same."""
    if not is_forced(tool_choice):
        return tool_choice
    allowed = _allowed_tools(tool_choice)
    if allowed is None:
        return "auto"
    auto = {**allowed, "mode": "auto"}
    return auto if allowed is tool_choice else {**tool_choice, "allowed_tools": auto}


def _allowed_tools(tool_choice: Any) -> Mapping[str, Any] | None:
    """The fields of a choice among some tools: inside an object in Chat Completions, flat in the Responses API."""
    if not is_object(tool_choice) or tool_choice.get("type") != "allowed_tools":
        return None
    inner = tool_choice.get("allowed_tools")
    return inner if is_object(inner) else tool_choice
