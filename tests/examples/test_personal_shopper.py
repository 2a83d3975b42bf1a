"""`examples/personal_shopper`: its money, and its database under threads."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.examples.loading import load
from tests.examples.transcripts import run_offline

database = load("personal_shopper", "database")
ADA = 1
SHOES = 2


@pytest.fixture
def path(tmp_path: Path) -> str:
    """The path of a file with the shop."""
    file = str(tmp_path / "shop.db")
    with database.connect(file) as connection:
        database.create(connection)
    return file


def money(connection: sqlite3.Connection) -> int:
    """Return all balances and paid amounts. No order and no refund changes this sum of 14,649 cents."""
    (total,) = connection.execute(
        "SELECT (SELECT sum(balance) FROM users) + (SELECT sum(amount) FROM purchases)"
        " - (SELECT coalesce(sum(amount), 0) FROM refunds)"
    ).fetchone()
    return total


def test_a_file_keeps_the_shop(tmp_path: Path) -> None:
    """With `--database`, a refund of one run is still made in the next run."""
    file = str(tmp_path / "kept.db")
    assert run_offline("personal_shopper", "--database", file).returncode == 0
    with database.connect(file) as connection:
        database.create(connection)
        assert [row["refunded"] for row in database.purchases(connection, ADA)] == [1, 0, 0]
        assert money(connection) == 14649


def test_one_of_many_threads_makes_the_refund(path: str) -> None:
    """Of eight threads with their own connections, one makes the refund."""

    def attempt(_: int) -> str:
        with database.connect(path) as connection:
            try:
                return f"{database.refund(connection, ADA, SHOES)} cents"
            except database.RefusedError as reason:
                return str(reason)

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(attempt, range(8)))
    assert sorted(answers) == ["8900 cents", *["purchase 2 is already refunded"] * 7]
    with database.connect(path) as connection:
        assert money(connection) == 14649
