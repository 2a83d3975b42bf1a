"""Reads the input of `aswarm batch`: JSON Lines or CSV, one conversation in each record. Runs nothing.

A line that cannot be used is a `BadLine`, never an exception: the other lines are still read.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Generator, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, TextIO

from aswarm._json import is_object, shown
from aswarm.cli._exits import SetupError

from ._records import TOO_DEEP, BadLine, InputFormat, InputRecord, record_of

_DELIMITERS = ",;\t"
_LINE = 60  # characters of a value in a message
_WithText = tuple[InputRecord | BadLine, str]  # with the text that was read


def format_of(name: str) -> str:
    """The format of a file by the ending of its name: "csv" or "jsonl"."""
    return "csv" if Path(name).suffix.lower() in (".csv", ".tsv") else "jsonl"


def count(name: str, input_format: InputFormat) -> int | None:
    """The number of records in a file; None for stdin and pipes, which can be read only once.

    Raises SetupError if there is no such file, or a CSV lacks the column.
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
    """The records of a file, or of stdin for `-`, read one by one. The file is closed at the end."""
    with _opened(name) as file:
        yield from read(file, input_format)


def _opened(name: str) -> BinaryIO:
    if name == "-":
        try:
            # A file object of our own: at the end of the process Python needs the lock of its own, which a thread that
            # is still reading would hold.
            return open(sys.stdin.fileno(), "rb", closefd=False)
        except io.UnsupportedOperation:  # stdin is not a real file
            return io.BytesIO(sys.stdin.buffer.read())
    try:
        return Path(name).open("rb")
    except OSError as error:
        raise SetupError(f"{name} cannot be read: {error.strerror}") from error


def read(file: BinaryIO, input_format: InputFormat) -> Iterator[InputRecord | BadLine]:
    """The records, read one by one. Of two records with one id, the later is bad. Raises SetupError as `count` does."""
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
            text = raw.decode("utf-8-sig" if number == 1 else "utf-8", errors="surrogateescape").rstrip("\r\n")
            yield _json_record(number, text, input_format), text


def _json_record(number: int, text: str, input_format: InputFormat) -> InputRecord | BadLine:
    try:
        text.encode()
        fields = json.loads(text)
        if not is_object(fields):
            raise ValueError(f"expected a JSON object, not {shown(fields, _LINE)}")
        return record_of(number, fields, input_format)
    except UnicodeEncodeError:
        return BadLine(number, "not UTF-8", text)
    except json.JSONDecodeError as error:
        return BadLine(number, f"not JSON: {error.msg} (column {error.colno})", text)
    except RecursionError:  # its text differs between Pythons
        return BadLine(number, TOO_DEEP, text)
    except ValueError as error:
        return BadLine(number, str(error), text)


# --- CSV ---


def _csv_records(file: BinaryIO, input_format: InputFormat) -> Generator[_WithText]:
    csv.field_size_limit(2**31 - 1)  # a conversation can be long
    with io.TextIOWrapper(file, "utf-8-sig", errors="surrogateescape", newline="") as text:
        lines = _CsvLines(text)
        header, delimiter = _header(next(lines, ""), input_format)
        lines.take()
        yield from _csv_rows(lines, csv.reader(lines, delimiter=delimiter, strict=True), header, input_format)


def _csv_rows(
    lines: _CsvLines, rows: Iterator[list[str]], header: list[str], input_format: InputFormat
) -> Generator[_WithText]:
    while True:
        number = lines.number + 1
        try:
            row = next(rows, None)
        except csv.Error as error:
            text = lines.take()
            yield _with_length(BadLine(number, f"not CSV: {error}", text), lines), text
            continue
        text = lines.take()
        if row is None:
            return
        if row:
            yield _with_length(_csv_record(number, row, text, header, input_format), lines), text


def _with_length(record: InputRecord | BadLine, lines: _CsvLines) -> InputRecord | BadLine:
    """The record, with its number of lines in the error: a quote that is not closed makes one record of many lines."""
    length = lines.number - record.line + 1
    if isinstance(record, InputRecord) or length == 1:
        return record
    return replace(record, error=f"{record.error} (in a record of {length:,} lines: is a quote not closed?)")


def _header(line: str, input_format: InputFormat) -> tuple[list[str], str]:
    """The names of the columns, and the delimiter: the one that yields a column for the text."""
    headers = [next(csv.reader([line], delimiter=delimiter), list[str]()) for delimiter in _DELIMITERS]
    for header, delimiter in zip(headers, _DELIMITERS, strict=True):
        if any(key in header for key in input_format.text_keys):
            return header, delimiter
    wanted = " or ".join(map(repr, input_format.text_keys))
    most = max(len(header) for header in headers)
    known = ", ".join(repr(name) for name in next(header for header in headers if len(header) == most)) or "none"
    raise SetupError(
        f"there is no column {wanted}; the columns are: {known}. Name the column of the text with --column"
    )


def _csv_record(
    number: int, row: list[str], text: str, header: list[str], input_format: InputFormat
) -> InputRecord | BadLine:
    try:
        text.encode()
        if len(row) != len(header):
            raise ValueError(f"the number of fields is {len(row)}, and that of the first line is {len(header)}")
        wanted = (*input_format.text_keys, input_format.id_column)
        fields = {name: value for name, value in zip(header, row, strict=True) if name in wanted and value}
        return record_of(number, fields, input_format)
    except UnicodeEncodeError:
        return BadLine(number, "not UTF-8", text)
    except ValueError as error:
        return BadLine(number, str(error), text)


class _CsvLines:
    """The lines of a text. It keeps the lines of the last record."""

    def __init__(self, text: Iterable[str]) -> None:
        self._text = iter(text)
        self._taken: list[str] = []
        self.number = 0

    def __iter__(self) -> _CsvLines:
        return self

    def __next__(self) -> str:
        line = next(self._text)
        self.number += 1
        self._taken.append(line)
        return line

    def take(self) -> str:
        """The lines since the last call."""
        text = "".join(self._taken).rstrip("\r\n")
        self._taken.clear()
        return text
