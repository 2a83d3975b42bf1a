"""Virtual time: clocks that start at 0 and jump to the next deadline when everything waits; and a jump of the real clock."""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import sniffio
import trio
from trio.testing import MockClock


class _JumpingSelector(selectors.DefaultSelector):
    """A selector that adds up the time until a deadline in place of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(timeout if timeout is None else 0)
        if not ready and timeout:
            self.now += timeout
        return ready


class _JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Wait for the threads without a timeout: the clock jumps while they end, so it would be over at once (Python 3.12)."""
        await super().shutdown_default_executor()


def jump(seconds: float) -> None:
    """Move the clock of the running event loop forward, so that its timers below the new time end their waits now.

    A test of a plain function that times out calls this when the function has started. A short timeout could be over before the
    thread starts.
    """
    if sniffio.current_async_library() == "trio":
        clock: Any = trio.lowlevel.current_clock()
        object.__setattr__(clock, "offset", clock.offset + seconds)  # its class is frozen
    else:
        loop: Any = asyncio.get_running_loop()
        now = loop.time
        loop.time = lambda: now() + seconds


def virtual_backend(name: str) -> tuple[str, dict[str, Any]]:
    """Return the value of the fixture `anyio_backend` for "asyncio" or "trio" with such a clock."""
    if name == "asyncio":
        return name, {"loop_factory": _JumpingLoop}
    return name, {"clock": MockClock(autojump_threshold=0)}


def run_virtual(backend: str, test: Callable[..., Awaitable[Any]], *args: Any) -> Any:
    """Run an async function on such a clock. Before 4.10, `anyio.run` passes no options to trio."""
    if backend == "trio":
        return trio.run(test, *args, clock=MockClock(autojump_threshold=0))
    return anyio.run(test, *args, backend=backend, backend_options={"loop_factory": _JumpingLoop})


def in_virtual_time(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an async test on trio, on such a clock."""

    @functools.wraps(test)
    def run(*args: Any, **named: Any) -> None:
        trio.run(functools.partial(test, *args, **named), clock=MockClock(autojump_threshold=0))

    return run
