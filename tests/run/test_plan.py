"""The plan: the groups of calls that run together, by the table of docs/design/concurrency.md."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aswarm import Agent, Result, tool
from aswarm._run.call import Call
from aswarm._run.turn import plan
from aswarm._tools.tool import Tool
from aswarm._tools.toolbox import tools_of

AGENT = Agent(name="A")


async def alone(x: str = "") -> str:
    """Async, no context."""
    return x


async def reader(context_variables: Mapping[str, Any]) -> str:
    """Async, reads the context."""
    return str(context_variables)


async def writer(context_variables: dict[str, Any]) -> str:
    """Async, may write to the context."""
    return str(context_variables)


async def untyped(context_variables) -> str:  # type: ignore[no-untyped-def]
    """Async, has the context without a type hint."""
    return str(context_variables)


def plain() -> str:
    """A plain function."""
    return ""


def plain_reader(context_variables: Mapping[str, Any]) -> str:
    """A plain function that reads the context."""
    return str(context_variables)


async def changer() -> Result:
    """Async, returns a Result."""
    return Result()


async def reading_changer(context_variables: Mapping[str, Any]):  # type: ignore[no-untyped-def]
    """Async, reads the context and may return a Result."""
    return Result(context_variables=dict(context_variables))


async def silent():  # type: ignore[no-untyped-def]
    """Async, without a return annotation."""


def tool_of(function: Any) -> Tool[..., Any]:
    (made,) = tools_of(Agent(functions=[function])).values()
    return made


def groups_of(*functions: Any, concurrent: bool = True) -> list[list[int]]:
    """Return the groups of calls of these functions, as positions. None: a call of an unknown tool."""
    tools = [function and tool_of(function) for function in functions]
    calls = [Call({"id": str(n)}, n, AGENT, made) for n, made in enumerate(tools)]
    return [[made.index for made in group] for group in plan(calls, concurrent=concurrent)]


B, C = Agent(name="B"), Agent(name="C")
declared_plain, declared_reader, declared_writer = (tool(concurrent=True)(each) for each in (plain, reader, writer))


@pytest.mark.parametrize(
    ("functions", "groups"),
    [
        ([], []),
        ([alone, plain, alone, alone, writer, reader], [[0], [1], [2, 3], [4], [5]]),
        # async functions without the context, or that read it, run together
        ([alone, alone, alone], [[0, 1, 2]]),
        ([alone, reader, reader], [[0, 1, 2]]),
        # a reader never follows a call of its group that may return a Result
        ([changer, reader], [[0], [1]]),
        ([silent, reader], [[0], [1]]),
        ([changer, alone, silent, alone], [[0, 1, 2, 3]]),
        ([reader, changer], [[0, 1]]),
        ([changer, alone, reader, reader, changer, reader], [[0, 1], [2, 3, 4], [5]]),
        # async functions that may write, and plain functions, run alone
        ([alone, writer, writer, alone, alone], [[0], [1], [2], [3, 4]]),
        ([alone, untyped, untyped, alone, alone], [[0], [1], [2], [3, 4]]),
        ([alone, plain, plain, plain_reader, alone], [[0], [1], [2], [3], [4]]),
        # a handoff changes no context, and a call of an unknown tool gets an error text
        ([alone, B, C, reader, alone], [[0, 1, 2, 3, 4]]),
        ([alone, None, reader], [[0, 1, 2]]),
        # declared
        ([declared_plain, declared_plain, declared_reader], [[0, 1, 2]]),
        ([changer, declared_reader], [[0, 1]]),
        ([alone, tool(concurrent=False)(alone), alone], [[0], [1], [2]]),
        ([declared_writer, declared_writer], [[0, 1]]),
        ([declared_writer, reader], [[0], [1]]),
        ([reader, declared_writer], [[0], [1]]),
        # a writer passes no waiting call that reads the context
        ([tool(approve=True)(alone), declared_writer], [[0, 1]]),
        ([tool(approve=True, concurrent=True)(reader), declared_writer], [[0], [1]]),
    ],
)
def test_groups(functions: list[Any], groups: list[list[int]]) -> None:
    """Calls run together exactly if that is safe or declared to be safe."""
    assert groups_of(*functions) == groups


def test_concurrent_false_turns_it_off() -> None:
    """With `AsyncSwarm(concurrent_tools=False)`, every call runs alone."""
    assert groups_of(alone, reader, B, declared_plain, concurrent=False) == [[0], [1], [2], [3]]


# --- the promise ---

# The functions of simulated tools, whether each may write, and whether it may return a Result.
KINDS: dict[str, tuple[Any, bool, bool]] = {
    "alone": (alone, False, False),
    "reader": (reader, False, False),
    "reading changer": (reading_changer, False, True),
    "writer": (writer, True, False),
    "untyped": (untyped, True, False),
    "plain": (plain, False, True),
    "changer": (changer, False, True),
    "silent": (silent, False, True),
    "handoff": (Agent(name="H"), False, False),
}
SEES = ("reader", "reading changer", "writer", "untyped")


class Simulated:
    """One call of a tool that looks at the context, if it may, writes or returns changes, and may hand off."""

    def __init__(self, kind: str, key: str, hands_off: bool) -> None:
        self.kind, self.key, self.hands_off = kind, key, hands_off

    def __repr__(self) -> str:
        return f"<{self.kind} {self.key}{' hands off' * self.hands_off}>"

    def run(self, number: int, context: dict[str, Any]) -> tuple[str, Result]:
        """Return the text for the model, and the changes."""
        _, writes, may_return = KINDS[self.kind]
        text = f"{number} saw {sorted(context.items()) if self.kind in SEES else ''}"
        if writes:
            context[self.key] = text
        changes = {self.key: text} if may_return else {}
        hands_off = self.kind == "handoff" or (may_return and self.hands_off)
        return text, Result(context_variables=changes, agent=Agent(name=f"to {number}") if hands_off else None)


_simulated = st.lists(
    st.builds(Simulated, st.sampled_from(sorted(KINDS)), st.sampled_from("ab"), st.booleans()), max_size=7
)


def carry_out(
    groups: list[list[int]], tools: list[Simulated], order: Callable[[list[int]], list[int]]
) -> tuple[Any, ...]:
    """Return the context, the agent and the history after the groups; within a group in any order, merged at its end."""
    context: dict[str, Any] = {"a": 0}
    texts: dict[int, str] = {}
    agent = "first"
    for group in groups:
        results: dict[int, Result] = {}
        for number in order(group):
            texts[number], results[number] = tools[number].run(number, context)
        for number in sorted(results):
            context.update(results[number].context_variables)
            target = results[number].agent
            agent = target.name if target else agent
    return context, agent, [texts[number] for number in sorted(texts)]


@pytest.mark.slow
@given(_simulated, st.booleans(), st.data())
def test_together_gives_nothing_that_in_order_would_not(
    tools: list[Simulated], concurrent: bool, data: st.DataObject
) -> None:
    """In any order of the calls of a group, context, agent and history are the same as after serial execution."""
    groups = groups_of(*(KINDS[made.kind][0] for made in tools), concurrent=concurrent)
    assert [number for group in groups for number in group] == [*range(len(tools))]
    assert all(groups)
    assert concurrent or all(len(group) == 1 for group in groups)
    shuffled = carry_out(groups, tools, lambda group: data.draw(st.permutations(group)))
    assert shuffled == carry_out([[number] for number in range(len(tools))], tools, copy.copy)
