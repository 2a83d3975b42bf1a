"""`examples/personal_shopper`: its money, and its database under threads."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from aswarm import Agent, AsyncSwarm, tool
from aswarm.testing import ScriptedModel, call
from tests.examples.loading import load
from tests.examples.transcripts import run_offline

database = load("personal_shopper", "database")
agents = load("personal_shopper", "agents")
ADA, BO = 1, 2
SOCKS, SHOES, HAT_OF_BO = 1, 2, 3


@pytest.fixture
def path(tmp_path: Path) -> str:
    """The path of a file with the shop."""
    file = str(tmp_path / "shop.db")
    with database.connect(file) as connection:
        database.create(connection)
    return file


@pytest.fixture
def shop(path: str) -> Iterator[sqlite3.Connection]:
    """A connection to the shop."""
    with database.connect(path) as connection:
        yield connection


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


# --- the money --------------------------------------------------------------------------------------------------------


def test_a_purchase_is_refunded_once(shop: sqlite3.Connection) -> None:
    """A second refund is refused, and moves no money."""
    assert database.refund(shop, ADA, SOCKS) == 1250
    with pytest.raises(database.RefusedError, match="purchase 1 is already refunded"):
        database.refund(shop, ADA, SOCKS)
    assert database.user(shop, ADA)["balance"] == 3250
    assert money(shop) == 14649


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        (lambda shop: database.refund(shop, ADA, HAT_OF_BO), "this customer has no purchase 3"),
        (lambda shop: database.refund(shop, 99, SOCKS), "this customer has no purchase 1"),
        (lambda shop: database.order(shop, ADA, 99), "there is no product 99"),
        (lambda shop: database.order(shop, 99, 7), "there is no customer 99"),
        (lambda shop: database.order(shop, BO, 7), "the balance of 500 cents is not enough for 1999 cents"),
        (lambda shop: database.send_note(shop, BO, "phone", "Hello"), "the customer has left no phone"),
    ],
)
def test_a_refused_movement_changes_nothing(
    shop: sqlite3.Connection, refused: Callable[[sqlite3.Connection], object], reason: str
) -> None:
    """A refused movement changes neither money nor notes, and leaves no transaction open."""
    before = list(shop.iterdump())
    with pytest.raises(database.RefusedError, match=reason):
        refused(shop)
    assert not shop.in_transaction
    assert list(shop.iterdump()) == before


@pytest.mark.parametrize(
    ("movement", "broken"),
    [
        (lambda shop: database.refund(shop, ADA, SOCKS), "INSERT ON refunds"),
        (lambda shop: database.refund(shop, ADA, SOCKS), "UPDATE ON users"),
        (lambda shop: database.order(shop, ADA, 7), "UPDATE ON users"),
        (lambda shop: database.order(shop, ADA, 7), "INSERT ON purchases"),
    ],
)
def test_a_movement_that_breaks_in_the_middle_is_undone(
    shop: sqlite3.Connection, movement: Callable[[sqlite3.Connection], object], broken: str
) -> None:
    """Whichever of its statements fails, money is neither made nor lost."""
    shop.execute(f"CREATE TRIGGER broken BEFORE {broken} BEGIN SELECT RAISE(ABORT, 'the disk is full'); END")
    with pytest.raises(sqlite3.IntegrityError, match="the disk is full"):
        movement(shop)
    assert not shop.in_transaction
    assert money(shop) == 14649


def test_the_tables_refuse_a_second_refund_too(shop: sqlite3.Connection) -> None:
    """The constraints of the database refuse a second refund and a negative balance."""
    database.refund(shop, ADA, SOCKS)
    with pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):
        shop.execute("INSERT INTO refunds VALUES (?, ?)", (SOCKS, 1250))
    with pytest.raises(sqlite3.IntegrityError, match="CHECK"):
        shop.execute("UPDATE users SET balance = -1")


def test_making_the_tables_again_changes_nothing(shop: sqlite3.Connection) -> None:
    """Creating the tables again keeps the balances."""
    database.refund(shop, ADA, SOCKS)
    database.create(shop)
    assert database.user(shop, ADA)["balance"] == 3250


# --- many at once -----------------------------------------------------------------------------------------------------


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


@pytest.mark.asyncio
async def test_one_of_many_runs_makes_the_refund(path: str) -> None:
    """Of ten concurrent runs on one event loop, one makes the refund."""
    model = ScriptedModel(
        lambda request: (
            call("refund_purchase", purchase_id=SHOES)
            if request.messages[-1]["role"] == "user"
            else request.messages[-1]["content"]
        )
    )
    swarm = AsyncSwarm(client=model.client())
    context = {"user_id": ADA, "connect": partial(database.connect, path)}
    responses = await asyncio.gather(*(swarm.run(agents.refunds, "Refund 2.", context) for _ in range(10)))
    assert sorted(response.text for response in responses) == [
        *["Not refunded: purchase 2 is already refunded."] * 9,
        "Refunded 89.00 EUR for purchase 2.",
    ]


@pytest.mark.asyncio
async def test_a_cancelled_run_has_the_refund_that_it_made(path: str) -> None:
    """A cancelled run waits for its plain function, and its history has the result."""
    model = ScriptedModel([call("refund_purchase", purchase_id=SHOES)])
    connecting = threading.Event()

    def connect() -> Any:
        connecting.set()
        return database.connect(path)

    with database.connect(path) as other:
        other.execute("BEGIN IMMEDIATE")
        run = asyncio.ensure_future(
            AsyncSwarm(client=model.client()).run(agents.refunds, "Hi", {"user_id": ADA, "connect": connect})
        )
        await asyncio.to_thread(connecting.wait, 30)
        run.cancel()
        await asyncio.sleep(0)
        assert not run.done()
        other.rollback()
    with pytest.raises(asyncio.CancelledError) as cancelled:
        await run
    response: Any = cancelled.value.response  # type: ignore[attr-defined]
    assert response.messages[-1]["content"] == "Refunded 89.00 EUR for purchase 2."
    with database.connect(path) as connection:
        assert database.user(connection, ADA)["balance"] == 2000 + 8900


# --- a connection that belongs to a thread ----------------------------------------------------------------------------


async def answer_to_model(function: Any, context: dict[str, Any]) -> str:
    """Return the answer that the model gets to a call of the function."""
    model = ScriptedModel([call("list_products"), "Thank you."])
    await AsyncSwarm(client=model.client()).run(Agent(functions=[function]), "What is there?", context)
    return model.requests[-1].messages[-1]["content"]


@pytest.mark.asyncio
async def test_a_connection_of_the_event_loop_is_refused_in_a_worker_thread(shop: sqlite3.Connection) -> None:
    """A connection of the event loop is an error in a worker thread, so `run_async.py` opens one for each call."""
    answer = await answer_to_model(agents.list_products, {"user_id": ADA, "connect": lambda: nullcontext(shop)})
    assert answer.startswith(
        "Error: ProgrammingError: SQLite objects created in a thread can only be used in that same"
    )


@pytest.mark.asyncio
async def test_a_quick_function_may_use_a_connection_on_the_event_loop(shop: sqlite3.Connection) -> None:
    """With `@tool(thread=False)` a look-up that never waits uses the connection of the event loop."""
    quick = tool(thread=False)(agents.list_products)
    answer = await answer_to_model(quick, {"user_id": ADA, "connect": lambda: nullcontext(shop)})
    assert "straw hat" in answer


@pytest.mark.asyncio
async def test_a_connection_for_each_call_works_in_any_thread(path: str) -> None:
    """A function that opens a connection for each call works in a worker thread."""
    assert "straw hat" in await answer_to_model(
        agents.list_products, {"user_id": ADA, "connect": partial(database.connect, path)}
    )
