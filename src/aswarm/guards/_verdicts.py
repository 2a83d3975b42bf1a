"""The verdicts of checks, and their effects on a run: an error, or a completion with another text."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from aswarm._values.errors import Hold, RunRefused
from aswarm._values.json import is_array, is_object
from aswarm._values.usage import Usage


@dataclass(frozen=True, slots=True)
class Block:
    """Return this from a check to block the content, for this `reason`.

    For an input or an answer, the run ends with `Blocked`. For a call, the function does not run, and the model gets the reason
    as the result. For a result, the model gets the reason instead of the result.
    """

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Say:
    """Return this from a check to make the text the answer of the run, or the result of the call.

    Before a call, it means that the function does not run.
    """

    text: str


@dataclass(frozen=True, slots=True)
class Replace:
    """Return this from a check to replace the original by `value`.

    For an input, it is the content of the user's last message, as sent; the history keeps the original. For a call, it is a
    dict of arguments; a user who decides on the call sees them. For a result, it is the text or the content parts for the
    model. For an answer, it is the text.
    """

    value: Any


@dataclass(frozen=True, slots=True)
class Halt:
    """Return this from a check to end the run with `Blocked` at a call or a result.

    The history has the reason as the result of the call.
    """

    reason: str = ""


class Blocked(RunRefused):
    """A guard ended the run: it blocked an input or an answer, halted at a call, or its check failed.

    `reason`: the reason of the verdict. `check`: the name of the check. `response`: valid, as in every RunError, but without
    the blocked completion. If a check failed, its exception is the `__cause__`, and `reason` does not contain its text. A
    `Conversation` removes the user's last messages, which have no answer. A program with its own history should do the same.
    """

    def __init__(self, message: str, *, reason: str = "", check: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.check = check


# All verdicts. The signature of each guard lists the verdicts that it allows.
Verdict: TypeAlias = Block | Say | Replace | Halt | Hold | None
Chunk: TypeAlias = Mapping[str, Any]
Chunks: TypeAlias = AsyncGenerator[Chunk, None]
_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")


def refusal(check: str, reason: str, details: str = "") -> Blocked:
    """Return the error of a run that this check ends. `details`: only for the text of the error, not for `reason`."""
    text = with_reason(with_reason(f"the check {check} blocked the run", reason), details)
    return Blocked(text, reason=reason, check=check)


def with_reason(text: str, reason: str) -> str:
    return f"{text}: {reason}" if reason else text


def text_completion(text: str, usage: Usage | None = None, kept: Mapping[str, Any] | None = None) -> Chunk:
    """Return a completion with this text, as one chunk.

    `usage`: the usage of the replaced completion. `kept`: more message keys.
    """
    message = {"role": "assistant", "content": text, **(kept or {})}
    reason = "tool_calls" if message.get("tool_calls") else "stop"
    reported = usage and {**usage.details, **{key: getattr(usage, key) for key in _COUNTS}}
    return {"choices": [{"index": 0, "message": message, "finish_reason": reason}], "usage": reported}


def is_content(value: object) -> bool:
    """Return whether the value can be the content of a message."""
    return isinstance(value, str) or (is_array(value) and bool(value) and all(map(is_object, value)))
