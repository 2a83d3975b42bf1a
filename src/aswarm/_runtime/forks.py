"""What a fork must not share with its parent: clients, event loops, and connections that both would write to.

Decides what becomes of it in the child; nothing here is ever done to the parent.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Generic, TypeVar
from weakref import WeakSet

T = TypeVar("T")

_connections: WeakSet[socket.socket] = WeakSet()


def cut_in_forks(connection: socket.socket) -> None:
    """Have this connection, which a client may keep for its next request, cut in every fork of this process."""
    _connections.add(connection)


def _cut_inherited() -> None:
    with suppress(OSError):  # nothing is gained by failing in somebody's fork
        _cut(_connections)


def _cut(connections: Iterable[Any]) -> None:
    """Cut these sockets for this process only: they then look as if the server had closed them.

    A client's pool does not use such a connection again, and closing it tells the server nothing.
    """
    descriptors = [descriptor for connection in connections if (descriptor := connection.fileno()) >= 0]
    if not descriptors:
        return
    # No socketpair: who asks it for its peer would be told none.
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as ended:
        listener.accept()[0].close()
        for descriptor in descriptors:
            os.dup2(ended.fileno(), descriptor, inheritable=False)


if hasattr(os, "register_at_fork"):  # pragma: no branch - not on Windows
    os.register_at_fork(after_in_child=_cut_inherited)


class ForkedLoop(asyncio.SelectorEventLoop):
    """An event loop for processes that may fork: it knows the connections that were made on it."""

    def __init__(self) -> None:
        # Both processes would share the kernel's table behind an epoll; `poll` has none.
        super().__init__(selectors.PollSelector())
        self._connections: WeakSet[asyncio.Transport] = WeakSet()

    async def create_connection(self, *args: Any, **options: Any) -> Any:
        """As of any event loop."""
        made = await super().create_connection(*args, **options)
        self._connections.add(made[0])
        return made

    def cut(self) -> None:
        """Cut the connections, in the child."""
        _cut(transport.get_extra_info("socket") for transport in self._connections)

    def hang_up(self) -> None:
        """Close the connections, at the end: those that a client keeps for its next request are left by now."""
        for transport in tuple(self._connections):
            transport.abort()


class PerProcess(Generic[T]):
    """One value for each process, made on first use there.

    In a fork, `inherit` is called with the value of the parent, which is then kept: nothing of it is closed.
    """

    def __init__(self, make: Callable[[], T], inherit: Callable[[T], object] = lambda _: None) -> None:
        self._inherited: list[T] = []
        self._make = make
        self._inherit = inherit
        self._process = os.getpid()
        self._value: T | None = None
        self._lock = threading.Lock()

    def get(self) -> T:
        """The value of this process."""
        with self._lock:
            value = self._own()
            if value is None:
                value = self._value = self._make()
            return value

    def pop(self) -> T | None:
        """Forget and return the value of this process, or None where there is none."""
        with self._lock:
            value, self._value = self._own(), None
            return value

    def _own(self) -> T | None:
        if self._process != os.getpid():
            inherited, self._value, self._process = self._value, None, os.getpid()
            if inherited is not None:
                self._inherited.append(inherited)
                self._inherit(inherited)
        return self._value
