"""What `stream()` yields: a closed union of frozen events, in the order in which things happen.

    TurnStarted · (TextDelta | ReasoningDelta | RefusalDelta | ToolCallDelta)* · CompletionFinished
    · (ToolCallStarted | ToolProgress | ToolCallFinished | CallWaiting)* · HandedOff?      once per turn
    RunFinished                                               last, once, when the run ended by itself

`to_dict()` of each is its form as JSON data, for logs and for a browser.

`CompletionDelta` is internal: one wire delta, from which the typed and the classic events are made.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

from ._agent import Agent, Response
from ._json import is_array, is_object, jsonable
from ._messages import text_of
from ._usage import Usage


@dataclass(frozen=True, slots=True)
class _Event:
    def to_dict(self) -> dict[str, Any]:
        """The event as JSON data: its name as `type`, then its fields.

        An agent is its name, an error is text with its type, and a `Response` is what `model_dump(mode="json")` gives,
        with its `run_id` and its `text`.
        """
        values = {field.name: _json_form(getattr(self, field.name)) for field in fields(self)}
        return {"type": type(self).__name__, **values}


def _json_form(value: Any) -> Any:
    if isinstance(value, _Event):
        return value.to_dict()
    if isinstance(value, Agent):
        return value.name
    if isinstance(value, Response):
        return {**value.model_dump(mode="json"), "run_id": value.run_id, "text": jsonable(value.text)}
    return f"{type(value).__name__}: {value}" if isinstance(value, BaseException) else jsonable(value)


@dataclass(frozen=True, slots=True)
class TurnStarted(_Event):
    """A turn begins with a request. `turn` counts from 1 in this run; `agent` is the active agent."""

    agent: Agent
    turn: int


@dataclass(frozen=True, slots=True)
class TextDelta(_Event):
    """A piece of the answer's text, never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta(_Event):
    """A piece of the model's reasoning, where the provider shows it (`reasoning_content`, `reasoning`, thinking parts)."""

    text: str


@dataclass(frozen=True, slots=True)
class RefusalDelta(_Event):
    """A piece of a refusal."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta(_Event):
    """A piece of a tool call.

    `index`: the position of the call in its message. `arguments`: a piece of the JSON text. A field that the piece does not
    have is None.
    """

    index: int
    id: str | None
    name: str | None
    arguments: str | None


@dataclass(frozen=True, slots=True)
class CompletionFinished(_Event):
    """A completion is whole.

    `message`: the assistant message as it is recorded. `finish_reason`: that of the provider. `usage`: the tokens of this
    completion.
    """

    message: dict[str, Any]
    finish_reason: str | None
    usage: Usage


@dataclass(frozen=True, slots=True)
class ToolCallStarted(_Event):
    """A function begins to run.

    `index`: the position of the call in its message. `arguments`: JSON text. `agent`: the agent that made the call.
    """

    index: int
    id: str
    name: str
    arguments: str
    agent: Agent


@dataclass(frozen=True, slots=True)
class ToolProgress(_Event):
    """A function that runs says how far it is, with `progress(value)` or `yield Progress(value)`.

    `index`: the call's position in its message. `value`: anything; of an agent as a tool, a typed event of its run.
    """

    index: int
    id: str
    name: str
    value: Any


@dataclass(frozen=True, slots=True)
class ToolCallFinished(_Event):
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
class CallWaiting(_Event):
    """A call waits for a decision. It stays open, and the run stops after the calls beside it have ended.

    `index`: the call's position in its message. `arguments`: JSON text. `reason` and `data`: those of its `Hold`. If the
    function itself has raised the `Hold`, there is a `ToolCallStarted` before.
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
    """The run has ended by itself, with this `response`. This is the last event."""

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
    | ToolProgress
    | ToolCallFinished
    | CallWaiting
    | HandedOff
    | RunFinished
)
"""Any event of `stream()`: a closed union, for the hints of a function that takes all of them."""
LoopEvent: TypeAlias = Event | CompletionDelta


def _thinking(content: list[Any]) -> str:
    """The text of the thinking parts of a content, which Mistral sends in place of reasoning beside it."""
    thinking = (part.get("thinking") for part in content if is_object(part) and part.get("type") == "thinking")
    return "".join(map(text_of, thinking))


def typed_events(delta: dict[str, Any]) -> Iterator[Event]:
    """The typed events of one delta."""
    content = delta["content"]
    reasoning = delta.get("reasoning_content") or delta.get("reasoning")
    if reasoning and (text := text_of(reasoning)):
        yield ReasoningDelta(text)
    if isinstance(content, str):
        if content:
            yield TextDelta(content)
    elif is_array(content):
        if text := _thinking(content):
            yield ReasoningDelta(text)
        if text := text_of(content):
            yield TextDelta(text)
    if refusal := delta.get("refusal"):
        yield RefusalDelta(refusal)
    for call in delta["tool_calls"] or ():
        function = call["function"]
        yield ToolCallDelta(call["index"], call["id"], function["name"], function["arguments"])
