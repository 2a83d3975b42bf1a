"""The order of sets of tasks and of cancel scopes. Without this module, it depends on their addresses.

asyncio and anyio keep tasks and cancel scopes in sets, and cancel them in the order of these sets.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Generator
from contextlib import contextmanager
from itertools import count
from typing import Any

from anyio._backends import _asyncio as backend  # pyright: ignore[reportPrivateUsage] - scopes have no factory


class Places:
    """Hashes for the tasks and scopes of one universe, in the order of their creation."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._numbers = count()

    def next(self) -> int:
        """Return the next hash. Hashes of integers do not depend on PYTHONHASHSEED."""
        return hash((self._seed, next(self._numbers)))


class OrderedTask(asyncio.Task[Any]):
    """A task with a hash of its own."""

    def __init__(self, coro: Any, *, loop: Any, **options: Any) -> None:
        self._place: int = loop.places.next()  # first, because asyncio adds the task to a set
        super().__init__(coro, loop=loop, **options)

    def __hash__(self) -> int:
        return self._place


class _OrderedScope(backend.CancelScope):
    """A cancel scope with a hash of its own. On other loops it is the hash of every object."""

    __slots__ = ("_place",)

    def __init__(self, *, deadline: float = math.inf, shield: bool = False) -> None:
        places: Places | None = getattr(asyncio._get_running_loop(), "places", None)  # noqa: SLF001 - None without a loop
        self._place = object.__hash__(self) if places is None else places.next()
        super().__init__(deadline=deadline, shield=shield)

    def __hash__(self) -> int:
        return self._place


@contextmanager
def ordered_scopes() -> Generator[None]:
    """Let anyio make ordered cancel scopes during the block."""
    names: Any = vars(backend)
    before = names["CancelScope"]
    names["CancelScope"] = _OrderedScope
    try:
        yield
    finally:
        names["CancelScope"] = before
