"""What a check may say, and the error of a run that a guard has ended. Values only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from aswarm._errors import Hold, RunRefused


@dataclass(frozen=True, slots=True)
class Block:
    """It must not happen, and `reason` says why.

    Of an input or an answer: the run ends with `Blocked`. Of a call: its function does not run, and the model is told
    the reason. Of a result: the model is told the reason in its place.
    """

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Say:
    """A text stands in its place: as the answer of the run, or as the result of the call, whose function does not run."""

    text: str


@dataclass(frozen=True, slots=True)
class Replace:
    """`value` is used in its place.

    Of an input: the content of the user's last message, as it is sent; the history keeps the original. Of a call: the
    arguments, as a dict. Of a result, what the model is told; of an answer, its text.
    """

    value: Any


@dataclass(frozen=True, slots=True)
class Halt:
    """Of a call or a result: the run ends with `Blocked`. The history has the reason as the answer of the call."""

    reason: str = ""


class Blocked(RunRefused):
    """A guard has ended the run: it blocked an input or an answer, halted at a call, or its check failed.

    `reason` is that of the verdict, `check` the name of the check. `response` is valid, as with every RunError; nothing
    of a completion that was blocked is in it. If a check has failed, its exception is the `__cause__`. A `Conversation`
    does not keep the messages of the user that nothing follows; a program that keeps its own history leaves them out too.
    """

    def __init__(self, message: str, *, reason: str = "", check: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.check = check


# What an implementation gets; the signatures of the guards name the verdicts that they take.
Verdict: TypeAlias = Block | Say | Replace | Halt | Hold | None
Content: TypeAlias = str | Sequence[Mapping[str, Any]]


def refusal(check: str, reason: str) -> Blocked:
    """The error of a run that this check has ended."""
    text = f"the check {check} has blocked the run"
    return Blocked(f"{text}: {reason}" if reason else text, reason=reason, check=check)
