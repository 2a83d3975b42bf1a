"""The events of `stream()`, in the order in which a run can have them: see the page "Events and their order"."""

from ._values.cache_miss import CacheMiss
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
