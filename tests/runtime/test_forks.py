"""What becomes of clients, connections and the shared event loop in a fork, as far as one process can show it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Coroutine
from typing import Any

import pytest
from blocking import do

from aswarm._blocking.caller import in_callers_thread
from aswarm._blocking.event_loop import SharedLoop
from aswarm._runtime.forks import PerProcess, _cut, _cut_inherited, cut_in_forks


async def answer() -> str:
    return "answer"


def test_one_value_for_each_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork makes its own, and is told of the parent's, which it keeps."""
    inherited: list[object] = []
    values = PerProcess(object, inherited.append)
    first = values.get()
    assert values.get() is first
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    assert values.get() is not first
    assert inherited == [first]
    assert values.pop() is not first
    assert values.pop() is None
    monkeypatch.setattr(os, "getpid", lambda: parent + 2)
    assert values.get() is not None
    assert inherited == [first]


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        return ours, listener.accept()[0]


def test_cutting_connections() -> None:
    """A copy of a connection that is cut looks ended, to this process only: the original goes on."""
    ours, server = connected()
    inherited = ours.dup()  # what a fork would have
    closed = socket.socket()
    closed.close()
    with ours, server, inherited:
        _cut([inherited, closed])
        assert inherited.recv(1) == b""
        ours.sendall(b"still here")
        assert server.recv(10) == b"still here"
        _cut([closed])


def test_cutting_what_a_fork_inherits() -> None:
    """Connections of blocking clients are cut in any fork at once."""
    ours, server = connected()
    inherited = ours.dup()
    with ours, server, inherited:
        cut_in_forks(inherited)
        _cut_inherited()
        assert inherited.recv(1) == b""


def test_a_loop_in_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not used there, its connections are cut, and at the end it is closed as it is."""
    ours, server = connected()
    loop, unused = SharedLoop(), SharedLoop()

    async def connect() -> asyncio.Transport:
        running = asyncio.get_running_loop()
        return (await running.create_connection(asyncio.Protocol, sock=ours))[0]

    async def end() -> None:
        transport.abort()
        await asyncio.sleep(0)

    transport = do(loop, connect)
    with monkeypatch.context() as child:
        parent = os.getpid()
        child.setattr(os, "getpid", lambda: parent + 1)
        assert not loop.is_usable
        loop.leave(_never)
        with pytest.raises(RuntimeError, match="not to its fork"):
            do(loop, answer)
        loop.abandon()
        with socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno())) as inherited:
            assert inherited.recv(1) == b""
        unused.close()
        assert unused._loop.is_closed()
    do(loop, end)
    loop.close()
    server.close()


@pytest.mark.parametrize("raises", [False, True])
def test_a_function_that_forks(raises: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the child, what it raises leaves at once; the run is the parent's and does not go on here."""

    def fork() -> None:
        parent = os.getpid()
        child.setattr(os, "getpid", lambda: parent + 1)
        if raises:
            raise SystemExit(4)

    async def work() -> None:
        await in_callers_thread(fork)

    loop = SharedLoop()
    with monkeypatch.context() as child, pytest.raises(SystemExit if raises else RuntimeError):
        do(loop, work)
    loop.close()


def _never() -> Coroutine[Any, Any, None]:
    raise AssertionError("begun in a fork")
