"""The history in blocks, so that code which shortens it cannot part a call from its answer.

Decides what a block is, and how it is sent. Changes no message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ._errors import ConfigurationError
from ._json import is_array
from ._messages import Message, normalize, to_wire

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

    def on_wire(self, empty_content: str | None) -> list[Message]:
        """The messages that are sent for the block, made once (internal). Raises ConfigurationError for one that cannot be sent."""
        known: tuple[str | None, list[Message]] | None = vars(self).get("_wire")
        if known is None or known[0] != empty_content:
            if not (isinstance(self.message, Mapping) and is_array(self.answers)):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigurationError("a MessageBlock has a message (a dict), and a list of tool messages")
            messages = normalize([self.message, *self.answers])
            known = vars(self)["_wire"] = (empty_content, to_wire(messages, empty_content=empty_content))
        return known[1]


def _is_long(answer: Mapping[str, Any]) -> bool:
    content = answer.get("content")
    return not isinstance(content, str) or len(content) > len(LEFT_OUT)
