"""Batches as type checkers see them. Checked, never run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal, assert_type

from aswarm import Agent, AsyncSwarm, Response, Usage
from aswarm.batch import Batch, BatchResult, Completed, Failed, Item
from aswarm.types import UnknownCall


async def outcomes(swarm: AsyncSwarm, agent: Agent, items: AsyncIterator[Item]) -> None:
    async with swarm.batch(agent, items, concurrency="auto", journal=Path("run.sqlite")) as batch:
        assert_type(batch, Batch)
        async for outcome in batch:
            assert_type(outcome, Completed | Failed)
            assert_type(outcome.id, str)
            assert_type(outcome.response, Response | None)
            assert_type(outcome.error, Exception | None)
            assert_type(outcome.usage, Usage)
            assert_type(outcome.unknown_calls, list[UnknownCall])
            show(outcome)


def show(outcome: Completed | Failed) -> None:
    """Either check narrows the outcome to a response or an error."""
    if outcome.error is None:
        assert_type(outcome.response, Response)
        print(outcome.response.text)
    else:
        assert_type(outcome.error, Exception)
        assert_type(outcome.response, None)
    if outcome.response is not None:
        assert_type(outcome.error, None)
    print(outcome.id, outcome.response.text if outcome.error is None else outcome.error)


def show_by_class(outcome: Completed | Failed) -> None:
    """The classes tell them apart too."""
    if isinstance(outcome, Failed):
        assert_type(outcome.error, Exception)
        assert_type(outcome.response, None)
    else:
        assert_type(outcome, Completed)
        assert_type(outcome.response, Response)
    match outcome:
        case Completed(response=response):
            assert_type(response, Response)
        case Failed(error=error):
            assert_type(error, Exception)


def show_any(outcome: BatchResult) -> None:
    """The base class promises neither."""
    assert_type(outcome.response, Response | None)
    assert_type(outcome.error, Exception | None)
    match outcome:
        case BatchResult(response=response):
            assert_type(response, Response | None)


def what_tests_may_make() -> list[Completed | Failed]:
    """Tests of a program that reads outcomes make some."""
    assert_type(BatchResult("a", 0, error=ValueError()), BatchResult)
    Completed("a", 0)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Failed("a", 0)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    return [
        Completed("a", 0, Response()),
        Completed("b", 1, response=Response(), attempts=1),
        Failed("c", 2, error=OSError()),
    ]


def what_items_may_be(swarm: AsyncSwarm, agent: Agent) -> None:
    swarm.batch(agent, ["a", [{"role": "user", "content": "b"}], ("id", "c"), Item("d", id=4)])
    swarm.batch(agent, ["a"], journal="run.sqlite", agents=[agent])
    swarm.batch(agent, {"id": "text"}.items(), on_error="stop", ordered=True)
    swarm.batch(agent, [], on_error="raise")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    swarm.batch(agent, 7)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]


def types_of_answers(swarm: AsyncSwarm) -> None:
    """The type comes from `output=`, or else from the agent."""
    assert_type(swarm.batch(Agent(output=int), ["a"]), Batch[int])
    assert_type(swarm.batch(Agent(), ["a"], output=Literal["a", "b"]), Batch[Literal["a", "b"]])
