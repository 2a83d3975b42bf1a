"""The locks that show which processes are alive."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from aswarm import ConfigurationError
from aswarm._sql.liveness import FileLocks, Liveness, PostgresLocks


@pytest.fixture(params=["sqlite", "postgres"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Liveness, Liveness]]:
    """The locks of two processes."""
    if request.param == "sqlite":
        locks: list[Liveness] = [FileLocks(f"{tmp_path}/runs.db") for _ in range(2)]
    else:
        locks = [PostgresLocks(request.getfixturevalue("postgres")) for _ in range(2)]
    yield locks[0], locks[1]
    for each in locks:
        each.close()


def test_the_lock_of_a_live_process(pair: tuple[Liveness, Liveness]) -> None:
    """No process can take it, not even its own."""
    one, two = pair
    one.hold("one")
    two.hold("two")
    assert one.is_held
    assert one.check()
    assert not two.take("one")
    assert not one.take("one")


def test_the_lock_of_a_dead_process(pair: tuple[Liveness, Liveness]) -> None:
    """One process takes it, and it is free again after `drop`."""
    one, two = pair
    one.hold("one")
    two.hold("two")
    assert two.take("dead")
    assert not one.take("dead")
    two.drop("dead")
    assert one.take("dead")


def test_a_closed_lock_is_free(pair: tuple[Liveness, Liveness]) -> None:
    """A process that stops releases its lock."""
    one, two = pair
    one.hold("one")
    two.hold("two")
    one.close()
    assert not one.is_held
    assert two.take("one")


def test_a_check_after_closing_takes_no_lock(pair: tuple[Liveness, Liveness]) -> None:
    """A thread that still looks after runs while the process stops must not make it look alive again."""
    one, two = pair
    one.hold("one")
    two.hold("two")
    one.close()
    assert not one.check()
    assert not one.is_held
    assert two.take("one")


def test_two_processes_with_one_name(pair: tuple[Liveness, Liveness], monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one is refused."""
    monkeypatch.setattr("aswarm._sql.liveness._ACQUIRE_SECONDS", 0.05)
    one, two = pair
    one.hold("one")
    with pytest.raises(ConfigurationError, match="executor id 'one'"):
        two.hold("one")


@pytest.mark.processes
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the test forks")
def test_a_forked_child_does_not_keep_a_locked_file(tmp_path: Path) -> None:
    """The lock is free as soon as the parent has none, even while the child lives."""
    one, two = (FileLocks(f"{tmp_path}/runs.db") for _ in range(2))
    one.hold("one")
    is_ready, ready = os.pipe()
    if (child := os.fork()) == 0:
        os.write(ready, b"!")
        signal.pause()
    try:
        os.read(is_ready, 1)
        assert not two.take("one")
        os.close(one._files.pop("one"))  # as the operating system does when the parent dies
        assert two.take("one")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(is_ready)
        os.close(ready)
        two.close()


@pytest.mark.processes
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the test forks")
def test_a_forked_child_does_not_keep_a_session(postgres: str) -> None:
    """The child has nothing in the place of the socket, and the session of the parent goes on."""
    locks = PostgresLocks(postgres)
    locks.hold("parent")
    if (child := os.fork()) == 0:
        has_nothing = os.path.samestat(os.fstat(locks._connection.fileno()), Path(os.devnull).stat())
        os._exit(0 if has_nothing and not locks.is_held else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert locks.check()
    assert locks.is_held
    locks.close()


def test_a_file_with_two_paths_has_the_same_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a symbolic link and by a relative path, also after a change of the working directory."""
    (tmp_path / "link.db").symlink_to(tmp_path / "runs.db")
    monkeypatch.chdir(tmp_path)
    locks = [FileLocks(path) for path in ("runs.db", "link.db", f"{tmp_path}/runs.db")]
    monkeypatch.chdir("/")
    for name, each in zip("abc", locks, strict=True):
        each.hold(name)
    assert [each.take(name) for each in locks for name in "abc"] == [False] * 9
    for each in locks:
        each.close()


def test_files_of_dead_processes(tmp_path: Path) -> None:
    """The next process removes them, and leaves other files and live processes alone."""
    live, dead, own = tmp_path / "runs.db-live.lock", tmp_path / "runs.db-dead.lock", tmp_path / "runs.db-own.lock"
    other = tmp_path / "other.db-x.lock"
    locks = [FileLocks(f"{tmp_path}/runs.db") for _ in range(2)]
    locks[0].hold("live")
    dead.touch()
    other.touch()
    locks[1].hold("own")
    assert sorted(tmp_path.iterdir()) == [other, live, own]
    for each in locks:
        each.close()
    assert list(tmp_path.iterdir()) == [other]


def _end_session(server: str, locks: PostgresLocks) -> None:
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(%s, 5000)", (locks._backend,))


def test_a_lost_session_is_replaced(postgres: str) -> None:
    """`check` notices the loss; the next one takes the lock in a new session."""
    locks = PostgresLocks(postgres)
    locks.hold("lost")
    _end_session(postgres, locks)
    assert not locks.check()
    assert not locks.is_held
    assert locks.check()
    assert locks.is_held
    locks.close()


def test_a_lost_lock_that_another_process_has_taken(postgres: str) -> None:
    """The process is without its lock until the other one drops it."""
    locks, other = PostgresLocks(postgres), PostgresLocks(postgres)
    locks.hold("lost")
    other.hold("other")
    _end_session(postgres, locks)
    assert not locks.check()
    assert other.take("lost")
    assert not locks.check()
    other.drop("lost")
    assert locks.check()
    locks.close()
    other.close()


def test_a_session_without_the_lock_is_a_loss(postgres: str) -> None:
    """A pooler may give the connection another backend, whose session does not hold the lock."""
    locks = PostgresLocks(postgres)
    locks.hold("pooled")
    locks._connection.execute("SELECT pg_advisory_unlock_all()")
    assert locks._verify() == 0
    assert locks.check()
    assert locks._verify() != 0
    locks.close()
