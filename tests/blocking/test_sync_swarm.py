"""`Swarm`: the blocking face gives the same as the async face, in scripts and in notebooks."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, get_overloads, get_type_hints

import pytest

from aswarm import Agent, AsyncSwarm, Budget, BudgetError, CompletionError, ConfigurationError, Response, Result, Swarm
from aswarm._blocking.sync_swarm import SwarmKeywords
from aswarm.testing import Failure, ScriptedModel, call, check_history
from tests.support.blocking.blocking import CLIENTS, FACES, PLACES, consume
from tests.support.blocking.plain_client import BlockingClient
from tests.support.run.one_turn import contents

every_face = pytest.mark.parametrize("face", FACES)
Place = Callable[[Callable[[], Any]], Any]


async def quick() -> str:
    await asyncio.sleep(0)
    return "quick"


@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS.keys())
@every_face
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())
def test_a_conversation(place: Place, face: str, client: Callable[..., Any]) -> None:
    """Every client, through every face, in every place: the conversation that AsyncSwarm would have."""

    def remember(what: str, context_variables: dict[str, Any]) -> Result:
        context_variables["seen"] = context_variables.get("seen", 0) + 1
        return Result(value=f"{what} noted", agent=other, context_variables={"last": what})

    other = Agent(name="Other", functions=[quick])
    agent = Agent(name="First", instructions=lambda context: f"For {context['user']}.", functions=[remember, quick])
    steps = [[call("quick"), call("remember", what="it")], call("quick"), "Done"]
    with Swarm(client(*steps)) as swarm:
        response: Response = place(lambda: consume(swarm, agent, face, context_variables={"user": "Ann"}))
    check_history(response.messages)
    assert contents(response) == ["quick", "it noted", "quick"]
    assert (response.text, response.stop, response.agent) == ("Done", "answer", other)
    assert response.context_variables == {"user": "Ann", "seen": 1, "last": "it"}
    assert [message["sender"] for message in response.messages if message["role"] == "assistant"] == [
        "First",
        "Other",
        "Other",
    ]


@every_face
def test_errors_carry_what_had_happened(face: str) -> None:
    """The provider's failure in the second turn leaves the first."""
    model = ScriptedModel([call("quick"), Failure(400)])
    with Swarm(model.client()) as swarm, pytest.raises(CompletionError) as caught:
        consume(swarm, Agent(functions=[quick]), face)
    assert caught.value.status_code == 400
    assert caught.value.response is not None
    assert contents(caught.value.response) == ["quick"]


def test_what_cannot_be_run_is_said_before_anything_is_asked() -> None:
    """Mistakes of the caller are raised by the call itself, as with AsyncSwarm."""
    with Swarm(BlockingClient()) as swarm:
        for run in (swarm.run, swarm.run_and_stream, swarm.stream):
            with pytest.raises(ConfigurationError, match="agent must be an Agent"):
                run("no agent", "Go")  # type: ignore[arg-type, operator]
    with pytest.raises(ConfigurationError, match="max_threads"):
        Swarm(max_threads=0)
    with pytest.raises(ConfigurationError, match="client must be"):
        Swarm(client=object())


def test_the_keywords_are_those_of_async_swarm() -> None:
    """But for `transport`; and so are the parameters of all three ways to run, also of their overloads for type checkers."""
    parameters = inspect.signature(AsyncSwarm).parameters.values()
    names = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    assert {*names} - {"transport"} == {*SwarmKeywords.__annotations__}
    hints = get_type_hints(SwarmKeywords), get_type_hints(AsyncSwarm.__init__)
    assert {name: hints[1][name] for name in hints[0]} == hints[0]
    for name in ("run", "run_and_stream", "stream"):
        ours, theirs = (
            [[*inspect.signature(each).parameters.values()] for each in (*get_overloads(method), method)]
            for method in (getattr(Swarm, name), getattr(AsyncSwarm, name))
        )
        assert ours == theirs, name


def test_an_unknown_keyword_of_swarm_is_an_error() -> None:
    """With Python's own text."""
    with pytest.raises(TypeError, match=r"Swarm\(\) got an unexpected keyword argument 'transport'"):
        Swarm(transport="auto")  # type: ignore[call-arg]


def test_all_arguments_arrive() -> None:
    """Positional and by keyword, for all three ways."""
    history = [{"role": "user", "content": "Hi"}]
    client = BlockingClient(*["Hello"] * 4)
    with Swarm(client) as swarm:
        assert swarm.run(Agent(), history, {"a": 1}, "m", False, False, 1, True, resume=True).context_variables == {
            "a": 1
        }
        *_, last = swarm.run(Agent(), history, None, "m", True)
        *_, last_too = swarm.run_and_stream(Agent(), history, None, "m", False, 1, True, resume=True)
        with swarm.stream(Agent(), history, None, model_override="m", max_turns=1, resume=True) as run:
            assert list(run)[-1].response is run.response  # type: ignore[union-attr]
        assert swarm.run(Agent(), "Hi", max_turns=0).stop == "max_turns"
    assert last["response"].text == last_too["response"].text == "Hello"
    assert [request["model"] for request in client.requests] == ["m"] * 4


def test_debug_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """In Swarm's wording."""
    with Swarm(BlockingClient("Done")) as swarm:
        swarm.run(Agent(), "Go", debug=True)
    assert "Getting chat completion for...:" in capsys.readouterr().out


@every_face
def test_the_id_of_a_run(face: str) -> None:
    """A run has the given id, or a new one; the streams have it too."""
    with Swarm(BlockingClient(*["Hello"] * 5)) as swarm:
        assert consume(swarm, Agent(), face, run_id="mine").run_id == "mine"
        assert consume(swarm, Agent(), face).run_id
        assert swarm.run(Agent(), "Go", stream=True, run_id="mine").run_id == "mine"
        assert swarm.stream(Agent(), "Go", run_id="mine").run_id == "mine"


@pytest.mark.parametrize("default", [True, False])
def test_a_budget_that_raises_has_the_partial_response(default: bool) -> None:
    """A BudgetError in the thread of the caller, for a budget of the swarm or of the run."""
    options: dict[str, Any] = {"budget": Budget(turns=1, then="raise")}
    swarm = Swarm(ScriptedModel([call("look")]).client(), **(options if default else {}))
    with pytest.raises(BudgetError) as caught:
        swarm.run(Agent(functions=[]), "Go", **({} if default else options))
    assert caught.value.response is not None
    assert caught.value.response.spent == "turns"
