"""What a fork must not share with its parent: clients, event loops, and connections that both would write to.

Decides what becomes of it in the child; nothing here is ever done to the parent.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Generic, TypeVar
from weakref import WeakSet

T = TypeVar("T")

_connections: WeakSet[socket.socket] = WeakSet()


def cut_in_forks(connection: socket.socket) -> None:
    """Have this connection, which a client may keep for its next request, cut in every fork of this process."""
    _connections.add(connection)


def cut(descriptors: Iterable[int]) -> None:
    """Cut these connections for this process only: they then look as if the server had closed them.

    A client's pool does not use such a connection again, and closing it tells the server nothing.
    """
    # No socketpair: who asks it for its peer would be told none.
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as ended:
        listener.accept()[0].close()
        for descriptor in descriptors:
            os.dup2(ended.fileno(), descriptor, inheritable=False)


def _cut_inherited() -> None:
    descriptors = [connection.fileno() for connection in _connections if connection.fileno() >= 0]
    if descriptors:
        with suppress(OSError):  # nothing is gained by failing in somebody's fork
            cut(descriptors)


if hasattr(os, "register_at_fork"):  # pragma: no branch - not on Windows
    os.register_at_fork(after_in_child=_cut_inherited)


class PerProcess(Generic[T]):
    """One value for each process, made on first use there.

    In a fork, `inherit` is called with the value of the parent, which is kept in `inherited`: nothing of it is closed.
    """

    def __init__(self, make: Callable[[], T], inherit: Callable[[T], object] = lambda _: None) -> None:
        self.inherited: list[T] = []
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
                self.inherited.append(inherited)
                self._inherit(inherited)
        return self._value
