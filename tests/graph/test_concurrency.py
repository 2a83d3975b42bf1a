"""The notes of a graph on concurrency: which tools of an agent run together, and why a tool runs alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aswarm import Agent, tool
from aswarm.graph import agent_graph


async def price(city: str) -> str:
    return city


async def find(city: str):  # type: ignore[no-untyped-def] # the missing hint is the subject
    return city


async def balance(context_variables: Mapping[str, Any]) -> str:
    return ""


async def history(context_variables: Mapping[str, Any]):  # type: ignore[no-untyped-def]
    return ""


async def pay(context_variables: dict[str, Any]) -> str:
    return ""


def book(city: str) -> str:
    return city


@tool(concurrent=False)
async def ring() -> str:
    return ""


def notes_of(*functions: Any) -> list[str]:
    notes = agent_graph(Agent(name="Desk", functions=list(functions))).concurrency_notes
    assert all(note.startswith("Desk: ") for note in notes)
    return [note.removeprefix("Desk: ") for note in notes]


def test_an_agent_without_tools_has_no_note() -> None:
    """An agent without tools has no notes."""
    assert notes_of() == []


def test_tools_that_run_together() -> None:
    """Async functions, handoffs to agents, and tools with `concurrent=True` run together."""
    together = [price, balance, Agent(name="B"), tool(concurrent=True)(book)]
    assert notes_of(*together) == ["calls of price, balance, transfer_to_b, book run together."]


def test_tools_that_run_alone() -> None:
    """A note has the reason, and the hint that would change it."""
    assert notes_of(book, pay, ring, price) == [
        "calls of price run together.",
        "calls of book run alone, because plain functions run one at a time.",
        "calls of pay run alone, because they may change context_variables; with the hint Mapping, or a read-only type, they only read.",
        "calls of ring run alone, because of @tool(concurrent=False).",
    ]


def waits(name: str, earlier: str) -> str:
    return (
        f"{name} waits for earlier calls of {earlier}, which may return a Result that changes the context; "
        "a return hint such as -> str excludes it."
    )


def test_a_function_that_reads_what_earlier_calls_may_change() -> None:
    """A function without a return hint may return a `Result`; a reader never runs beside such a call before it."""
    assert notes_of(history) == [waits("history", "history")]
    assert notes_of(price, balance, find) == ["calls of price, balance, find run together.", waits("balance", "find")]
    assert notes_of(history, price) == ["calls of history, price run together.", waits("history", "history")]
