"""Durable runs in PostgreSQL: several processes, dead ones, and a server that cuts its connections."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import psycopg
import pytest

pytest.importorskip("dbos", reason="durable runs need dbos")

from durables import Shop, die, durable
from stores import emptied_database

from aswarm import ConfigurationError
from aswarm.durable._engine import _dbos_of_host
from aswarm.durable._log import Adopted, QueuedWork
from aswarm.durable._postgres import PostgresLeases, PostgresLog
from aswarm.serve import KeyReused, Limits, NewRun, RunLimit, RunRecord
from aswarm.serve._log import Ending, LogRow
from aswarm.testing import call

pytestmark = [pytest.mark.asyncio, pytest.mark.sampled]


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def url(postgres: str) -> str:
    return emptied_database(postgres)


async def test_a_dead_process_is_replaced(tmp_path: Path, url: str, shop: Shop) -> None:
    """Its session has ended, so its lock is free; the next process continues its runs."""
    async with durable(tmp_path, [call("count", number=1), call("slow")], shop, url=url) as runs:
        await runs.start("Boss", "Hi!", run_id="r")
        with anyio.fail_after(60):
            await shop.began.wait()
        die(runs)
    async with durable(tmp_path, ["Done."], shop, url=url) as runs:
        with anyio.fail_after(60):
            response = await (await runs.run("r")).result()
    assert [message["role"] for message in response.messages] == ["assistant", "tool"] * 2 + ["assistant"]
    assert shop.keys == {"count": ["r:1:0"], "slow": ["r:2:0"]}


async def test_a_reader_elsewhere_is_told_at_once(tmp_path: Path, url: str, shop: Shop) -> None:
    """The database notifies the other processes, so nothing is polled."""
    async with (
        durable(tmp_path, [call("slow"), "Done."], shop, url=url) as runs,
        durable(tmp_path, [], shop, url=url, concurrency=0) as client,
    ):
        await runs.start("Boss", "Hi!", run_id="r")
        found = await client.run("r")
        shop.go.set()
        with anyio.fail_after(60):
            types = [entry.type async for entry in found.events()]
        assert types[-1] == "RunFinished"
        assert (await found.result()).text == "Done."


async def test_cut_connections_are_made_again(
    tmp_path: Path, url: str, shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """All connections at once, in the middle of a run: it ends as if nothing had happened, and the lock is held again."""
    script = [call("count", number=1), call("slow"), "Done."]
    with caplog.at_level(logging.WARNING, "aswarm"):
        async with durable(tmp_path, script, shop, url=url) as runs:
            run = await runs.start("Boss", "Hi!", run_id="r")
            with anyio.fail_after(60):
                await shop.began.wait()
                cut(url)
                while "no run begins here" not in caplog.text:
                    await anyio.sleep(0.01)
                shop.go.set()
                assert (await run.result()).text == "Done."
                while not runs._leases.is_held:
                    await anyio.sleep(0.01)
                assert (await (await runs.run("r")).result()).context_variables == {"counted": [1]}
    assert shop.keys == {"count": ["r:1:0"], "slow": ["r:2:0"]}


async def test_a_server_that_is_not_there_is_waited_for(tmp_path: Path, url: str, shop: Shop) -> None:
    """DBOS tries again for errors that it takes for those of a connection; all that have no code of the server are."""
    async with durable(tmp_path, [], shop, url=url):
        (note,) = _dbos_of_host()._sys_db.engine.dialect.dispatch.handle_error
        for error, is_lost in [
            (psycopg.OperationalError("connection is bad: no such file"), True),
            (psycopg.errors.DiskFull("no space"), False),
            (psycopg.DataError("bad"), False),
        ]:
            context = SimpleNamespace(original_exception=error, is_disconnect=False)
            note(context)
            assert context.is_disconnect is is_lost


async def test_a_run_that_is_being_recorded_is_not_taken_over_by_halves(url: str) -> None:
    """Its process has lost its lock and lives. The process that takes it over waits for the transaction, and sees all of it."""
    own, other = PostgresLog(url, owner="own"), PostgresLog(url, owner="other")
    own.begin(NewRun("ann", messages=[{"role": "user", "content": "Hi!"}], run_id="r"), "r", Limits())
    found: list[Adopted] = []
    with own._writing() as execute:
        assert own._owned({"r": LogRow(0, 0, b"{}")})
        async with anyio.create_task_group() as group:

            async def adopt() -> None:
                found.extend(await anyio.to_thread.run_sync(other.adopt, "own"))

            group.start_soon(adopt)
            await anyio.sleep(0.2)
            execute("INSERT INTO aswarm_run_work VALUES (?, '1', 'Boss', 'queued', 0, 0, 0, 0, ?)", "r", b"{}")
            execute("COMMIT")
    assert [each.deaths for each in found] == [0]
    own.close()
    other.close()


def cut(url: str) -> None:
    """End all sessions of the database but this one."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'durable' AND pid <> pg_backend_pid()"
        )


async def test_tables_of_another_version_are_refused(tmp_path: Path, url: str, shop: Shop) -> None:
    """The text says which version is needed."""
    async with durable(tmp_path, [], shop, url=url, concurrency=0):
        pass
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("UPDATE aswarm_run_format SET format = 99")
        try:
            with pytest.raises(ConfigurationError, match="its format is 99"):
                async with durable(tmp_path, [], shop, url=url):
                    pass
        finally:
            connection.execute("UPDATE aswarm_run_format SET format = 1")


async def test_a_server_that_is_not_there_is_a_mistake(tmp_path: Path, shop: Shop) -> None:
    """Opening says so."""
    with pytest.raises(ConfigurationError, match="cannot be opened"):
        async with durable(tmp_path, [], shop, url=f"postgresql:///x?host={tmp_path}"):
            pass


async def test_a_log_that_cannot_be_opened_is_a_mistake(tmp_path: Path) -> None:
    """The text says why."""
    with pytest.raises(ConfigurationError, match="the log of runs cannot be in PostgreSQL"):
        PostgresLog(f"postgresql:///x?host={tmp_path}", owner="me")


async def test_a_connection_that_is_cut_in_a_transaction_is_an_error(url: str) -> None:
    """Nothing of it is done; the next transaction has a new connection."""
    log = PostgresLog(url, owner="me")
    with pytest.raises(psycopg.OperationalError), log._writing() as execute:  # noqa: PT012 - the block is the transaction
        cut(url)
        execute("SELECT 1")
    assert log.owners() == []
    log.close()


def new_run(user: str, run_id: str) -> NewRun:
    return NewRun(user, messages=[{"role": "user", "content": "Hi!"}], run_id=run_id)


async def test_an_id_that_another_user_takes_at_the_same_moment(url: str) -> None:
    """The second one is refused, as if it had come later."""
    log, other = PostgresLog(url, owner="me"), PostgresLog(url, owner="other")

    def meet(new: NewRun, limits: Limits) -> None:
        if not other.owners() and not log._rows("SELECT id FROM aswarm_run"):
            other.begin(new_run("bob", "r"), "r", limits)

    log._check_free = meet  # type: ignore[method-assign]
    with pytest.raises(KeyReused):
        log.begin(new_run("ann", "r"), "r", Limits())
    for each in (log, other):
        each.close()


@pytest.mark.parametrize("other_id", ["same", "other"])
async def test_runs_of_a_user_begin_one_after_another(url: str, other_id: str) -> None:
    """In all processes: the same run begins once, and no more runs begin than the limit allows."""
    log, other = PostgresLog(url, owner="me"), PostgresLog(url, owner="other")
    limits, checked, both = Limits(runs_per_user=1), threading.Event(), ThreadPoolExecutor(2)
    check = log._check_free

    def slow(new: NewRun, limits: Limits) -> None:
        check(new, limits)
        checked.set()
        wait([second], 0.2)  # it comes in this moment, and has to wait

    def begin_second() -> RunRecord:
        checked.wait(60)
        return other.begin(new_run("ann", other_id), other_id, limits)

    log._check_free = slow  # type: ignore[method-assign]
    second = both.submit(begin_second)
    assert both.submit(log.begin, new_run("ann", "same"), "same", limits).result(60).is_new
    if other_id == "same":
        assert not second.result(60).is_new
    else:
        with pytest.raises(RunLimit):
            second.result(60)
    for each in (both.shutdown, log.close, other.close):
        each()


class Cut:
    """In place of a connection: it is lost once, when the server has carried out a statement."""

    def __init__(self, connection: Any, at: str = "COMMIT") -> None:
        self.connection = connection
        self.at = at
        self.is_cut = False

    def execute(self, statement: str, values: Any = ()) -> Any:
        found = self.connection.execute(statement, values)
        if statement.startswith(self.at) and not self.is_cut:
            self.is_cut = True
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        return found

    def close(self) -> None:
        self.connection.close()


async def test_a_commit_whose_answer_is_lost(url: str) -> None:
    """What was written is there once, and the process that wrote it knows the run as its own."""
    log = PostgresLog(url, owner="me")

    def lose() -> None:
        log._connection = Cut(log._connection)

    lose()
    assert log.begin(new_run("ann", "r"), "r", Limits()).is_new
    lose()
    assert log.begun("r", LogRow(0, 0, b"0"), QueuedWork("1", "Boss", b"{}"), claims=True)
    lose()
    with pytest.raises(psycopg.OperationalError):
        log.append({"r": LogRow(1, 1, b"1")}, {})
    assert not log.append({"r": LogRow(1, 2, b"1\n2")}, {})
    lose()
    last, end = {"r": LogRow(3, 3, b"3")}, {"r": Ending("finished")}
    with pytest.raises(psycopg.OperationalError):
        log.append(last, end)
    assert not log.append(last, end)
    assert log.append({"r": LogRow(3, 3, b"other")}, end) == {"r"}
    assert [bytes(row.data) for row in log.entry_rows("r", -1)[0]] == [b"0", b"1\n2", b"3"]
    log.close()


async def nothing() -> None:
    """In place of what happens when a lock is held again."""


async def test_half_a_start_that_could_not_be_taken_back(url: str) -> None:
    """The next start takes it back, so that its id and its conversation are free."""
    log = PostgresLog(url, owner="me")
    log.begin(new_run("ann", "r"), "r", Limits())
    assert log.begun("r", LogRow(0, 0, b"0"), QueuedWork("1", "Boss", b"{}"), claims=True)
    log._connection = Cut(log._connection, "DELETE FROM aswarm_run_entries")
    with pytest.raises(psycopg.OperationalError):
        log.withdraw("r")
    assert log.begin(new_run("ann", "r"), "r", Limits()).is_new
    assert not log._rows("SELECT run FROM aswarm_run_entries")
    assert not log._rows("SELECT run FROM aswarm_run_work")
    log.close()


async def test_two_processes_cannot_have_one_id(url: str) -> None:
    """The second one is refused."""
    log = PostgresLog(url, owner="me")
    first, second = PostgresLeases(log, nothing), PostgresLeases(log, nothing)
    await first.hold("me")
    with pytest.raises(ConfigurationError, match="the executor id 'me'"):
        await second.hold("me")
    assert not first.take("me")
    await first.aclose()
    log.close()


async def test_a_forked_child_leaves_the_session_to_its_parent(url: str) -> None:
    """It has no socket of the parent any more; here, where no parent has it either, the session ends."""
    log, other = PostgresLog(url, owner="me"), PostgresLog(url, owner="other")
    leases = PostgresLeases(log, nothing)
    await leases.hold("me")
    assert not PostgresLeases(other, nothing).take("me")
    log.close()
    leases.leave_to_parent()
    with anyio.fail_after(60):
        while not PostgresLeases(other, nothing).take("me"):
            await anyio.sleep(0.01)
    await leases.aclose()
    other.close()
