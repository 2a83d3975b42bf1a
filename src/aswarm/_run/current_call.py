"""The tool call that code runs in: what a function, or a middleware around it, may know and say of its own call."""

from __future__ import annotations

import functools
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from aswarm._agent import Agent
from aswarm._errors import ConfigurationError
from aswarm._events import LoopEvent, ToolProgress

from .options import RunOptions
from .plan import Decided, ToolCall
from .state import RunState

# Each call sets it in the task of its own, so that no other call sees it.
running_call: ContextVar[ToolCall | None] = ContextVar("aswarm_running_call", default=None)
running_run: ContextVar[OuterRun | None] = ContextVar("aswarm_running_run", default=None)
_UNDECIDED = Decided()


@dataclass(frozen=True, slots=True)
class OuterRun:
    """The run whose tool this code runs in, as the runs see it that the tool starts.

    `start` begins a run with the same client, limits and middleware: its state, and the events that drive it. `call_soon`
    schedules a callback in the thread of the event loop; None if no reader gets the events of tools as they come.
    """

    state: RunState
    options: RunOptions
    start: Callable[[RunOptions], tuple[RunState, AsyncGenerator[LoopEvent, None]]]
    call_soon: Callable[[Callable[[], None]], object] | None
    thread: int


class CurrentCall:
    """The call that the code runs in. `current_call()` gives it."""

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
        """An idempotency key: no other call has it, and this call has it each time that it is attempted.

        It is made of the id of the run, the turn and the position, so another attempt has it too if its run has the same id: a
        durable run, or one with `run_id=`. For the function of the call; it is empty in a middleware.
        """
        run = running_run.get()
        if run is None or not any(call is self._call for call in run.state.calls):
            return ""
        return f"{run.state.id}:{run.state.turns}:{self._call.position}"

    @property
    def agent(self) -> Agent:
        """The agent that made the call."""
        return self._call.agent

    @property
    def is_approved(self) -> bool:
        """Whether a user has decided that this call may run, or has answered what it asked."""
        return self._call.decided is not None

    @property
    def answer(self) -> Any:
        """The data of the `Answer` to what the call asked with `Hold`; None without one."""
        return (self._call.decided or _UNDECIDED).answer

    @property
    def data(self) -> Any:
        """The data of the `Hold` with which this call asked; None without one."""
        return (self._call.decided or _UNDECIDED).data


def current_call() -> CurrentCall:
    """The tool call that this code runs in: its function, what that calls, or a middleware around it.

    Raises ConfigurationError where no call runs.
    """
    call = running_call.get()
    if call is None:
        raise ConfigurationError(
            "current_call() works only while a tool call runs: in its function, or in a middleware"
        )
    return CurrentCall(call)


@dataclass(frozen=True, slots=True)
class Progress:
    """What an async generator function yields to say how far it is.

    Its last value of another type is its result. Earlier values that are not `Progress` are dropped.
    """

    value: Any


def progress(value: Any) -> None:
    """Say how far this tool call is: `stream()` yields `ToolProgress` with the value at once.

    For the function of a tool and all that it calls, in any thread that has its context variables. It does nothing where no
    call runs, where no reader gets live events, and after the call has ended. Neither the model nor the history sees it.
    """
    call, run = running_call.get(), running_run.get()
    if call is None or run is None or run.call_soon is None:
        return
    emit = functools.partial(_emit, call, value)
    if threading.get_ident() == run.thread:
        emit()
    else:
        with suppress(RuntimeError):  # the event loop is closed: the function was left
            run.call_soon(emit)


def _emit(call: ToolCall, value: Any) -> None:
    if call.emit is not None and call.outcome is None:
        call.emit(ToolProgress(call.position, call.id, call.name, value))
