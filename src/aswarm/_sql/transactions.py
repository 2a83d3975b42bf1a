"""Transactions as generators of statements, for both SQLite and PostgreSQL.

    def rename(old: str, new: str) -> Transaction[bool]:
        rows = yield "UPDATE thing SET name = ? WHERE name = ?", (new, old)
        return rows[0][0] == 1

`yield` returns the rows of a query. For any other statement, it returns one row with the number of changed rows. A statement
has `?` for each parameter. A transaction may run twice, if the connection is lost before the database confirms the commit, or
if another transaction in the same commit fails. So each transaction must have the same result the second time. A
`PendingTransaction` has the event for the task that waits for its result.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, TypeAlias, TypeVar

import anyio

from aswarm._runtime.backend import scheduler, wait_shielded
from aswarm._values.errors import ConfigurationError

T = TypeVar("T")
Statement: TypeAlias = tuple[str | Callable[[Any], object], Sequence[object]]
"""A statement and its parameters. In place of the statement, a function may get the driver's connection: with this function,
a library writes in the same transaction.
"""
Transaction: TypeAlias = Generator[Statement, Any, T]
Execute: TypeAlias = Callable[[str | Callable[[Any], object], Sequence[object]], Any]


@dataclass(frozen=True, slots=True)
class Schema:
    """The tables of one kind of database.

    `application`: the application id of a SQLite file.
    `format`: the version of the tables and of the data in them.
    `kind`: the kind of the file for error messages, such as "a store".
    `tables`: CREATE statements. {text}, {number}, {blob} and {big} stand for the types that differ between databases.
    `migrations`: the migration from each older format to the next format. Its statements may use the types of `tables`. Opening
    a database runs the migrations in the transaction that checks the format. It refuses to migrate while another process has the
    database open, because a process checks the format only when it opens the database.

    Data may change without a new format only if older versions may ignore the change: a new field of stored JSON, or a new type of
    entry. Any other change needs a new format, which older versions refuse.

    Never remove the migration of a released format, or its example in tests/sql/formats.
    """

    application: int
    format: int
    kind: str
    tables: tuple[str, ...]
    migrations: Mapping[int, Callable[[], Transaction[None]]] = field(default_factory=dict[int, Any])

    def check(self, found_format: int, place: str) -> bool:
        """Return whether tables of the format `found_format` need a migration. Raises ConfigurationError if there is no migration."""
        if found_format > self.format:
            raise ConfigurationError(
                f"{place} was written by a newer version of aswarm (its format is {found_format}, this version reads "
                f"{self.format}); upgrade aswarm, or use another place"
            )
        if missing := [step for step in range(found_format, self.format) if step not in self.migrations]:
            raise ConfigurationError(
                f"{place} was written by another version of aswarm (its format is {found_format}, this version reads "
                f"{self.format}, and has no migration from {missing[0]}); use that version, or another place"
            )
        return found_format != self.format

    def migrate(self, first_step: int, execute: Execute) -> None:
        """Bring tables of the format `first_step` to this format."""
        for step in range(first_step, self.format):
            carry_out(self.migrations[step](), execute)


def in_use(place: str, schema: Schema) -> ConfigurationError:
    """Return the error for a database that cannot be migrated now."""
    return ConfigurationError(
        f"{place} has an older format, and cannot be migrated to the format {schema.format} while another process has it open; "
        "stop all processes of the older version, and start this version again"
    )


def carry_out(transaction: Transaction[T], execute: Execute) -> T:
    """Execute the statements of a transaction one after another. Returns its value."""
    rows = None
    while True:
        try:
            statement, parameters = transaction.send(rows)
        except StopIteration as done:
            value: T = done.value
            return value
        rows = execute(statement, parameters)


def single(statement: str, *parameters: object) -> Transaction[Any]:
    """Run one statement as a transaction. Return its rows."""
    return (yield statement, parameters)


def marks(values: Sequence[object]) -> str:
    """Return the placeholders for a list of values in `IN (...)`. For an empty list, return NULL, which equals no value."""
    return ", ".join("?" * len(values)) or "NULL"


def chunks(values: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield parts of a list, because the number of parameters of a statement is limited."""
    for start in range(0, len(values), size):
        yield values[start : start + size]


# --- pending transactions ---------------------------------------------------------------------------------------------


class ThreadEvent:
    """An event that a thread sets. One task of any event loop may wait for it."""

    __slots__ = ("_call_soon", "_event", "wait")

    def __init__(self) -> None:
        self._event = anyio.Event()
        self._call_soon = scheduler()
        self.wait = self._event.wait

    def set(self) -> None:
        """Set the event, from any thread."""
        with suppress(RuntimeError):  # the loop is closed, so no task waits
            self._call_soon(self._event.set)

    async def wait_shielded(self) -> None:
        """Wait until the event is set, even if the task is cancelled."""
        await wait_shielded(self._event)


@dataclass(slots=True, eq=False)
class PendingTransaction:
    """A transaction and its result: a value or an error.

    `make`: returns the transaction for each attempt.
    `done`: called with this object in the thread of the database, after the result is set.
    `waits`: whether a task waits for `event`, which `call_soon` sets on its event loop after `done`.
    `reads_only`: whether the transaction changes nothing.
    `snapshot`: whether all its queries must read the same state.
    `durable`: whether it must survive a power failure.
    `notifies`: whether it must wake other processes.
    """

    make: Callable[[], Transaction[Any]]
    done: Callable[[PendingTransaction], object] | None = None
    waits: bool = False
    _: KW_ONLY
    reads_only: bool = False
    snapshot: bool = False
    durable: bool = False
    notifies: bool = False
    value: Any = field(default=None, init=False)
    error: Exception | None = field(default=None, init=False)
    event: anyio.Event = field(init=False)
    call_soon: Callable[..., object] = field(init=False)
