"""Hours in milliseconds: trio's own clock that jumps to the next deadline whenever everything waits."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any

import trio
from trio.testing import MockClock


def in_virtual_time(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an async test on trio, on a clock that starts at 0."""

    @functools.wraps(test)
    def run(*args: Any, **named: Any) -> None:
        trio.run(functools.partial(test, *args, **named), clock=MockClock(autojump_threshold=0))

    return run
