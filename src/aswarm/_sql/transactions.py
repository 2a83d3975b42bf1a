"""Transactions as generators of statements, which SQLite and PostgreSQL both run.

    def rename(old: str, new: str) -> Transaction[bool]:
        rows = yield "UPDATE thing SET name = ? WHERE name = ?", (new, old)
        return rows[0][0] == 1

`yield` returns the rows of a query, and for any other statement one row with the number of changed rows. A statement has `?`
for each parameter. A transaction may run twice: the connection may be lost before the database confirms the commit, and
another transaction in the same commit may fail. So each transaction must have the same result the second time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")
Statement: TypeAlias = tuple[str | Callable[[Any], object], Sequence[object]]
"""A statement and its parameters; or a function that gets the driver's connection, for a library that writes in our
transaction.
"""
Transaction: TypeAlias = Generator[Statement, Any, T]


@dataclass(frozen=True, slots=True)
class Schema:
    """The tables of one kind of database.

    `application`: the application id of a SQLite file. `format`: the version of the tables. `kind`: the kind of the file for
    error messages, such as "a store". `tables`: CREATE statements, with {text}, {number}, {blob} and {big} for the types
    that differ between databases.
    """

    application: int
    format: int
    kind: str
    tables: tuple[str, ...]


def single(statement: str, *parameters: object) -> Transaction[Any]:
    """Run one statement as a transaction. Returns its rows."""
    return (yield statement, parameters)


def marks(values: Sequence[object]) -> str:
    """Return the placeholders of a list of values, for `IN (...)`. An empty list gives NULL, which is equal to nothing."""
    return ", ".join("?" * len(values)) or "NULL"


def chunks(values: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield parts of a list, because the number of parameters of a statement is limited."""
    for start in range(0, len(values), size):
        yield values[start : start + size]
