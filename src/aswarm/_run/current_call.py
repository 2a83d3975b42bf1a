"""The current tool call. A function of a tool, or a middleware, reads its own call here, and reports progress."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from aswarm._values.agent import Agent
from aswarm._values.decisions import CallDecision
from aswarm._values.errors import ConfigurationError
from aswarm._values.events import LoopEvent, ToolProgress

from .call import Call
from .run_info import OuterRun, RunInfo

if TYPE_CHECKING:
    from .handlers import ToolHandler

# Whether a SystemExit of a function is a failed call, as in runs that a server or a worker executes for its users.
_exits_fail: ContextVar[bool] = ContextVar("aswarm_exits_fail", default=False)


def exits_fail() -> bool:
    """Return whether a SystemExit of a function is a failed call, and not the end of the program."""
    return _exits_fail.get()


@contextmanager
def failing_exits() -> Generator[None]:
    """In the block, and in the runs that functions start there, make a SystemExit of a function a failed call."""
    token = _exits_fail.set(True)
    try:
        yield
    finally:
        _exits_fail.reset(token)


@dataclass(frozen=True, slots=True)
class Running:
    """The current tool call, for code of aswarm.

    `call`: its outer call is `call.parent`.
    `run`: the run of the call, while its function runs. In a middleware before that, the run whose function has started the run
    of the call, or None: a run that a middleware starts is an inner run of that run.
    `handler`: the outermost handler of the run, for a function that makes calls of the run.
    `emit`: gets the events of the call, on the event loop.
    `may_hold`: whether each call may wait, see `run_group`.
    `recorded_start`: the recorded data of an earlier start of the code in the call; None if the code starts for the first time.
    """

    call: Call
    run: OuterRun | None
    handler: ToolHandler
    emit: Callable[[LoopEvent], None]
    may_hold: bool
    recorded_start: Mapping[str, Any] | None = None


# Each tool call runs in its own task and sets the variable there, so concurrent calls do not see each other's values.
_running: ContextVar[Running | None] = ContextVar("aswarm_running_call", default=None)
running = _running.get
set_running = _running.set


@contextmanager
def without_current_call() -> Generator[None]:
    """In the block, and in the tasks that start there, no tool call is current.

    For a task that a call starts and that lives longer than the call, such as a connection. A run in such a task is no inner
    run of the call.
    """
    token = _running.set(None)
    try:
        yield
    finally:
        _running.reset(token)


def enter_function(run: OuterRun | None) -> None:
    """Set the run of the current call, because its function starts."""
    if (now := running()) is not None:
        set_running(Running(now.call, run, now.handler, now.emit, now.may_hold, now.recorded_start))


def restart_code(recorded: Mapping[str, Any] | None) -> None:
    """Set the recorded start of the code in the current call, which runs again over its recorded calls."""
    now = running()
    assert now is not None  # noqa: S101 - the recorder is called for a call that runs
    set_running(replace(now, recorded_start=recorded))


class CurrentCall:
    """The current tool call. `current_call()` returns it."""

    __slots__ = ("_call", "_run")

    def __init__(self, now: Running) -> None:
        self._call = now.call
        self._run = now.run

    @property
    def index(self) -> int:
        """The position of the call in its assistant message."""
        return self._call.index

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
        """The arguments as JSON text, including the changes that a user or a middleware has made."""
        return self._call.arguments

    @property
    def key(self) -> str:
        """An idempotency key: unique to this call, and the same if a run with the same id repeats the call.

        The key consists of the id of the run, the turn and the position. A durable run, and a run with a `run_id=`, has the
        same id in each attempt. Only the function of the call gets the key; in a middleware the key is empty.
        """
        if (run := self._own_run) is None:
            return ""
        outer = self._call.parent or self._call
        inside = "" if outer is self._call else f".{self._call.index}"
        return f"{run.state.id}:{run.state.turns}:{outer.index}{inside}"

    @property
    def run(self) -> RunInfo:
        """The run of the call, for the function of the call. A middleware has it as `handlers.run`.

        A run that the function starts with `run.start` belongs to the call. Raises ConfigurationError outside of the function.
        """
        if (run := self._own_run) is None:
            raise ConfigurationError(
                "current_call().run works only in the function of the call; a middleware has handlers.run"
            )
        return RunInfo(run, self._call)

    @property
    def _own_run(self) -> OuterRun | None:
        """The run of the call; None outside of its function, where `Running.run` may be a run around it."""
        run, outer = self._run, self._call.parent or self._call
        if run is None or not any(call is outer for call in (*run.state.turn.calls, *run.state.eager_calls)):
            return None
        return run

    @property
    def agent(self) -> Agent:
        """The agent that made the call."""
        return self._call.agent

    @property
    def decision(self) -> CallDecision | None:
        """The decisions of users that let the call run, or None."""
        return self._call.decision

    @property
    def is_approved(self) -> bool:
        """Whether a user has approved this call, or has answered its question."""
        return self._call.is_approved

    @property
    def answer(self) -> Any:
        """The data of the `Reply` to the `Hold` of this call, or None."""
        return self._call.answer

    @property
    def data(self) -> Any:
        """The data of the `Hold` that this call raised before the user decided, or None."""
        return self._call.data


def current_call() -> CurrentCall:
    """Return the tool call that this code runs in.

    Call it in the function of a tool, in code that this function calls, or in a middleware around the call. Raises
    ConfigurationError if no tool call runs.
    """
    if (now := running()) is None:
        raise ConfigurationError(
            "current_call() works only while a tool call runs: in its function, or in a middleware"
        )
    return CurrentCall(now)


@dataclass(frozen=True, slots=True)
class Progress:
    """A progress report, for a tool that is an async generator function: yield it.

    The result of the tool is the last value that it yields and that is not a `Progress`. Earlier such values are dropped.
    """

    value: Any


def progress(value: Any) -> None:
    """Report the progress of this tool call: `stream()` yields `ToolProgress` with the value at once.

    Call it in the function of a tool or in code below it, or in a thread that has the contextvars of the call. It does
    nothing outside of a call, after the end of the call, or if no reader gets live events. The model does not get the value,
    and the history does not contain it.
    """
    if (now := running()) is None or (run := now.run) is None or run.call_soon is None:
        return
    emit = functools.partial(_emit, now, value)
    if threading.get_ident() == run.thread:
        emit()
    else:
        with suppress(RuntimeError):  # the event loop is closed, and this thread belongs to an abandoned function
            run.call_soon(emit)


def _emit(now: Running, value: Any) -> None:
    call = now.call
    if call.outcome is None:
        now.emit(ToolProgress(call.index, call.id, call.name, value))
