"""Execution of a group: the calls of a turn that run together, as `plan` decides."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import anyio

from aswarm._values.errors import Hold, UndeclaredHold
from aswarm._values.events import Emit

from .call import Call
from .current_call import Running, running, set_running
from .execution import ToolCaller, announcement, finished_event
from .handlers import ToolHandler
from .resuming import wait


async def run_group(
    calls: Sequence[Call], context: dict[str, Any], handler: ToolHandler, emit: Emit, *, may_hold: bool
) -> None:
    """Execute the calls of one group together.

    `may_hold`: whether each call may wait, because a middleware declares it, or because the calls run one after another.

    If a handler raises, cancel the other calls, wait for their end, and raise the exception unchanged. But if a call waits and
    nothing declares it, run the other calls to their end first.
    """
    # A single handoff runs without a task. A task would take steps of the event loop. During these steps the connection of
    # the run is idle, and httpx checks all idle connections of the pool at each request, with one system call for each:
    # https://github.com/encode/httpcore/pull/928
    if not (len(calls) == 1 and isinstance(handler, ToolCaller) and handler.hand_off(calls[0], emit)):
        await _run_in_tasks(calls, context, handler, emit, may_hold)


async def _run_in_tasks(
    calls: Sequence[Call], context: dict[str, Any], handler: ToolHandler, emit: Emit, may_hold: bool
) -> None:
    failures: list[tuple[int, BaseException]] = []  # with the positions of their calls
    # A function runs in a run of its own; a middleware stays in the run around it, see `Running`.
    outer_run = None if (now := running()) is None else now.run

    async def run_one(call: Call) -> None:
        set_running(Running(call, outer_run, handler, emit, may_hold))
        try:
            if call.hold is not None:  # the user has not yet decided on this call
                raise call.hold
            outcome = call.outcome or await handler(call, context, functools.partial(_started, call, emit))
            call.finish(outcome)
        except Hold as hold:
            if (fault := wait(call, hold, emit, may_hold=may_hold)) is not None:
                _fail(failures, call, fault, group.cancel_scope)
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:  # noqa: BLE001 - raised again below, outside the group
            _fail(failures, call, error, group.cancel_scope)
        else:
            emit(finished_event(call, outcome))

    async with anyio.create_task_group() as group:
        for call in calls:
            group.start_soon(run_one, call)
    if failures:
        raise _taken_from(failures)


def _fail(
    failures: list[tuple[int, BaseException]], call: Call, error: BaseException, scope: anyio.CancelScope
) -> None:
    """Keep the error of a call, and cancel the other calls of its group. After an undeclared Hold, they continue to run."""
    failures.append((call.index, error))
    if not isinstance(error, UndeclaredHold):
        scope.cancel()


def _taken_from(failures: list[tuple[int, BaseException]]) -> BaseException:
    """Remove the failures of a group, and return the failure that the run ends with.

    An error that cancelled the other calls comes first, because later errors may be results of the cancellation. Without such an
    error, it is the undeclared Hold of the first call.
    """
    fatal = [error for _, error in failures if not isinstance(error, UndeclaredHold)]
    error = fatal[0] if fatal else min(failures, key=operator.itemgetter(0))[1]
    failures.clear()  # otherwise the traceback of the error would refer to the error: a reference cycle
    return error


async def _started(call: Call, emit: Emit) -> None:
    emit(announcement(call))
