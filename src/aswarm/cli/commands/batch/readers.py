"""The input of `aswarm batch`: JSON Lines or CSV, one conversation in each record.

An invalid line raises no exception, but becomes a `BadLine`. So the other lines are still read.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from aswarm._values.decisions import Resume, recorded_resume, resume_from_json
from aswarm._values.json import is_array, is_object, shown
from aswarm.cli._command import SetupError

_DELIMITERS = ",;\t"
_LINE = 60  # characters of a value in a message
_SURROGATES = re.compile("[\ud800-\udfff]")
_DEEPEST = 100  # levels: Python can parse deeper JSON, but then raises a RecursionError when it writes this JSON
_TOO_DEEP = f"nested more than {_DEEPEST} levels deep"


@dataclass(frozen=True, slots=True)
class InputRecord:
    """One conversation of the input. `id`: the id in the line; without one, the number of the line.

    `resume`: what happens to the calls that are open at the end of `messages`, as for `AsyncSwarm.run`.
    """

    line: int
    id: str | int
    messages: str | list[Any]
    context_variables: dict[str, Any] = field(default_factory=dict[str, Any])
    metadata: Any = None
    resume: Resume = False

    @property
    def key(self) -> str:
        """The id as text, because 7 and "7" are the same id."""
        return str(self.id)

    @property
    def digest(self) -> str:
        """A hash of the conversation, with 16 hexadecimal digits. It shows whether one id has had two conversations."""
        decided = [] if self.resume is False else [recorded_resume(self.resume)]
        content = json.dumps([self.messages, self.context_variables, *decided], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class BadLine:
    """An invalid line, with the reason and its text. In the text, a byte that is not UTF-8 becomes half a surrogate pair."""

    line: int
    error: str
    text: str


@dataclass(frozen=True, slots=True)
class InputFormat:
    """The format of the input. `column`: the key of the text; by default "input" or "question".

    `takes_decisions`: whether a line may have `resume`.
    """

    name: str = "jsonl"
    column: str | None = None
    id_column: str = "id"
    takes_decisions: bool = True

    @property
    def text_keys(self) -> tuple[str, ...]:
        """The possible keys of the text."""
        return ("input", "question") if self.column is None else (self.column,)

    @property
    def conversation_keys(self) -> tuple[str, ...]:
        """The possible keys of the conversation, as messages or as a text."""
        return ("messages", *self.text_keys) if self.column is None else self.text_keys


_WithText = tuple[InputRecord | BadLine, str]  # a record, and the text from which it was read


def format_of(name: str) -> str:
    """Return the format of a file by the ending of its name: "csv" or "jsonl"."""
    return "csv" if Path(name).suffix.lower() in (".csv", ".tsv") else "jsonl"


def count(name: str, input_format: InputFormat) -> int | None:
    """Return the number of records in a file. Return None for stdin and pipes, because they can be read only once.

    Raises SetupError if there is no such file, or if a CSV file does not have the column of the text.
    """
    stdin: TextIO | None = sys.stdin
    if name == "-" and stdin is None:
        raise SetupError("standard input is closed: there is nothing to read")
    if name != "-" and not Path(name).exists():
        raise SetupError(f"there is no file {name!r}")
    if name == "-" or not Path(name).is_file():
        return None
    with _opened(name) as file:
        if input_format.name == "csv":
            return sum(1 for _ in _csv_records(file, input_format))
        return sum(1 for line in file if line.strip())


def records_in(name: str, input_format: InputFormat) -> Generator[InputRecord | BadLine]:
    """Yield the records of a file, or of stdin for `-`. Closes the file at the end."""
    with _opened(name) as file:
        yield from read(file, input_format)


def _opened(name: str) -> BinaryIO:
    if name == "-":
        try:
            # Not `sys.stdin.buffer`: when the process ends, Python needs the lock of this object, but a thread that is still
            # reading would hold this lock.
            return open(sys.stdin.fileno(), "rb", closefd=False)
        except io.UnsupportedOperation:  # stdin is not a real file
            return io.BytesIO(sys.stdin.buffer.read())
    try:
        return Path(name).open("rb")
    except OSError as error:
        raise SetupError(f"{name} cannot be read: {error.strerror}") from error


def read(file: BinaryIO, input_format: InputFormat) -> Iterator[InputRecord | BadLine]:
    """Yield the records. If two records have the same id, the later record is a BadLine. Raises SetupError like `count`."""
    records = _csv_records(file, input_format) if input_format.name == "csv" else _json_records(file, input_format)
    keys: set[str] = set()
    for record, text in records:
        if isinstance(record, BadLine):
            yield record
        elif record.key in keys:
            yield BadLine(record.line, f"an earlier line has the same id {shown(record.id, _LINE)}", text)
        else:
            keys.add(record.key)
            yield record


# --- JSON Lines ---


def _json_records(file: Iterable[bytes], input_format: InputFormat) -> Generator[_WithText]:
    for number, raw in enumerate(file, 1):
        if raw.strip():
            # "utf-8-sig" removes the byte order mark that some programs write at the start of a file.
            text = raw.decode("utf-8-sig" if number == 1 else "utf-8", errors="surrogateescape").rstrip("\r\n")
            yield _record(number, text, _json_fields, input_format), text


def _json_fields(text: str) -> Mapping[str, Any]:
    fields = json.loads(text)
    if not is_object(fields):
        raise ValueError(f"expected a JSON object, not {shown(fields, _LINE)}")
    return fields


# --- CSV ---


def _csv_records(file: BinaryIO, input_format: InputFormat) -> Generator[_WithText]:
    csv.field_size_limit(2**31 - 1)  # a conversation can be long; the limit is a C long, which has 32 bits on Windows
    record_lines: list[str] = []
    with io.TextIOWrapper(file, "utf-8-sig", errors="surrogateescape", newline="") as whole:
        lines = _noted(whole, record_lines)
        header, delimiter = _header(next(lines, ""), input_format)
        rows = csv.reader(lines, delimiter=delimiter, strict=True)
        number = 1
        while True:
            number += len(record_lines)
            record_lines.clear()
            try:
                row, fault = next(rows, None), ""
            except csv.Error as error:
                row, fault = [], f"not CSV: {error}"
            if row is None:
                return
            text = "".join(record_lines).rstrip("\r\n")
            if fault or row:
                fields_in = partial(_csv_fields, row, header, input_format)
                record = BadLine(number, fault, text) if fault else _record(number, text, fields_in, input_format)
                yield _with_length(record, len(record_lines)), text


def _noted(lines: Iterable[str], record_lines: list[str]) -> Generator[str]:
    for line in lines:
        record_lines.append(line)
        yield line


def _with_length(record: InputRecord | BadLine, length: int) -> InputRecord | BadLine:
    """Add the number of lines to the error of a record: if a quote is not closed, many lines become one record."""
    if isinstance(record, InputRecord) or length == 1:
        return record
    return replace(record, error=f"{record.error} (in a record of {length:,} lines: is a quote not closed?)")


def _header(line: str, input_format: InputFormat) -> tuple[list[str], str]:
    """Return the names of the columns, and the delimiter: the first delimiter that results in a column for the text."""
    headers = [next(csv.reader([line], delimiter=delimiter), list[str]()) for delimiter in _DELIMITERS]
    for header, delimiter in zip(headers, _DELIMITERS, strict=True):
        if any(key in header for key in input_format.text_keys):
            return header, delimiter
    wanted = " or ".join(map(repr, input_format.text_keys))
    most = max(len(header) for header in headers)
    columns = ", ".join(repr(name) for name in next(header for header in headers if len(header) == most)) or "none"
    raise SetupError(
        f"there is no column {wanted}; the columns are: {columns}. Name the column of the text with --column"
    )


def _csv_fields(row: list[str], header: list[str], input_format: InputFormat, _: str) -> Mapping[str, Any]:
    if len(row) != len(header):
        raise ValueError(f"expected {len(header)} fields, as in the first line, not {len(row)}")
    wanted = (*input_format.text_keys, input_format.id_column)
    columns = dict(zip(header, row, strict=True))
    others = {name: value for name, value in columns.items() if name not in wanted}
    return {**{name: columns[name] for name in wanted if columns.get(name)}, "metadata": others or None}


# --- the fields of a record ---


def _record(
    number: int, text: str, fields_in: Callable[[str], Mapping[str, Any]], input_format: InputFormat
) -> InputRecord | BadLine:
    try:
        text.encode()
        return _record_of(number, fields_in(text), input_format)
    except UnicodeEncodeError:
        return BadLine(number, "not UTF-8", text)
    except json.JSONDecodeError as error:
        return BadLine(number, f"not JSON: {error.msg} (column {error.colno})", text)
    except RecursionError:  # the text of the error differs between Pythons
        return BadLine(number, _TOO_DEEP, text)
    except ValueError as error:
        return BadLine(number, str(error), text)


def _record_of(number: int, fields: Mapping[str, Any], input_format: InputFormat) -> InputRecord:
    """Return the conversation of a line. Raises ValueError with the reason for an invalid line."""
    if _is_deep(fields):
        raise ValueError(_TOO_DEEP)
    present = [key for key in input_format.conversation_keys if fields.get(key) is not None]
    if not present:
        raise ValueError(f"there is no {' or '.join(map(repr, input_format.conversation_keys))}")
    if len(present) > 1:
        raise ValueError(f"there are {' and '.join(map(repr, present))}: give only one of them")
    context = fields.get("context_variables")
    if not (context is None or is_object(context)):
        raise ValueError(f"'context_variables' must be an object, not {shown(context, _LINE)}")
    if not input_format.takes_decisions and fields.get("resume") is not None:
        raise ValueError("'resume' is not for durable runs: answer the waiting run with `aswarm runs answer`")
    [key] = present
    messages = _messages(fields[key]) if key == "messages" else _text(key, fields[key])
    item_id, resume = _id(number, fields, input_format), _resume(fields.get("resume"))
    return InputRecord(number, item_id, messages, dict(context or {}), fields.get("metadata"), resume)


def _is_deep(fields: Mapping[str, Any]) -> bool:
    level: list[Any] = [fields]
    for _ in range(_DEEPEST):
        level = [inner for value in level for inner in _inside(value)]
        if not level:
            return False
    return True


def _inside(value: Any) -> Iterable[Any]:
    return value.values() if is_object(value) else value if is_array(value) else ()


def _messages(messages: Any) -> list[Any]:
    if not (is_array(messages) and messages and all(is_object(message) and "role" in message for message in messages)):
        raise ValueError(f"'messages' must be a list of messages, not {shown(messages, _LINE)}")
    return list(messages)


def _text(key: str, text: Any) -> str:
    if not (isinstance(text, str) and text.strip()):
        raise ValueError(f"{key!r} must be a text, not {shown(text, _LINE)}")
    return text


def _resume(resume: Any) -> Resume:
    if resume is None or resume is False:
        return False
    try:
        return resume_from_json(resume)
    except ValueError as error:
        raise ValueError(f"'resume' {error}") from error


def _id(number: int, fields: Mapping[str, Any], input_format: InputFormat) -> str | int:
    key = input_format.id_column
    value = fields.get(key)
    if value is None or value == "":
        return number
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise ValueError(f"{key!r} must be a text or a whole number, not {shown(value, _LINE)}")  # noqa: TRY004 - of the data
    if isinstance(value, str) and _SURROGATES.search(value):
        raise ValueError(f"{key!r} contains half a surrogate pair: {shown(value, _LINE)}")
    return value
