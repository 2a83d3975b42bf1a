"""`check_middleware`: stops runs in every way and at every moment, and names the rules that a middleware breaks."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import Any, TypeAlias, cast

import anyio
import anyio.lowlevel
import sniffio

from aswarm._swarm import AsyncSwarm
from aswarm._values.agent import Agent, Response, as_response
from aswarm._values.errors import AswarmError, CompletionError, ConfigurationError, error_and_causes
from aswarm._values.events import ToolCallStarted
from aswarm._values.messages import OUTCOME_UNKNOWN
from aswarm.extensions import BackgroundTask, CompletionRequest, Middleware

from ._answer import ScriptedAnswer, ScriptedCall
from ._event_loops import EventLoop, quiet, run_case
from ._history import check_history
from ._scripted_model import chunks

SCOPE = "no cancel scope, timeout or task group may be open across a `yield` (PEP 789)"
CLOSED = "leaving a run must close every generator that a handler reads: read it inside `contextlib.aclosing`"
CANCELLED = (
    "a cancellation must be passed on: catch `Exception`, not `BaseException`, or raise the caught exception again"
)
STARTED = "`started` must be awaited once, directly before the function runs; or pass it on to the inner handler"
ENDS = "leaving a run must end it soon: a handler must not wait for long in a shield or in a `finally`"
TASKS = "a task must not outlive its run"

_STEPS = 50  # after a run was stopped, everything must end within this number of steps of the event loop
_SOON = 0.2  # seconds; if the middleware waits for something, everything must end within this time
_BEFORE, _IN, _AFTER, _FUNCTION = "before the first chunk", "between chunks", "after the last chunk", "in a function"
_FIRST = ScriptedAnswer("Hi", calls=[ScriptedCall("work", "{}", "call_1")])
_LAST = ScriptedAnswer("Done.")


class _RuleBroken(Exception):  # noqa: N818 - reads as what happened
    """A middleware has broken the rule in the text."""


def check_middleware(
    middleware: Middleware, *, backends: Iterable[str] = ("asyncio", "trio"), patience: float = 5.0
) -> None:
    """Raise AssertionError if a run with this middleware cannot be stopped correctly at some moment.

    The check plays a scripted run with a tool call many times:

    - It leaves the run at each event: by `break`, an error in the body, cancellation, `aclose()` from another task, and garbage
      collection.
    - It cancels the run while the run waits for a chunk or for a function.
    - The model fails before, in and after an answer.

    The error text names each broken rule, and the first case that broke the rule. The check blocks for about a second, and may
    be called inside of an event loop. It does not detect a task that outlives its run on trio, or an `asyncio.timeout(None)`
    across a `yield`.

    Args:
        middleware: The middleware to check.
        backends: The event loops to use. Trio is skipped if it is not installed. For a middleware that uses asyncio directly,
            pass `["asyncio"]`.
        patience: The maximum of seconds for one of these runs.
    """
    broken: dict[str, list[str]] = {}
    with quiet():
        for backend in _installed(backends):
            _check_on(middleware, backend, patience, broken)
    if broken:
        lines = [_line(rule, places) for rule, places in broken.items()]
        raise AssertionError("the middleware breaks rules that keep runs safe to leave:\n" + "\n".join(lines))


def _installed(backends: Iterable[str]) -> list[str]:
    wanted = list(backends)
    if unknown := sorted({*wanted} - {"asyncio", "trio"}):
        raise ConfigurationError(
            f"backends must be a list of 'asyncio' and 'trio', not {', '.join(map(repr, unknown))}"
        )
    return [backend for backend in wanted if find_spec(backend) is not None]


def _check_on(middleware: Middleware, backend: str, patience: float, broken: dict[str, list[str]]) -> None:
    for name, new_scene, act in _cases(partial(_Scene, middleware), backend):
        try:
            error = run_case(partial(_play, new_scene, act), backend, patience)
        except TimeoutError:
            error = _RuleBroken(ENDS)
        if error is None:
            continue
        rule = _rule_of(error)
        broken.setdefault(rule, []).append(f"{name}, on {backend}")
        if rule in (ENDS, TASKS):  # each further case would also take the whole time limit
            return


def _line(rule: str, places: list[str]) -> str:
    more = f" and {len(places) - 1} more" if len(places) > 1 else ""
    return f"- {rule} (seen: {places[0]}{more})"


def _rule_of(error: BaseException) -> str:
    inner = error_and_causes(error)
    for cause in inner:
        if isinstance(cause, _RuleBroken):
            return str(cause)
    texts = [str(cause).lower() for cause in inner if isinstance(cause, RuntimeError)]
    if any("ignored generatorexit" in text for text in texts):
        return CANCELLED
    # If a task group is open across a `yield`, it wraps the GeneratorExit of its generator in an exception group.
    groups: list[BaseExceptionGroup[Any]] = [cause for cause in inner if isinstance(cause, BaseExceptionGroup)]
    has_end_in_group = any(isinstance(nested, GeneratorExit) for group in groups for nested in group.exceptions)
    if has_end_in_group or any("cancel scope" in text for text in texts):
        return SCOPE
    return f"a run must not fail because of the middleware, with {type(error).__name__}: {error}"


# --- the run ----------------------------------------------------------------------------------------------------------


@dataclass
class _Scene:
    """One scripted run: a model that streams a tool call and then an answer, and a tool.

    The model or the tool waits forever at the moment `blocks`, and fails at the moment `fails`.
    """

    middleware: Middleware
    blocks: str | None = None
    fails: str | None = None
    open_streams: int = 0
    functions_run: int = 0
    started: Counter[int] = field(default_factory=Counter[int])
    responses: list[Response] = field(default_factory=list[Response])
    is_blocked: bool = False
    reached: anyio.Event = field(default_factory=anyio.Event)  # set when the run blocks, or ends without blocking

    @property
    def swarm(self) -> AsyncSwarm:
        return AsyncSwarm(self, middleware=[self.middleware])

    @property
    def agent(self) -> Agent:
        async def work() -> str:
            self.functions_run += 1
            await self._pass(_FUNCTION)
            return "done"

        return Agent(functions=[work])

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[dict[str, Any], None]:
        is_answered = request.body["messages"][-1]["role"] == "tool"
        self.open_streams += 1
        try:
            await self._pass(_BEFORE)
            for chunk in chunks(_LAST if is_answered else _FIRST):
                yield chunk
                await self._pass(_IN)
            await self._pass(_AFTER)
        finally:
            # Await while the generator is closed, as a real source does for its connection. A handler must wait for this.
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()
            self.open_streams -= 1

    async def _pass(self, moment: str) -> None:
        await anyio.lowlevel.checkpoint()
        if moment == self.fails:
            raise CompletionError("a failure of the check", status_code=400)
        if moment == self.blocks:
            self.is_blocked = True
            self.reached.set()
            await anyio.sleep_forever()

    def check_left(self) -> None:
        """Raise `_RuleBroken` or AssertionError if the stopped run has not ended correctly."""
        if self.open_streams:
            raise _RuleBroken(CLOSED)
        if any(times > 1 for times in self.started.values()):
            raise _RuleBroken(STARTED)
        for response in self.responses:
            check_history(response.messages, allow_open=True)


# --- ways to run ------------------------------------------------------------------------------------------------------

Act: TypeAlias = Callable[[_Scene], Awaitable[object]]


async def _await_run(scene: _Scene) -> None:
    try:
        scene.responses.append(await scene.swarm.run(scene.agent, "Hi"))
    except BaseException as error:
        if (response := as_response(getattr(error, "response", None))) is not None:
            scene.responses.append(response)
        raise


async def _read_stream(scene: _Scene) -> int:
    """Read all events, and return the number of reads, including the read at the end."""
    steps = 1
    async with scene.swarm.stream(scene.agent, "Hi") as run:
        try:
            while await _step(scene, run) is not _END:
                steps += 1
        finally:
            scene.responses.append(run.response)
    return steps


_END = object()


async def _step(scene: _Scene, run: AsyncIterator[object]) -> object:
    """Read one event. Raises RuntimeError if the run leaves a scope open, because that scope is nested in the scope here."""
    event = _END
    with anyio.CancelScope():
        event = await anext(run, _END)
    if (
        sniffio.current_async_library() == "asyncio"
        and cast("EventLoop", asyncio.get_running_loop()).has_open_timeout()
    ):
        raise _RuleBroken(SCOPE)
    if isinstance(event, ToolCallStarted):
        scene.started[event.index] += 1
    return event


async def _read(scene: _Scene, run: AsyncIterator[object], events: int) -> None:
    for _ in range(events):
        await _step(scene, run)


# --- ways to leave ----------------------------------------------------------------------------------------------------


async def _leave_by_break(scene: _Scene, events: int) -> None:
    async with scene.swarm.stream(scene.agent, "Hi") as run:
        await _read(scene, run, events)
    scene.responses.append(run.response)


class _Left(Exception):  # noqa: N818 - reads as what happened
    """An error that the body of a block raises."""


async def _leave_by_error(scene: _Scene, events: int) -> None:
    run = scene.swarm.stream(scene.agent, "Hi")
    with suppress(_Left):
        async with run:
            await _read(scene, run, events)
            raise _Left
    scene.responses.append(run.response)


async def _leave_from_another_task(scene: _Scene, events: int) -> None:
    run = scene.swarm.run(scene.agent, "Hi", stream=True)
    await _read(scene, run, events)
    await BackgroundTask(run.aclose).result()
    scene.responses.append(run.response)


async def _leave_by_cancellation(scene: _Scene, events: int) -> None:
    with anyio.CancelScope() as scope:
        async with scene.swarm.stream(scene.agent, "Hi") as run:
            await _read(scene, run, events)
            scope.cancel()
            await anyio.lowlevel.checkpoint()


async def _leave_by_dropping(scene: _Scene, events: int) -> None:
    await _read(scene, scene.swarm.run(scene.agent, "Hi", stream=True), events)
    # Another task of the event loop closes the dropped stream, so wait for it.
    await _becomes_true(lambda: scene.open_streams == 0)


LEAVING: dict[str, Callable[..., Awaitable[None]]] = {
    "left by break": _leave_by_break,
    "left by an error in the body": _leave_by_error,
    "cancelled": _leave_by_cancellation,
    "closed from another task": _leave_from_another_task,
    "dropped": _leave_by_dropping,
}


async def _cancel_waiting(scene: _Scene, read: Act) -> None:
    scope = anyio.CancelScope()

    async def work() -> None:
        with scope, suppress(Exception):
            await read(scene)
        scene.reached.set()

    async with anyio.create_task_group() as group:
        group.start_soon(work)
        await scene.reached.wait()
        scope.cancel()
    _check_cancelled(scene, was_cancelled=scope.cancelled_caught)


async def _cancel_waiting_task(scene: _Scene, read: Act) -> None:
    """Cancel the run by a plain `task.cancel()` of asyncio. Unlike a cancel scope, it raises the cancellation only once."""
    task = asyncio.ensure_future(read(scene))
    task.add_done_callback(lambda _: scene.reached.set())  # the run may end without blocking
    await scene.reached.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    _check_cancelled(scene, was_cancelled=task.cancelled())


def _check_cancelled(scene: _Scene, *, was_cancelled: bool) -> None:
    if not scene.is_blocked:  # the middleware has answered instead of the model or the function
        return
    messages = scene.responses[-1].messages
    answers = [message["content"] for message in messages if message["role"] == "tool"]
    is_recorded = scene.blocks != _FUNCTION or all(answer == OUTCOME_UNKNOWN for answer in answers)
    if not (was_cancelled and is_recorded):
        raise _RuleBroken(CANCELLED)


# --- the matrix -------------------------------------------------------------------------------------------------------


def _cases(scene: Callable[..., _Scene], backend: str) -> Iterator[tuple[str, Callable[[], _Scene], Act]]:
    """Yield every case: its name, its scene, and the function that plays it."""
    # The first case measures the number of events, because a middleware may add or remove events.
    length: list[int] = []
    yield "read to its end", scene, partial(_read_all, length=length)
    for events in range(1, (length or [1])[0]):
        for name, leave in LEAVING.items():
            yield f"{name} at event {events}", scene, partial(leave, events=events)
    for moment in (_BEFORE, _IN, _FUNCTION):
        for read in (_await_run, _read_stream):
            yield f"cancelled {moment}", partial(scene, blocks=moment), partial(_cancel_waiting, read=read)
            if backend == "asyncio":
                yield f"cancelled {moment}", partial(scene, blocks=moment), partial(_cancel_waiting_task, read=read)
    for moment in (_BEFORE, _IN, _AFTER):
        for read in (_await_run, _read_stream):
            yield f"an error {moment}", partial(scene, fails=moment), partial(_fail, read=read)


async def _read_all(scene: _Scene, length: list[int]) -> None:
    length.append(await _read_stream(scene))
    if scene.functions_run > sum(scene.started.values()):
        raise _RuleBroken(STARTED)


async def _fail(scene: _Scene, read: Act) -> None:
    with suppress(AswarmError):
        await read(scene)
    await anyio.lowlevel.checkpoint()


async def _play(new_scene: Callable[[], _Scene], act: Act) -> None:
    """Run a case. Raises `_RuleBroken`, or another error if the run fails in another way."""
    scene = new_scene()
    await act(scene)
    scene.check_left()
    if sniffio.current_async_library() == "asyncio":
        has_ended = await _becomes_true(lambda: not asyncio.all_tasks() - {asyncio.current_task()})
        if not has_ended:
            raise _RuleBroken(TASKS)


async def _becomes_true(condition: Callable[[], bool]) -> bool:
    """Wait until the condition is true: at most `_STEPS` steps of the event loop, and then `_SOON` seconds."""
    for _ in range(_STEPS):
        if condition():
            return True
        await anyio.lowlevel.checkpoint()
    deadline = anyio.current_time() + _SOON
    while not condition() and anyio.current_time() < deadline:  # noqa: ASYNC110 - no event reports the condition
        await anyio.sleep(0.001)
    return condition()
