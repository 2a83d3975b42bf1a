"""Checks of every guard: the values that they may return, checks that fail, and mistakes of the program."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from aswarm import ConfigurationError, Hold
from aswarm.guards import Block, Blocked, CheckedInput, Halt, Replace, guard_input, guard_tool
from tests.support.guards.guarded import GUARDS, Scene, steps

GUARD = pytest.mark.parametrize("guard", GUARDS)
PARALLEL = pytest.mark.parametrize("parallel", [True, False])


@pytest.mark.parametrize("on_error", ["block", "pass"])
@pytest.mark.parametrize(
    ("guard", "place", "verdict"),
    [
        *(("input", "an input", each) for each in (True, False, "no", Block, Halt("no"))),
        *(("input", "an input", Replace(each)) for each in (3, [], ["x"])),
        *(("answer", "an answer", each) for each in (True, Halt("no"), Replace(["x"]))),
        *(("before a call", "a call", each) for each in (True, Replace("x"), Replace({"x": object()}))),
        *(("after a call", "a result", each) for each in (True, Hold("x"), Replace(3), Replace({"x": 1}))),
    ],
)
async def test_a_value_that_is_not_a_verdict_ends_the_run(guard: str, place: str, verdict: Any, on_error: Any) -> None:
    """The value could mean yes as well as no, so it does not pass with on_error="pass" either."""
    scene = Scene()
    with pytest.raises(ConfigurationError, match=f"a check of {place} must return None to let pass"):
        await scene.run(GUARDS[guard](lambda checked: verdict, on_error=on_error))
    assert (len(scene.asked), scene.worked) == (guard != "input", guard == "after a call")


@GUARD
async def test_a_check_that_raises_blocks(guard: str) -> None:
    """The run is blocked; the error has the error of the check as its cause."""
    scene = Scene()
    with pytest.raises(Blocked, match="the check failed: ValueError: boom") as caught:
        await scene.run(GUARDS[guard](scene.check(ValueError("boom"))), way="stream")
    assert isinstance(caught.value.__cause__, ValueError)
    assert (caught.value.reason, caught.value.check) == ("the check failed", "check")
    assert (scene.worked, scene.open_streams) == (guard == "after a call", 0)


@GUARD
async def test_a_check_that_raises_may_let_pass(guard: str, caplog: pytest.LogCaptureFixture) -> None:
    """With on_error="pass" the run continues, and the log has a warning with the id of the run."""
    scene = Scene()
    guarding = GUARDS[guard](scene.check(ValueError("boom")), on_error="pass")
    assert (await scene.run(guarding, run_id="r1")).text == "It is done."
    assert scene.worked == 1
    record = next(each for each in caplog.records if each.levelname == "WARNING")
    assert "lets the content pass: the check failed: ValueError: boom" in record.message
    assert record.run_id == "r1"  # type: ignore[attr-defined]


@GUARD
async def test_a_configuration_error_of_a_check_ends_the_run(guard: str) -> None:
    """The error is a mistake of a programmer, so it never lets the content pass."""
    with pytest.raises(ConfigurationError, match="wrong"):
        await Scene().run(GUARDS[guard](Scene().check(ConfigurationError("wrong")), on_error="pass"))


@PARALLEL
@pytest.mark.parametrize("on_error", ["block", "pass"])
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_check_that_raises_a_cancellation_blocks(parallel: bool, on_error: Any) -> None:
    """A CancelledError that the check itself raises does not let the completion pass."""
    scene = Scene()

    async def check(checked: CheckedInput) -> None:
        await steps(2)
        raise asyncio.CancelledError

    with pytest.raises(Blocked, match="cancelled, but not by its run"):
        await scene.run(guard_input(check, parallel=parallel, on_error=on_error))
    assert (scene.worked, scene.open_streams) == (0, 0)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_check_that_cancels_its_own_task_blocks() -> None:
    """The check gives no verdict, and the run, which has a task of its own, is not cancelled."""
    scene = Scene()

    async def check(checked: CheckedInput) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await steps(1)

    with pytest.raises(Blocked, match="the check gave no verdict"):
        await scene.run(guard_input(check))
    assert (scene.worked, scene.open_streams) == (0, 0)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_check_may_be_any_callable() -> None:
    """A partial, an object with `__call__`, and a function that returns a task are checks. The error has the name."""

    class Strict:
        async def __call__(self, checked: CheckedInput) -> Block:
            return Block()

    def in_a_task(checked: CheckedInput) -> Any:
        return asyncio.ensure_future(Strict()(checked))

    for check, name in ((partial(Scene().check(Block())), "check"), (Strict(), "Strict"), (in_a_task, "in_a_task")):
        scene = Scene()
        with pytest.raises(Blocked) as caught:
            await scene.run(guard_input(check))
        assert (caught.value.check, scene.worked) == (name, 0)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"check": "x"}, "must be a function, plain or async, not 'x'"),
        ({"every": "message"}, "every must be"),
        ({"agents": []}, "at least one"),
        ({"agents": [3]}, "agents or their names"),
        ({"on_error": "open"}, "on_error must be"),
    ],
)
async def test_a_mistake_is_found_when_the_guard_is_made(arguments: dict[str, Any], text: str) -> None:
    """The error names the valid values."""
    with pytest.raises(ConfigurationError, match=text):
        guard_input(**{"check": print, **arguments})
    with pytest.raises(ConfigurationError, match="needs a check"):
        guard_tool()
