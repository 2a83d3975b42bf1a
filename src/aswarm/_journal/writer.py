"""The thread that writes the file of a journal: records reach the disk in order, many in one transaction.

Decides when to write. While some records are being written the next ones gather, so that the cost is that of a few
transactions a second, not of one for each record. It belongs to one event loop. The loop never waits for the disk; a
run that must wait awaits `commit`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import anyio

from aswarm._errors import RunError
from aswarm._runtime.backend import scheduler, wait_shielded

from .sqlite import JournalFile, Step, StoredItem

# How long records gather if the thread has just written some. A completion takes a hundred times as long, and one
# transaction costs as much as fifty records.
_GATHER_SECONDS = 0.001
_BUSY_SECONDS = 0.01


@dataclass(slots=True)
class _ThreadEvent:
    """Happens once, in the thread; the event loop may wait for it."""

    _event: anyio.Event | None = None
    _call_soon: Callable[[Callable[[], None]], object] | None = None

    @property
    def is_awaited(self) -> bool:
        return self._event is not None

    def on_loop(self) -> anyio.Event:
        """The event of the running loop that is then set."""
        if self._event is None:
            self._event, self._call_soon = anyio.Event(), scheduler()
        return self._event

    def set(self) -> None:
        """Set it, from any thread."""
        if self._event is not None and self._call_soon is not None:
            with suppress(RuntimeError):  # the loop is closed, so no task waits
                self._call_soon(self._event.set)


@dataclass(slots=True)
class _WriteBatch:
    """What is written in one transaction. `is_durable`: a task waits until it is on disk."""

    wanted: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    steps: list[Step] = field(default_factory=list[Step])
    found: list[StoredItem] = field(default_factory=list[StoredItem])
    is_durable: bool = False
    written: _ThreadEvent = field(default_factory=_ThreadEvent)


class JournalWriter:
    """Writes in a thread of its own, from `open` to `aclose`. `failure`: why the file cannot be written, or None."""

    def __init__(self, open_file: Callable[[], JournalFile]) -> None:
        self.failure: Exception | None = None
        self._open_file = open_file
        self._file: JournalFile
        self._changed = threading.Condition()
        self._pending = _WriteBatch()
        self._is_closing = False
        self._busy_until = 0.0
        self._opened = _ThreadEvent()
        self._has_ended = False
        self._ended = _ThreadEvent()

    # --- on the event loop ---

    async def open(self) -> None:
        """Start the thread and wait until it has opened the file. Raises what `open_file` raises."""
        opened = self._opened.on_loop()
        threading.Thread(target=self._work, name="aswarm journal", daemon=True).start()
        try:
            await opened.wait()
        except BaseException:
            await self.aclose()
            raise
        if self.failure is not None:
            raise self.failure

    def put(self, step: Step, *, write_now: bool = True) -> None:
        """Record a step. `write_now=False`: it is written together with the next one.

        Raises RunError if the file cannot be written.
        """
        with self._changed:
            self._check_open()
            self._pending.steps.append(step)
            if write_now:
                self._changed.notify()

    async def commit(self, step: Step) -> None:
        """Record a step, and wait until it and all before it are on disk. Raises what `put` raises."""
        with self._changed:
            self._check_open()
            self._pending.steps.append(step)
            self._pending.is_durable = True
            written = self._pending.written.on_loop()
            self._changed.notify()
        await written.wait()
        self._check_failure()

    async def find(self, item_id: str, content: str) -> StoredItem:
        """Look the item up, and add it if it is new. Raises RunError if the file cannot be written."""
        with self._changed:
            self._check_open()
            writes = self._pending
            position = len(writes.wanted)
            writes.wanted.append((item_id, content))
            written = writes.written.on_loop()
            self._changed.notify()
        await written.wait()
        self._check_failure()
        return writes.found[position]

    def _check_open(self) -> None:
        if self._is_closing:
            raise RunError("the journal is closed")
        self._check_failure()

    def _check_failure(self) -> None:
        if self.failure is not None:
            raise RunError(f"the journal cannot be written: {self.failure}") from self.failure

    async def aclose(self) -> None:
        """Write the remaining records and close the file, however often the waiting task is cancelled meanwhile."""
        with self._changed:
            self._is_closing = True
            if self._has_ended:
                return
            ended = self._ended.on_loop()
            self._changed.notify()
        await wait_shielded(ended)

    # --- in the thread ---

    def _work(self) -> None:
        try:
            self._file = self._open_file()
        except Exception as error:  # noqa: BLE001 - raised by `open`
            self.failure = error
        else:
            self._opened.set()
            self._write_all()
            with suppress(Exception):  # all records are written; only the clean-up of SQLite can fail here
                self._file.close()
        with self._changed:
            self._has_ended = True
            self._opened.set()
            self._ended.set()

    def _write_all(self) -> None:
        while (writes := self._next_writes()) is not None:
            if self.failure is None:  # no record may be there without the records before it
                self._write(writes)
            writes.written.set()
            self._busy_until = time.monotonic() + _BUSY_SECONDS

    def _write(self, writes: _WriteBatch) -> None:
        try:
            writes.found = self._file.work(writes.wanted, writes.steps, is_durable=writes.is_durable)
        except Exception as error:  # noqa: BLE001 - raised to each task that waits, and to each later caller
            self.failure = error

    def _next_writes(self) -> _WriteBatch | None:
        """Wait until there is something to write, and return it; None at the end."""
        with self._changed:
            while not (self._has_work() or self._is_closing):
                self._changed.wait()
            if not self._has_work():
                return None
        if time.monotonic() < self._busy_until:
            time.sleep(_GATHER_SECONDS)
        with self._changed:
            writes, self._pending = self._pending, _WriteBatch()
        return writes

    def _has_work(self) -> bool:
        return bool(self._pending.steps) or self._pending.written.is_awaited
