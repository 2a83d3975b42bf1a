"""The shop's SQLite database: customers, products, purchases, refunds, and notes to customers. All money is in euro cents.

Each payment is one transaction. The tables reject a second refund of a purchase and a balance below zero. The callers choose the
connection for their thread.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager
from typing import Any

TABLES = """
users (user_id INTEGER PRIMARY KEY, name TEXT NOT NULL, email TEXT, phone TEXT, balance INTEGER CHECK (balance >= 0));
products (product_id INTEGER PRIMARY KEY, name TEXT NOT NULL, price INTEGER CHECK (price > 0));
purchases (purchase_id INTEGER PRIMARY KEY, user_id REFERENCES users, product_id REFERENCES products, amount INTEGER);
refunds (purchase_id INTEGER PRIMARY KEY REFERENCES purchases, amount INTEGER);
notes (note_id INTEGER PRIMARY KEY, address TEXT NOT NULL, text TEXT NOT NULL)
"""
USERS = [(1, "Ada", "ada@example.com", "555-0101", 2000), (2, "Bo", "bo@example.com", None, 500)]
PRODUCTS = [(7, "straw hat", 1999), (8, "wool socks", 1250), (9, "walking shoes", 8900)]
PURCHASES = [(1, 1, 8, 1250), (2, 1, 9, 8900), (3, 2, 7, 1999)]


class RefusedError(Exception):
    """The shop refuses. The text has the reason, in words for the customer."""


@contextmanager
def connect(path: str) -> Generator[sqlite3.Connection]:
    """Open a connection inside the block. Only the same thread may use this connection, because SQLite requires it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:  # `transaction` starts the transactions
        connection.execute("PRAGMA foreign_keys = ON")
        yield connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Generator[None]:
    """Commit the whole block, or roll it back. `IMMEDIATE`: a second transaction waits until the first transaction ends."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.commit()
    except BaseException:
        connection.rollback()
        raise


def create(connection: sqlite3.Connection) -> None:
    """Make the tables and fill them, unless they exist."""
    with transaction(connection):
        if connection.execute("SELECT 1 FROM sqlite_master").fetchone():
            return
        for table in TABLES.split(";"):
            connection.execute(f"CREATE TABLE {table}")
        connection.executemany("INSERT INTO users VALUES (?, ?, ?, ?, ?)", USERS)
        connection.executemany("INSERT INTO products VALUES (?, ?, ?)", PRODUCTS)
        connection.executemany("INSERT INTO purchases VALUES (?, ?, ?, ?)", PURCHASES)


# --- look-ups ---


def products(connection: sqlite3.Connection) -> list[dict[str, Any]]:
    """Return the products for sale: product_id, name, price."""
    return _rows(connection, "SELECT product_id, name, price FROM products ORDER BY product_id")


def purchases(connection: sqlite3.Connection, user_id: int) -> list[dict[str, Any]]:
    """Return the purchases of the customer: purchase_id, name, amount, refunded."""
    return _rows(
        connection,
        "SELECT purchase_id, name, purchases.amount, refunds.amount IS NOT NULL AS refunded"
        " FROM purchases JOIN products USING (product_id) LEFT JOIN refunds USING (purchase_id)"
        " WHERE user_id = ? ORDER BY purchase_id",
        user_id,
    )


def user(connection: sqlite3.Connection, user_id: int) -> dict[str, Any]:
    """Return the customer: user_id, name, email, phone, balance. Raises RefusedError for an unknown customer."""
    rows = _rows(connection, "SELECT * FROM users WHERE user_id = ?", user_id)
    if not rows:
        raise RefusedError(f"there is no customer {user_id}")
    return rows[0]


def notes(connection: sqlite3.Connection) -> list[dict[str, Any]]:
    """Return the notes to customers, oldest first: note_id, address, text."""
    return _rows(connection, "SELECT * FROM notes ORDER BY note_id")


def _rows(connection: sqlite3.Connection, query: str, *values: object) -> list[dict[str, Any]]:
    cursor = connection.execute(query, values)
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor]


# --- payments ---


def refund(connection: sqlite3.Connection, user_id: int, purchase_id: int) -> int:
    """Refund a purchase once, and return the amount.

    Raises RefusedError if the purchase is another customer's, or already refunded.
    """
    with transaction(connection):
        own = [row for row in purchases(connection, user_id) if row["purchase_id"] == purchase_id]
        if not own:
            raise RefusedError(f"this customer has no purchase {purchase_id}")
        if own[0]["refunded"]:
            raise RefusedError(f"purchase {purchase_id} is already refunded")
        amount: int = own[0]["amount"]
        connection.execute("INSERT INTO refunds VALUES (?, ?)", (purchase_id, amount))
        connection.execute("UPDATE users SET balance = balance + ? WHERE user_id = ?", (amount, user_id))
    return amount


def order(connection: sqlite3.Connection, user_id: int, product_id: int) -> dict[str, Any]:
    """Sell a product, and return purchase_id, name, amount. Raises RefusedError if it does not exist, or is too expensive."""
    with transaction(connection):
        rows = [row for row in products(connection) if row["product_id"] == product_id]
        if not rows:
            raise RefusedError(f"there is no product {product_id}")
        name, price, balance = rows[0]["name"], rows[0]["price"], user(connection, user_id)["balance"]
        if balance < price:
            raise RefusedError(f"the balance of {balance} cents is not enough for {price} cents")
        connection.execute("UPDATE users SET balance = balance - ? WHERE user_id = ?", (price, user_id))
        made = connection.execute(
            "INSERT INTO purchases (user_id, product_id, amount) VALUES (?, ?, ?)", (user_id, product_id, price)
        )
    return {"purchase_id": made.lastrowid, "name": name, "amount": price}


# --- notes ---


def send_note(connection: sqlite3.Connection, user_id: int, method: str, text: str) -> str:
    """Save a note for sending, and return the address. Raises RefusedError if the customer has no such address."""
    address: str | None = user(connection, user_id)[method]
    if address is None:
        raise RefusedError(f"the customer has left no {method}")
    connection.execute("INSERT INTO notes (address, text) VALUES (?, ?)", (address, text))
    return address
