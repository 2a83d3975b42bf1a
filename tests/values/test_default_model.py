"""The model of agents whose own was not set."""

from __future__ import annotations

import pytest

from aswarm import Agent, AsyncSwarm, Swarm
from aswarm.testing import ScriptedModel


@pytest.mark.parametrize(
    ("agent", "swarm", "environment", "expected"),
    [
        (None, None, None, "gpt-6-luna"),
        (None, None, "from-env", "from-env"),
        (None, "of-swarm", "from-env", "of-swarm"),
        ("own", "of-swarm", "from-env", "own"),
    ],
)
async def test_the_nearest_choice_counts(
    agent: str | None, swarm: str | None, environment: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model of the agent, of the swarm, of OPENAI_DEFAULT_MODEL, of this version: the first counts."""
    monkeypatch.delenv("OPENAI_DEFAULT_MODEL", raising=False)
    if environment is not None:
        monkeypatch.setenv("OPENAI_DEFAULT_MODEL", environment)
    model = ScriptedModel(["Hello", "Hello"])
    chosen = Agent() if agent is None else Agent(model=agent)
    await AsyncSwarm(model.client(), model=swarm).run(chosen, "Hi")
    await AsyncSwarm(model.client(), model=swarm).run(chosen.model_copy(), "Hi", model_override="override")
    assert [request.body["model"] for request in model.requests] == [expected, "override"]


def test_the_blocking_swarm_has_it_too() -> None:
    """As `AsyncSwarm`; a model that is assigned later counts as the agent's own."""
    model, agent = ScriptedModel(["Hello", "Hello"]), Agent()
    swarm = Swarm(model.client(), model="of-swarm")
    swarm.run(agent, "Hi")
    agent.model = "own"
    swarm.run(agent, "Hi")
    assert [request.body["model"] for request in model.requests] == ["of-swarm", "own"]


@pytest.mark.parametrize("value", ["", "  ", " gpt-6-luna\n"])
def test_white_space_in_the_variable_does_not_count(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the SDK treats its own variables."""
    monkeypatch.setenv("OPENAI_DEFAULT_MODEL", value)
    assert Agent().model == "gpt-6-luna"


def test_a_class_of_agents_with_a_model_of_its_own() -> None:
    """A default of the class is a choice."""

    class Small(Agent):
        model: str = "small"

    model = ScriptedModel(["Hello"])
    Swarm(model.client(), model="of-swarm").run(Small(), "Hi")
    assert model.requests[0].body["model"] == "small"
