"""The output of `aswarm batch`: a line for each outcome, and another file for the rejected lines of the input; and `in_thread`.

Lines are only appended. Each line is passed to the operating system at once. So a killed process loses no line that it counted.

Input and output are in threads: a slow file, a silent pipe or a reader that pauses must not block the event loop.

The threads are daemons. So the process does not wait for a thread that is stuck in a system call.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from functools import partial
from io import RawIOBase, UnsupportedOperation
from pathlib import Path
from queue import SimpleQueue
from typing import Any, BinaryIO, NamedTuple, Self, TextIO, TypeVar, cast

from aswarm._runtime.files import lock
from aswarm._values.agent import Response
from aswarm._values.json import is_array, is_object, jsonable, shown
from aswarm._values.messages import is_refused
from aswarm.batch import BatchResult
from aswarm.batch._item import response_of
from aswarm.cli._command import STDOUT, SetupError, details_of, output_of, writing

from .readers import BadLine, InputRecord

T = TypeVar("T")


async def in_thread(items: Generator[T]) -> AsyncGenerator[T]:
    """Yield the items. A thread reads an item when the caller asks for it. Raises the errors of the thread.

    If the caller stops early, this does not wait for the thread. When the current read returns, the thread closes `items`.
    """
    worker, end = DaemonWorker("aswarm input"), cast("T", object())
    try:
        while (item := await worker.call(partial(next, items, end))) is not end:
            yield item
    finally:
        worker.close(items.close, 0)


class DaemonWorker:
    """A daemon thread that makes calls one after another, in the order in which they were requested."""

    def __init__(self, name: str) -> None:
        self._queue: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while (requested := self._queue.get()) is not None:
            future, call = requested
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001 - raised in the caller
                future.set_exception(error)
            else:
                future.set_result(result)

    async def call(self, call: Callable[[], T]) -> T:
        """Make the call in the thread, and return its result. Raises the errors of the call.

        A cancellation skips a call that has not started. If the call has started, a cancellation only ends the waiting.
        """
        future = Future[T]()
        self._queue.put((future, call))
        return await asyncio.wrap_future(future)

    def close(self, last: Callable[[], None], seconds: float) -> None:
        """Make a last call in the thread. Then wait for the end of the thread, at most this number of seconds."""
        self._queue.put((Future[None](), last))
        self._queue.put(None)
        self._thread.join(seconds)


FAILED = "error"
_LINE_START = b'{"id": '  # each line starts so; another line that is not JSON is from another program
PATIENCE = 0.5  # at its end, the command waits this number of seconds for a line that is being written
_SECONDS_UNTIL_ROOM = 0.01
_THREAD = "aswarm output"


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


class _Written(NamedTuple):
    status: str
    digest: str | None
    unknown_calls: int = 0


class BatchOutput:
    """A file, a pipe or a device, to which lines are appended. `name`: its name in an error.

    `thread`: the thread that writes, for a pipe or a device. If a reader pauses and the pipe is full, only this thread waits. For
    a regular file it is None, because a write is faster than a call in a thread. `is_own`: whether to close the file at the end.
    `done`: the items that earlier commands finished. `new`: the path of a new file. The file is removed after an error before its first line.
    """

    def __init__(
        self,
        name: object,
        file: BinaryIO | RawIOBase,
        *,
        thread: DaemonWorker | None = None,
        is_own: bool = True,
        done: Mapping[str, _Written] | None = None,
        new: Path | None = None,
    ) -> None:
        self._name = name
        self._file = file
        self._thread = thread
        self._is_own = is_own
        self._done = done or {}
        self._new = new

    @property
    def statuses(self) -> set[str]:
        """The statuses of the items of earlier commands."""
        return {written.status for written in self._done.values()}

    @property
    def unknown_calls(self) -> list[int]:
        """The number of calls with an unknown outcome, for each item of earlier commands with such calls."""
        return [written.unknown_calls for written in self._done.values() if written.unknown_calls]

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

    async def add(self, line: bytes) -> None:
        """Append a line. Returns when the operating system has the line."""
        if self._thread is None:
            self._write(line)
        else:
            await self._thread.call(partial(self._write, line))

    def _write(self, line: bytes) -> None:
        left = memoryview(line)
        with writing(self._name):
            while left:
                written = self._file.write(left)
                if written is None:  # a pipe in non-blocking mode is full
                    time.sleep(_SECONDS_UNTIL_ROOM)
                left = left[written or 0 :]
            self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if error is not None and self._new is not None and not self._file.tell():
            with suppress(OSError):
                self._new.unlink()
        self.close()

    def close(self) -> None:
        """Close the file. If the reader of a pipe does not read, stop waiting after `PATIENCE`."""
        if self._thread is None:
            self._file.close()
        else:
            self._thread.close(self._file.close if self._is_own else self._file.flush, PATIENCE)


def open_output(name: str, stdout: TextIO, *, resume: bool, unfinished: Collection[str] = (FAILED,)) -> BatchOutput:
    """Open the file, or stdout for `-`. Raises SetupError if it cannot be written, or is not of a batch.

    `resume`: whether a file may already have lines; they are not changed. `unfinished`: the statuses of lines whose items run again.
    """
    path = Path(name)
    try:
        if name == "-":
            return _stdout_of(stdout)
        if path.exists() and not path.is_file():  # a pipe, a device
            return BatchOutput(path, path.open("wb", buffering=0), thread=DaemonWorker(_THREAD))
        return _open_file(path, unfinished if resume else None)
    except OSError as error:
        raise SetupError(f"{name} cannot be written: {error.strerror}") from error


def _stdout_of(stdout: TextIO) -> BatchOutput:
    thread = DaemonWorker(_THREAD)
    try:
        # A file object without Python's buffer. When the process ends, Python needs the lock of the buffer of stdout, but a
        # thread that is stuck in a write would hold this lock.
        return BatchOutput(STDOUT, open(stdout.fileno(), "wb", buffering=0, closefd=False), thread=thread)
    except UnsupportedOperation:  # stdout is not a real file
        return BatchOutput(STDOUT, stdout.buffer, thread=thread, is_own=False)


def _open_file(path: Path, unfinished: Collection[str] | None) -> BatchOutput:
    """Open and lock a file. `unfinished`: as in `open_output`; None if the file must have no lines."""
    place, is_new = path.resolve(), not path.exists()
    with ExitStack() as stack:
        # Without a buffer, a line is in the file at once. If a write fails, Python does not repeat it later.
        file = stack.enter_context(path.open("ab", buffering=0))
        if not lock(file):
            raise SetupError(f"{path} is being written by another batch; wait for its end, or choose another file")
        if unfinished is None and file.tell():
            raise SetupError(f"{path} has lines already; continue it with --store, or choose another file")
        done = {} if unfinished is None else _finished(place, file, unfinished)
        stack.pop_all()
    return BatchOutput(place, file, done=done, new=place if is_new else None)


def _finished(path: Path, file: RawIOBase, unfinished: Collection[str]) -> dict[str, _Written]:
    """Return the finished items of a file by id; the last line of an id counts. End a last line that was cut off."""
    done: dict[str, _Written] = {}
    line = b"\n"
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                fields: Any = json.loads(line)
            except (ValueError, RecursionError):
                if line.startswith(_LINE_START) or _LINE_START.startswith(line.rstrip(b"\n")):
                    continue  # a crash has cut it off
                fields = None
            if not (is_object(fields) and "id" in fields and isinstance(fields.get("status"), str)):
                raise SetupError(
                    f"line {number} of {path} was not written by aswarm batch; choose another file with --output"
                )
            key = str(fields["id"])
            done.pop(key, None)
            if fields["status"] not in unfinished:
                unknown_calls: Any = fields.get("unknown_calls")  # absent in outputs of early versions
                unknown = len(unknown_calls) if is_array(unknown_calls) else 0
                done[key] = _Written(fields["status"], fields.get("input_digest"), unknown)
    if not line.endswith(b"\n"):  # so that the next line is not joined to it
        file.write(b"\n")
    return done


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
