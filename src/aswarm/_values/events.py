"""The events of `stream()`: a closed union of frozen dataclasses, in this order.

    TurnStarted · (TextDelta | ReasoningDelta | RefusalDelta | ToolCallDelta)* · CompletionFinished
    · (ToolCallStarted | ToolProgress | ToolCallFinished | CallWaiting)* · HandedOff?      once per turn
    RunFinished                                               last, once, unless the run fails or is closed

`to_dict()` returns an event as JSON data, for logs and for a browser.

`CompletionDelta` is internal: one delta of the provider. The typed events and Swarm's dicts are made from it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

from .agent import Agent, Response
from .errors import named
from .json import is_array, is_object, jsonable
from .messages import text_of
from .public_names import explained
from .usage import CacheMiss, Usage


@dataclass(frozen=True, slots=True)
class _Event:
    def to_dict(self) -> dict[str, Any]:
        """Return the event as JSON data: its class name as `type`, then its fields.

        An agent becomes its name, and an error its class name and text. A `Response` becomes its `to_dict()`.
        """
        form: dict[str, Any] = {"type": type(self).__name__}
        for field in fields(self):
            value = getattr(self, field.name)
            is_plain = value is None or type(value) is int or (type(value) is str and value.isascii())
            form[field.name] = value if is_plain else _json_form(value)
        return form


def _without_none(values: dict[str, Any], key: str) -> dict[str, Any]:
    if values[key] is None:
        del values[key]
    return values


def _json_form(value: Any) -> Any:
    if isinstance(value, _Event | Response):
        return value.to_dict()
    if isinstance(value, Agent):
        return value.name
    return named(value) if isinstance(value, BaseException) else jsonable(value)


@dataclass(frozen=True, slots=True)
class TurnStarted(_Event):
    """A turn starts: its request is sent. `turn`: the number of the turn in this run, from 1. `agent`: the active agent."""

    agent: Agent
    turn: int


@dataclass(frozen=True, slots=True)
class TextDelta(_Event):
    """A piece of the answer's text, never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta(_Event):
    """A piece of the model's reasoning, if the provider sends it (`reasoning_content`, `reasoning`, thinking parts)."""

    text: str


@dataclass(frozen=True, slots=True)
class RefusalDelta(_Event):
    """A piece of a refusal."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta(_Event):
    """A piece of a tool call. A field is None if the piece does not contain it.

    `index`: the position of the call in its message. `arguments`: a piece of the JSON text.
    """

    index: int
    id: str | None
    name: str | None
    arguments: str | None


@dataclass(frozen=True, slots=True)
class CompletionFinished(_Event):
    """A completion has finished.

    `message`: the recorded assistant message. `finish_reason`: as the provider sent it. `usage`: the tokens of this
    completion. `cache_miss`: tokens that the provider had to evaluate again, or None.
    """

    message: dict[str, Any]
    finish_reason: str | None
    usage: Usage
    cache_miss: CacheMiss | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the event as JSON data, without `cache_miss` if it is None."""
        return _without_none(_Event.to_dict(self), "cache_miss")


@dataclass(frozen=True, slots=True)
class ToolCallStarted(_Event):
    """A function starts to run.

    `index`: the position of the call in its message. `arguments`: JSON text. `agent`: the agent that made the call.
    """

    index: int
    id: str
    name: str
    arguments: str
    agent: Agent


@dataclass(frozen=True, slots=True)
class ToolProgress(_Event):
    """A running function reports its progress, with `progress(value)` or `yield Progress(value)`.

    `index`: the position of the call in its message. `value`: any object; for an agent as a tool, a typed event of its run.
    """

    index: int
    id: str
    name: str
    value: Any


@explained
@dataclass(frozen=True, slots=True)
class ToolCallFinished(_Event):
    """A call has finished. Events come in the order in which the calls finish. But messages are recorded in call order.

    If no function ran, there is no `ToolCallStarted` before: an unknown function, invalid arguments, or a typed answer in a call
    of `final_answer`, which is no function.

    Args:
        index: The position of the call in its message.
        id: The id of the call.
        name: The name of the tool in the call.
        content: The text for the model. If the handoff of this call replaces an earlier handoff, the recorded message has a
            note about this after the text.
        error: The cause of a failure, or None; see `ToolError`.
        still_running: Whether the function could not be stopped, and may still be running in its thread.
        handoff: The target of a handoff, or None.
    """

    index: int
    id: str
    name: str
    content: str
    error: Exception | None
    still_running: bool
    handoff: Agent | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the event as JSON data, without `handoff` if it is None."""
        return _without_none(_Event.to_dict(self), "handoff")


@dataclass(frozen=True, slots=True)
class CallWaiting(_Event):
    """A call waits for a decision. The call stays open, and the run stops after the concurrent calls have finished.

    If the function itself raised the `Hold`, a `ToolCallStarted` comes first. `index`: the position of the call in its
    message. `arguments`: JSON text. `reason` and `data`: from the `Hold`; for an agent as a tool, `data` is as in `OpenCall`.
    """

    index: int
    id: str
    name: str
    arguments: str
    agent: Agent
    reason: str
    data: Any


@dataclass(frozen=True, slots=True)
class HandedOff(_Event):
    """The active agent changed at the end of a turn, from `source` to `target`."""

    source: Agent
    target: Agent


@dataclass(frozen=True, slots=True)
class RunFinished(_Event):
    """The run has finished with this `response`. It is the last event."""

    response: Response


@dataclass(slots=True)
class CompletionDelta:
    """One delta, in the form of Swarm's streams (internal)."""

    delta: dict[str, Any]


Event: TypeAlias = (
    TurnStarted
    | TextDelta
    | ReasoningDelta
    | RefusalDelta
    | ToolCallDelta
    | CompletionFinished
    | ToolCallStarted
    | ToolProgress
    | ToolCallFinished
    | CallWaiting
    | HandedOff
    | RunFinished
)
"""Any event of `stream()`: a closed union, for type hints."""
LoopEvent: TypeAlias = Event | CompletionDelta
Emit: TypeAlias = Callable[[LoopEvent], None]  # gets each event of the tools of a run


def typed_events(delta: dict[str, Any]) -> Iterator[Event]:
    """Yield the typed events of one delta."""
    content = delta["content"]
    reasoning = delta.get("reasoning_content") or delta.get("reasoning")
    if reasoning and (text := text_of(reasoning)):
        yield ReasoningDelta(text)
    if isinstance(content, str):
        if content:
            yield TextDelta(content)
    elif is_array(content):
        # Mistral sends reasoning as parts of the content, not under a separate key.
        thinking = (part.get("thinking") for part in content if is_object(part) and part.get("type") == "thinking")
        if text := "".join(map(text_of, thinking)):
            yield ReasoningDelta(text)
        if text := text_of(content):
            yield TextDelta(text)
    if refusal := delta.get("refusal"):
        yield RefusalDelta(refusal)
    for call in delta["tool_calls"] or ():
        function = call["function"]
        yield ToolCallDelta(call["index"], call["id"], function["name"], function["arguments"])
