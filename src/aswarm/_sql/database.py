"""`Database`: runs transactions in one thread, in order, many in one commit.

A commit takes as long as fifty statements. So while the thread writes, the next transactions are collected for one commit. A
transaction that no task waits for may also be delayed, so that it shares a later commit.
"""

from __future__ import annotations

import operator
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, ParamSpec, Protocol, TypeVar

import anyio

from aswarm._runtime import clocks, seams
from aswarm._runtime.backend import scheduler
from aswarm._runtime.seams import Steps
from aswarm._values.errors import ConfigurationError, StoreError

from .transactions import PendingTransaction, ThreadEvent, Transaction

P = ParamSpec("P")
T = TypeVar("T")

# If the previous commit finished less than `_BUSY_SECONDS` ago, the thread collects transactions for `_GATHER_SECONDS` before
# the next commit. This delay does not matter, because a request to a model takes hundreds of times longer.
_GATHER_SECONDS = 0.001
_BUSY_SECONDS = 0.01
_TOGETHER = 200  # transactions in one commit
_FAILING_SECONDS = 10.0
_SECONDS_BETWEEN_ATTEMPTS = 0.2  # to connect


class DatabaseConnection(Protocol):
    """A connection to a database. Every method blocks. Only one thread at a time may use it.

    `is_exclusive`: whether no other process can write during a transaction that writes, so that its queries read one state.
    """

    @property
    def is_exclusive(self) -> bool: ...

    def execute(self, statement: str | Callable[[Any], object], parameters: Sequence[object], /) -> Any:
        """Execute a statement. Returns the rows of a query, or one row with the number of changed rows."""
        ...

    def begin(self, *, reads_only: bool, durable: bool) -> None: ...

    def commit(self, *, notifies: bool) -> None:
        """Commit the transaction. `notifies`: wake the listening processes."""
        ...

    def rollback(self) -> None: ...

    def is_lost(self, error: Exception) -> bool:
        """Return whether the error means a lost connection, so that the transaction may succeed after `reconnect`."""
        ...

    def reconnect(self) -> None: ...

    def failure(self, error: Exception) -> Exception:
        """Return a `StoreError` for an error of the driver, and any other error unchanged."""
        ...

    def close(self) -> None: ...


class Database(ABC):
    """Transactions of one database. `place` names it in error messages.

    `news`: changes with each commit that notifies. `users`: wakes each object of this process that waits for news, from any
    thread.
    """

    def __init__(self, place: str) -> None:
        self.place = place
        self.news = 0
        self.users: list[Callable[[], object]] = []
        self._failed_at = -float("inf")

    @property
    def is_failing(self) -> bool:
        """Whether the last write failed less than ten seconds ago. An older failure does not predict the next write."""
        return clocks.monotonic() - self._failed_at < _FAILING_SECONDS

    @abstractmethod
    async def open(self) -> None:
        """Connect. Raises the error of the connection, and RuntimeError if the database is already open."""

    @abstractmethod
    async def aclose(self) -> None:
        """Run the pending transactions and close the connection."""

    async def run(self, transaction: Callable[P, Transaction[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a transaction atomically. Return its value after the commit.

        Raises the exception of the transaction, or StoreError if the database fails. If this task is cancelled, the
        transaction may run nevertheless.
        """
        return await self.submit(partial(transaction, *args, **kwargs))

    async def submit(
        self,
        make: Callable[[], Transaction[T]],
        done: Callable[[PendingTransaction], object] | None = None,
        **flags: bool,
    ) -> T:
        """Run a transaction like `run`. `done`, `flags`: see `PendingTransaction`."""
        job = PendingTransaction(make, done, waits=True, **flags)
        self._put(job, 0.0)
        await job.event.wait()
        if job.error is not None:
            raise job.error
        value: T = job.value
        return value

    @abstractmethod
    async def read(self, make: Callable[[], Transaction[T]]) -> T:
        """Run a long query beside the other transactions. It reads the state of the last commit, and must not write."""

    def put(
        self,
        make: Callable[[], Transaction[Any]],
        done: Callable[[PendingTransaction], object],
        *,
        within: float = 0.0,
        **flags: bool,
    ) -> None:
        """Schedule a transaction. It runs before every transaction that is scheduled after it, but a snapshot may have later ones.

        `within`: the maximal delay in seconds; math.inf delays it until the next transaction. `done`, `flags`: see
        `PendingTransaction`.
        """
        self._put(PendingTransaction(make, done, **flags), within)

    @abstractmethod
    def _put(self, job: PendingTransaction, within: float) -> None:
        """Schedule the job. If a task waits for it, create its event."""

    def _finish(self, jobs: Sequence[PendingTransaction]) -> None:
        """Call `done` of each job. Then set the events of the jobs, with one callback for each event loop."""
        by_loop: dict[Callable[..., object], list[anyio.Event]] = {}
        for job in jobs:
            if not job.reads_only:
                self._failed_at = clocks.monotonic() if isinstance(job.error, StoreError) else -float("inf")
            self.news += job.notifies
            if job.done is not None:
                job.done(job)
            if job.waits:
                by_loop.setdefault(job.call_soon, []).append(job.event)
        for call_soon, events in by_loop.items():
            with suppress(RuntimeError):  # the loop is closed, so no task waits
                call_soon(events[0].set) if len(events) == 1 else call_soon(_set_all, events)


class ThreadedDatabase(Database):
    """A database with a connection in a thread, from `open` to `aclose`. Tasks of any event loop may use it.

    `connect`: opens the connection; `open` raises its exceptions. `connect_for_reads`: opens a second connection, with a thread
    of its own, at the first `read`. Without it, `read` is a transaction like any other. `retry_seconds`: the time limit for repeating a transaction
    while the database cannot be reached.
    """

    def __init__(
        self,
        place: str,
        connect: Callable[[], DatabaseConnection],
        connect_for_reads: Callable[[], DatabaseConnection] | None = None,
        *,
        retry_seconds: float = 0.0,
    ) -> None:
        super().__init__(place)
        self._connect = connect
        self._connect_for_reads = connect_for_reads
        self._reader: ThreadedDatabase | None = None
        self._retry_seconds = retry_seconds
        self._process = 0  # the id of the process that has the database open
        self._jobs_lock = threading.Lock()  # guards `_pending` and `_due`
        self._wake: Callable[[], None]  # starts the next step of the thread
        self._pending: list[PendingTransaction] = []
        self._due = float("inf")  # the time at which the pending jobs must run
        self._busy_until = 0.0
        self._is_closing = False
        self._ended: ThreadEvent | None = None

    @property
    def is_open(self) -> bool:
        """Whether this process has the database open."""
        return self._process == os.getpid()

    # --- on the event loop ---

    async def open(self) -> None:
        if self.is_open:
            raise RuntimeError(f"{self.place} is already open; share it, or create another one")
        opened, failures = ThreadEvent(), list[Exception]()
        self._process, self._is_closing, self._reader = os.getpid(), False, None
        self._jobs_lock, self._pending, self._due = threading.Lock(), [], float("inf")
        self._wake = seams.start_thread(self._work(opened, failures), "aswarm database")
        try:
            await opened.wait()
        except BaseException:
            await opened.wait_shielded()
            await self.aclose() if not failures else None
            self._process = 0
            raise
        if failures:
            self._process = 0
            raise failures[0]

    async def aclose(self) -> None:
        if self.is_open:
            if self._reader is not None:  # first, because a connection that only reads cannot tidy up the file
                await self._reader.aclose()
            self._process, self._ended = 0, ThreadEvent()
            self._is_closing = True
            self._wake()
            await self._ended.wait_shielded()

    async def read(self, make: Callable[[], Transaction[T]]) -> T:
        reader = self if self._connect_for_reads is None else await self._open_reader(self._connect_for_reads)
        return await reader.submit(make, reads_only=True, snapshot=True)

    async def _open_reader(self, connect: Callable[[], DatabaseConnection]) -> ThreadedDatabase:
        self._check_open()
        if self._reader is None:
            reader = ThreadedDatabase(self.place, connect, retry_seconds=self._retry_seconds)
            await reader.open()
            with self._jobs_lock:  # meanwhile, another task may have opened a reader or closed the database
                if self._reader is None and self.is_open:
                    self._reader = reader
            if self._reader is not reader:
                await reader.aclose()
                self._check_open()
        assert self._reader is not None  # noqa: S101 - of the branches above
        return self._reader

    def _check_open(self) -> None:
        if not self.is_open:
            raise ConfigurationError(
                f"{self.place} is not open in this process; open it with `async with`, and again in a forked child"
            )

    def _put(self, job: PendingTransaction, within: float) -> None:
        if self._process != os.getpid():
            self._check_open()
        if job.waits:
            job.event, job.call_soon = anyio.Event(), scheduler()
        due = clocks.monotonic() + within
        with self._jobs_lock:
            self._pending.append(job)
            if due >= self._due:
                return
            self._due = due
        self._wake()

    # --- in the thread ---

    def _work(self, opened: ThreadEvent, failures: list[Exception]) -> Steps:
        try:
            connection = self._connect()
        except Exception as error:  # noqa: BLE001 - raised by `open`
            failures.append(error)
            opened.set()
            return
        opened.set()
        while True:
            while not self._is_closing and (wait := self._due - clocks.monotonic()) > 0:
                yield wait
            if not self._is_closing and clocks.monotonic() < self._busy_until:
                yield _GATHER_SECONDS  # `_put` does not wake the thread now, because `_due` has passed
            with self._jobs_lock:
                jobs, self._pending = self._pending[:_TOGETHER], self._pending[_TOGETHER:]
                self._due = 0.0 if self._pending else float("inf")
            if not jobs:  # after `aclose`
                break
            for part in (jobs,) if connection.is_exclusive else _parts(jobs):
                try:
                    run_jobs(connection, part)
                except Exception as error:  # noqa: BLE001 - raised in each waiting task
                    self._run_again(connection, part, error)
                self._finish(part)
            self._busy_until = clocks.monotonic() + _BUSY_SECONDS
        connection.close()
        assert self._ended is not None  # noqa: S101 - `aclose` has set it
        self._ended.set()

    def _run_again(self, connection: DatabaseConnection, jobs: Sequence[PendingTransaction], error: Exception) -> None:
        """Run the jobs again if the connection is lost, until `retry_seconds` are over. `error`: of the last attempt."""
        deadline = clocks.monotonic() + self._retry_seconds
        while connection.is_lost(error) and clocks.monotonic() < deadline and not self._is_closing:
            try:
                connection.reconnect()
            except StoreError as refused:  # another attempt would not help
                error = refused
                break
            except Exception:  # noqa: BLE001 - the next attempt raises it or another error
                clocks.sleep(_SECONDS_BETWEEN_ATTEMPTS)
            try:
                run_jobs(connection, jobs)
            except Exception as failure:  # noqa: BLE001 - as in `_work`
                error = failure
            else:
                return
        for job in jobs:
            job.error = connection.failure(error)


def _set_all(events: Sequence[anyio.Event]) -> None:
    for event in events:
        event.set()


def _parts(jobs: Sequence[PendingTransaction]) -> Iterable[Sequence[PendingTransaction]]:
    """Return the jobs that may share a transaction: first those that read no snapshot, then those that do.

    Otherwise the queries of a snapshot would be in a transaction that writes, where each query reads what others have committed
    until then: https://www.postgresql.org/docs/current/transaction-iso.html#XACT-READ-COMMITTED
    """
    return filter(None, ([job for job in jobs if bool(job.snapshot) is reads] for reads in (False, True)))


def run_jobs(connection: DatabaseConnection, jobs: Sequence[PendingTransaction]) -> None:
    """Run jobs in one commit. If one of them fails, run each in its own commit.

    Raises the error of the database if the connection is lost.
    """
    has_started, reads_only, snapshot, durable, notifies = False, True, False, False, False
    for job in jobs:  # not `any` and `all`, whose generators would have a frame for each job
        reads_only &= job.reads_only
        snapshot |= job.snapshot
        durable |= job.durable
        notifies |= job.notifies
    needs_begin, failure = snapshot or not reads_only, None
    try:
        for job in jobs:
            transaction, rows = job.make(), None
            try:
                while True:
                    statement, parameters = transaction.send(rows)
                    # Only the first statement is preceded by BEGIN, because a job may have no statement. Queries without a
                    # snapshot need no BEGIN.
                    if needs_begin and not has_started:
                        connection.begin(reads_only=reads_only, durable=durable)
                        has_started = True
                    rows = connection.execute(statement, parameters)
            except StopIteration as done:
                job.value, job.error = done.value, None
            finally:
                transaction.close()
        if has_started:
            connection.commit(notifies=notifies)
    except Exception as error:  # noqa: BLE001 - raised or noted below
        connection.rollback()
        failure = error
    if failure is not None:  # outside the `except`: the error of one job must not become the context of another
        _run_each(connection, jobs, failure)


def _run_each(connection: DatabaseConnection, jobs: Sequence[PendingTransaction], error: Exception) -> None:
    """Run each of these jobs in its own commit. `error`: their error when they ran together."""
    if connection.is_lost(error):
        raise error
    if len(jobs) == 1:
        jobs[0].error = connection.failure(error)
        return
    for job in jobs:
        run_jobs(connection, [job])


class MemoryDatabase(Database):
    """A database in memory, without a thread: its transactions take microseconds. Tasks of any event loop may use it."""

    def __init__(self, connection: DatabaseConnection) -> None:
        super().__init__("the database in memory")
        self._connection = connection
        self._lock = threading.Lock()
        # Python 3.13 warns about a connection that is collected without a close.
        weakref.finalize(self, connection.close)

    async def open(self) -> None:
        """Do nothing: the database is always open."""

    async def aclose(self) -> None:
        """Do nothing: the data exists as long as this object."""

    async def read(self, make: Callable[[], Transaction[T]]) -> T:
        """Run the query with a checkpoint after each statement, because it runs in the event loop."""
        transaction, rows = make(), None
        while True:
            try:
                statement, parameters = transaction.send(rows)
            except StopIteration as done:
                value: T = done.value
                return value
            try:
                with self._lock:
                    rows = self._connection.execute(statement, parameters)
            except Exception as error:  # noqa: BLE001 - of any driver
                raise self._connection.failure(error) from error.__cause__
            await anyio.lowlevel.checkpoint()

    def _put(self, job: PendingTransaction, within: float) -> None:  # noqa: ARG002 - it runs at once
        if job.waits:
            job.event, job.call_soon = anyio.Event(), operator.call
        with self._lock:
            run_jobs(self._connection, [job])
        self._finish([job])
