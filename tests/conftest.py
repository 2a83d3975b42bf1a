"""Fixtures of all tests: both backends, and a check that a test leaves nothing running."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import settings

# These modules assert for the tests, so pytest shall show the compared values.
pytest.register_assert_rewrite("tests.support")


# A shell starts background programs with SIGINT ignored, and programs that tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The tests do not use the settings of this user for PostgreSQL: libpq reads passwords, a host and a database from them.
for name in [name for name in os.environ if name.startswith("PG")]:
    del os.environ[name]
os.environ["PGPASSFILE"] = os.devnull

# No test is timed: machines are shared.
# `aswarm` and `quick` draw the same examples each time, so that a change is judged by itself; `thorough` draws new ones.
settings.register_profile("aswarm", deadline=None, max_examples=30, derandomize=True, database=None)
settings.register_profile("quick", deadline=None, max_examples=10, derandomize=True, database=None)
settings.register_profile("thorough", deadline=None, max_examples=1000)  # nox -s deep -- thorough
settings.load_profile("aswarm")


@pytest.hookimpl(tryfirst=True)  # before anyio chooses by its mark
def pytest_pycollect_makeitem(collector: pytest.Module, name: str, obj: Any) -> None:
    """Run each async test on both backends, unless it is marked `asyncio`."""
    if not name.startswith("test_"):
        return
    test = obj.hypothesis.inner_test if hasattr(obj, "hypothesis") else obj
    marks = [*collector.iter_markers("asyncio"), *getattr(obj, "pytestmark", [])]
    if inspect.iscoroutinefunction(test) and "asyncio" not in {mark.name for mark in marks}:
        pytest.mark.anyio(obj)


OTHERS = {"browser", "clients", "examples", "interoperability"}


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests with software of other projects: all start processes."""
    for item in items:
        if not OTHERS.isdisjoint(item.nodeid.split("/")):
            item.add_marker(pytest.mark.processes)


def pytest_collection_finish() -> None:
    """Keep the modules and the tests out of later collections of garbage. Otherwise each `gc.collect()` reads a million objects."""
    gc.collect()
    gc.freeze()


_path: list[Path] = []  # of the test that ran last


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Also keep the caches and reports of the earlier files of tests out of later collections."""
    if _path != [item.path]:
        _path[:] = [item.path]
        gc.collect()
        gc.freeze()


# The test that runs now, and how processes are started.
_current: list[pytest.Item] = []
_start, _fork = subprocess.Popen.__init__, getattr(os, "fork", None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    _current.append(item)
    try:
        return (yield)
    finally:
        _current.pop()


def _check_mark() -> None:
    if _current and not _current[-1].get_closest_marker("processes"):
        raise AssertionError("a test that starts a process must be marked `processes`, because it depends on the load")


def _checked_start(self: Any, *args: Any, **options: Any) -> None:
    _check_mark()
    _start(self, *args, **options)


def _checked_fork() -> int:
    _check_mark()
    assert _fork is not None
    return _fork()


subprocess.Popen.__init__ = _checked_start  # type: ignore[method-assign]
if _fork is not None:
    os.fork = _checked_fork


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Async tests run on both; tests marked `asyncio` run on pytest-asyncio's loop."""
    return request.param


@pytest_asyncio.fixture
async def nothing_left() -> AsyncIterator[list[dict[str, Any]]]:
    """Fails a test (asyncio) that leaves a task, or anything in the event loop's exception handler."""
    loop = asyncio.get_running_loop()
    reported: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: reported.append(context))
    before = asyncio.all_tasks()
    yield reported
    gc.collect()
    left: set[asyncio.Task[Any]] = set()
    for _ in range(20):
        left = asyncio.all_tasks() - before - {asyncio.current_task()}
        if not left:
            break
        await asyncio.sleep(0.01)
    assert not left, f"tasks left: {left}"
    assert not reported, f"the exception handler was called: {reported}"


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The connection string of a PostgreSQL server, which is started once in a session.

    ASWARM_TEST_POSTGRES names another server, such as postgresql://postgres@/postgres?host=/run/postgresql.
    """
    from tests.support.sql.postgres import postgres_server

    if url := os.environ.get("ASWARM_TEST_POSTGRES"):
        yield url
        return
    with ExitStack() as stack:
        test = _current.copy()
        _current.clear()  # any test may be the first one that uses the server
        server = stack.enter_context(postgres_server())
        _current.extend(test)
        yield server.uri


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current directory with no credentials; modules that are imported from it are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_ADMIN_KEY"):
        monkeypatch.delenv(name, raising=False)
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]
