"""Where outcomes of `aswarm batch` go: a line for each, as it comes. Decides its form, and what need not run again.

Every line is given to the system at once, so that a killed process loses none that was written. A file that is gone on
with keeps its lines; where an item that failed is tried again, its old line is dropped once the new one is there.
"""

from __future__ import annotations

import json
import os
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager, suppress
from functools import partial
from io import RawIOBase, UnsupportedOperation
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self, TextIO

from click.exceptions import Exit

from aswarm._files import replacing
from aswarm._json import is_object, shown
from aswarm.cli._exits import Failure, Mistake

from ._lock import is_free
from ._outcomes import FAILED, is_begun
from ._records import Entry
from ._threads import OneByOne

PATIENCE = 0.5  # seconds for a line that is being written, once all is to end
_SECONDS_UNTIL_ROOM = 0.01


@contextmanager
def writing(name: object) -> Generator[None]:
    """Around writing: where that cannot be done, the batch cannot go on. A pipe that nobody reads is no failure."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Failure(f"{name} cannot be written: {error.strerror}") from error


def _write(file: BinaryIO | RawIOBase, line: bytes) -> None:
    left = memoryview(line)
    while left:
        taken = file.write(left)
        if taken is None:  # a pipe that is full, and that somebody has told not to wait
            time.sleep(_SECONDS_UNTIL_ROOM)
        left = left[taken or 0 :]
    file.flush()


class Output(ABC):
    """A place for lines. `counts`: the lines that were there before and stay, by status."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._written: dict[str, str | None] = {}

    def has(self, entry: Entry) -> bool:
        """Whether the item need not run again. Raises Mistake where what is there is another item of this id."""
        if entry.key not in self._written:
            return False
        if self._written[entry.key] not in (entry.digest, None):
            raise Mistake(
                f"line {entry.line}: the output has another conversation with the id {shown(entry.id, 60)}; name another "
                "file with --output, or give it an id of its own"
            )
        return True

    @abstractmethod
    async def add(self, key: str, line: bytes) -> None:
        """Write a line, for good: it has been given to the system."""

    @abstractmethod
    def tidy(self) -> None:
        """After the last line: leave one line for each item."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Close what was opened."""


class FileOutput(Output):
    """A file. `resume`: go on with one that has lines already."""

    def __init__(self, path: Path, *, resume: bool) -> None:
        super().__init__()
        self._path = path.resolve()  # where a link points to another file, that one is written
        self._failed: dict[str, int] = {}
        self._dropped: set[int] = set()
        self._is_new = not path.exists()
        # Without a buffer: a line is there at once, and none is written later when it could not be written now.
        self._file = path.open("ab", buffering=0)
        try:
            self._lock()
            if resume:
                self._look()
            elif self._file.tell():
                raise Mistake(f"{path} has lines already. --resume goes on with it; else name another file")
        except BaseException:
            self._file.close()
            raise

    def _lock(self) -> None:
        # Before it was locked, whoever had it may have put another file in its place: see `tidy`.
        if not (is_free(self._file) and os.path.samestat(os.fstat(self._file.fileno()), self._path.stat())):
            raise Mistake(f"{self._path} is being written by another batch; wait for its end, or name another file")

    def _look(self) -> None:
        """Find out what is there; a line of ours that was broken off, if any, is cut off."""
        offset, line = 0, b"\n"
        with self._path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n") and is_begun(line):
                    self._file.truncate(offset)
                    return
                self._note(number, line, offset)
                offset += len(line)
        if not line.endswith(b"\n"):  # whole, but for its end
            self._file.write(b"\n")

    def _note(self, number: int, line: bytes, offset: int) -> None:
        try:
            fields: Any = json.loads(line)
        except (ValueError, RecursionError):
            fields = None
        if not (is_object(fields) and "id" in fields and isinstance(fields.get("status"), str)):
            raise Mistake(f"line {number} of {self._path} is not of a batch; name another file with --output")
        key, status = str(fields["id"]), fields["status"]
        self._drop(key)
        if key in self._written:  # of a process that was killed while it wrote
            self._dropped.add(offset)
        elif status == FAILED:
            self._failed[key] = offset
        else:
            self._written[key] = fields.get("input_digest")
            self.counts[status] += 1

    def _drop(self, key: str) -> None:
        if key in self._failed:
            self._dropped.add(self._failed.pop(key))

    async def add(self, key: str, line: bytes) -> None:
        """Append it, at once: a file takes what it is given, and a hop to a thread costs more than that."""
        with writing(self._path):
            _write(self._file, line)
        self._drop(key)

    def tidy(self) -> None:
        """Drop the lines of failures that came to something else since; the old file is there until the new one is."""
        if not self._dropped:
            return
        with writing(self._path), replacing(self._path) as kept:
            self._copy(kept)

    def _copy(self, kept: BinaryIO) -> None:
        offset = 0
        with self._path.open("rb") as file:
            for line in file:
                if offset not in self._dropped:
                    kept.write(line)
                offset += len(line)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the file. Where nothing could be begun, none is left behind that was not there before."""
        if error is not None and not isinstance(error, Exit) and self._is_new and not self._file.tell():
            with suppress(OSError):
                self._path.unlink()
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class StreamOutput(Output):
    """What others read: standard output, a pipe, a device. `is_own`: it is closed in the end.

    Written in a thread: a reader that pauses, and so leaves the pipe full, stops nothing but the writing.
    """

    def __init__(self, name: object, file: BinaryIO | RawIOBase, *, is_own: bool) -> None:
        super().__init__()
        self._name = name
        self._file = file
        self._is_own = is_own
        self._thread = OneByOne("aswarm output")

    async def add(self, key: str, line: bytes) -> None:  # noqa: ARG002 - whose it is, is for files
        """Write it, when the reader takes it."""
        await self._thread.call(partial(self._write, line))

    def _write(self, line: bytes) -> None:
        with writing(self._name):
            _write(self._file, line)

    def tidy(self) -> None:
        """What others have read stays."""

    def close(self) -> None:
        """Close it, where it is our own; a reader that takes nothing is not waited for."""
        self._thread.close(self._file.close if self._is_own else self._file.flush, PATIENCE)


def open_output(name: str, stdout: TextIO, *, resume: bool) -> Output:
    """The file, or standard output for `-`. Raises Mistake where it cannot be written, or has lines of others."""
    if name == "-":
        return _standard_output(stdout)
    path = Path(name)
    try:
        if path.exists() and not path.is_file():  # a pipe, a device
            return StreamOutput(path, path.open("wb", buffering=0), is_own=True)
        return FileOutput(path, resume=resume)
    except OSError as error:
        raise Mistake(f"{name} cannot be written: {error.strerror}") from error


def _standard_output(stdout: TextIO) -> StreamOutput:
    try:
        # Past Python's buffer: at the end of the process Python wants its lock, which a thread that is stuck would have.
        file = open(stdout.fileno(), "wb", buffering=0, closefd=False)  # noqa: SIM115 - closed by the output
    except UnsupportedOperation:  # no file stands behind it
        return StreamOutput("standard output", stdout.buffer, is_own=False)
    return StreamOutput("standard output", file, is_own=True)
