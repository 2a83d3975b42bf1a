"""The plan: which calls of a turn run together, by the table of section 5."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, MutableMapping
from types import MappingProxyType
from typing import Annotated, Any, Optional

import pytest

from aswarm import Agent, Result, tool
from aswarm._run.call import Call, calls_of
from aswarm._run.outcome import ToolOutcome
from aswarm._run.plan import plan
from aswarm._tools.toolbox import tools_of
from tests.support.run.planned_tools import AGENT, alone, call_of, changer, plain, reader, silent, untyped, writer


def groups_of(*functions: Any, concurrent: bool = True) -> list[list[int]]:
    """The positions in the groups of calls of these functions."""
    calls = [call_of(function, position) for position, function in enumerate(functions)]
    return [[made.index for made in group] for group in plan(calls, concurrent=concurrent)]


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
    calls = [call_of(alone, 0), Call({"id": "x", "function": {"name": "?"}}, 1, AGENT, None), call_of(reader, 2)]
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
    tools = tools_of(Agent(functions=[alone]))
    wired = [
        {"id": "a", "type": "function", "function": {"name": "alone", "arguments": '{"x": "1"}'}},
        {"id": "b", "type": "function", "function": {"name": "missing", "arguments": None}},
        {"id": "c", "type": "custom", "custom": {"name": "alone", "input": "text"}},
    ]
    first, second, third = calls_of(wired, AGENT, tools)
    assert (first.id, first.name, first.arguments, first.index) == ("a", "alone", '{"x": "1"}', 0)
    assert first.tool is tools["alone"]
    assert (second.tool, second.arguments, second.index) == (None, "", 1)
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


def test_the_flags_of_an_outcome_have_names() -> None:
    """Two flags in a row would be easy to swap."""
    assert ToolOutcome("x", None, None, still_running=True).still_running
    with pytest.raises(TypeError):
        ToolOutcome("x", None, None, True)  # type: ignore[misc]
