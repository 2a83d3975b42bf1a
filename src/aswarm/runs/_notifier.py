"""`Notifier` wakes the tasks that wait for runs: readers, callers that wait for an end, and the shutdown.

All polls for the work of other processes are here. A wake-up may be spurious. None is lost, because a task takes the event before
it checks its condition.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskGroup

from aswarm._log import runs as log
from aswarm._record.entries import Entry, now
from aswarm._runtime.backend import call_later, scheduler
from aswarm._sql.database import Database
from aswarm._sql.processes import Processes
from aswarm._values.text import NO_RUN

if TYPE_CHECKING:
    from aswarm._log.stored import RunRecord

    from ._live import LiveLog

logger = logging.getLogger("aswarm")

_TICK = 0.05  # seconds; all intervals are multiples of it
_SECOND = 20 * _TICK
_TOUCHED_SECONDS = 3.0  # a process records its readers each second; if it is late, this time covers two missing records


class News:
    """An event that is set many times. All tasks that wait for it share one timer.

    A cancel scope for each wait would double the cost of an entry for a reader.
    """

    def __init__(self) -> None:
        self._event: anyio.Event | None = None
        self._due = math.inf  # when the timer wakes the tasks; infinite without a timer
        self._stop_timer: Callable[[], object] = lambda: None

    def wake(self) -> None:
        """Wake all tasks that wait."""
        if self._event is not None:
            self._event.set()
            self._event = None

    def next(self, seconds: float = math.inf) -> anyio.Event:
        """Return an event that the next `wake` sets. After this number of seconds, it is set in any case, or earlier."""
        if seconds < math.inf and (due := anyio.current_time() + seconds) < self._due:
            self._stop_timer()
            self._due, self._stop_timer = due, call_later(seconds, self._wake_in_time)
        if self._event is None:
            self._event = anyio.Event()
        return self._event

    def _wake_in_time(self) -> None:
        self._due = math.inf
        self.wake()

    def end(self) -> None:
        """Stop the timer, and wake all tasks that wait."""
        self._stop_timer()
        self.wake()


class _Watched(News):
    """The news of a run in the log, for `readers` tasks of this process."""

    readers = 0


class _AwaitedEnd:
    """The end of a run, for `callers` tasks. `has_come`: whether the run has ended. `last`: its last entry, if known."""

    def __init__(self) -> None:
        self.callers = 0
        self.has_come = False
        self.last: Entry | None = None
        self.is_over = anyio.Event()


@dataclass
class Poll:
    """A repeated query. `needed_by`: what needs it; if all are empty, it is not repeated. `is_long`: it has its own task.

    `due`: when it is repeated.
    """

    failure: str
    every: float
    run: Callable[[], Awaitable[object]]
    needed_by: Sequence[object] = (True,)
    is_long: bool = False
    due: float = 0.0


class Notifier:
    """Wakes the tasks that wait for runs. `live`: the attempts of this process, by run id."""

    def __init__(self, database: Database, live: dict[str, LiveLog]) -> None:
        self.is_draining = False
        self._database, self._live = database, live
        self._watched: dict[str, _Watched] = {}
        self._ends: dict[str, _AwaitedEnd] = {}
        self.is_closed = False
        self._read_elsewhere = Counter[str]()  # run id of another process: the number of its readers in this process
        self._unread: dict[LiveLog, float] = {}  # when a run without readers is cancelled
        self._stopping: dict[anyio.CancelScope, float] = {}
        self._version: tuple[int, int] | None = None
        self._starts = 0
        self._wanted = anyio.Event()
        end_failure = "the ends of runs cannot be looked up; another attempt follows"
        unread_failure = "the readers of a run cannot be looked up; another attempt follows"
        self._end_poll = Poll(end_failure, _SECOND, self._look_for_ends, [self._ends])
        touch_failure = "the readers of runs cannot be recorded"
        self._touch_poll = Poll(touch_failure, _SECOND, self._touch, [self._read_elsewhere])
        self._unread_poll = Poll(unread_failure, _SECOND, self._cancel_unread, [self._unread])
        self._polls = [self._end_poll, self._touch_poll, self._unread_poll]

    # --- polling ---

    def add(self, *polls: Poll) -> None:
        """Add polls. The first of each comes after its interval."""
        for poll in polls:
            poll.due = anyio.current_time() + poll.every
            self._polls.append(poll)

    def poll_soon(self, poll: Poll | None = None, at: float = 0.0) -> None:
        """Repeat the poll at this time, or now. Without a poll, this wakes the loop, because a task waits now."""
        if poll is not None:
            poll.due = min(poll.due, at)
        self._wanted.set()

    async def poll(self, processes: Processes, group: TaskGroup) -> None:
        """Poll while tasks need it, until cancelled. `group`: executes the long polls."""
        is_shared, users = processes.is_shared, self._database.users
        failure = "the log of runs cannot be read; another attempt follows"
        look = Poll(failure, _TICK, partial(self._look, processes))
        self._polls.append(look)
        wake = partial(scheduler(), self.poll_soon)
        users.append(wake)
        for other in users:
            with suppress(RuntimeError):  # its event loop is closed
                other()
        try:
            while True:
                self._wanted, due = anyio.Event(), math.inf
                # A connection does not tell its own process about changes, so two `Runs` with one store look for them too.
                looks = is_shared or len(users) > 1
                look.needed_by = (self._live, self._watched, self._ends) if looks else ()
                for poll in self._polls.copy():
                    if not any(poll.needed_by):
                        continue
                    if poll.due <= anyio.current_time():
                        poll.due = math.inf
                        if poll.is_long:
                            group.start_soon(self._repeat, poll)
                        else:
                            await self._repeat(poll)
                    due = min(due, poll.due)
                with anyio.CancelScope(deadline=due):
                    await self._wanted.wait()
        finally:
            users.remove(wake)

    async def _repeat(self, poll: Poll) -> None:
        seconds = poll.every
        try:
            await poll.run()
        except Exception:  # each driver of a database has its own errors
            logger.exception(poll.failure, extra=NO_RUN)
            seconds = max(_SECOND, seconds)
        poll.due = min(poll.due, anyio.current_time() + seconds)  # a task may have asked for it meanwhile
        if poll.is_long:
            self._wanted.set()

    async def _look(self, processes: Processes) -> None:
        """Look for a change of the log by another process. It may be a request to cancel a run, the end of a run, or entries."""
        own_news = self._database.news if len(self._database.users) > 1 else 0
        starts, version = self._starts, (await processes.version(), own_news)
        if version == self._version:
            return
        live = dict(self._live)
        news = partial(log.cancelled_and_ended, list(live), self._ends_elsewhere())
        requests, ended = await self._database.submit(news, reads_only=True)
        for run_id, reason in requests.items():
            live[run_id].cancel(reason)
        self._version = version if starts == self._starts else None  # a run that started meanwhile may have a request
        for run_id in ended:
            self._end(run_id)
        for watched in self._watched.values():
            watched.wake()

    # --- readers of the log ---

    @contextmanager
    def watching(self, run_id: str) -> Generator[News]:
        """Return the news of a run in the log, for one task. During the block, the news of other processes arrive too."""
        watched = self._watched.setdefault(run_id, _Watched())
        watched.readers += 1
        try:
            yield watched
        finally:
            watched.readers -= 1
            if not watched.readers:
                del self._watched[run_id]
                watched.end()

    def note_start(self, live: LiveLog) -> None:
        """Add an attempt of this process. Its readers then get its live entries."""
        self._live[live.record.id] = live
        self._starts += 1
        self._wake(live.record.id)
        self.poll_soon()

    def note_end(self, live: LiveLog, last: Entry | None) -> None:
        """Remove an attempt of this process. `last`: the last entry of the run; None if other processes continue the run."""
        run_id = live.record.id
        if self._live.get(run_id) is live:
            del self._live[run_id]
        self._unread.pop(live, None)
        if last is not None:
            self._end(run_id, last)
        self._wake(run_id)

    def _wake(self, run_id: str) -> None:
        if (watched := self._watched.get(run_id)) is not None:
            watched.wake()

    # --- callers that wait for an end ---

    async def end_of(self, run_id: str) -> Entry | None:
        """Wait for the end of a run in any process. Returns its last entry, or None if another process has ended the run.

        Raises RuntimeError if the runs are closed before the end.
        """
        end = self._ends.setdefault(run_id, _AwaitedEnd())
        end.callers += 1
        self.poll_soon(self._end_poll)
        try:
            if not self.is_closed:
                await end.is_over.wait()
        finally:
            end.callers -= 1
            if not end.callers and self._ends.get(run_id) is end:
                del self._ends[run_id]
        if not end.has_come:
            raise closed_before_end(run_id)
        return end.last

    def _end(self, run_id: str, last: Entry | None = None) -> None:
        if (end := self._ends.pop(run_id, None)) is not None:
            end.has_come, end.last = True, last
            end.is_over.set()

    async def _look_for_ends(self) -> None:
        if elsewhere := self._ends_elsewhere():
            for run_id in await self._database.submit(partial(log.ended, elsewhere), reads_only=True):
                self._end(run_id)

    def _ends_elsewhere(self) -> list[str]:
        """Return the runs with callers that wait for an end which no attempt of this process will write."""
        live = self._live
        return [run_id for run_id in self._ends if run_id not in live or live[run_id].is_fenced]

    # --- runs without readers ---

    @contextmanager
    def reading(self, record: RunRecord) -> Generator[LiveLog | None]:
        """Count a reader of the run during the block. The block gets the attempt in this process, if any."""
        live = self._live.get(record.id)
        if live is None:
            with self._reading_elsewhere(record):
                yield None
            return
        live.readers += 1
        self._unread.pop(live, None)
        try:
            yield live
        finally:
            live.readers -= 1
            if not live.readers and not self.is_draining:
                self.mark_unread(live)

    @contextmanager
    def _reading_elsewhere(self, record: RunRecord) -> Generator[None]:
        if record.on_disconnect == "finish" or not record.is_running:
            yield
            return
        self._read_elsewhere[record.id] += 1
        self.poll_soon(self._touch_poll)
        try:
            yield
        finally:
            self._read_elsewhere[record.id] -= 1
            if not self._read_elsewhere[record.id]:
                del self._read_elsewhere[record.id]

    async def _touch(self) -> None:
        await self._database.run(log.touch, list(self._read_elsewhere))

    def mark_unread(self, live: LiveLog) -> None:
        """Cancel a run without readers, when the time of its `on_disconnect` is over."""
        if live.record.on_disconnect != "finish" and not live.ended.is_set():
            self._unread[live] = anyio.current_time() + _patience(live)
            self.poll_soon(self._unread_poll, self._unread[live])

    async def _cancel_unread(self) -> None:
        """Cancel the runs whose time is over, if no process has readers of them."""
        time = anyio.current_time()
        late = {live.record.id: live for live, due in self._unread.items() if due <= time}
        last_reads = await self._database.run(log.last_reads, list(late)) if late else {}
        for run_id, live in late.items():
            if live not in self._unread:
                continue
            if now() - last_reads.get(run_id, 0) > max(_patience(live), _TOUCHED_SECONDS) * 1000:
                del self._unread[live]
                live.cancel("no_reader")
            else:
                self._unread[live] = time + _SECOND
        self.poll_soon(self._unread_poll, min(self._unread.values(), default=math.inf))

    # --- shutdown ---

    def close(self) -> None:
        """Raise an error in the callers that still wait for entries or for the end of a run."""
        self.is_closed = True
        for end in self._ends.values():
            end.is_over.set()
        for watched in self._watched.values():
            watched.wake()

    def drain(self) -> None:
        """Wake all readers, and stop the scopes of `stops_scope`."""
        self.is_draining = True
        readers: Iterable[News] = (*self._watched.values(), *(live.news for live in self._live.values()))
        for news in readers:
            news.wake()
        for scope, seconds in list(self._stopping.items()):
            scope.deadline = anyio.current_time() + seconds

    @contextmanager
    def stops_scope(self, scope: anyio.CancelScope, seconds: float = 0.0) -> Generator[None]:
        """In this block, the scope gets a deadline when the process drains: this number of seconds later."""
        if self.is_draining:
            scope.deadline = anyio.current_time() + seconds
        self._stopping[scope] = seconds
        try:
            yield
        finally:
            del self._stopping[scope]


def _patience(live: LiveLog) -> float:
    policy = live.record.on_disconnect
    return policy if isinstance(policy, float | int) else 0.0


def closed_before_end(run_id: str) -> RuntimeError:
    """Return the error of a task that waits for a run whose `Runs` are closed."""
    return RuntimeError(
        f"the runs were closed before the end of the run {run_id!r}. Another process continues the run, or this process continues "
        "it when it opens the runs again"
    )
