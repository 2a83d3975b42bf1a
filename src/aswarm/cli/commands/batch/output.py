"""The output of `aswarm batch`: a line for each outcome, and another file for the rejected lines of the input.

Lines are only appended. Each line is passed to the operating system at once. So a killed process loses no line that it counted.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Collection
from contextlib import suppress
from functools import partial
from io import RawIOBase, UnsupportedOperation
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Self, TextIO

from aswarm._runtime.files import lock
from aswarm._values.agent import Response
from aswarm._values.json import is_array, is_object, jsonable, shown
from aswarm._values.messages import is_refused
from aswarm.batch import BatchResult
from aswarm.batch._item import response_of
from aswarm.cli._exits import SetupError
from aswarm.cli._output import STDOUT, details_of, output_of, writing

from .readers import BadLine, InputRecord
from .threads import DaemonWorker

FAILED = "error"
_LINE_START = b'{"id": '  # each line starts so; another line that is not JSON is from another program
PATIENCE = 0.5  # at its end, the command waits this number of seconds for a line that is being written
_SECONDS_UNTIL_ROOM = 0.01


def line_of(outcome: BatchResult, *, messages: bool) -> bytes:
    """Return the line of an outcome. `messages`: whether the line has the messages of the run."""
    record: InputRecord = outcome.metadata
    response = response_of(outcome.response, outcome.error) or Response()
    fields = {
        "id": record.id,
        "status": status_of(outcome.response, outcome.error),
        "text": response.text,
        **({} if (output := output_of(response)) is None else {"output": output}),
        "agent": response.agent.name if response.agent else None,
        "usage": jsonable(outcome.usage),
        **({} if (cost := outcome.usage.cost) is None else {"cost": cost}),
        "attempts": outcome.attempts,
        "duration": round(outcome.duration, 3),
        "error": error_of(outcome.error),
        "unknown_calls": jsonable(outcome.unknown_calls),
        "waiting": jsonable(response.open_calls),
        "metadata": jsonable(record.metadata),
        "context_variables": jsonable(response.context_variables),
        "input_digest": record.digest,
    }
    return encoded({**fields, "messages": jsonable(response.messages)} if messages else fields)


def status_of(response: Response | None, error: BaseException | None) -> str:
    """Return the status of an item: "answer", "refusal", "error", or another `stop` ("waiting", "max_turns", "budget")."""
    if error is not None or response is None:
        return FAILED
    return "refusal" if is_refused(response.messages) else response.stop


def error_of(error: BaseException | None) -> dict[str, Any] | None:
    """Return the type and the message of an error. For an error of the provider, add its `status_code` and `retryable`."""
    if error is None:
        return None
    return {"type": type(error).__name__, "message": str(error), **details_of(error)}


def encoded(fields: dict[str, Any]) -> bytes:
    """Return one line of JSON in UTF-8. If UTF-8 cannot encode the text (half a surrogate pair), use ASCII."""
    try:
        return json.dumps(fields, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(fields).encode() + b"\n"


def _write(file: BinaryIO | RawIOBase, line: bytes) -> None:
    left = memoryview(line)
    while left:
        written = file.write(left)
        if written is None:  # a pipe in non-blocking mode is full
            time.sleep(_SECONDS_UNTIL_ROOM)
        left = left[written or 0 :]
    file.flush()


class _Written(NamedTuple):
    status: str
    digest: str | None
    unknown_calls: int = 0


class BatchOutput(ABC):
    """Base class of the outputs, to which lines are appended."""

    def __init__(self) -> None:
        self._done: dict[str, _Written] = {}

    @property
    def statuses(self) -> set[str]:
        """The statuses of the items of earlier commands."""
        return {written.status for written in self._done.values()}

    @property
    def unknown_calls(self) -> list[int]:
        """The number of calls with an unknown outcome, for each item of earlier commands."""
        return [written.unknown_calls for written in self._done.values()]

    def has(self, record: InputRecord) -> bool:
        """Return whether an earlier command finished the item. Raises SetupError if its id belongs to another conversation."""
        written = self._done.get(record.key)
        if written is None:
            return False
        if written.digest not in (record.digest, None):
            raise SetupError(
                f"line {record.line}: the output has another conversation with the id {shown(record.id, 60)}; choose "
                "another file with --output, or give the line another id"
            )
        return True

    @abstractmethod
    async def add(self, line: bytes) -> None:
        """Append a line. Returns when the operating system has the line."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Close the output."""


class FileOutput(BatchOutput):
    """A file, locked until it is closed. `resume`: whether the file may already have lines; they are not changed.

    `unfinished`: the statuses of lines whose items run again.
    """

    def __init__(self, path: Path, *, resume: bool, unfinished: Collection[str]) -> None:
        super().__init__()
        self._unfinished = unfinished
        self._path = path.resolve()
        self._is_new = not path.exists()
        # Without a buffer, a line is in the file at once. If a write fails, Python does not repeat it later.
        self._file = path.open("ab", buffering=0)
        try:
            if not lock(self._file):
                raise SetupError(f"{path} is being written by another batch; wait for its end, or choose another file")
            if resume:
                self._read()
            elif self._file.tell():
                raise SetupError(f"{path} has lines already; continue it with --store, or choose another file")
        except BaseException:
            self._file.close()
            raise

    def _read(self) -> None:
        line = b"\n"
        with self._path.open("rb") as file:
            for number, line in enumerate(file, 1):
                self._note(number, line)
        if not line.endswith(b"\n"):  # a crash cut off the last line; end it, so that the next line is not joined to it
            self._file.write(b"\n")

    def _note(self, number: int, line: bytes) -> None:
        """Note the status of an item. Its last line counts. Ignore a line that was cut off."""
        try:
            fields: Any = json.loads(line)
        except (ValueError, RecursionError):
            if line.startswith(_LINE_START) or _LINE_START.startswith(line.rstrip(b"\n")):
                return
            fields = None
        if not (is_object(fields) and "id" in fields and isinstance(fields.get("status"), str)):
            raise SetupError(
                f"line {number} of {self._path} was not written by aswarm batch; choose another file with --output"
            )
        key = str(fields["id"])
        self._done.pop(key, None)
        if fields["status"] not in self._unfinished:
            unknown_calls: Any = fields.get("unknown_calls")  # absent in outputs of early versions
            unknown = len(unknown_calls) if is_array(unknown_calls) else 0
            self._done[key] = _Written(fields["status"], fields.get("input_digest"), unknown)

    async def add(self, line: bytes) -> None:
        """Append the line, without a thread: a write to a file is faster than a call in a thread."""
        with writing(self._path):
            _write(self._file, line)

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        """Close the file. If it is new, and an error came before its first line, remove it."""
        if error is not None and self._is_new and not self._file.tell():
            with suppress(OSError):
                self._path.unlink()
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class StreamOutput(BatchOutput):
    """Standard output, a pipe or a device. `is_own`: whether to close the file at the end.

    A thread writes the lines. If a reader pauses and the pipe is full, only this thread waits.
    """

    def __init__(self, name: object, file: BinaryIO | RawIOBase, *, is_own: bool) -> None:
        super().__init__()
        self._name = name
        self._file = file
        self._is_own = is_own
        self._thread = DaemonWorker("aswarm output")

    async def add(self, line: bytes) -> None:
        """Write the line. Returns when the pipe has accepted it."""
        await self._thread.call(partial(self._write, line))

    def _write(self, line: bytes) -> None:
        with writing(self._name):
            _write(self._file, line)

    def close(self) -> None:
        """Flush the file, or close it if `is_own`. If the reader does not read, stop waiting after `PATIENCE`."""
        self._thread.close(self._file.close if self._is_own else self._file.flush, PATIENCE)


def open_output(name: str, stdout: TextIO, *, resume: bool, unfinished: Collection[str] = (FAILED,)) -> BatchOutput:
    """Open the file, or stdout for `-`; see `FileOutput`. Raises SetupError if it cannot be written, or is not of a batch."""
    if name == "-":
        try:
            # A file object without Python's buffer. When the process ends, Python needs the lock of the buffer of stdout, but a
            # thread that is stuck in a write would hold this lock.
            file = open(stdout.fileno(), "wb", buffering=0, closefd=False)  # noqa: SIM115 - closed by the output
        except UnsupportedOperation:  # stdout is not a real file
            return StreamOutput(STDOUT, stdout.buffer, is_own=False)
        return StreamOutput(STDOUT, file, is_own=True)
    path = Path(name)
    try:
        if path.exists() and not path.is_file():  # a pipe, a device
            return StreamOutput(path, path.open("wb", buffering=0), is_own=True)
        return FileOutput(path, resume=resume, unfinished=unfinished)
    except OSError as error:
        raise SetupError(f"{name} cannot be written: {error.strerror}") from error


class RejectedLines:
    """The file for rejected lines. The first rejected line creates the file. A line that it already has is not added again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0
        self._file: BinaryIO | None = None
        self._kept: set[bytes] = set()

    def add(self, bad: BadLine) -> None:
        """Write a line, with its number and the reason."""
        line = encoded({"line": bad.line, "error": bad.error, "text": bad.text})
        with writing(self.path):
            if self._file is None:
                self._file = self.path.open("a+b")
                self._file.seek(0)
                self._kept.update(self._file)
                if any(not kept.endswith(b"\n") for kept in self._kept):  # a crash cut off the last line
                    self._file.write(b"\n")
            if line not in self._kept:
                self._kept.add(line)
                self._file.write(line)
                self._file.flush()
        self.count += 1

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def rejected_path(output: str) -> Path:
    """Return the file for rejected lines, in the folder of the output: `out.rejected.jsonl` for `out.jsonl`."""
    path = Path(output)
    if output == "-" or (path.exists() and not path.is_file()):  # a stream has no folder, so use the current one
        path = Path("batch.jsonl")
    return path.with_name(f"{path.stem}.rejected.jsonl")
