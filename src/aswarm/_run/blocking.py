"""The log of functions that block the event loop.

Each step of a function is timed: from the moment when the loop continues it until it waits again or ends. So the log names the
function exactly, without a thread that reads the frames of the loop.
"""

from __future__ import annotations

import logging
import types
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any

from aswarm._runtime import clocks

if TYPE_CHECKING:
    from .call import Call

logger = logging.getLogger("aswarm")

SECONDS = 1.0


@types.coroutine
def timed_steps(work: Coroutine[Any, Any, Any], call: Call, run_id: str) -> Generator[Any, Any, Any]:
    """Await the function of a call. If one of its steps takes a second or more, log a warning, once for each tool."""
    step: Callable[[Any], Any] = work.send
    value: Any = None
    while True:
        started = clocks.monotonic()
        try:
            waits_for = step(value)
        except StopIteration as end:
            return end.value
        finally:
            if (seconds := clocks.monotonic() - started) >= SECONDS:
                _log(call, seconds, run_id)
            step, value = work.send, None  # an exception must not refer to itself through this frame
        try:
            value = yield waits_for
        except BaseException as error:  # noqa: BLE001 - thrown into the function, which handles or raises it
            step, value = work.throw, error


def _log(call: Call, seconds: float, run_id: str) -> None:
    assert call.tool is not None  # noqa: S101 - its function runs
    if SECONDS in call.tool._logged:
        return
    call.tool._logged.add(SECONDS)
    logger.warning(
        "tool %s has blocked the event loop for %.1f s: no other run could continue; call slow work with "
        "`await anyio.to_thread.run_sync(...)`, or write a plain function (`def`), which runs in a thread",
        call.name,
        seconds,
        extra={"run_id": run_id, "agent": call.agent.name},
    )
