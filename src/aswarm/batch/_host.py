"""Protocols of the parts that a swarm gives to a batch: the rate limits, and a function that runs an item."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias

from aswarm._values.agent import Response
from aswarm.extensions import Middleware

# Makes the options of one run from the arguments of `AsyncSwarm.run`, and checks them. A batch does not look into them.
MakeOptions: TypeAlias = Callable[..., Any]
# Runs one conversation to its end: its options, the recorder of a journal or None, and the retries.
RunToEnd: TypeAlias = Callable[[Any, Any, Middleware | None], Awaitable[Response]]


class ConcurrencyLimit(Protocol):
    """A limit for the items in memory, which may change."""

    @property
    def limit(self) -> int:
        """The limit now."""
        ...

    def watch(self, running: Callable[[], int], grown: Callable[[], object], /) -> None:
        """Set two callbacks. `running`: returns the number of runs. `grown`: called when the limit grows, in any thread."""
        ...


class LimitsOfSwarm(Protocol):
    """The rate limits of the swarm. `window`: the seconds in which an earlier request counts."""

    has_limits: bool
    window: float

    def in_use(self) -> AbstractContextManager[None]:
        """During the block, pause all requests after a rejection, even without limits."""
        ...

    def adaptive(self) -> AbstractContextManager[ConcurrencyLimit]:
        """Do the same, and yield a limit that adapts to the results of the requests."""
        ...

    def count_earlier(self, requests: Iterable[tuple[float, int]], /) -> None:
        """Count requests of an earlier process, by their age in seconds and their tokens."""
        ...
