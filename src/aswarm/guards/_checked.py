"""The arguments of checks: an input, a call, a result or an answer. The module only defines values."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, dropwhile, takewhile
from typing import Any, TypeAlias

from pydantic_core import to_json

from aswarm._values.agent import Agent
from aswarm._values.errors import Hold, RunRefused
from aswarm._values.json import is_array, is_object
from aswarm._values.messages import INSTRUCTING, SENT_INPUT, Message, last_of_user, text_of
from aswarm._values.usage import Usage
from aswarm._values.wire_messages import ITEM_KEYS
from aswarm.extensions import Completion, RunInfo


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
    message = {"role": "assistant", "content": text, "tool_calls": None, **(kept or {})}
    return Completion(message, "tool_calls" if message["tool_calls"] else "stop", usage or Usage()).as_chunk()


def is_content(value: object) -> bool:
    """Return whether the value can be the content of a message."""
    return isinstance(value, str) or (is_array(value) and bool(value) and all(map(is_object, value)))


# Keys of a completion that contain no new text: calls, items that repeat the message, and data.
_NO_TEXT = (
    frozenset({"data", "encrypted_content", "format", "function_call", "id", "role", "signature", "tool_calls", "type"})
    | ITEM_KEYS
    | {SENT_INPUT}
)
_MEDIA = frozenset({"file_data", "image_url", "url"})  # keys that may have bytes as base64


@dataclass(frozen=True, slots=True)
class CheckedInput:
    """The messages of a request before it is sent.

    Args:
        messages: All messages, with the instructions first; a check must not change them.
        agent: The active agent.
        run: Has the id of the run and its `context_variables`, read-only.
    """

    messages: Sequence[Message] = field(repr=False)
    agent: Agent = field(repr=False)
    run: RunInfo = field(repr=False)

    @property
    def text(self) -> str:
        """Texts of the user's messages since the last answer, joined by line breaks."""
        return "\n".join(text_of(message.get("content")) for message in last_of_user(self.messages))

    @property
    def new(self) -> list[Message]:
        """Messages after the last completion, without instructions: messages of the user, or results of calls."""
        tail = takewhile(lambda message: not _is_assistant(message), dropwhile(_is_assistant, reversed(self.messages)))
        return [message for message in tail if message["role"] not in INSTRUCTING][::-1]


@dataclass(frozen=True, slots=True)
class CheckedCall:
    """A call before its function runs.

    Args:
        name: The name of the function for the model.
        arguments: The validated and converted arguments, as the function gets them.
        id: The id of the call.
        is_approved: Whether a user has approved the call. Then a `Hold` of the check lets the call pass.
        agent: The agent that made the call.
        run: Has the id of the run and its `context_variables`, read-only.
    """

    name: str
    arguments: Mapping[str, Any]
    id: str
    is_approved: bool
    agent: Agent = field(repr=False)
    run: RunInfo = field(repr=False)

    @property
    def text(self) -> str:
        """Arguments as JSON text. A value without a JSON form becomes a text."""
        return to_json(self.arguments, fallback=str).decode()


@dataclass(frozen=True, slots=True)
class CheckedResult:
    """The result of a call before the model reads it.

    Args:
        name: The name of the function for the model.
        arguments: The JSON text of the arguments.
        content: A text or a list of content parts.
        error: The exception of a failed call, or None.
        id: The id of the call.
        agent: The agent that made the call.
        run: Has the id of the run and its `context_variables`, read-only.
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
        """Text of the content."""
        return text_of(self.content)


@dataclass(frozen=True, slots=True)
class CheckedAnswer:
    """A completion before any part of it is shown.

    Args:
        text: All visible texts, joined by line breaks: the answer, its refusal, its reasoning and other texts of the provider.
        message: The whole message. Its `content` is the answer alone. Arguments of its `tool_calls` are not in `text`.
        messages: The messages of the request, with the instructions first.
        agent: The agent that answered.
        run: Has the id of the run and its `context_variables`, read-only.
    """

    text: str
    message: Message = field(repr=False)
    messages: Sequence[Message] = field(repr=False)
    agent: Agent = field(repr=False)
    run: RunInfo = field(repr=False)


Checked: TypeAlias = CheckedInput | CheckedCall | CheckedResult | CheckedAnswer
"""The argument of a check: an input, a call, a result or an answer."""


def texts_of(message: Message) -> str:
    """Return all visible texts of a completion, for `CheckedAnswer.text`."""
    content = message["content"]
    parts = [part for part in content if not isinstance(part.get("text"), str)] if is_array(content) else []
    others = {key: value for key, value in message.items() if key != "content"}
    return "\n".join(filter(None, chain([text_of(content)], _texts(parts), _texts(others))))


def _texts(value: Any) -> Iterator[str]:
    if is_object(value):
        for key, item in value.items():
            is_bytes = key in _MEDIA and isinstance(item, str) and item.startswith("data:")
            if key not in _NO_TEXT and not is_bytes:
                yield from _texts(item)
    elif is_array(value):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, str):
        yield value


def _is_assistant(message: Message) -> bool:
    return bool(message["role"] == "assistant")
