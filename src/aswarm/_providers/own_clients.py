"""The clients that a swarm creates itself, and the time in which it may use them: from the first use or block to the last end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from aswarm._runtime.backend import PerLoop, PerProcess
from aswarm._values.errors import ConfigurationError


class OwnClients:
    """One client for each event loop, because a connection works only on the loop that opened it; or one for the process.

    `scope`: returns the event loop, or an object for the process. `closed`: the error text of a closed swarm.
    """

    def __init__(self, clients: PerLoop[Any] | PerProcess[Any], scope: Callable[[], object], closed: str) -> None:
        self._clients = clients
        self._scope = scope
        self._text = closed
        self._lock = threading.Lock()
        self._blocks: WeakKeyDictionary[object, int] = WeakKeyDictionary()  # the number of open `with` blocks
        self._closed: WeakSet[object] = WeakSet()
        self.find = clients.find

    def get(self) -> Any:
        """Return the client, and create it if needed. Raises ConfigurationError if the swarm is closed."""
        if self._closed and self._scope() in self._closed:
            raise ConfigurationError(self._text)
        return self._clients.get()

    def enter(self, check: Callable[[], object]) -> None:
        """Start a block. `check` raises if there is no client."""
        scope = self._scope()
        self._closed.discard(scope)
        check()
        with self._lock:
            self._blocks[scope] = self._blocks.get(scope, 0) + 1

    def exit(self) -> bool:
        """End a block, and return whether it was the last one.

        `close` does not change the number: a block that was entered before it must not close the client of a later block.
        """
        with self._lock:
            self._blocks[self._scope()] -= 1
            return not self._blocks[self._scope()]

    def close(self) -> Any:
        """Close the swarm. Return its client, which the caller closes, or None."""
        self._closed.add(self._scope())
        return self._clients.pop()
