"""The verdicts of a check, and the error of a run that a guard has ended. Values only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from aswarm._errors import Hold, RunRefused
from aswarm._json import is_array, is_object


@dataclass(frozen=True, slots=True)
class Block:
    """The input, the call, the result or the answer is refused, for this `reason`.

    For an input or an answer, the run ends with `Blocked`. For a call, its function does not run, and the model gets the
    reason as its result. For a result, the model gets the reason in its place.
    """

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Say:
    """The text is the answer of the run, or the result of the call. The function of the call then does not run."""

    text: str


@dataclass(frozen=True, slots=True)
class Replace:
    """The `value` is used in place of the original.

    For an input it is the content of the user's last message, as it is sent; the history keeps the original. For a call it is
    the arguments, as a dict. For a result it is the text or the content parts that the model gets. For an answer it is the text.
    """

    value: Any


@dataclass(frozen=True, slots=True)
class Halt:
    """The run ends with `Blocked` at a call or a result. The history has the reason as the result of the call."""

    reason: str = ""


class Blocked(RunRefused):
    """A guard has ended the run: it blocked an input or an answer, halted at a call, or its check failed.

    `reason` is that of the verdict, `check` the name of the check. `response` is valid, as with every RunError; it has no
    part of a completion that was blocked. If a check has failed, its exception is the `__cause__`. A `Conversation`
    does not keep the messages of the user that nothing follows; a program that keeps its own history leaves them out too.
    """

    def __init__(self, message: str, *, reason: str = "", check: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.check = check


# All verdicts. The signatures of the guards name the verdicts that each of them takes.
Verdict: TypeAlias = Block | Say | Replace | Halt | Hold | None
Content: TypeAlias = str | Sequence[Mapping[str, Any]]


def refusal(check: str, reason: str) -> Blocked:
    """The error of a run that this check has ended."""
    text = f"the check {check} has blocked the run"
    return Blocked(f"{text}: {reason}" if reason else text, reason=reason, check=check)


def is_content(value: object) -> bool:
    """Whether the value can be the content of a message."""
    return isinstance(value, str) or (is_array(value) and bool(value) and all(map(is_object, value)))
