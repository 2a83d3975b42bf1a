"""One step of a snippet in a worker: from its start, or from the results of its calls, until it is blocked or ends.

A step holds a worker only while it executes code. It returns the paused snippet as bytes, which stay in this process: bytes
from another place are never loaded.

`CodeLimits` has the limits of one snippet.
"""

from __future__ import annotations

import atexit
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, TypeAlias, cast

import anyio
import anyio.lowlevel
from pydantic_monty import (
    FunctionSnapshot,
    FutureSnapshot,
    Monty,
    MontyComplete,
    MontyCrashedError,
    MontySession,
    MontyTypingError,
    NameLookupSnapshot,
    ResourceLimits,
)

from aswarm._runtime import seams
from aswarm._runtime.backend import PerLoop, PerProcess
from aswarm._values.errors import ConfigurationError
from aswarm._values.json import shown

from ._stubs import CALL, Stubs, arguments_text, cut

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeLimits:
    """The limits of one snippet. Code that reaches a limit stops, and the model reads the reason.

    Args:
        seconds: Seconds of execution, without the time of its calls.
        memory_bytes: Memory for the values of the code.
        calls: The number of tool calls.
        output_characters: The length of the result; more characters are cut off.
        recursion: The depth of nested function calls.

    Raises:
        ConfigurationError: For a limit that is not a positive number.
    """

    seconds: float = 5.0
    memory_bytes: int = 64 * _MIB
    calls: int = 500
    output_characters: int = 20_000
    recursion: int = 200

    def __post_init__(self) -> None:
        for name in (limit.name for limit in fields(self)):
            value: object = getattr(self, name)
            kinds = (int, float) if name == "seconds" else (int,)
            if type(value) not in kinds or not 0 < value < float("inf"):  # type: ignore[operator]
                raise ConfigurationError(f"CodeLimits({name}=...) must be a positive number, not {shown(value, 80)}")


# Seconds that a step waits for a worker, if other event loops use all of them.
_PATIENCE = 60.0
_COUNT = os.cpu_count() or 1


def _make() -> Monty:
    pool = Monty(max_processes=_COUNT, checkout_timeout=_PATIENCE)
    pool.__enter__()
    process = os.getpid()

    def close() -> None:
        if os.getpid() == process:  # a forked child inherits the callback, but not the workers
            pool.__exit__(None, None, None)

    atexit.register(close)
    return pool


_pools = PerProcess(_make)
_used: list[int] = []  # the process that has made a pool first, and its forked children inherit the list
# The threads that drive the workers; a thread would only wait for a worker if there were more.
threads = PerLoop(lambda: anyio.CapacityLimiter(_COUNT))


def workers() -> Monty:
    """Return the pool of this process. Raises ConfigurationError in a forked child of a process that has a pool."""
    process = os.getpid()
    if not _used:
        _used.append(process)
    if _used[0] != process:
        raise ConfigurationError(
            "this process was forked from a process that had run code already, and the sandbox does not work after a fork; "
            "start such processes with the method 'spawn' or 'forkserver', or run no code before the fork"
        )
    return _pools.get()


def kill(pid: int) -> None:
    """Kill a worker that executes a step. The pool replaces it."""
    with suppress(OSError):
        os.kill(pid, getattr(signal, "SIGKILL", signal.SIGTERM))


SCRIPT = "code.py"
# The names of the inputs of a session: the prelude is the first, and the code is the second.
_PRELUDE, _CODE = "<python-input-0>", "<python-input-1>"
_FRAME_OF_PRELUDE = re.compile(rf'  File "{_PRELUDE}".*\n(?:    .*\n)*')
_LONGEST_ARGUMENTS = 1_000_000
_Snapshot: TypeAlias = FunctionSnapshot | NameLookupSnapshot | FutureSnapshot | MontyComplete


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The surroundings of the code. They are fixed, so that the code can be replayed."""

    clock: str
    timezone: str
    seed: str


@dataclass(frozen=True, slots=True)
class MadeCall:
    """A call that the code has started. `id`: its number in the sandbox."""

    id: int
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Paused:
    """The code waits for results. `state`: the paused snippet. `made`: the calls of this step. `waits_for`: ids of calls."""

    state: bytes
    made: list[MadeCall]
    waits_for: list[int]


@dataclass(frozen=True, slots=True)
class Ended:
    """The code has finished with a value."""

    value: Any


@dataclass(frozen=True, slots=True)
class Broken:
    """The code has failed. `text`: the reason, for the model."""

    text: str


Step: TypeAlias = Paused | Ended | Broken


@dataclass(slots=True)
class Sandbox:
    """The steps of one snippet. `printed`: its output so far. `seconds`, `calls`: used so far."""

    stubs: Stubs
    limits: CodeLimits
    surroundings: Surroundings
    has_type_check: bool = True
    seconds: float = 0.0
    calls: int = 0
    _code: str = ""
    _waited_in: str = ""  # the place of the last await of the main task, as a frame of a traceback
    _pieces: list[str] = field(default_factory=list[str])
    _length: int = 0
    _pid: int | None = None
    _is_cancelled: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def printed(self) -> str:
        """The output so far. Output beyond the limit was dropped."""
        return "".join(self._pieces)

    async def start(self, code: str) -> Step:
        """Check the types of the code, and execute its first step."""
        self._code = code
        return await self._in_thread(lambda session: self._start(session, code))

    async def resume(self, state: bytes, results: Mapping[int, Any]) -> Step:
        """Give the results to the paused code, and execute its next step."""
        return await self._in_thread(lambda session: self._resume(session, state, results))

    async def _in_thread(self, work: Callable[[MontySession], Step]) -> Step:
        """Run a step in a thread. A cancellation kills its worker, so that the thread ends at once."""
        self._pid, self._is_cancelled = None, False
        step: Step = Broken("cancelled")
        async with anyio.create_task_group() as group:
            group.start_soon(self._watch)
            step = await seams.run_sync(self._in_worker, work, limiter=threads.get())
            group.cancel_scope.cancel()
        # The group has ended with its own cancellation, so another one, which has killed the worker, is not raised yet.
        await anyio.lowlevel.checkpoint_if_cancelled()
        return step

    async def _watch(self) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with self._lock:  # a worker that has finished the step may belong to another snippet already
                self._is_cancelled = True
                if self._pid is not None:
                    kill(self._pid)

    def _in_worker(self, work: Callable[[MontySession], Step]) -> Step:
        try:
            with self._session() as session:
                with self._lock:
                    self._pid = session.worker_pid
                started = time.monotonic()
                try:
                    return Broken("cancelled") if self._is_cancelled else work(session)
                finally:
                    self.seconds += time.monotonic() - started
                    with self._lock:
                        self._pid = None
        except Exception as error:  # noqa: BLE001 - whatever the code has done, the model reads a text
            return Broken(cut(self._text_of(error), self.limits.output_characters))

    def _session(self) -> MontySession:
        fixed = self.surroundings
        return workers().checkout(
            script_name=SCRIPT,
            limits=_limits_of(self.limits),
            type_check=self.has_type_check,
            type_check_stubs=self.stubs.checked,
            type_check_format="concise",
            os_policy={
                "datetime": datetime.fromisoformat(fixed.clock),
                "timezone": fixed.timezone,
                "sleep": "zero",
                "process_time": "zero",
                "random_start": {"seed": fixed.seed},
            },
        )

    def _start(self, session: MontySession, code: str) -> Step:
        session.feed_run(self.stubs.prelude, skip_type_check=True)
        return self._drive(session.feed_start(code, print_callback=self._print))

    def _resume(self, session: MontySession, state: bytes, results: Mapping[int, Any]) -> Step:
        paused = session.load_snapshot(state, print_callback=self._print)
        assert isinstance(paused, FutureSnapshot)  # noqa: S101 - `_drive` has paused it
        return self._drive(paused.resume(dict(results)))

    def _drive(self, snapshot: _Snapshot) -> Step:
        made: list[MadeCall] = []
        started = time.monotonic()
        while not isinstance(snapshot, MontyComplete):
            if self.seconds + time.monotonic() - started > self.limits.seconds:
                return Broken(f"the code was stopped after {self.limits.seconds:g} seconds")
            if isinstance(snapshot, FutureSnapshot):
                if snapshot.position.filename == _CODE:
                    line = self._code.encode()[: snapshot.position.start].count(b"\n") + 1
                    self._waited_in = f'  File "{SCRIPT}", line {line}\n'
                return Paused(snapshot.dump(), made, sorted(snapshot.pending_call_ids))
            if isinstance(snapshot, NameLookupSnapshot):
                snapshot = snapshot.resume()  # the code gets a NameError
            elif snapshot.is_os_function:
                snapshot = snapshot.resume_not_handled()
            else:
                self.calls += 1
                if self.calls > self.limits.calls:
                    return Broken(f"the code was stopped, because it made more than {self.limits.calls} calls")
                snapshot = self._add(snapshot, made)
        return Ended(snapshot.output)

    def _add(self, snapshot: FunctionSnapshot, made: list[MadeCall]) -> _Snapshot:
        """Add the call. A call without a JSON form raises in the code."""
        arguments = snapshot.args[1] if len(snapshot.args) == 2 else None  # noqa: PLR2004
        if snapshot.function_name != CALL or not isinstance(arguments, dict):
            return _refused(snapshot, f"{snapshot.function_name} cannot be called")
        if (name := str(snapshot.args[0])) not in self.stubs.names:
            return _refused(snapshot, f"{name} is no function of the code")
        try:
            text = arguments_text(cast("dict[str, Any]", arguments))
        except (ValueError, TypeError) as error:
            return _refused(snapshot, f"the arguments of {name} cannot be JSON: {error}")
        if len(text) > _LONGEST_ARGUMENTS:
            return _refused(snapshot, f"the arguments of {name} have {len(text)} characters")
        made.append(MadeCall(snapshot.call_id, name, text))
        return snapshot.resume({"future": ...})

    def _print(self, _: str, text: str) -> None:
        if self._length <= self.limits.output_characters:
            self._pieces.append(text)
        self._length += len(text)

    def _text_of(self, error: Exception) -> str:
        if isinstance(error, MontyTypingError):
            return f"The code was not run, because its types are wrong:\n{error.display().strip()}"
        if isinstance(error, MontyCrashedError):
            return "the process of the code crashed, or used too much memory or time"
        display = getattr(error, "display", None)
        text = str(display()) if callable(display) else f"{type(error).__name__}: {error}"
        text = _FRAME_OF_PRELUDE.sub("", text).replace(_CODE, SCRIPT)
        head, line, rest = text.partition("Traceback (most recent call last):\n")
        if line and not rest.startswith("  File"):  # the error of a gathered call has no frame of the code
            frame = self._waited_in or f'  File "{SCRIPT}"\n'
            text = f"{head}{line}{frame}{rest}"
        return text.strip()


def _refused(snapshot: FunctionSnapshot, text: str) -> _Snapshot:
    return snapshot.resume({"exc_type": "TypeError", "message": text})


def _limits_of(limits: CodeLimits) -> ResourceLimits:
    return {
        "max_feed_duration_secs": limits.seconds,
        "max_memory": limits.memory_bytes,
        "max_recursion_depth": limits.recursion,
        # Also names and files that the code asks for in vain.
        "max_suspensions": 2 * limits.calls + 1000,
    }
