"""The output of `aswarm batch`: one line for each outcome, as it comes. Decides which items need not run again.

Lines are only appended. Each line goes to the operating system at once, so a process that is killed loses no line that it
has counted.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Generator
from contextlib import contextmanager, suppress
from functools import partial
from io import RawIOBase, UnsupportedOperation
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple, Self, TextIO

from click.exceptions import Exit

from aswarm._files import lock
from aswarm._json import is_array, is_object, shown
from aswarm.cli._exits import SetupError
from aswarm.cli._output import STDOUT, cannot_write

from ._outcomes import FAILED, LINE_START
from ._records import InputRecord
from ._threads import DaemonWorker

PATIENCE = 0.5  # the seconds that a line has which is being written when the command ends
_SECONDS_UNTIL_ROOM = 0.01


@contextmanager
def writing(name: object) -> Generator[None]:
    """Around writing: an error ends the batch with a message. `exits` handles a broken pipe."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise cannot_write(name, error) from error


def _write(file: BinaryIO | RawIOBase, line: bytes) -> None:
    left = memoryview(line)
    while left:
        taken = file.write(left)
        if taken is None:  # the pipe is full, and is in non-blocking mode
            time.sleep(_SECONDS_UNTIL_ROOM)
        left = left[taken or 0 :]
    file.flush()


class _Written(NamedTuple):
    status: str
    digest: str | None
    unknown_calls: int = 0


class BatchOutput(ABC):
    """A place for lines."""

    def __init__(self) -> None:
        self._done: dict[str, _Written] = {}

    @property
    def statuses(self) -> set[str]:
        """The statuses of the items that were done before."""
        return {written.status for written in self._done.values()}

    @property
    def unknown_calls(self) -> list[int]:
        """For each item that was done before, the number of its calls with an unknown outcome."""
        return [written.unknown_calls for written in self._done.values()]

    def has(self, record: InputRecord) -> bool:
        """Whether the item is done. Raises SetupError if the output has another conversation with this id."""
        written = self._done.get(record.key)
        if written is None:
            return False
        if written.digest not in (record.digest, None):
            raise SetupError(
                f"line {record.line}: the output has another conversation with the id {shown(record.id, 60)}; choose "
                "another file with --output, or give the line an id of its own"
            )
        return True

    @abstractmethod
    async def add(self, line: bytes) -> None:
        """Append a line. When this returns, the operating system has it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Close the output."""


class FileOutput(BatchOutput):
    """A file, locked until it is closed. `resume`: the file may have lines already, which stay as they are."""

    def __init__(self, path: Path, *, resume: bool) -> None:
        super().__init__()
        self._path = path.resolve()
        self._is_new = not path.exists()
        # Without a buffer: a line is in the file at once, and a line that could not be written is not written later.
        self._file = path.open("ab", buffering=0)
        try:
            if not lock(self._file):
                raise SetupError(f"{path} is being written by another batch; wait for its end, or choose another file")
            if resume:
                self._read()
            elif self._file.tell():
                raise SetupError(f"{path} has lines already; continue it with --resume, or choose another file")
        except BaseException:
            self._file.close()
            raise

    def _read(self) -> None:
        line = b"\n"
        with self._path.open("rb") as file:
            for number, line in enumerate(file, 1):
                self._note(number, line)
        if not line.endswith(b"\n"):  # a crash cut it off; the next line must not be joined to it
            self._file.write(b"\n")

    def _note(self, number: int, line: bytes) -> None:
        """Note the status of an item. The last of its lines counts. A line that was cut off counts as absent."""
        try:
            fields: Any = json.loads(line)
        except (ValueError, RecursionError):
            if line.startswith(LINE_START) or LINE_START.startswith(line.rstrip(b"\n")):
                return
            fields = None
        if not (is_object(fields) and "id" in fields and isinstance(fields.get("status"), str)):
            raise SetupError(
                f"line {number} of {self._path} was not written by aswarm batch; choose another file with --output"
            )
        key = str(fields["id"])
        self._done.pop(key, None)
        if fields["status"] != FAILED:
            unknown_calls: Any = fields.get("unknown_calls")  # the first outputs have none
            unknown = len(unknown_calls) if is_array(unknown_calls) else 0
            self._done[key] = _Written(fields["status"], fields.get("input_digest"), unknown)

    async def add(self, line: bytes) -> None:
        """Append the line, in the event loop: a file takes a line at once, and a change to a thread costs more."""
        with writing(self._path):
            _write(self._file, line)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the file. A file that this batch made is removed if an error came before its first line."""
        if error is not None and not isinstance(error, Exit) and self._is_new and not self._file.tell():
            with suppress(OSError):
                self._path.unlink()
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class StreamOutput(BatchOutput):
    """Standard output, a pipe or a device. `is_own`: it is closed at the end.

    A thread writes to it: if a reader pauses and leaves the pipe full, only the writing stops.
    """

    def __init__(self, name: object, file: BinaryIO | RawIOBase, *, is_own: bool) -> None:
        super().__init__()
        self._name = name
        self._file = file
        self._is_own = is_own
        self._thread = DaemonWorker("aswarm output")

    async def add(self, line: bytes) -> None:
        """Write the line, once the reader takes it."""
        await self._thread.call(partial(self._write, line))

    def _write(self, line: bytes) -> None:
        with writing(self._name):
            _write(self._file, line)

    def close(self) -> None:
        """Close the file if `is_own`, without waiting for a reader that takes nothing."""
        self._thread.close(self._file.close if self._is_own else self._file.flush, PATIENCE)


def open_output(name: str, stdout: TextIO, *, resume: bool) -> BatchOutput:
    """The file, or standard output for `-`. Raises SetupError if it cannot be written, or is not an output of a batch."""
    if name == "-":
        return _standard_output(stdout)
    path = Path(name)
    try:
        if path.exists() and not path.is_file():  # a pipe, a device
            return StreamOutput(path, path.open("wb", buffering=0), is_own=True)
        return FileOutput(path, resume=resume)
    except OSError as error:
        raise SetupError(f"{name} cannot be written: {error.strerror}") from error


def _standard_output(stdout: TextIO) -> StreamOutput:
    try:
        # A file object without Python's buffer: at the end of the process Python needs the lock of that buffer, which a
        # thread that is stuck in a write would hold.
        file = open(stdout.fileno(), "wb", buffering=0, closefd=False)  # noqa: SIM115 - closed by the output
    except UnsupportedOperation:  # stdout is not a real file
        return StreamOutput(STDOUT, stdout.buffer, is_own=False)
    return StreamOutput(STDOUT, file, is_own=True)
