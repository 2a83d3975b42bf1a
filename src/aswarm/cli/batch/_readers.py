"""What `aswarm batch` reads: JSON Lines or CSV, a conversation on each line. Decides what a line is; runs nothing.

A line that cannot be used is a `BadLine`, never an exception: the others go on.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, TextIO

from aswarm._json import is_object, shown
from aswarm.cli._exits import Mistake

from ._csv import Read, csv_lines
from ._ids import Ids
from ._records import BadLine, Entry, Form, entry_of


def kind_of(name: str) -> str:
    """The form that a file has by the ending of its name: "csv" or "jsonl"."""
    return "csv" if Path(name).suffix.lower() in (".csv", ".tsv") else "jsonl"


def count(name: str, form: Form) -> int | None:
    """How many lines there are to do; None where that is not known before they are read.

    Raises Mistake where there is no such file, or a CSV without the column.
    """
    stdin: TextIO | None = sys.stdin
    if name == "-" and stdin is None:
        raise Mistake("standard input is closed: there is nothing to read")
    if name != "-" and not Path(name).exists():
        raise Mistake(f"there is no file {name!r}")
    if name == "-" or not Path(name).is_file():
        return None
    with _opened(name) as file:
        return sum(1 for _ in csv_lines(file, form)) if form.kind == "csv" else sum(1 for line in file if line.strip())


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
    entries = csv_lines(file, form) if form.kind == "csv" else _json_lines(file, form)
    ids = Ids()
    for entry, text in entries:
        if isinstance(entry, Entry) and not ids.add(entry.key):
            yield BadLine(entry.line, f"another line before has the id {shown(entry.id, 60)} too", text)
        else:
            yield entry


def _json_lines(file: Iterable[bytes], form: Form) -> Generator[Read]:
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
        return entry_of(number, record, form)
    except UnicodeEncodeError:
        return BadLine(number, "not UTF-8", text)
    except json.JSONDecodeError as error:
        return BadLine(number, f"not JSON: {error.msg} (column {error.colno})", text)
    except (ValueError, RecursionError) as error:
        return BadLine(number, str(error), text)
