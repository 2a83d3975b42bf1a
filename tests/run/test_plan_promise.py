"""The plan's promise: running together gives nothing that running in order would not."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aswarm import Agent, Result
from aswarm._run.call import Call
from aswarm._run.plan import plan
from aswarm._tools.tool import Tool
from tests.support.run.planned_tools import AGENT, alone, call_of, changer, plain, reader, silent, untyped, writer

pytestmark = pytest.mark.slow

# What a simulated tool does: the function whose signature it has, and what it returns and writes.
_KINDS: dict[str, tuple[Any, bool, bool]] = {
    # name: (function, whether it may write, whether it may return a Result)
    "alone": (alone, False, False),
    "reader": (reader, False, False),
    "reading changer": (None, False, True),
    "writer": (writer, True, False),
    "untyped": (untyped, True, False),
    "plain": (plain, False, True),
    "changer": (changer, False, True),
    "silent": (silent, False, True),
    "handoff": (Agent(name="H"), False, False),
}
_SEES = ("reader", "reading changer", "writer", "untyped")


async def reading_changer(context_variables: Mapping[str, Any]):  # type: ignore[no-untyped-def]
    """Async, reads the context and may return a Result."""
    return Result(context_variables=dict(context_variables))


_KINDS["reading changer"] = (reading_changer, False, True)
_TOOLS: dict[str, Tool[..., Any]] = {kind: call_of(function).tool for kind, (function, _, _) in _KINDS.items()}  # type: ignore[misc]


class Simulated:
    """One call of a tool that looks at the context, if it may, writes or returns changes, and may hand over."""

    def __init__(self, kind: str, key: str, hands_over: bool) -> None:
        self.kind, self.key, self.hands_over = kind, key, hands_over

    def __repr__(self) -> str:
        return f"<{self.kind} {self.key}{' hands over' * self.hands_over}>"

    def run(self, number: int, context: dict[str, Any]) -> tuple[str, Result]:
        """What it tells the model, and what it wants to change."""
        _, writes, may_return = _KINDS[self.kind]
        seen = str(sorted(context.items())) if self.kind in _SEES else ""
        told = f"{number} saw {seen}"
        if writes:
            context[self.key] = told
        changes = {self.key: told} if may_return else {}
        hands_over = self.kind == "handoff" or (may_return and self.hands_over)
        return told, Result(context_variables=changes, agent=Agent(name=f"to {number}") if hands_over else None)


_simulated = st.builds(Simulated, st.sampled_from(sorted(_KINDS)), st.sampled_from("ab"), st.booleans())


def carry_out(
    groups: list[list[int]], tools: list[Simulated], order: Callable[[list[int]], list[int]]
) -> tuple[Any, ...]:
    """Context, agent and history after running the groups; within a group in any order, merged when it ends."""
    context: dict[str, Any] = {"a": 0}
    told: dict[int, str] = {}
    agent = "first"
    for group in groups:
        results: dict[int, Result] = {}
        for number in order(group):
            told[number], results[number] = tools[number].run(number, context)
        for number in sorted(results):
            context.update(results[number].context_variables)
            target = results[number].agent
            agent = target.name if target else agent
    return context, agent, [told[number] for number in sorted(told)]


@given(st.lists(_simulated, max_size=7), st.data())
def test_together_gives_nothing_that_in_order_would_not(tools: list[Simulated], data: st.DataObject) -> None:
    """Whatever order the calls of a group run in, context, agent and history are those of running all in order."""
    calls = [Call({"id": str(n)}, n, AGENT, _TOOLS[made.kind]) for n, made in enumerate(tools)]
    groups = [[made.index for made in group] for group in plan(calls)]
    shuffled = carry_out(groups, tools, lambda group: data.draw(st.permutations(group)))
    in_order = carry_out([[number] for number in range(len(tools))], tools, copy.copy)
    assert shuffled == in_order


@given(st.lists(_simulated, max_size=7), st.booleans())
def test_groups_are_the_calls_in_order(tools: list[Simulated], concurrent: bool) -> None:
    """Groups put one after another are the calls, none is empty, and alone means alone."""
    calls = [Call({"id": str(n)}, n, AGENT, _TOOLS[made.kind]) for n, made in enumerate(tools)]
    groups = plan(calls, concurrent=concurrent)
    assert [made for group in groups for made in group] == calls
    assert all(groups)
    assert concurrent or all(len(group) == 1 for group in groups)
