"""What a line of `aswarm batch`'s input means: a conversation, or a `BadLine` that says why it is none."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aswarm._json import is_array, is_object, shown


@dataclass(frozen=True, slots=True)
class Entry:
    """One conversation. `id` is that of the line, or else its number."""

    line: int
    id: str | int
    messages: str | list[Any]
    context_variables: dict[str, Any] = field(default_factory=dict[str, Any])
    metadata: Any = None

    @property
    def key(self) -> str:
        """What tells it from the others: 7 and "7" are one."""
        return str(self.id)

    @property
    def digest(self) -> str:
        """What tells that it is still the same: 16 hexadecimal digits, of messages and context variables."""
        content = json.dumps([self.messages, self.context_variables], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that cannot be used, why, and what it was; bytes that are no UTF-8 are halves of surrogate pairs in it."""

    line: int
    error: str
    text: str


@dataclass(frozen=True, slots=True)
class Form:
    """How the input is to be read. `column`: what has the text, where it is not "input" or "question"."""

    kind: str = "jsonl"
    column: str | None = None
    id_column: str = "id"

    @property
    def texts(self) -> tuple[str, ...]:
        """The names under which the text may stand."""
        return ("input", "question") if self.column is None else (self.column,)

    @property
    def sources(self) -> tuple[str, ...]:
        """The names under which the conversation may stand: whole, or as a text."""
        return ("messages", *self.texts) if self.column is None else self.texts


_HALVES = re.compile("[\ud800-\udfff]")
_DEEPEST = 100  # what is nested by far deeper can be read, and not be written: Python ends the recursion


def entry_of(number: int, record: Mapping[str, Any], form: Form) -> Entry:
    """What the line says. Raises ValueError where that cannot be used."""
    if _is_deep(record):
        raise ValueError(f"is nested more than {_DEEPEST} levels deep")
    given = [name for name in form.sources if record.get(name) is not None]
    if len(given) != 1:
        wanted = " or ".join(map(repr, form.sources))
        raise ValueError(f"has {' and '.join(map(repr, given))}: one will do" if given else f"has no {wanted}")
    context = record.get("context_variables")
    if not (context is None or is_object(context)):
        raise ValueError(f"'context_variables' is no object: {shown(context, 60)}")
    conversation = record[given[0]]
    messages = _messages(conversation) if given[0] == "messages" else _text(given[0], conversation)
    return Entry(number, _id(number, record, form), messages, dict(context or {}), record.get("metadata"))


def _is_deep(record: Mapping[str, Any]) -> bool:
    level: list[Any] = [record]
    for _ in range(_DEEPEST):
        level = [inner for each in level for inner in _inside(each)]
        if not level:
            return False
    return True


def _inside(value: Any) -> Iterable[Any]:
    return value.values() if is_object(value) else value if is_array(value) else ()


def _messages(messages: Any) -> list[Any]:
    if not (is_array(messages) and messages and all(is_object(each) and "role" in each for each in messages)):
        raise ValueError(f"'messages' is no list of messages: {shown(messages, 60)}")
    return list(messages)


def _text(name: str, text: Any) -> str:
    if not (isinstance(text, str) and text.strip()):
        raise ValueError(f"{name!r} is no text: {shown(text, 60)}")
    return text


def _id(number: int, record: Mapping[str, Any], form: Form) -> str | int:
    found = record.get(form.id_column)
    if found is None or found == "":
        return number
    if not isinstance(found, str | int) or isinstance(found, bool):
        raise ValueError(f"{form.id_column!r} is neither text nor a whole number: {shown(found, 60)}")  # noqa: TRY004 - of the data
    if isinstance(found, str) and _HALVES.search(found):
        raise ValueError(f"{form.id_column!r} has half a surrogate pair: {shown(found, 60)}")
    return found
