"""Transactions as generators of statements, which SQLite and PostgreSQL both run.

    def rename(old: str, new: str) -> Transaction[bool]:
        rows = yield "UPDATE thing SET name = ? WHERE name = ?", (new, old)
        return rows[0][0] == 1

`yield` returns the rows of a query. For any other statement, it returns one row with the number of changed rows. A statement
has `?` for each parameter. A transaction may run twice, if the connection is lost before the database confirms the commit, or
if another transaction in the same commit fails. So each transaction must have the same result the second time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")
Statement: TypeAlias = tuple[str | Callable[[Any], object], Sequence[object]]
"""A statement and its parameters. In place of the statement, a function may get the driver's connection: with this function,
a library writes in the same transaction.
"""
Transaction: TypeAlias = Generator[Statement, Any, T]


@dataclass(frozen=True, slots=True)
class Schema:
    """The tables of one kind of database.

    `application`: the application id of a SQLite file.
    `format`: the version of the tables.
    `kind`: the kind of the file for error messages, such as "a store".
    `tables`: CREATE statements. {text}, {number}, {blob} and {big} stand for the types that differ between databases.
    """

    application: int
    format: int
    kind: str
    tables: tuple[str, ...]


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
