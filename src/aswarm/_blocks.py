"""The history in blocks, so that code which shortens it cannot part a call from its answer.

Decides what a block is. Changes no message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

LEFT_OUT = "(this earlier result is left out)"


@dataclass(frozen=True, eq=False)
class MessageBlock:
    """A message of the history, with the tool messages that answer its calls. Two blocks are equal only if they are one.

    `message`: as `Response.messages` has it, or as the caller passed it to the run. `answers`: its tool messages; empty for
    a message without calls. Neither may be changed, because the history has the same dicts. To send something else, make
    another block: `dataclasses.replace(block, answers=[...])`.
    """

    message: Mapping[str, Any]
    answers: Sequence[Mapping[str, Any]] = ()

    @property
    def role(self) -> str:
        """The role of the message: "user", "assistant", "system", "developer"."""
        return str(self.message["role"])

    @property
    def sender(self) -> str | None:
        """The name of the agent whose model wrote the message; None where the message has none."""
        sender = self.message.get("sender")
        return sender if isinstance(sender, str) else None

    @cached_property
    def without_results(self) -> MessageBlock:
        """The block with a note in place of each result that is longer than the note; the same object each time."""
        answers = [{**answer, "content": LEFT_OUT} if _is_long(answer) else answer for answer in self.answers]
        return replace(self, answers=answers)


def _is_long(answer: Mapping[str, Any]) -> bool:
    content = answer.get("content")
    return not isinstance(content, str) or len(content) > len(LEFT_OUT)
