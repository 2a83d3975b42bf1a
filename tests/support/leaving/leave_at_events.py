"""The events at which a consumer can leave a stream, and the checks after each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from aswarm import CompletionFinished, HandedOff, TextDelta, ToolCallFinished, ToolCallStarted
from aswarm.events import TurnStarted
from aswarm.testing import ScriptedAnswer, call
from tests.support.leaving.leave_points import Body, Moment, asked, first_half, in_tools, says
from tests.support.leaving.run_scenes import HANDOFF, INTERRUPTED, UNKNOWN
from tests.support.providers.loopback import Reply, spoken

Held = Callable[[Any], bool]


def event(kind: type[Any], **fields: Any) -> Held:
    """Return a test for a typed event of this kind with these values."""
    return lambda got: isinstance(got, kind) and all(getattr(got, name) == value for name, value in fields.items())


def entry(key: str, value: Any) -> Held:
    """Return a test for a classic event with this entry."""
    return lambda got: key in got and got[key] == value


def nth(count: int, held: Held) -> Held:
    """Return a test for the n-th event of its kind."""
    seen: list[Any] = []

    def check(got: Any) -> bool:
        seen.extend([got] if held(got) else [])
        return held(got) and len(seen) == count

    return check


def half_then_more(body: Body) -> Reply:
    """Send text that does not end while the client reads."""
    half = first_half(spoken(ScriptedAnswer("Hello, world"), body, cut=5))
    return Reply([*half, *[b": more\n\n"] * 50], pause=0.005, end="stall")


ALL = ("fast", "slow", "later")
FAST_DONE = {"fast": "fast done"}
HALF = Moment(half_then_more, asked, partial="Hello", holds_response=True)
SPEAKING = replace(says_calls := in_tools(*ALL, started=()), open=())
NOTHING_RUN = replace(says_calls, open=ALL)
FIRST_TURN_DONE = Moment(says(ScriptedAnswer(calls=[call("fast")])), asked, answers=FAST_DONE)
HANDED_OFF = Moment(
    says(ScriptedAnswer(calls=[call("fast"), call("transfer_to_other")])), asked, {**FAST_DONE, "transfer_to_other": HANDOFF},
    agent="other",
)  # fmt: skip
MID_GROUP = in_tools(*ALL, started=(), answers={**FAST_DONE, "slow": UNKNOWN}, open=("later",))
MID_THREAD = in_tools("plain", "later", started=(), answers={"plain": "plain done"}, open=("later",))
MID_CLEANUP = in_tools("guarded", started=(), answers={"guarded": UNKNOWN})
MID_HANDOFF = in_tools(
    *("transfer_to_other", "slow", "later"),
    started=(),
    answers={"transfer_to_other": HANDOFF, "slow": UNKNOWN, "later": INTERRUPTED},
    agent="other",
)


# The last thing that the consumer gets before it leaves: the way to run, the event, and the moment.
EVENTS: dict[str, tuple[str, Callable[[], Held], Moment]] = {
    "classic: the start": ("classic", lambda: entry("delim", "start"), replace(HALF, partial="")),
    "classic: a token": ("classic", lambda: entry("content", "Hello"), HALF),
    "classic: a call's delta": ("classic", lambda: lambda got: bool(got.get("tool_calls")), SPEAKING),
    "classic: the end, before tools": ("classic", lambda: entry("delim", "end"), NOTHING_RUN),
    "classic: the second start": ("classic", lambda: nth(2, entry("delim", "start")), FIRST_TURN_DONE),
    "typed: the first turn": ("typed", lambda: event(TurnStarted, turn=1), Moment(says(ScriptedAnswer("done")), asked)),
    "typed: a token": ("typed", lambda: event(TextDelta, text="Hello"), HALF),
    "typed: the completion, before tools": ("typed", lambda: event(CompletionFinished), NOTHING_RUN),
    "typed: an async tool runs": ("typed", lambda: event(ToolCallStarted, name="slow"), MID_GROUP),
    "typed: a tool has ended": ("typed", lambda: event(ToolCallFinished, name="fast"), MID_GROUP),
    "typed: a thread runs": ("typed", lambda: event(ToolCallStarted, name="plain"), MID_THREAD),
    "typed: cleanup is due": ("typed", lambda: event(ToolCallStarted, name="guarded"), MID_CLEANUP),
    "typed: a handoff and more": ("typed", lambda: event(ToolCallStarted, name="slow"), MID_HANDOFF),
    "typed: handed off": ("typed", lambda: event(HandedOff), HANDED_OFF),
    "typed: the second turn": ("typed", lambda: event(TurnStarted, turn=2), FIRST_TURN_DONE),
}
