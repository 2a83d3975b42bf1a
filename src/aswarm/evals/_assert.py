"""`assert_case`: a case as a test. Turns a report below the threshold into an AssertionError; decides nothing else."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, TypedDict, Unpack

from aswarm._agent import Agent
from aswarm._swarm import AsyncSwarm

from ._case import Case
from ._evaluate import evaluate
from ._report import Report


class Options(TypedDict, total=False):
    """The options that `assert_case` passes to `evaluate`, which explains them."""

    swarm: AsyncSwarm | None
    concurrency: int
    model_override: str | None
    max_turns: float
    judge_model: str | None
    judge_swarm: AsyncSwarm | None
    results: str | os.PathLike[str] | None


async def assert_case(
    case: Case | Mapping[str, Any],
    agent: Agent | str | None = None,
    *,
    repeats: int = 1,
    threshold: float = 1.0,
    **options: Unpack[Options],
) -> Report:
    """Raise AssertionError if the accuracy of the case is below `threshold` (0.0 to 1.0). The text shows what the model did.

    `agent`: for a case that names none. `repeats`: how often the case is run.

    Works in every test framework: with `@pytest.mark.anyio` or `@pytest.mark.asyncio`, or as
    `asyncio.run(assert_case(...))` in a plain test. `options` are those of `evaluate`. Returns the report.
    """
    __tracebackhide__ = True  # pytest shows the line of the test instead
    report = await evaluate(agent, [case], repeats=repeats, **options)
    if report.accuracy < threshold:
        raise AssertionError(f"accuracy {report.accuracy:.1%} is below {threshold:.1%}\n{report.cases[0]}")
    return report
