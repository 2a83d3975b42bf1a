"""A journal holds no agents: how it finds them by name, and what happens if they have changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aswarm import Agent, AsyncSwarm, ConfigurationError, Result
from aswarm.batch import Item
from tests.support.record.journaled import Died, Script, batch, calls, dies, noting, rerun, says

# --- requests ---


def agent_of(instructions: str = "Help.", **options: Any) -> Agent:
    return Agent(instructions=instructions, functions=[noting([], "one")], **options)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"instructions": "Help more."}, "its instructions"),
        ({"model": "gpt-5"}, "its model"),
        ({"functions": []}, "its tools"),
        ({"instructions": None}, "its instructions"),
    ],
)
async def test_a_request_that_differs_from_the_recorded_one(path: Path, change: dict[str, Any], named: str) -> None:
    """An item in the middle whose agents have changed is refused; the error names the change; no request is sent."""
    with pytest.raises(Died):
        await rerun(path, Script(calls("one"), dies()), agent_of())
    model = Script()
    with pytest.raises(ConfigurationError, match=f"'a' cannot be resumed: request 1 differs .* in {named}.*another id"):
        await rerun(path, model, agent_of().model_copy(update=change))
    assert not model.asked
    assert (await rerun(path, Script(says("Done")), agent_of())).text == "Done"


# --- handoffs ---


async def test_a_handoff_is_found_again(path: Path) -> None:
    """Agents in `functions`, and agents that functions visibly return, are found by name, back and forth."""

    def to_second() -> Agent:
        return second

    def to_first() -> Result:
        return Result(value="back", agent=first)

    first = Agent(name="First", functions=[to_second])
    third = Agent(name="Third")
    second = Agent(name="Second", functions=[to_first, third])
    with pytest.raises(Died):
        await rerun(path, Script(calls("to_second"), calls("to_first"), calls("to_second"), dies()), first)
    response = await rerun(path, Script(calls("transfer_to_third"), says("Done")), first)
    assert response.agent is third
    senders = [message["sender"] for message in response.messages if message["role"] == "assistant"]
    assert senders == ["First", "Second", "First", "Second", "Third"]


async def test_a_ready_handoff_needs_no_record(path: Path) -> None:
    """An agent in `functions` takes over again when the item is resumed, even if another agent has its name."""
    agent = Agent(name="First", functions=[Agent(name="Twin", functions=[Agent(name="Twin")])])
    wrong = calls("transfer_to_twin", transfer_to_twin='{"why": 1}')
    with pytest.raises(Died):
        await rerun(path, Script(wrong, calls("transfer_to_twin"), calls("transfer_to_twin"), dies()), agent)
    response = await rerun(path, Script(says("Done")), agent)
    assert response.agent is agent.functions[0].functions[0]
    answers = [message["content"][:9] for message in response.messages if message["role"] == "tool"]
    assert answers == ["Error: wh", '{"assista', '{"assista']


@pytest.mark.parametrize("name", ["Hidden", "Twin"])
async def test_a_handoff_that_could_not_be_found_again(path: Path, name: str) -> None:
    """An agent that cannot be found, or that shares its name, is refused at the handoff."""
    box = [Agent(name=name)]
    twins = [Agent(name="Twin"), Agent(name="Twin")]

    def over() -> Any:
        return getattr(box, "pop")()  # noqa: B009 - the graph must not see the agent

    first = Agent(name="First", functions=[over, twins[0]])
    text = f"over handed off to the agent '{name}'.*agents=\\[\\.\\.\\.\\]"
    with pytest.raises(ConfigurationError, match=text) as caught:
        await rerun(path, Script(calls("over")), first)
    assert caught.value.response is not None and caught.value.response.messages[-1]["role"] == "tool"
    if name == "Hidden":
        text = r"the record has a handoff to the agent 'Hidden'. .*no agent of this name .*agents=\[\.\.\.\]"
        with pytest.raises(ConfigurationError, match=text):
            await rerun(path, Script(), first)
    seen = Agent(name="First", functions=[over, Agent(name="Hidden"), twins[0]])
    with pytest.raises(ConfigurationError, match="in its tools"):
        await rerun(path, Script(says("Done")), seen)


async def test_a_finished_item_whose_agent_is_gone(path: Path) -> None:
    """The response of a finished item has an agent of the recorded name all the same, which refuses to run."""

    def over() -> Agent:
        return second

    second = Agent(name="Second")
    await rerun(path, Script(calls("over"), says("Done")), Agent(functions=[over]))
    again = await rerun(path, Script(), Agent())
    assert (again.agent.name, again.text) == ("Second", "Done")
    with pytest.raises(ConfigurationError, match=r"a response of the agent 'Second'.*List the agent: agents="):
        await AsyncSwarm(client=Script(says("Done"))).run(again.agent, "Hi")


# --- agents that the caller lists ---


def hiding(*agents: Agent) -> Any:
    """A function that hands off to these agents, one after the other; no graph can find them."""
    waiting = iter(agents)

    def over() -> Agent:
        return next(waiting)

    return over


async def test_a_listed_agent_is_found(path: Path) -> None:
    """A handoff to an agent that only the list has is recorded and resumed; a recorded response has that agent."""
    hidden = Agent(name="Hidden")
    listed = [hidden]
    with pytest.raises(Died):
        await rerun(path, Script(calls("over"), dies()), Agent(functions=[hiding(hidden)]), agents=listed)
    first = Agent(functions=[hiding()])
    response = await rerun(path, Script(says("Done")), first, agents=listed)
    assert response.agent is hidden
    assert [message.get("sender") for message in response.messages] == ["Agent", None, "Hidden"]
    assert (await rerun(path, Script(), first, agents=listed)).agent is hidden


async def test_a_listed_name_is_not_searched_for(path: Path) -> None:
    """A search through a large program takes long; with the agents in the list it is not needed."""
    searched: list[str] = []

    class Watched(Agent):
        def __getattribute__(self, name: str) -> Any:
            if name == "functions":
                searched.append(name)
            return super().__getattribute__(name)

    hidden, far = Agent(name="Hidden"), Watched(name="Far")
    agent = Agent(functions=[hiding(hidden), far])
    searched.clear()
    await rerun(path, Script(calls("over"), says("Done")), agent, agents=[hidden])
    assert (await rerun(path, Script(), agent, agents=[hidden])).agent is hidden
    assert not searched
    await rerun(path, Script(), agent)
    assert searched


async def test_a_search_makes_no_schemas(path: Path) -> None:
    """It runs on the event loop, and schemas would take most of the time: a broken schema is not even noticed."""

    def broken(*numbers: int) -> str:
        return ""

    last = Agent(name="Last")
    between = Agent(name="Between", functions=[broken, last])
    first = Agent(name="First", functions=[hiding(last), between])
    assert (await rerun(path, Script(calls("over"), says("Done")), first)).agent is last
    assert (await rerun(path, Script(), first)).agent is last


async def test_another_agent_of_a_listed_name_is_refused(path: Path) -> None:
    """A rerun would find the listed agent, which is not the agent of the handoff."""
    agent = Agent(functions=[hiding(Agent(name="Twin"))])
    with pytest.raises(ConfigurationError, match=r"'Twin'.*another agent of this name is listed"):
        await rerun(path, Script(calls("over")), agent, agents=[Agent(name="Twin")])


async def test_agents_made_for_each_item(path: Path) -> None:
    """Every item may have an agent of its own."""
    agents = [Agent() for _ in range(70)]
    async with batch(path, [Item("Hi", agent=agent) for agent in agents], ordered=True) as outcomes:
        found = [outcome.response async for outcome in outcomes]
    assert all(response and response.agent is agent for response, agent in zip(found, agents, strict=True))


async def test_another_agent_of_the_name_of_the_first_is_refused(path: Path) -> None:
    """A finished item would otherwise come back with the other agent."""
    with pytest.raises(ConfigurationError, match="two agents named 'A'"):
        await rerun(path, Script(says("Done")), Agent(name="A"), agents=[Agent(name="A")])
