"""The current tool call: a function, or a middleware around it, reads its own call and reports progress."""

from __future__ import annotations

import functools
import threading
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from aswarm._values.agent import Agent
from aswarm._values.errors import ConfigurationError
from aswarm._values.events import LoopEvent, ToolProgress

from .options import RunOptions
from .plan import Decided, ToolCall
from .state import RunState

# Each call sets them in its own task, so no other call reads them.
running_call: ContextVar[ToolCall | None] = ContextVar("aswarm_running_call", default=None)
running_run: ContextVar[OuterRun | None] = ContextVar("aswarm_running_run", default=None)
# The outermost handler of the run, for a tool whose function makes calls of the run.
running_handler: ContextVar[Any] = ContextVar("aswarm_running_handler", default=None)
# What an earlier attempt has recorded of the start of the code in the current call; None for code that starts.
recorded_start: ContextVar[Mapping[str, Any] | None] = ContextVar("aswarm_recorded_start", default=None)
_UNDECIDED = Decided()


@dataclass(frozen=True, slots=True)
class OuterRun:
    """The run of the current tool call, for the runs that the tool starts.

    `start` starts a run with the same client, limits and middleware, and returns its state and the events that drive it.
    `call_soon` schedules a callback in the thread of the event loop; None if no reader gets live events of tools.
    """

    state: RunState
    options: RunOptions
    start: Callable[[RunOptions], tuple[RunState, AsyncGenerator[LoopEvent, None]]]
    call_soon: Callable[[Callable[[], None]], object] | None
    thread: int


class CurrentCall:
    """The tool call that this code runs in, as `current_call()` returns it."""

    __slots__ = ("_call",)

    def __init__(self, call: ToolCall) -> None:
        self._call = call

    @property
    def index(self) -> int:
        """The position of the call in its assistant message."""
        return self._call.position

    @property
    def id(self) -> str:
        """The id of the call."""
        return self._call.id

    @property
    def name(self) -> str:
        """The name that the model called."""
        return self._call.name

    @property
    def arguments(self) -> str:
        """The arguments as JSON text, with the changes of a user or a middleware."""
        return self._call.arguments

    @property
    def key(self) -> str:
        """An idempotency key: unique to this call, and the same in each attempt of a run with the same id.

        It consists of the id of the run, the turn and the position. A run keeps its id if it is durable, or has a `run_id=`.
        The key is for the function of the call; it is empty in a middleware.
        """
        run = running_run.get()
        outer = self._call.parent or self._call
        if run is None or not any(call is outer for call in (*run.state.turn.calls, *run.state.eager_calls)):
            return ""
        inside = "" if outer is self._call else f".{self._call.position}"
        return f"{run.state.id}:{run.state.turns}:{outer.position}{inside}"

    @property
    def agent(self) -> Agent:
        """The agent that made the call."""
        return self._call.agent

    @property
    def is_approved(self) -> bool:
        """Whether a user has approved this call, or has answered its question."""
        return self._call.decided is not None

    @property
    def answer(self) -> Any:
        """The data of the `Answer` to the `Hold` of this call; None without one."""
        return (self._call.decided or _UNDECIDED).answer

    @property
    def data(self) -> Any:
        """The data of the `Hold` that this call raised before the decision; None without one."""
        return (self._call.decided or _UNDECIDED).data


def current_call() -> CurrentCall:
    """Return the tool call that this code runs in, in its function, in code below it, or in a middleware around it.

    Raises ConfigurationError if no call runs.
    """
    call = running_call.get()
    if call is None:
        raise ConfigurationError(
            "current_call() works only while a tool call runs: in its function, or in a middleware"
        )
    return CurrentCall(call)


@dataclass(frozen=True, slots=True)
class Progress:
    """A progress report, which an async generator function yields.

    Its last value of another type is its result. Earlier values of other types are dropped.
    """

    value: Any


def progress(value: Any) -> None:
    """Report the progress of this tool call: `stream()` yields `ToolProgress` with the value at once.

    For the function of a tool and the code that it calls, in any thread with its contextvars. It does nothing if no call
    runs, if no reader gets live events, and after the end of the call. It is neither sent to the model nor recorded.
    """
    call, run = running_call.get(), running_run.get()
    if call is None or run is None or run.call_soon is None:
        return
    emit = functools.partial(_emit, call, value)
    if threading.get_ident() == run.thread:
        emit()
    else:
        with suppress(RuntimeError):  # the event loop is closed: the function was abandoned
            run.call_soon(emit)


def _emit(call: ToolCall, value: Any) -> None:
    if call.emit is not None and call.outcome is None:
        call.emit(ToolProgress(call.position, call.id, call.name, value))
