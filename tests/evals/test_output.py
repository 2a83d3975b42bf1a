"""Cases that expect an answer with a type: its fields are compared as JSON."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from aswarm import Agent, AsyncSwarm, ConfigurationError
from aswarm.evals import Case, evaluate
from aswarm.testing import ScriptedModel, call

pytestmark = pytest.mark.anyio


class Trip(BaseModel):
    city: str
    days: int = 1


async def look() -> str:
    return "seen"


@pytest.mark.parametrize(
    ("kind", "step", "expected", "reason"),
    [
        (Trip, '{"city": "Rome"}', {"city": "Rome"}, ""),
        (Trip, '{"city": "Rome"}', {"days": lambda days: days == 1}, ""),
        (Trip, '{"city": "Rome"}', {"city": "Oslo", "days": 1}, 'expected an output with city="Oslo", not {"city": '),
        (Trip, '{"city": "Rome"}', {"nights": 1}, "expected an output with nights=1"),
        (int, "7", {"value": 7}, ""),
        (Trip, "no", {"city": "Rome"}, "the model gave no answer of the type Trip"),
        (None, "no", {"city": "Rome"}, "the response has no output type"),
    ],
)
async def test_the_fields_of_an_answer(kind: Any, step: Any, expected: Any, reason: str) -> None:
    """Other fields are ignored; a run without such an answer is an error of the attempt."""
    swarm = AsyncSwarm(ScriptedModel(lambda _: step).client())
    report = await evaluate(Agent(output=kind), [Case("Go", output=expected)], swarm=swarm)
    assert report.cases[0].attempts[0].reason.startswith(reason)
    assert (report.accuracy == 1) == (reason == "")


async def test_an_answer_of_an_agent_with_functions() -> None:
    """The functions really run, and calls can be expected too."""
    swarm = AsyncSwarm(ScriptedModel([call("look"), call("final_answer", city="Rome")]).client())
    case = {"conversation": "Go", "function": "look", "output": {"city": "Rome"}}
    assert (await evaluate(Agent(functions=[look], output=Trip), [case], swarm=swarm)).accuracy == 1


@pytest.mark.parametrize(
    ("options", "text"), [({"output": 7}, "output must be"), ({"run": "completion"}, "needs a whole run")]
)
def test_a_case_that_cannot_be_used(options: Any, text: str) -> None:
    """The text says what to change."""
    with pytest.raises(ConfigurationError, match=text):
        Case("Go", **{"output": {"city": "Rome"}, **options})
