"""CSV as `aswarm batch` reads it: a header, then a conversation in each record. Decides what is between the columns."""

from __future__ import annotations

import csv
import io
from collections.abc import Generator, Iterable, Iterator
from dataclasses import replace
from typing import BinaryIO

from aswarm.cli._exits import Mistake

from ._records import BadLine, Entry, Form, entry_of

_DELIMITERS = ",;\t"
Read = tuple[Entry | BadLine, str]  # with the text that it was


def csv_lines(file: BinaryIO, form: Form) -> Generator[Read]:
    """The records of a file, read as they are asked for. Raises Mistake where the column is not there."""
    csv.field_size_limit(2**31 - 1)  # a text may be long
    with io.TextIOWrapper(file, "utf-8-sig", errors="surrogateescape", newline="") as text:
        lines = _Lines(text)
        header, delimiter = _header(next(lines, ""), form)
        lines.taken()
        yield from _records(lines, csv.reader(lines, delimiter=delimiter, strict=True), header, form)


def _records(lines: _Lines, rows: Iterator[list[str]], header: list[str], form: Form) -> Generator[Read]:
    while True:
        number = lines.number + 1
        try:
            row = next(rows, None)
        except csv.Error as error:
            text = lines.taken()
            yield _told(BadLine(number, f"not CSV: {error}", text), lines), text
            continue
        text = lines.taken()
        if row is None:
            return
        if row:
            yield _told(_csv_entry(number, row, text, header, form), lines), text


def _told(entry: Entry | BadLine, lines: _Lines) -> Entry | BadLine:
    """A quote that is not closed takes the lines up to the next one, or all of them: that is to be seen."""
    many = lines.number - entry.line + 1
    if isinstance(entry, Entry) or many == 1:
        return entry
    return replace(entry, error=f"{entry.error} (in a record of {many:,} lines: is a quote not closed?)")


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
        return entry_of(number, {name: value for name, value in known.items() if value}, form)
    except UnicodeEncodeError:
        return BadLine(number, "not UTF-8", text)
    except ValueError as error:
        return BadLine(number, str(error), text)


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
