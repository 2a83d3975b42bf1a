"""What a check gets: the input, the call, the result or the answer that it judges. Values only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile, takewhile
from typing import Any, TypeAlias

from pydantic_core import to_json

from aswarm._agent import Agent
from aswarm._messages import Message, text_of
from aswarm._run.handlers import RunInfo


@dataclass(frozen=True, slots=True)
class CheckedInput:
    """What is about to be sent. `messages`: all of it, with the instructions first; not to be changed.

    `agent` is the active one. `run` has the id of the run and its `context_variables`, read-only.
    """

    messages: Sequence[Message] = field(repr=False)
    agent: Agent = field(repr=False)
    run: RunInfo = field(repr=False)

    @property
    def text(self) -> str:
        """What the user has written since the last answer: the texts of these messages, one below the other."""
        return "\n".join(text_of(message.get("content")) for message in last_of_user(self.messages))

    @property
    def new(self) -> list[Message]:
        """The messages after the last completion: in the first turn those of the user, later the results of calls."""
        return [*takewhile(_is_no_assistant, dropwhile(_is_assistant, reversed(self.messages)))][::-1]


@dataclass(frozen=True, slots=True)
class CheckedCall:
    """A call before its function runs. `arguments`: as the function would get them, validated and converted.

    `is_approved`: a user has decided that it may run; a `Hold` then lets it pass. `agent` has made the call. `run` has the
    id of the run and its `context_variables`, read-only.
    """

    name: str
    arguments: Mapping[str, Any]
    id: str
    is_approved: bool
    agent: Agent = field(repr=False)
    run: RunInfo = field(repr=False)

    @property
    def text(self) -> str:
        """The arguments as JSON text; values that JSON lacks as text."""
        return to_json(self.arguments, fallback=str).decode()


@dataclass(frozen=True, slots=True)
class CheckedResult:
    """What a call led to. `content`: what the model would be told, a text or a list of content parts.

    `text` is the text of it. `error` is what went wrong, or None. `arguments`: the JSON text with which the function ran.
    """

    name: str
    arguments: str
    content: str | list[dict[str, Any]]
    error: Exception | None
    id: str
    agent: Agent = field(repr=False)
    run: RunInfo = field(repr=False)

    @property
    def text(self) -> str:
        """The text of the content."""
        return text_of(self.content)


@dataclass(frozen=True, slots=True)
class CheckedAnswer:
    """A completion without calls, before any of it is shown. `message` is all of it, `messages` is what was sent."""

    text: str
    message: Message = field(repr=False)
    messages: Sequence[Message] = field(repr=False)
    agent: Agent = field(repr=False)
    run: RunInfo = field(repr=False)


Checked: TypeAlias = CheckedInput | CheckedCall | CheckedResult | CheckedAnswer
"""What a check gets: one of the four things that a guard looks at."""


def last_of_user(messages: Sequence[Message]) -> list[Message]:
    """The messages of the user after the last answer. An assistant message with calls is no answer."""
    tail = takewhile(lambda message: not _is_answer(message), dropwhile(_is_assistant, reversed(messages)))
    return [message for message in tail if message["role"] == "user"][::-1]


def _is_assistant(message: Message) -> bool:
    return bool(message["role"] == "assistant")


def _is_no_assistant(message: Message) -> bool:
    return message["role"] not in ("assistant", "system")


def _is_answer(message: Message) -> bool:
    return _is_assistant(message) and not message.get("tool_calls")
