"""The argument of a check: the input, the call, the result or the answer that it judges. Values only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile, takewhile
from typing import Any, TypeAlias

from pydantic_core import to_json

from aswarm._agent import Agent
from aswarm._messages import Message, text_of
from aswarm._run.handlers import RunInfo

_INSTRUCTIONS = ("system", "developer")


@dataclass(frozen=True, slots=True)
class CheckedInput:
    """The messages of a request before it is sent.

    `messages` are all of them, with the instructions first; a check must not change them. `agent` is the active agent. `run`
    has the id of the run and its `context_variables`, read-only.
    """

    messages: Sequence[Message] = field(repr=False)
    agent: Agent = field(repr=False)
    run: RunInfo = field(repr=False)

    @property
    def text(self) -> str:
        """The texts of the user's messages since the last answer, joined by line breaks."""
        return "\n".join(text_of(message.get("content")) for message in last_of_user(self.messages))

    @property
    def new(self) -> list[Message]:
        """The messages after the last completion, without instructions: first those of the user, later the results of calls."""
        tail = takewhile(_is_not_assistant, dropwhile(_is_assistant, reversed(self.messages)))
        return [message for message in tail if message["role"] not in _INSTRUCTIONS][::-1]


@dataclass(frozen=True, slots=True)
class CheckedCall:
    """A call before its function runs.

    `arguments` are validated and converted, as the function gets them. `is_approved`: a user has decided that the call may
    run; a `Hold` then lets it pass. `agent` has made the call. `run` has the id of the run and its `context_variables`,
    read-only.
    """

    name: str
    arguments: Mapping[str, Any]
    id: str
    is_approved: bool
    agent: Agent = field(repr=False)
    run: RunInfo = field(repr=False)

    @property
    def text(self) -> str:
        """The arguments as JSON text. A value that JSON lacks is a text in it."""
        return to_json(self.arguments, fallback=str).decode()


@dataclass(frozen=True, slots=True)
class CheckedResult:
    """The result of a call before the model reads it.

    `content` is a text or a list of content parts. `error` is the exception of a call that failed, or None. `arguments` is the
    JSON text of the arguments of the call. `agent` has made the call. `run` has the id of the run and its
    `context_variables`, read-only.
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
    """A completion without calls, before any part of it is shown.

    `text` is the text of the answer, `message` the whole message, with the reasoning. `messages` are those of the request,
    with the instructions first. `agent` has answered. `run` has the id of the run and its `context_variables`, read-only.
    """

    text: str
    message: Message = field(repr=False)
    messages: Sequence[Message] = field(repr=False)
    agent: Agent = field(repr=False)
    run: RunInfo = field(repr=False)


Checked: TypeAlias = CheckedInput | CheckedCall | CheckedResult | CheckedAnswer
"""What a check gets: one of the four things that a guard looks at."""


def last_of_user(messages: Sequence[Message]) -> list[Message]:
    """The messages of the user after the last answer. An assistant message with calls is not an answer."""
    tail = takewhile(lambda message: not _is_answer(message), dropwhile(_is_assistant, reversed(messages)))
    return [message for message in tail if message["role"] == "user"][::-1]


def _is_assistant(message: Message) -> bool:
    return bool(message["role"] == "assistant")


def _is_not_assistant(message: Message) -> bool:
    return not _is_assistant(message)


def _is_answer(message: Message) -> bool:
    return _is_assistant(message) and not message.get("tool_calls")
