"""Opening durable runs: missing packages, and the errors that are retried. No public name shows which errors they are."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import anyio
import psycopg
import pytest

from aswarm import Agent, AsyncSwarm, ConfigurationError, StoreError
from aswarm.durable import DurableRuns
from aswarm.durable._connections import connection_pool, may_pass
from aswarm.durable._dbos import Engine
from tests.support.durable.durables import Shop, durable, refuse


@pytest.mark.asyncio
async def test_an_integrity_error_at_the_start_is_raised_at_once(
    tmp_path: Path, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a lost server and a locked file are tried again, because every other error would return."""
    monkeypatch.setattr("aswarm.durable._dbos._SECONDS_TO_OPEN", float("inf"))
    async with durable(tmp_path, [], shop) as runs:
        refuse(runs, "queues", "INSERT")
    with anyio.fail_after(60):
        with pytest.raises(StoreError, match="the disk is full"):
            async with durable(tmp_path, [], shop, concurrency=7):
                pass


@pytest.mark.asyncio
async def test_a_server_that_comes_back_is_used(tmp_path: Path, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that may pass ends nothing: the engine connects again."""
    sqlalchemy = pytest.importorskip("sqlalchemy")
    connect, errors = Engine._connect, [sqlalchemy.exc.OperationalError("", {}, OSError("connection refused"))]

    def fail_once(engine: Engine, host: object) -> None:
        if errors:
            raise errors.pop()
        connect(engine, host)

    monkeypatch.setattr(Engine, "_connect", fail_once)
    async with durable(tmp_path, ["Hello."], shop) as runs:
        assert (await (await runs.start("Boss", "Hi!")).result()).text == "Hello."
    assert not errors


def test_which_errors_at_the_start_are_tried_again(tmp_path: Path) -> None:
    """A file that is locked, and a server that is away."""
    sqlalchemy = pytest.importorskip("sqlalchemy")
    with closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None)) as one:
        one.execute("BEGIN EXCLUSIVE")
        with closing(sqlite3.connect(tmp_path / "a.db", timeout=0)) as other:
            with pytest.raises(sqlite3.OperationalError) as locked:
                other.execute("BEGIN IMMEDIATE")
            with pytest.raises(sqlite3.OperationalError) as wrong:
                other.execute("SELECT nothing")
    refused = OSError("connection refused")
    for error, passes in [
        (sqlalchemy.exc.OperationalError("", {}, locked.value), True),
        (sqlalchemy.exc.OperationalError("", {}, wrong.value), False),
        (sqlalchemy.exc.OperationalError("", {}, refused), True),
        (sqlalchemy.exc.IntegrityError("", {}, refused), False),
    ]:
        assert may_pass(error) is passes


def test_dbos_retries_after_the_loss_of_a_server() -> None:
    """DBOS recognises a lost connection by its text. An error without a code of the server counts as a lost connection too."""
    (note,) = connection_pool("postgresql://host/database", 4, "full").dialect.dispatch.handle_error
    for error, is_lost in [
        (psycopg.OperationalError("connection is bad: no such file"), True),
        (psycopg.errors.DiskFull("no space"), False),
        (psycopg.DataError("bad"), False),
    ]:
        context = SimpleNamespace(original_exception=error, is_disconnect=False)
        note(context)
        assert context.is_disconnect is is_lost


def test_trio_is_refused(tmp_path: Path, shop: Shop) -> None:
    """DBOS runs on asyncio only."""

    async def main() -> None:
        async with durable(tmp_path, [], shop, url=f"sqlite:///{tmp_path / 'runs.db'}"):
            pass

    with pytest.raises(ConfigurationError, match="asyncio only"):
        anyio.run(main, backend="trio")


@pytest.mark.parametrize(
    ("package", "url"), [("psycopg", "postgresql://x"), ("dbos", "postgresql://x"), ("dbos", "sqlite:///runs.db")]
)
def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, package: str, url: str) -> None:
    """When the object is made, without a package of the extra; the import needs none."""
    find = __import__("importlib.util").util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == package else find(name))
    with pytest.raises(ConfigurationError, match=f'need the package {package}: install the extra "durable"'):
        DurableRuns(AsyncSwarm(), agents=Agent(), store=url, version="1")


@pytest.mark.heavy
@pytest.mark.processes
def test_the_import_needs_no_package_of_the_extra() -> None:
    """In a process of its own, without dbos, SQLAlchemy and psycopg."""
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['dbos', 'sqlalchemy', 'psycopg', 'starlette']))\n"
        "import aswarm.durable; print(aswarm.durable.DurableRuns.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("DurableRuns\n", "")
