"""The events of `stream()`, in the order in which a run can have them: see the page "Events and their order"."""

from ._values.events import (
    CallWaiting,
    CompletionFinished,
    Event,
    HandedOff,
    ReasoningDelta,
    RefusalDelta,
    RunFinished,
    TextDelta,
    ToolCallDelta,
    ToolCallFinished,
    ToolCallStarted,
    ToolProgress,
    TurnStarted,
)
from ._values.usage import CacheMiss

__all__ = [
    "CacheMiss",
    "CallWaiting",
    "CompletionFinished",
    "Event",
    "HandedOff",
    "ReasoningDelta",
    "RefusalDelta",
    "RunFinished",
    "TextDelta",
    "ToolCallDelta",
    "ToolCallFinished",
    "ToolCallStarted",
    "ToolProgress",
    "TurnStarted",
]
