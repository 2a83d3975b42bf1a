"""The classes of outcomes: a completed item has a response, a failed item has an error, and users may make both."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import BaseModel

from aswarm import Agent, AsyncSwarm, ConfigurationError, Response, RunError, Usage
from aswarm.batch import Completed, Failed
from aswarm.testing import Failure, ScriptedModel, call
from aswarm.types import UnknownCall

CALL = UnknownCall("1", "pay", "{}", "Payer")


def test_a_test_of_a_user_may_make_them() -> None:
    """Both classes can be made by position and by name, and need a response or an error."""
    response = Response(messages=[{"role": "assistant", "content": "Hi"}], unknown_calls=[CALL])
    completed = Completed("a", 0, response)
    assert completed == Completed(id="a", index=0, response=response, usage=Usage())
    assert (completed.error, completed.attempts, completed.unknown_calls) == (None, 0, [CALL])
    error = RunError("no")
    error.response = response
    failed = Failed("b", 1, error=error, metadata="m")
    assert (failed.response, failed.error, failed.metadata, failed.unknown_calls) == (None, error, "m", [CALL])
    assert completed != replace(completed, id="b") != failed
    assert type(pickle.loads(pickle.dumps(completed))) is Completed
    assert not hasattr(completed, "__dict__") and not hasattr(failed, "__dict__")
    with pytest.raises(TypeError, match="response"):
        Completed("a", 0)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="error"):
        Failed("a", 0)  # type: ignore[call-arg]


# --- outcomes with a type ---


class Trip(BaseModel):
    city: str


class Other(BaseModel):
    town: str


async def look() -> str:
    return "seen"


async def outputs(model: ScriptedModel, journal: Path | None) -> list[object]:
    """Return the typed answers of a batch of one item."""
    batch = AsyncSwarm(model.client()).batch(Agent(functions=[look]), ["Go"], output=Trip, journal=journal)
    async with batch as outcomes:
        return [outcome.response.output async for outcome in outcomes if outcome.response]


async def test_the_responses_of_a_batch_have_their_type(tmp_path: Path) -> None:
    """A response has its typed answer, also if it comes from the journal."""
    model = ScriptedModel([call("look"), call("final_answer", city="Rome")])
    for _ in range(2):
        assert await outputs(model, tmp_path / "journal.sqlite") == [Trip(city="Rome")]
    assert len(model.requests) == 2
    assert await outputs(ScriptedModel(['{"city": "Rome"}']), None) == [Trip(city="Rome")]


@pytest.mark.parametrize("place", ["agent", "batch"])
async def test_a_type_that_cannot_be_used_is_an_error_at_once(place: str) -> None:
    """A type that cannot be used is an error of the call, not of each item."""
    agent = Agent(output=7 if place == "agent" else None)
    with pytest.raises(ConfigurationError, match="must be a type"):
        AsyncSwarm(ScriptedModel([]).client()).batch(agent, ["Go"], output=7 if place == "batch" else None)


async def test_a_journal_refuses_another_type(tmp_path: Path) -> None:
    """A run that was recorded with one type is not continued with another type."""
    journal = tmp_path / "journal.sqlite"
    for output in (Trip, Other):
        model = ScriptedModel(["no", Failure(400)])
        async with AsyncSwarm(model.client()).batch(Agent(), ["Go"], output=output, journal=journal) as outcomes:
            [outcome] = [each async for each in outcomes]
    assert isinstance(outcome.error, ConfigurationError)
    assert "response_format" in str(outcome.error)
