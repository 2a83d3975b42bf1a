"""What a line of `aswarm batch`'s input means: a conversation, or a `BadLine` with the reason why it cannot be used."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aswarm._json import is_array, is_object, shown

_LINE = 60  # characters of a value in a message


@dataclass(frozen=True, slots=True)
class InputRecord:
    """One conversation of the input. `id`: that of the line, or else the number of the line.

    `resume`: the decisions about the calls that are open at the end of `messages`, or True for all of them.
    """

    line: int
    id: str | int
    messages: str | list[Any]
    context_variables: dict[str, Any] = field(default_factory=dict[str, Any])
    metadata: Any = None
    resume: bool | dict[str, Any] = False

    @property
    def key(self) -> str:
        """The id as text: 7 and "7" are the same id."""
        return str(self.id)

    @property
    def digest(self) -> str:
        """A hash of messages, context variables and decisions, to tell two conversations of one id apart: 16 hexadecimal digits."""
        decided = [] if self.resume is False else [self.resume]
        content = json.dumps([self.messages, self.context_variables, *decided], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that cannot be used: the reason, and its text. A byte that is not UTF-8 is half a surrogate pair in the text."""

    line: int
    error: str
    text: str


@dataclass(frozen=True, slots=True)
class InputFormat:
    """How to read the input. `column`: the key of the text; by default "input" or "question".

    `takes_decisions`: whether a line may have `resume`.
    """

    name: str = "jsonl"
    column: str | None = None
    id_column: str = "id"
    takes_decisions: bool = True

    @property
    def text_keys(self) -> tuple[str, ...]:
        """The keys that can hold the text."""
        return ("input", "question") if self.column is None else (self.column,)

    @property
    def conversation_keys(self) -> tuple[str, ...]:
        """The keys that can hold the conversation, as messages or as a text."""
        return ("messages", *self.text_keys) if self.column is None else self.text_keys


_SURROGATES = re.compile("[\ud800-\udfff]")
_DEEPEST = 100  # levels. JSON can be parsed far deeper than Python can write it again without a RecursionError
TOO_DEEP = f"nested more than {_DEEPEST} levels deep"


def record_of(number: int, fields: Mapping[str, Any], input_format: InputFormat) -> InputRecord:
    """The conversation of a line. Raises ValueError with the reason if the line cannot be used."""
    if _is_deep(fields):
        raise ValueError(TOO_DEEP)
    given = [key for key in input_format.conversation_keys if fields.get(key) is not None]
    if not given:
        raise ValueError(f"there is no {' or '.join(map(repr, input_format.conversation_keys))}")
    if len(given) > 1:
        raise ValueError(f"there are {' and '.join(map(repr, given))}: give only one of them")
    context = fields.get("context_variables")
    if not (context is None or is_object(context)):
        raise ValueError(f"'context_variables' must be an object, not {shown(context, _LINE)}")
    if not input_format.takes_decisions and fields.get("resume") is not None:
        raise ValueError("'resume' is not for durable runs: answer the run that waits with `aswarm runs answer`")
    [key] = given
    messages = _messages(fields[key]) if key == "messages" else _text(key, fields[key])
    item_id, resume = _id(number, fields, input_format), _decisions(fields.get("resume"))
    return InputRecord(number, item_id, messages, dict(context or {}), fields.get("metadata"), resume)


def _is_deep(fields: Mapping[str, Any]) -> bool:
    level: list[Any] = [fields]
    for _ in range(_DEEPEST):
        level = [inner for each in level for inner in _inside(each)]
        if not level:
            return False
    return True


def _inside(value: Any) -> Iterable[Any]:
    return value.values() if is_object(value) else value if is_array(value) else ()


def _messages(messages: Any) -> list[Any]:
    if not (is_array(messages) and messages and all(is_object(each) and "role" in each for each in messages)):
        raise ValueError(f"'messages' must be a list of messages, not {shown(messages, _LINE)}")
    return list(messages)


def _text(key: str, text: Any) -> str:
    if not (isinstance(text, str) and text.strip()):
        raise ValueError(f"{key!r} must be a text, not {shown(text, _LINE)}")
    return text


def _decisions(resume: Any) -> bool | dict[str, Any]:
    if resume is None or isinstance(resume, bool):
        return bool(resume)
    if not is_object(resume):
        raise ValueError(
            f"'resume' must be true, or an object of decisions by the id of the call, not {shown(resume, _LINE)}"
        )
    return dict(resume)


def _id(number: int, fields: Mapping[str, Any], input_format: InputFormat) -> str | int:
    key = input_format.id_column
    found = fields.get(key)
    if found is None or found == "":
        return number
    if not isinstance(found, str | int) or isinstance(found, bool):
        raise ValueError(f"{key!r} must be a text or a whole number, not {shown(found, _LINE)}")  # noqa: TRY004 - of the data
    if isinstance(found, str) and _SURROGATES.search(found):
        raise ValueError(f"{key!r} contains half a surrogate pair: {shown(found, _LINE)}")
    return found
