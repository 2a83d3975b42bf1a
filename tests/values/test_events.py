"""Typed events: the events of a delta, and the fields of an event."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aswarm import (
    Agent,
    CallWaiting,
    CompletionFinished,
    Event,
    HandedOff,
    Response,
    RunFinished,
    TextDelta,
    ToolCallFinished,
    ToolCallStarted,
    Usage,
)
from aswarm._values.events import typed_events
from aswarm.events import ReasoningDelta, RefusalDelta, ToolCallDelta, ToolProgress, TurnStarted


def delta(content: Any = None, tool_calls: Any = None, **extra: Any) -> dict[str, Any]:
    return {"role": None, "content": content, "tool_calls": tool_calls, **extra}


def fragment(index: int = 0, id: str | None = None, name: str | None = None, arguments: str | None = None) -> Any:
    return {"index": index, "id": id, "type": None, "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize(
    ("made", "events"),
    [
        (delta("Hi"), [TextDelta("Hi")]),
        (delta([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]), [TextDelta("ab")]),  # of Mistral
        # the keys of DeepSeek and of OpenRouter; servers in between send both with the same text
        (delta(reasoning_content="Hm."), [ReasoningDelta("Hm.")]),
        (delta(reasoning="Hm."), [ReasoningDelta("Hm.")]),
        (delta(reasoning_content="Hm.", reasoning="Hm."), [ReasoningDelta("Hm.")]),
        (delta(reasoning=[{"text": "H"}, {"text": "m."}]), [ReasoningDelta("Hm.")]),
        (delta(refusal="No."), [RefusalDelta("No.")]),
        # each fragment of a call, with None for a missing part
        (
            delta(tool_calls=[fragment(0, "c1", "f", ""), fragment(1, arguments='{"x"')]),
            [ToolCallDelta(0, "c1", "f", ""), ToolCallDelta(1, None, None, '{"x"')],
        ),
        (
            delta("Hi", [fragment(name="f")], reasoning="Hm.", refusal="No."),
            [ReasoningDelta("Hm."), TextDelta("Hi"), RefusalDelta("No."), ToolCallDelta(0, None, "f", None)],
        ),
        # without a text
        (delta(), []),
        (delta(""), []),
        (delta([]), []),
        (delta(None, []), []),
        (delta(refusal="", reasoning=""), []),
        (delta(reasoning={"effort": "high"}), []),
        (delta(reasoning=[{"type": "encrypted", "data": "…"}]), []),
        (delta(reasoning=5), []),
        (delta(reasoning=True), []),
    ],
)
def test_the_events_of_a_delta(made: dict[str, Any], events: list[Event]) -> None:
    """Reasoning, text, refusal and calls are events, in this order. A delta without any of them is no event."""
    assert list(typed_events(made)) == events


@given(st.lists(st.text(max_size=5)))
def test_the_text_deltas_together_are_the_text(pieces: list[str]) -> None:
    """Nothing is lost or added, and no event is empty."""
    events = [event for piece in pieces for event in typed_events(delta(piece))]
    assert all(isinstance(event, TextDelta) and event.text for event in events)
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "".join(pieces)


def test_a_delta_is_not_changed() -> None:
    """The classic stream yields the same dict."""
    given_delta = delta("Hi", [fragment(0, "c1", "f", "{}")], reasoning="Hm.")
    before = repr(given_delta)
    list(typed_events(given_delta))
    assert repr(given_delta) == before


@pytest.mark.parametrize("kind", get_args(Event))
def test_an_event_is_frozen_and_slotted(kind: type[Any]) -> None:
    """Events are shared among consumers: none can change one."""
    assert dataclasses.is_dataclass(kind)
    assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert "__slots__" in vars(kind)


# --- as JSON ---

AGENT = Agent(name="Sales", functions=[fragment])
RESPONSE = Response(
    messages=[{"role": "assistant", "content": "Hi \ud83d"}],
    agent=AGENT,
    context_variables={"client": object()},
    run_id="run-1",
)
EVENTS: list[tuple[Event, dict[str, Any]]] = [
    (TurnStarted(AGENT, 1), {"agent": "Sales", "turn": 1}),
    (TextDelta("a"), {"text": "a"}),
    (ReasoningDelta("a"), {"text": "a"}),
    (RefusalDelta("a"), {"text": "a"}),
    (ToolCallDelta(0, "c", None, "{"), {"index": 0, "id": "c", "name": None, "arguments": "{"}),
    (
        CompletionFinished({"role": "assistant", "content": "Hi"}, "stop", Usage(1, 2, 3, 1)),
        {
            "message": {"role": "assistant", "content": "Hi"},
            "finish_reason": "stop",
            "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3, "requests": 1, "details": {}},
        },
    ),
    (
        ToolCallStarted(0, "c", "look", "{}", AGENT),
        {"index": 0, "id": "c", "name": "look", "arguments": "{}", "agent": "Sales"},
    ),
    (
        ToolCallFinished(0, "c", "look", "Error", ValueError("no"), True),
        {"index": 0, "id": "c", "name": "look", "content": "Error", "error": "ValueError: no", "still_running": True},
    ),
    (ToolProgress(0, "c", "look", 0.5), {"index": 0, "id": "c", "name": "look", "value": 0.5}),
    (
        ToolProgress(1, "c", "research", TextDelta("a")),
        {"index": 1, "id": "c", "name": "research", "value": {"type": "TextDelta", "text": "a"}},
    ),
    (
        CallWaiting(0, "c", "pay", "{}", AGENT, "needs approval", {"to": 7}),
        {
            "index": 0,
            "id": "c",
            "name": "pay",
            "arguments": "{}",
            "agent": "Sales",
            "reason": "needs approval",
            "data": {"to": 7},
        },
    ),
    (HandedOff(AGENT, Agent(name="Refunds")), {"source": "Sales", "target": "Refunds"}),
    (RunFinished(RESPONSE), {"response": RESPONSE.to_dict()}),
]


@pytest.mark.parametrize(("event", "fields"), EVENTS, ids=lambda given: type(given).__name__)
def test_an_event_as_json(event: Event, fields: dict[str, Any]) -> None:
    """Its name as `type`, then its fields: agents by their names, errors as text, a response in its JSON form, with id and text."""
    stored = json.loads(json.dumps(event.to_dict(), allow_nan=False))
    assert stored == {"type": type(event).__name__, **fields}
    assert next(iter(event.to_dict())) == "type"


def test_every_event_has_a_json_form() -> None:
    """The examples above are the whole union."""
    assert {type(event) for event, _ in EVENTS} == set(get_args(Event))


def test_a_call_that_hands_off_as_json() -> None:
    """Names the agent."""
    assert ToolCallFinished(0, "c", "hand", "over", None, False, Agent(name="B")).to_dict()["handoff"] == "B"


def test_thinking_in_parts_is_reasoning() -> None:
    """Mistral sends it in the content, as a list of texts or as one text."""
    thinking = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}]},
        {"type": "thinking", "thinking": "."},
    ]
    delta = {"role": None, "content": [*thinking, {"type": "text", "text": "Hi"}], "tool_calls": None}
    assert list(typed_events(delta)) == [ReasoningDelta("Hm."), TextDelta("Hi")]
