"""`AgentDirectory`: which agent a name means."""

from __future__ import annotations

import pytest

from aswarm import Agent
from aswarm._tools.directory import AgentDirectory
from aswarm._values.errors import CallerMistake, ConfigurationError


def test_a_listed_agent_comes_before_a_found_one_of_its_name() -> None:
    """So a caller decides between two agents of one name."""
    listed = Agent(name="Twin")
    first = Agent(name="First", functions=[Agent(name="Twin")])
    directory = AgentDirectory([first, listed])
    assert directory.find("Twin") is listed
    assert directory.known == {"First": first, "Twin": listed}


def test_a_name_that_two_found_agents_have_means_none() -> None:
    """A later run could not tell them apart; the nearer one is not preferred."""
    between = Agent(name="Between", functions=[Agent(name="Twin")])
    first = Agent(name="First", functions=[Agent(name="Twin"), between])
    directory = AgentDirectory([first])
    assert directory.find("Twin") is None
    assert list(directory.known) == ["First", "Between"]
    with pytest.raises(ConfigurationError, match=r"the run is with 'Twin'.* more than one agent of this name"):
        directory.get("Twin", "the run is with")


def test_an_agent_that_was_added_later_is_found() -> None:
    """A check looks again before it refuses an agent."""
    first = Agent(name="First")
    directory = AgentDirectory([first])
    late = Agent(name="Late")
    with pytest.raises(CallerMistake, match=r"over handed off to 'Late'.* no agent of this name"):
        directory.check(late, "over handed off to")
    first.functions.append(late)
    directory.check(late, "over handed off to")
    assert directory.find("Late") is late


def test_two_listed_agents_of_one_name_are_refused() -> None:
    """The same agent twice is one agent."""
    with pytest.raises(ConfigurationError, match=r"two agents named 'A'; .* its own name"):
        AgentDirectory([Agent(name="A"), Agent(name="A")])
    agent = Agent(name="A")
    assert AgentDirectory([agent, agent]).known == {"A": agent}
