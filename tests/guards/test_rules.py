"""Guards at every moment: left early, with any timing, many at once; and their cost, counted and not timed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aswarm import Agent, AsyncSwarm, CompletionError, Response
from aswarm.guards import Block, Blocked, Halt, Replace, Say, guard_input, guard_tool
from aswarm.testing import check_history, check_middleware
from tests.support.guards.guarded import GUARDS, WAYS, Scene, steps
from tests.support.sampling import every

BACKENDS = ["asyncio", "trio"]
GUARD = pytest.mark.parametrize("guard", GUARDS)
VERDICTS: dict[str, Any] = {"pass": None, "block": Block("no"), "say": Say("No."), "fails": ValueError("boom")}


def slow(verdict: Any) -> Callable[[Any], Any]:
    """Return a check that needs some steps of the event loop."""

    async def check(_: Any) -> Any:
        await steps(3)
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    return check


@pytest.mark.slow
@pytest.mark.parametrize(("guard", "backend"), every(4, GUARDS, BACKENDS))
@pytest.mark.parametrize("is_async", [True, pytest.param(False, marks=pytest.mark.heavy)])
def test_a_guard_may_be_left_at_any_moment(guard: str, is_async: bool, backend: str) -> None:
    """`check_middleware` finds nothing, with plain and async checks."""
    check_middleware(GUARDS[guard](slow(None) if is_async else lambda _: None), backends=[backend])


# --- left at each step of the event loop ------------------------------------------------------------------------------


class Tracked(Scene):
    """A scene that counts the checks that are running."""

    checking = 0

    def check(self, verdict: Any = None, count: float = 3) -> Callable[[Any], Any]:
        inner = super().check(verdict, count)

        async def check(checked: Any) -> Any:
            self.checking += 1
            try:
                return await inner(checked)
            finally:
                self.checking -= 1

        return check


async def left_after(count: int, scene: Tracked, middleware: Any, way: str) -> bool:
    """Return whether the run was left after so many steps; False if it was over."""
    is_over = False

    async def read() -> None:
        nonlocal is_over
        with suppress(Blocked):
            await scene.run(middleware, way=way)
        is_over = True

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        await steps(count)
        was_left = not is_over
        group.cancel_scope.cancel()
    assert (scene.checking, scene.open_streams) == (0, 0)
    return was_left


@GUARD
@pytest.mark.parametrize("verdict", VERDICTS)
@pytest.mark.parametrize("way", ["run", "run(stream=True)", "stream"])
async def test_a_run_is_left_after_each_step(guard: str, verdict: str, way: str) -> None:
    """No check runs and the stream is closed, immediately and at every step."""
    count = 0
    while True:
        scene = Tracked()
        middleware = GUARDS[guard](scene.check(VERDICTS[verdict]))
        if not await left_after(count, scene, middleware, way):
            break
        count += 1
    assert count > 3


# --- any timing -------------------------------------------------------------------------------------------------------


async def outcome(scene: Scene, middleware: list[Any], way: str) -> tuple[Any, ...]:
    """Return the result of a run: response or error, stop, contents, and calls of the function."""
    response: Response | None
    try:
        response, kind = await scene.run(*middleware, way=way), "response"
    except Blocked as error:
        response, kind = error.response, f"blocked: {error.reason}"
    except CompletionError as error:
        response, kind = error.response, "failed"
    assert response is not None
    check_history(response.messages, allow_open=True)
    contents = [(message["role"], message["content"]) for message in response.messages]
    return kind, response.stop, contents, scene.worked


def expected(verdicts: list[Any], fails: bool) -> tuple[Any, ...]:
    """Return the result of guards of inputs, from the outside in, that take no time."""
    for verdict in verdicts:
        if isinstance(verdict, Block):
            return "blocked: no", "error", [], 0
        if isinstance(verdict, Exception):
            return "blocked: the check failed", "error", [], 0
        if isinstance(verdict, Say):
            return "response", "answer", [("assistant", "No.")], 0
    if fails:
        return "failed", "error", [], 0
    return "response", "answer", [("assistant", "Let me see."), ("tool", "worked"), ("assistant", "It is done.")], 1


COUNTS = st.sampled_from([0, 1, 2, 5, 20, 60])
LAYERS = st.lists(st.tuples(st.sampled_from([*VERDICTS.values()]), COUNTS, st.booleans()), min_size=1, max_size=3)
OF_A_CALL = st.sampled_from([None, Block("no"), Halt("no"), Say("No."), ValueError("boom")])


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@given(layers=LAYERS, before=COUNTS, between=COUNTS, fails=st.booleans(), way=st.sampled_from(WAYS))
def test_timing_decides_nothing(
    backend: str, layers: list[tuple[Any, int, bool]], before: int, between: int, fails: bool, way: str
) -> None:
    """The verdicts alone decide the outcome, and nothing is shown or runs before the last verdict."""
    scene = Tracked(before, between, CompletionError("broken") if fails else None)
    # The outermost verdict that does not pass decides; checks inside it may run without effect.
    middleware = [guard_input(scene.check(verdict, count), parallel=parallel) for verdict, count, parallel in layers]
    found = anyio.run(outcome, scene, middleware, way, backend=backend)
    assert found == expected([verdict for verdict, _, _ in layers], fails)
    assert (scene.checking, scene.open_streams) == (0, 0)
    if found[0].startswith("blocked"):
        assert scene.seen == []
    if all(verdict is None for verdict, _, _ in layers) and not fails:
        assert scene.log.index("worked") > len(layers)  # all verdicts, and the first request, came before


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@given(first=OF_A_CALL, last=OF_A_CALL, counts=st.tuples(COUNTS, COUNTS), way=st.sampled_from(WAYS))
def test_a_call_that_is_not_let_pass_does_not_run(
    backend: str, first: Any, last: Any, counts: tuple[int, int], way: str
) -> None:
    """With any verdicts and any timing, the history is valid and the result of a withheld call is not shown."""
    scene = Tracked()
    guard = guard_tool(scene.check(first, counts[0]), scene.check(last, counts[1]))
    kind, _, contents, worked = anyio.run(outcome, scene, [guard], way, backend=backend)
    assert worked == (first is None)
    decisive = last if first is None else first
    assert kind.startswith("blocked") == isinstance(decisive, Halt | ValueError)
    assert ("worked" in str(contents) + str(scene.seen)) == (first is None and last is None)
    assert scene.checking == 0


# --- many at once -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("parallel", [True, False])
async def test_a_hundred_runs_at_once_have_a_verdict_each(parallel: bool) -> None:
    """One guard, one swarm: each run is judged by its own text, and no verdict reaches another run."""
    scene = Scene(calls=())

    async def check(checked: Any) -> Any:
        number = int(checked.text)
        await steps(number % 7 * 10)
        return [None, Block(checked.text), Say(checked.text), Replace(f"{checked.text}!")][number % 4]

    swarm = AsyncSwarm(scene, middleware=[guard_input(check, parallel=parallel)])
    found: dict[int, str] = {}

    async def run(number: int) -> None:
        try:
            found[number] = (await swarm.run(Agent(), str(number))).text
        except Blocked as error:
            found[number] = f"blocked: {error.reason}"

    async with anyio.create_task_group() as group:
        for number in range(100):
            group.start_soon(run, number)
    expected = {0: "It is done.", 1: "blocked: {}", 2: "{}", 3: "It is done."}
    assert found == {number: expected[number % 4].format(number) for number in range(100)}
    assert scene.open_streams == 0


# --- the cost ---------------------------------------------------------------------------------------------------------

# Frames of aswarm that start or continue: the measured number, and a little. The request is copied once, for the check.


@pytest.mark.processes
def test_importing_aswarm_imports_no_guard() -> None:
    """A program without guards does not load them."""
    code = "import aswarm, aswarm.middleware, sys; print([name for name in sys.modules if 'guards' in name])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
