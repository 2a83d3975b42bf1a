"""What `aswarm batch` reads: JSON Lines or CSV, a conversation on each line. Decides what a line means; runs nothing.

A line that cannot be used is a `BadLine`, never an exception: the others go on.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from aswarm._json import is_array, is_object, shown

from ._exits import Mistake

_DELIMITERS = ",;\t"


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


def kind_of(name: str) -> str:
    """The form that a file has by the ending of its name: "csv" or "jsonl"."""
    return "csv" if Path(name).suffix.lower() in (".csv", ".tsv") else "jsonl"


def count(name: str, form: Form) -> int | None:
    """How many lines there are to do; None where that is not known before they are read.

    Raises Mistake where there is no such file, or a CSV without the column.
    """
    if name != "-" and not Path(name).exists():
        raise Mistake(f"there is no file {name!r}")
    if name == "-" or not Path(name).is_file():
        return None
    if form.kind == "csv":
        return sum(1 for _ in lines_of(name, form))
    with _opened(name) as file:
        return sum(1 for line in file if line.strip())


def lines_of(name: str, form: Form) -> Generator[Entry | BadLine]:
    """The lines of a file, or of standard input for `-`, read as they are asked for. Closes what it opened."""
    with _opened(name) as file:
        yield from read(file, form)


def _opened(name: str) -> BinaryIO:
    if name == "-":
        try:
            # Of our own: a thread that is still reading from Python's when the process ends would be in its way.
            return open(sys.stdin.fileno(), "rb", closefd=False)
        except io.UnsupportedOperation:  # no file stands behind it
            return io.BytesIO(sys.stdin.buffer.read())
    try:
        return Path(name).open("rb")
    except OSError as error:
        raise Mistake(f"{name} cannot be read: {error.strerror}") from error


def read(file: BinaryIO, form: Form) -> Iterator[Entry | BadLine]:
    """The lines, one after another, as they are asked for. Raises Mistake where a CSV has not the columns for it."""
    entries = _csv_lines(file, form) if form.kind == "csv" else _json_lines(file, form)
    seen: set[str] = set()
    for entry, text in entries:
        if isinstance(entry, Entry) and entry.key in seen:
            yield BadLine(entry.line, f"another line before has the id {shown(entry.id, 60)} too", text)
            continue
        if isinstance(entry, Entry):
            seen.add(entry.key)
        yield entry


_Read = tuple[Entry | BadLine, str]


def _json_lines(file: Iterable[bytes], form: Form) -> Generator[_Read]:
    for number, raw in enumerate(file, 1):
        if raw.strip():
            text = raw.decode("utf-8-sig" if number == 1 else "utf-8", errors="surrogateescape").rstrip("\r\n")
            yield _json_entry(number, text, form), text


def _json_entry(number: int, text: str, form: Form) -> Entry | BadLine:
    try:
        text.encode()
        record = json.loads(text)
        if not is_object(record):
            raise ValueError(f"expected a JSON object, not {shown(record, 60)}")
        return _entry(number, record, form)
    except UnicodeEncodeError:
        return BadLine(number, "not UTF-8", text)
    except json.JSONDecodeError as error:
        return BadLine(number, f"not JSON: {error.msg} (column {error.colno})", text)
    except (ValueError, RecursionError) as error:
        return BadLine(number, str(error), text)


def _entry(number: int, record: Mapping[str, Any], form: Form) -> Entry:
    """What the line says. Raises ValueError where that cannot be used."""
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
    return found


# --- CSV ---


class _Lines:
    """The lines of a text, with those that the last record was made of."""

    def __init__(self, text: Iterable[str]) -> None:
        self._text = iter(text)
        self._taken: list[str] = []
        self.number = 0

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = next(self._text)
        self.number += 1
        self._taken.append(line)
        return line

    def taken(self) -> str:
        """The lines since the last time."""
        text = "".join(self._taken).rstrip("\r\n")
        self._taken.clear()
        return text


def _csv_lines(file: BinaryIO, form: Form) -> Generator[_Read]:
    csv.field_size_limit(2**31 - 1)  # a text may be long
    with io.TextIOWrapper(file, "utf-8-sig", errors="surrogateescape", newline="") as text:
        lines = _Lines(text)
        header, delimiter = _header(next(lines, ""), form)
        lines.taken()
        yield from _records(lines, csv.reader(lines, delimiter=delimiter, strict=True), header, form)


def _records(lines: _Lines, rows: Iterator[list[str]], header: list[str], form: Form) -> Generator[_Read]:
    while True:
        number = lines.number + 1
        try:
            row = next(rows, None)
        except csv.Error as error:
            text = lines.taken()
            yield BadLine(number, f"not CSV: {error}", text), text
            continue
        text = lines.taken()
        if row is None:
            return
        if row:
            yield _csv_entry(number, row, text, header, form), text


def _header(line: str, form: Form) -> tuple[list[str], str]:
    """The names of the columns, and what is between them: that with which the column of the text is there."""
    headers = [next(csv.reader([line], delimiter=delimiter), list[str]()) for delimiter in _DELIMITERS]
    for header, delimiter in zip(headers, _DELIMITERS, strict=True):
        if any(name in header for name in form.texts):
            return header, delimiter
    wanted = " or ".join(map(repr, form.texts))
    most = max(len(header) for header in headers)
    known = ", ".join(repr(name) for name in next(header for header in headers if len(header) == most)) or "none"
    raise Mistake(f"there is no column {wanted}; columns are: {known}. Name the one that has the text with --column")


def _csv_entry(number: int, row: list[str], text: str, header: list[str], form: Form) -> Entry | BadLine:
    try:
        text.encode()
        if len(row) != len(header):
            raise ValueError(f"has {len(row)} fields, and the first line {len(header)}")
        known = {name: value for name, value in zip(header, row, strict=True) if name in (*form.texts, form.id_column)}
        return _entry(number, {name: value for name, value in known.items() if value}, form)
    except UnicodeEncodeError:
        return BadLine(number, "not UTF-8", text)
    except ValueError as error:
        return BadLine(number, str(error), text)
