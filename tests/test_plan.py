"""The plan: which calls of a turn run together, by the table of section 5, and why that is safe."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, MutableMapping
from types import MappingProxyType
from typing import Annotated, Any, Optional

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aswarm import Agent, Result, tool
from aswarm._plan import ToolCall, ToolOutcome, calls_of, plan
from aswarm._toolbox import toolbox
from aswarm._tools import Tool

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
    """Async, takes the context without saying how."""
    return str(context_variables)


def plain() -> str:
    """A plain function."""
    return ""


async def changer() -> Result:
    """Async, returns a Result."""
    return Result()


async def silent():  # type: ignore[no-untyped-def]
    """Async, does not say what it returns."""


def call_of(function: Any, position: int = 0, name: str | None = None) -> ToolCall:
    """A call of this function."""
    ((found, made),) = toolbox(Agent(functions=[function])).items()
    message = {"id": f"call_{position}", "type": "function", "function": {"name": name or found, "arguments": ""}}
    return ToolCall(message, position, AGENT, made)


def groups_of(*functions: Any, concurrent: bool = True) -> list[list[int]]:
    """The positions in the groups of calls of these functions."""
    calls = [call_of(function, position) for position, function in enumerate(functions)]
    return [[made.position for made in group] for group in plan(calls, concurrent=concurrent)]


def test_no_calls_make_no_groups() -> None:
    """Nothing to run is no group."""
    assert plan([]) == []


def test_every_call_is_in_one_group_in_order() -> None:
    """Groups keep the order of the calls, and lose none."""
    assert groups_of(alone, plain, alone, alone, writer, reader) == [[0], [1], [2, 3], [4], [5]]


# --- the table --------------------------------------------------------------------------------------------------------


def test_async_without_context_runs_with_its_neighbours() -> None:
    """`async def` that does not take the context runs together."""
    assert groups_of(alone, alone, alone) == [[0, 1, 2]]


def test_async_that_reads_runs_with_its_neighbours() -> None:
    """`async def` that takes the context as a Mapping runs together."""
    assert groups_of(alone, reader, reader) == [[0, 1, 2]]


@pytest.mark.parametrize("may_change", [changer, silent])
def test_a_reader_never_follows_what_may_change_the_context(may_change: Callable[..., Any]) -> None:
    """A reader is never after a call of its group that may return a Result; others are, and it may be before."""
    assert groups_of(may_change, reader) == [[0], [1]]
    assert groups_of(may_change, alone, may_change, alone) == [[0, 1, 2, 3]]
    assert groups_of(reader, may_change) == [[0, 1]]
    assert groups_of(may_change, alone, reader, reader, may_change, reader) == [[0, 1], [2, 3, 4], [5]]


@pytest.mark.parametrize("takes_it", [writer, untyped])
def test_async_that_may_write_runs_alone(takes_it: Callable[..., Any]) -> None:
    """`async def` that takes the context as a dict, or without an annotation, runs alone."""
    assert groups_of(alone, takes_it, takes_it, alone, alone) == [[0], [1], [2], [3, 4]]


def test_a_plain_function_runs_alone() -> None:
    """A plain function runs alone, also where it takes the context as a Mapping."""

    def looks(context_variables: Mapping[str, Any]) -> str:
        return str(context_variables)

    assert groups_of(alone, plain, plain, looks, alone) == [[0], [1], [2], [3], [4]]


def test_handoffs_run_with_their_neighbours() -> None:
    """An Agent in `functions` runs together, and a reader may follow it: a handoff changes no context."""
    assert groups_of(alone, Agent(name="B"), Agent(name="C"), reader, alone) == [[0, 1, 2, 3, 4]]


def test_unknown_tools_run_with_their_neighbours() -> None:
    """A call of no known tool only gets its error text, and keeps nobody waiting."""
    calls = [call_of(alone, 0), ToolCall({"id": "x", "function": {"name": "?"}}, 1, AGENT, None), call_of(reader, 2)]
    assert [len(group) for group in plan(calls)] == [3]


def test_tool_concurrent_true_is_taken_at_its_word() -> None:
    """`@tool(concurrent=True)` runs together, whatever the function is."""
    decorated = [tool(concurrent=True)(function) for function in (plain, plain, alone)]
    assert groups_of(*decorated) == [[0, 1, 2]]


def test_tool_concurrent_true_on_a_reader_follows_what_may_change() -> None:
    """`@tool(concurrent=True)` on a reader says that it need not see what its group changes."""
    assert groups_of(changer, tool(concurrent=True)(reader)) == [[0, 1]]


def test_tool_concurrent_false_runs_alone() -> None:
    """`@tool(concurrent=False)` runs alone."""
    assert groups_of(alone, tool(concurrent=False)(alone), alone) == [[0], [1], [2]]


def test_a_reader_is_not_beside_a_writer_that_runs_together() -> None:
    """A writer that is declared concurrent does not drag in readers that are not: they see no half-done writes."""
    declared = tool(concurrent=True)(writer)
    assert groups_of(declared, declared) == [[0, 1]]
    assert groups_of(declared, reader) == [[0], [1]]
    assert groups_of(reader, declared) == [[0], [1]]


def test_concurrent_false_turns_it_off() -> None:
    """`AsyncSwarm(concurrent_tools=False)`: every call alone."""
    assert groups_of(alone, reader, Agent(name="B"), tool(concurrent=True)(plain), concurrent=False) == [
        [0],
        [1],
        [2],
        [3],
    ]


# --- how a function is read -------------------------------------------------------------------------------------------


async def proxy(context_variables: MappingProxyType[str, Any]) -> str:
    """A read-only view, by its own type."""
    return str(context_variables)


async def annotated(context_variables: Annotated[Mapping[str, Any], "the state"]) -> str:
    """A Mapping with a note."""
    return str(context_variables)


async def bare(context_variables: Mapping) -> str:  # type: ignore[type-arg]
    """A Mapping of anything."""
    return str(context_variables)


async def mutable(context_variables: MutableMapping[str, Any]) -> str:
    """A mapping that it may change."""
    return str(context_variables)


async def optional(context_variables: Optional[dict[str, Any]] = None) -> str:  # noqa: UP045 - old hints are to be read
    """A dict or nothing."""
    return str(context_variables)


@pytest.mark.parametrize("function", [reader, proxy, annotated, bare])
def test_ways_to_ask_for_a_view(function: Callable[..., Any]) -> None:
    """A Mapping, bare, with a note or as the proxy type, is to read."""
    assert groups_of(function, function) == [[0, 1]]


@pytest.mark.parametrize("function", [writer, untyped, mutable, optional])
def test_ways_to_ask_for_the_dict(function: Callable[..., Any]) -> None:
    """A dict, a MutableMapping, an optional dict or no annotation may write."""
    assert groups_of(function, function) == [[0], [1]]


def test_wrapped_coroutine_functions_are_async() -> None:
    """Partials, callables and bound methods of coroutine functions run together."""

    class Shop:
        async def sell(self) -> str:
            return ""

        async def __call__(self) -> str:
            return ""

    assert groups_of(functools.partial(alone, x="1"), Shop().sell, Shop(), tool(alone), tool(timeout=1)(alone)) == [
        [0, 1, 2, 3, 4]
    ]


def returning(hint: Any) -> Callable[..., Any]:
    """An async function with this return hint."""

    async def made() -> Any: ...

    made.__annotations__["return"] = hint
    return made


@pytest.mark.parametrize(
    "hint",
    [Any, object, Result, "Result", Result | str, Result | None, Annotated[Result, "x"], Annotated[str | Result, 1]],
)
def test_hints_that_admit_a_result(hint: object) -> None:
    """A hint that a Result would satisfy keeps readers of the group behind it."""
    assert groups_of(returning(hint), reader) == [[0], [1]]


@pytest.mark.parametrize(
    "hint", [str, None, Agent, str | None, dict[str, Any], list[str], Annotated[str, "x"], int | Agent]
)
def test_hints_that_admit_no_result(hint: object) -> None:
    """A hint that no Result would satisfy lets readers in."""
    assert groups_of(returning(hint), reader) == [[0, 1]]


# --- calls ------------------------------------------------------------------------------------------------------------


def test_calls_are_bound_to_the_tools_of_their_agent() -> None:
    """A call has the tool of its name, or None; its position is that in the message; its arguments are text."""
    tools = toolbox(Agent(functions=[alone]))
    wired = [
        {"id": "a", "type": "function", "function": {"name": "alone", "arguments": '{"x": "1"}'}},
        {"id": "b", "type": "function", "function": {"name": "missing", "arguments": None}},
        {"id": "c", "type": "custom", "custom": {"name": "alone", "input": "text"}},
    ]
    first, second, third = calls_of(wired, AGENT, tools)
    assert (first.id, first.name, first.arguments, first.position) == ("a", "alone", '{"x": "1"}', 0)
    assert first.tool is tools["alone"]
    assert (second.tool, second.arguments, second.position) == (None, "", 1)
    # Never run as a function, whatever its name.
    assert (third.tool, third.name, third.arguments) == (None, "alone", "")


def test_equal_calls_are_different_calls() -> None:
    """It is the object that tells calls apart: equal messages make unequal calls."""
    first, second = calls_of([{"id": "a", "function": {"name": "f"}}] * 2, AGENT, {})
    assert first != second


def test_an_outcome_has_the_agent_of_its_result() -> None:
    """An outcome hands over to the agent of its result, if there is one."""
    assert ToolOutcome("x").agent is None
    assert ToolOutcome("x", Result(value="x")).agent is None
    assert ToolOutcome("x", Result(agent=AGENT)).agent is AGENT


# --- the promise ------------------------------------------------------------------------------------------------------

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
@settings(deadline=None, max_examples=300)
def test_together_gives_nothing_that_in_order_would_not(tools: list[Simulated], data: st.DataObject) -> None:
    """Whatever order the calls of a group run in, context, agent and history are those of running all in order."""
    calls = [ToolCall({"id": str(n)}, n, AGENT, _TOOLS[made.kind]) for n, made in enumerate(tools)]
    groups = [[made.position for made in group] for group in plan(calls)]
    shuffled = carry_out(groups, tools, lambda group: data.draw(st.permutations(group)))
    in_order = carry_out([[number] for number in range(len(tools))], tools, copy.copy)
    assert shuffled == in_order


@given(st.lists(_simulated, max_size=7), st.booleans())
@settings(deadline=None, max_examples=100)
def test_groups_are_the_calls_in_order(tools: list[Simulated], concurrent: bool) -> None:
    """Groups put one after another are the calls, none is empty, and alone means alone."""
    calls = [ToolCall({"id": str(n)}, n, AGENT, _TOOLS[made.kind]) for n, made in enumerate(tools)]
    groups = plan(calls, concurrent=concurrent)
    assert [made for group in groups for made in group] == calls
    assert all(groups)
    assert concurrent or all(len(group) == 1 for group in groups)
