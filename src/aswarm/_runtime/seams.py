"""The threads and the locks of this process, which a simulation replaces together with `clocks`.

Callers read these names from this module at each call (`seams.run_sync(...)`). So a program without a simulation has no
additional stack frame.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from io import FileIO
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeAlias
from weakref import WeakSet

import anyio.to_thread

from . import clocks

Steps: TypeAlias = Generator[float, None, None]
"""The work of a thread. It yields the seconds until its next step. `math.inf` means: wait for the next `wake`."""

run_sync = anyio.to_thread.run_sync


def start_thread(steps: Steps, name: str) -> Callable[[], None]:
    """Start a daemon thread for the steps. Returns the function `wake`, which starts the next step at once."""
    wakes = SimpleQueue[None]()  # not an Event, because `put` and `get` are C functions

    def work() -> None:
        for seconds in steps:
            with suppress(Empty):
                wakes.get(timeout=min(seconds, threading.TIMEOUT_MAX))

    threading.Thread(target=work, name=name, daemon=True).start()
    return partial(wakes.put, None)


# --- locks ------------------------------------------------------------------------------------------------------------


class Locks(Protocol):
    """An object with locks of the operating system."""

    def abandon(self) -> None:
        """Close the files and sockets of the locks in a process that does not own the locks."""
        ...


held: WeakSet[FileIO | Locks] = WeakSet()
"""The locks of this process. Without `abandon` in a forked child, the operating system would keep them until the child ends."""


def abandon(locks: FileIO | Locks) -> None:
    if isinstance(locks, FileIO):
        locks.close()
    else:
        locks.abandon()


def _abandon_in_child() -> None:
    for locks in list(held):
        abandon(locks)


if hasattr(os, "register_at_fork"):  # pragma: no branch - not on Windows
    os.register_at_fork(after_in_child=_abandon_in_child)


# --- the simulation ---------------------------------------------------------------------------------------------------


@contextmanager
def replaced(threads: Mapping[str, Any], of_clocks: Mapping[str, Any]) -> Generator[None]:
    """During the block, replace names of this module and of `clocks`, for all event loops of this process."""
    names_of_clocks: Any = vars(clocks)
    modules = ((globals(), threads), (names_of_clocks, of_clocks))
    before = [(module, {name: module[name] for name in names}) for module, names in modules]
    for module, names in modules:
        module.update(names)
    try:
        yield
    finally:
        for module, names in before:
            module.update(names)
