"""The thread that steps the event loop for those that cannot: callers in whose thread an event loop runs already."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import SimpleQueue
from typing import Generic, TypeVar

logger = logging.getLogger("aswarm")
V = TypeVar("V")


class Portal(Generic[V]):
    """Calls `serve(visit)` for each visit that it is asked to serve, one after another, in a thread of its own."""

    def __init__(self, serve: Callable[[V], None]) -> None:
        self._serve = serve
        self._visits: SimpleQueue[V | None] = SimpleQueue()
        self._is_made = threading.Lock()  # acquired once, by whoever starts the thread
        # A daemon, for what it serves may never end; it is ended at the end of the program.
        self._thread = threading.Thread(target=self._run, name="aswarm portal", daemon=True)

    def ask(self, visits: Iterable[V]) -> None:
        """Have these served. The thread is started when it is first asked."""
        if self._is_made.acquire(blocking=False):
            with suppress(RuntimeError):  # the program is at its end, and starts no thread any more
                self._thread.start()
        for visit in visits:
            self._visits.put(visit)

    def _run(self) -> None:
        while (visit := self._visits.get()) is not None:
            try:
                self._serve(visit)
            except BaseException:
                logger.exception("a task that a function has started and left raised what ends an event loop")
                self._visits.put(visit)

    def close(self, patience: float) -> None:
        """End the thread, if it can be ended within so many seconds."""
        self._visits.put(None)
        if self._thread.is_alive():
            self._thread.join(patience)
