"""What `stream()` yields: a closed union of frozen events, in the order in which things happen.

    TurnStarted · (TextDelta | ReasoningDelta | RefusalDelta | ToolCallDelta)* · CompletionFinished
    · (ToolCallStarted | ToolCallFinished)* · HandedOff?      once per turn
    RunFinished                                               last, once, when the run ended by itself

`CompletionDelta` is internal: one wire delta, from which the typed and the classic events are made.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from ._agent import Agent, Response
from ._messages import text_of
from ._usage import Usage


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """A turn begins with a request. `turn` counts from 1 in this run; `agent` is the active agent."""

    agent: Agent
    turn: int


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the answer's text, never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """A piece of the model's reasoning, where the provider shows it (`reasoning_content` or `reasoning`)."""

    text: str


@dataclass(frozen=True, slots=True)
class RefusalDelta:
    """A piece of a refusal."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of a tool call. `index`: the call's position in its message. A field that the piece does not carry is None."""

    index: int
    id: str | None
    name: str | None
    arguments: str | None


@dataclass(frozen=True, slots=True)
class CompletionFinished:
    """A completion is whole. `message` is the assistant message as recorded; `usage` is that of this completion."""

    message: dict[str, Any]
    finish_reason: str | None
    usage: Usage


@dataclass(frozen=True, slots=True)
class ToolCallStarted:
    """A function begins to run. `index`: the call's position in its message. `arguments`: JSON text."""

    index: int
    id: str
    name: str
    arguments: str
    agent: Agent


@dataclass(frozen=True, slots=True)
class ToolCallFinished:
    """A call has ended; events come in completion order, messages are recorded in call order.

    A call that never ran (an unknown function, arguments that do not fit) has no `ToolCallStarted` before it.
    `content`: the text for the model. The recorded message of a handoff that replaces another one adds that to the text.
    `error`: what went wrong, or None; see `ToolError`. `still_running`: True for a plain function that could not be
    stopped and may still be at work.
    """

    index: int
    id: str
    name: str
    content: str
    error: Exception | None
    still_running: bool


@dataclass(frozen=True, slots=True)
class HandedOff:
    """The active agent changed at the end of a turn."""

    source: Agent
    target: Agent


@dataclass(frozen=True, slots=True)
class RunFinished:
    """The run has ended by itself. This is the last event."""

    response: Response


@dataclass(slots=True)
class CompletionDelta:
    """One delta as the classic stream shows it (internal)."""

    delta: dict[str, Any]


Event: TypeAlias = (
    TurnStarted
    | TextDelta
    | ReasoningDelta
    | RefusalDelta
    | ToolCallDelta
    | CompletionFinished
    | ToolCallStarted
    | ToolCallFinished
    | HandedOff
    | RunFinished
)
LoopEvent: TypeAlias = Event | CompletionDelta


def typed_events(delta: dict[str, Any]) -> Iterator[Event]:
    """The typed events of one delta."""
    reasoning = delta.get("reasoning_content") or delta.get("reasoning")
    if reasoning and (text := text_of(reasoning)):
        yield ReasoningDelta(text)
    if delta["content"] and (text := text_of(delta["content"])):
        yield TextDelta(text)
    if refusal := delta.get("refusal"):
        yield RefusalDelta(refusal)
    for call in delta["tool_calls"] or ():
        function = call["function"]
        yield ToolCallDelta(call["index"], call["id"], function["name"], function["arguments"])
