"""A run without a limit of turns is logged, and items of batches and attempts of evals have a limit."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from aswarm import Agent, AsyncSwarm, Response
from aswarm.evals import Case, evaluate
from aswarm.testing import ScriptedModel, call
from tests.support.run.ways_to_run import FACES, consume
from tests.support.sampling import every


async def look() -> str:
    """Look."""
    return "seen"


AGENT = Agent(functions=[look])


def restless(answers_after: int) -> ScriptedModel:
    """Return a model that answers after so many calls."""
    return ScriptedModel([*[call("look")] * answers_after, "Done."])


def warnings(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == "aswarm" and record.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    ("face", "calls", "lines", "anyio_backend"),
    every(4, FACES, [(99, 0), (100, 1), (250, 1)], ["asyncio", "trio"]),
)
async def test_an_unbounded_run_is_logged_once(
    caplog: pytest.LogCaptureFixture, face: str, calls: int, lines: int
) -> None:
    """One warning names a run that requests more than 100 completions; the run continues, as in Swarm."""
    left: list[Response] = []
    await consume(AsyncSwarm(restless(calls).client()), AGENT, face, left, run_id="r1")
    assert (left[0].text, left[0].usage.requests) == ("Done.", calls + 1)
    assert len(warnings(caplog)) == lines
    for record in warnings(caplog):
        assert "has made 100 completions and has no max_turns" in record.getMessage()
        assert record.__dict__["run_id"] == "r1"


@pytest.mark.parametrize(("options", "expected"), [({}, ("max_turns", 100)), ({"max_turns": None}, ("answer", 121))])
async def test_items_of_batches_and_attempts_of_evals_end_after_100_completions(
    options: Any, expected: tuple[str, int]
) -> None:
    """The limit is an end with a response, and `max_turns` changes it."""
    swarm = AsyncSwarm(restless(120).client())
    async with swarm.batch(AGENT, ["Hi"], **options) as outcomes:
        (outcome,) = [outcome async for outcome in outcomes]
    assert outcome.response is not None
    assert (outcome.response.stop, outcome.response.usage.requests) == expected
    swarm = AsyncSwarm(restless(120).client())
    report = await evaluate(AGENT, [Case("Hi", check=lambda _: True, run="whole")], swarm=swarm, **options)
    (attempt,) = report.cases[0].attempts
    assert (attempt.stop, attempt.usage.requests) == expected
