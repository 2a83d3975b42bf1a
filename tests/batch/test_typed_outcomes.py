"""A batch whose answers have a type, with and without a journal."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel

from aswarm import Agent, AsyncSwarm, ConfigurationError, agent_tool
from aswarm._record.fingerprints import differences, request_fingerprint
from aswarm.middleware import CompletionRequest
from aswarm.testing import ScriptedModel, call

pytestmark = pytest.mark.anyio


class Trip(BaseModel):
    city: str


async def look() -> str:
    return "seen"


async def outputs(model: ScriptedModel, journal: Path | None) -> list[object]:
    """The answers of a batch of one item."""
    batch = AsyncSwarm(model.client()).batch(Agent(functions=[look]), ["Go"], output=Trip, journal=journal)
    async with batch as outcomes:
        return [outcome.response.output async for outcome in outcomes if outcome.response]


async def test_the_responses_of_a_batch_know_their_type(tmp_path: Path) -> None:
    """Also those that a journal has: nothing is sent again."""
    model = ScriptedModel([call("look"), call("final_answer", city="Rome")])
    for _ in range(2):
        assert await outputs(model, tmp_path / "journal.sqlite") == [Trip(city="Rome")]
    assert len(model.requests) == 2
    assert await outputs(ScriptedModel(['{"city": "Rome"}']), None) == [Trip(city="Rome")]


@pytest.mark.parametrize("place", ["agent", "batch"])
async def test_a_type_that_cannot_be_used_is_an_error_at_once(place: str) -> None:
    """Otherwise every item would fail for the same mistake."""
    agent = Agent(output=7 if place == "agent" else None)
    with pytest.raises(ConfigurationError, match="must be a type"):
        AsyncSwarm(ScriptedModel([]).client()).batch(agent, ["Go"], output=7 if place == "batch" else None)


async def test_an_agent_as_a_tool_answers_with_a_type() -> None:
    """The result of the call is the JSON that the inner agent has written, as a text or by `final_answer`."""
    for step in ('{"city": "Rome"}', call("final_answer", city="Rome")):
        planner = Agent(name="Planner", functions=[] if isinstance(step, str) else [look])
        model = ScriptedModel([call("planner", request="A trip"), step, "Done."])
        outer = Agent(functions=[agent_tool(planner, output=Trip)])
        response = await AsyncSwarm(model.client()).run(outer, "Go")
        assert response.messages[1]["content"] == '{"city": "Rome"}'


def test_the_schema_of_an_answer_tells_requests_apart() -> None:
    """A journal refuses to continue with another type; a request without a schema has the fingerprint that it always had."""
    messages = [{"role": "user", "content": "Go"}]
    plain, trip, other = (
        request_fingerprint(CompletionRequest(Agent(), {"model": "m", "messages": messages, **form}))
        for form in ({}, {"response_format": {"a": 1}}, {"response_format": {"a": 2}})
    )
    assert list(plain) == ["model", "tools", "instructions", "messages"]
    assert differences(plain, trip) == differences(trip, other) == ["response_format"]
