"""Agents, scripts and answers that are drawn from the seed of a world, for the programs of `universes` and `crashing`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio

from aswarm import Agent, AswarmError, Budget, Hold, Result, current_call, tool
from aswarm.testing import ScriptedAnswer, ScriptedCall
from aswarm.testing.simulate import Provider, World

FAULTS = ("429", "500", "refused", "reset", "cut", "ids")
TOOLS = ("plain", "together", "reads", "writes", "slow", "fails", "waits", "needs_approval", "again", "unknown")


def plain(number: int) -> str:
    return f"plain {number}"


async def together(number: int) -> str:
    await anyio.sleep(0.001 * number)
    return f"together {number}"


async def reads(number: int, context_variables: Mapping[str, Any]) -> Result:
    await anyio.sleep(0.001)
    return Result(value="read", context_variables={f"read {number}": len(context_variables)})


async def writes(number: int, context_variables: dict[str, Any]) -> str:
    before = context_variables.get("sum", 0)
    await anyio.sleep(0.002)
    context_variables["sum"] = before + number
    return f"wrote {number}"


@tool(timeout=0.01)
async def slow(number: int) -> str:
    await anyio.sleep(0.005 * number)
    return "slow"


async def fails(number: int) -> str:
    await anyio.sleep(0.001)
    raise ValueError(f"failed {number}")


@tool(may_wait=True)
async def waits(number: int) -> str:
    if number > 1 and current_call().answer is None:
        raise Hold("a question")
    return "was answered"


@tool(approve=True)
async def needs_approval(number: int) -> str:
    await anyio.sleep(0.001)
    return f"approved {number}"


@tool(repeatable=True)
async def again(number: int) -> str:
    await anyio.sleep(0.002)
    return f"again {number}"


def calls(world: World, name: str, prefix: str) -> ScriptedAnswer:
    """Draw an answer with one to four calls. `prefix`: of their ids."""
    drawn = []
    for index in range(1 + world.draw(f"{name}: calls", 4)):
        number = world.draw(f"{name}: number", 4)
        which = TOOLS[world.draw(f"{name}: tool", len(TOOLS))]
        drawn.append(ScriptedCall(which, f'{{"number": {number}}}', f"{prefix}-{index}"))
    return ScriptedAnswer(calls=drawn)


def script(world: World, name: str) -> list[Any]:
    """Draw the answers of a model: up to three turns with calls, then a text."""
    steps: list[Any] = [calls(world, name, str(turn)) for turn in range(world.draw(f"{name}: turns", 4))]
    return [*steps, "finished"] * 3  # a run after a failure goes on


def answers(world: World, name: str) -> Callable[[Any], Any]:
    """Return a model that draws each answer, so that a repeated request may get another one."""

    def answer(request: Any) -> Any:
        turns = len(request.messages)
        if turns > 12 or not world.draw(f"{name}: goes on", 3):
            return "finished"
        return calls(world, name, str(turns))

    return answer


def agent(name: str) -> Agent:
    functions = [plain, together, reads, writes, slow, fails, waits, needs_approval, again]
    return Agent(name=name, functions=functions)


def budget(world: World, name: str) -> Budget | None:
    """Draw a budget, or None."""
    then: Any = ("stop", "answer", "raise")[world.draw(f"{name}: then", 3)]
    drawn = world.draw(f"{name}: budget", 4)
    limits = (None, {"tool_calls": 2}, {"turns": 2}, {"tokens": 25})[drawn]
    return None if limits is None else Budget(**limits, then=then)


def api(world: World, name: str) -> Any:
    """Draw the API of a provider."""
    return ("chat", "responses")[world.draw(f"{name}: API", 2)]


async def ends(world: World, work: Awaitable[object]) -> None:
    """Await the run, and accept an error of aswarm or the end of the time."""
    try:
        await work
    except (AswarmError, TimeoutError):
        return


async def several(world: World, one: Callable[[str], Awaitable[object]]) -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(1 + world.draw("concurrent runs", 3)):
            group.create_task(ends(world, one(f"run {number}")))


def provider(world: World, name: str) -> Provider:
    return Provider(world, script(world, name), faults=FAULTS, name=name, api=api(world, name))
