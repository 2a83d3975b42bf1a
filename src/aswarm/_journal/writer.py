"""The one thread that has the file of a journal: what is recorded reaches the disk in order, many records at a time.

Decides when. While one lot is being written the next gathers, so that the cost is that of a few writes a second and not
of one for each record. Belongs to one event loop, which never waits for the disk; a run that must, awaits `commit`.
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

from .sqlite import Found, JournalFile, Step

# How long a lot gathers where one has just been written. A completion takes a hundred times as long; a write costs as
# much as fifty records.
_GATHER_SECONDS = 0.001
_BUSY_SECONDS = 0.01


@dataclass(slots=True)
class _Signal:
    """Something that happens once in the thread, and that the event loop may wait for."""

    _event: anyio.Event | None = None
    _tell: Callable[[Callable[[], None]], object] | None = None

    @property
    def is_waited_for(self) -> bool:
        return self._event is not None

    def event(self) -> anyio.Event:
        """What is set then, on the running loop."""
        if self._event is None:
            self._event, self._tell = anyio.Event(), scheduler()
        return self._event

    def give(self) -> None:
        """It has happened; from any thread."""
        if self._event is not None and self._tell is not None:
            with suppress(RuntimeError):  # the loop is gone, and nobody waits
                self._tell(self._event.set)


@dataclass(slots=True)
class _Lot:
    """What is written together. `is_durable`: somebody acts on its being on the disk."""

    asked: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    steps: list[Step] = field(default_factory=list[Step])
    found: list[Found] = field(default_factory=list[Found])
    is_durable: bool = False
    written: _Signal = field(default_factory=_Signal)


class Writer:
    """Writes in a thread of its own, from `open` to `aclose`. `failure`: why nothing can be written any more, or None."""

    def __init__(self, open_file: Callable[[], JournalFile]) -> None:
        self.failure: Exception | None = None
        self._open_file = open_file
        self._file: JournalFile
        self._news = threading.Condition()
        self._lot = _Lot()
        self._is_closing = False
        self._busy_until = 0.0
        self._opened = _Signal()
        self._has_ended = False
        self._ended = _Signal()

    # --- on the event loop ---

    async def open(self) -> None:
        """Have the file opened, once. Raises what `open_file` raises."""
        opened = self._opened.event()
        threading.Thread(target=self._work, name="aswarm journal", daemon=True).start()
        try:
            await opened.wait()
        except BaseException:
            await self.aclose()
            raise
        if self.failure is not None:
            raise self.failure

    def put(self, step: Step, *, at_once: bool = True) -> None:
        """Record a step; or have it wait for the next one. Raises RunError where the journal cannot be written any more."""
        with self._news:
            self._check()
            self._lot.steps.append(step)
            if at_once:
                self._news.notify()

    async def commit(self, step: Step) -> None:
        """Record a step, and wait until it and all before it are on the disk. Raises RunError where it cannot be written."""
        with self._news:
            self._check()
            self._lot.steps.append(step)
            self._lot.is_durable = True
            written = self._lot.written.event()
            self._news.notify()
        await written.wait()
        self._check_failure()

    async def find(self, item_id: str, content: str) -> Found:
        """The item as the journal knows it; from now on it does. Raises RunError where it cannot be written."""
        with self._news:
            self._check()
            lot = self._lot
            place = len(lot.asked)
            lot.asked.append((item_id, content))
            written = lot.written.event()
            self._news.notify()
        await written.wait()
        self._check_failure()
        return lot.found[place]

    def _check(self) -> None:
        if self._is_closing:
            raise RunError("the journal is closed")
        self._check_failure()

    def _check_failure(self) -> None:
        if self.failure is not None:
            raise RunError(f"the journal cannot be written: {self.failure}") from self.failure

    async def aclose(self) -> None:
        """Write what is left and close the file, however often the waiting task is cancelled meanwhile."""
        with self._news:
            self._is_closing = True
            if self._has_ended:
                return
            ended = self._ended.event()
            self._news.notify()
        await wait_shielded(ended)

    # --- in the thread ---

    def _work(self) -> None:
        try:
            self._file = self._open_file()
        except Exception as error:  # noqa: BLE001 - raised by `open`
            self.failure = error
        else:
            self._opened.give()
            self._serve()
            with suppress(Exception):  # everything was written; what fails here is tidying up
                self._file.close()
        with self._news:
            self._has_ended = True
            self._opened.give()
            self._ended.give()

    def _serve(self) -> None:
        while (lot := self._next()) is not None:
            if self.failure is None:  # a record must not be there without those before it
                self._write(lot)
            lot.written.give()
            self._busy_until = time.monotonic() + _BUSY_SECONDS

    def _write(self, lot: _Lot) -> None:
        try:
            lot.found = self._file.work(lot.asked, lot.steps, is_durable=lot.is_durable)
        except Exception as error:  # noqa: BLE001 - told to everybody who waits, and to whoever comes later
            self.failure = error

    def _next(self) -> _Lot | None:
        """The next lot, once there is something in it; None at the end."""
        with self._news:
            while not (self._has_work() or self._is_closing):
                self._news.wait()
            if not self._has_work():
                return None
        if time.monotonic() < self._busy_until:
            time.sleep(_GATHER_SECONDS)
        with self._news:
            lot, self._lot = self._lot, _Lot()
        return lot

    def _has_work(self) -> bool:
        return bool(self._lot.steps) or self._lot.written.is_waited_for
