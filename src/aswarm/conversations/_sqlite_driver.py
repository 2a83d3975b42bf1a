"""Transactions on a connection of SQLite. Every call blocks."""

from __future__ import annotations

import sqlite3
from typing import Any, TypeVar

from ._statements import FORMAT, TABLES, Transaction

T = TypeVar("T")


def make_tables(connection: sqlite3.Connection) -> None:
    """Make the tables in an empty database. The caller has begun a transaction."""
    for statement in TABLES.format(text="TEXT").split(";"):
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {FORMAT}")


def step_through(connection: sqlite3.Connection, transaction: Transaction[T]) -> T:
    """Run the statements of a transaction, which the caller has begun. Raises what it raises, and sqlite3.Error."""
    rows: Any = None
    try:
        while True:
            statement, parameters = transaction.send(rows)
            cursor = connection.execute(statement.replace(" FOR UPDATE", ""), parameters)
            rows = [(cursor.rowcount,)] if cursor.description is None else cursor.fetchall()
    except StopIteration as done:
        value: T = done.value
        return value
    finally:
        transaction.close()
