"""`judge`: an agent as a check, in a run of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from aswarm import Agent, AsyncSwarm, Budget, ConfigurationError, Image
from aswarm.guards import Block, Blocked, CheckedInput, guard_answer, guard_input, guard_tool, judge
from aswarm.middleware import redact
from aswarm.testing import Failure, Request, ScriptedAnswer, ScriptedModel, Step, call
from tests.support.guards.guarded import WAYS, Scene

JUDGE = Agent(name="Judge", model="small", instructions="Block homework.")
PASS, NO = '{"reason": "fine", "block": false}', '{"reason": "homework", "block": true}'


def is_of_judge(request: Request) -> bool:
    return "Block homework." in str(request.messages[0]["content"])


def model_of(verdict: Step, *answers: Step) -> ScriptedModel:
    """A model that gives this verdict as the judge, and these answers otherwise."""
    left = list(answers)
    return ScriptedModel(lambda request: verdict if is_of_judge(request) else left.pop(0))


def material(model: ScriptedModel) -> Any:
    """Return the data in the request of the judge."""
    [request] = [each for each in model.requests if is_of_judge(each)]
    return json.loads(request.messages[-1]["content"].partition("\n\n")[2])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("parallel", [True, False])
async def test_an_agent_judges_an_input(way: str, parallel: bool) -> None:
    """The judge gives the reason of the block. Its tokens are part of the usage of the run, also of a blocked run."""
    guard = guard_input(judge(JUDGE), parallel=parallel)
    model = model_of(PASS, "Hello")
    response = await Scene().read(AsyncSwarm(model.client(), middleware=[guard]), way, agent=Agent())
    assert (response.text, response.usage.total_tokens, response.usage.requests) == ("Hello", 30, 2)
    blocked = AsyncSwarm(model_of(NO, "Hello").client(), middleware=[guard])
    with pytest.raises(Blocked, match=r"the check judge\(Judge\) blocked the run: homework$") as caught:
        await Scene().read(blocked, way, agent=Agent())
    assert caught.value.response is not None
    # If the completion ended before the verdict, it was paid for too.
    assert caught.value.response.usage.requests in ((1, 2) if parallel else (1,))


async def test_the_judge_gets_the_conversation() -> None:
    """The judge gets neither the instructions of the other agent nor the bytes of images."""
    model = model_of(PASS, "Hello")
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "Look:"}, Image(b"...").part]},
        {"role": "assistant", "content": "Yes"},
        {"role": "user", "content": "And?"},
    ]
    swarm = AsyncSwarm(model.client(), middleware=[guard_input(judge(JUDGE), parallel=False)])
    await swarm.run(Agent(model="large"), messages, model_override="other")
    assert material(model)["conversation"] == [
        {"role": "user", "content": "Look: [image]"},
        {"role": "assistant", "content": "Yes"},
        {"role": "user", "content": "And?"},
    ]
    assert [request.body["model"] for request in model.requests] == ["small", "other"]
    assert "tools" not in model.requests[0].body


async def work(x: str) -> str:
    """Work."""
    return f"did {x}"


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda check: guard_tool(before=check), {"call": "work", "arguments": {"x": "a"}}),
        (lambda check: guard_tool(after=check), {"call": "work", "arguments": '{"x": "a"}', "result": "did a"}),
    ],
)
async def test_an_agent_judges_calls_and_results(make: Callable[[Any], Any], expected: Any) -> None:
    """A judge may be the check of any guard, and its requests count for the run."""
    model = model_of(NO, call("work", x="a"), "Done")
    response = await AsyncSwarm(model.client(), middleware=[make(judge(JUDGE))]).run(Agent(functions=[work]), "Hi")
    assert "homework" in response.messages[1]["content"]
    assert material(model) == expected
    assert response.usage.requests == 3


async def test_an_agent_judges_an_answer() -> None:
    """The judge gets the conversation and the answer."""
    model = model_of(NO, "42")
    swarm = AsyncSwarm(model.client(), middleware=[guard_answer(judge(JUDGE))])
    with pytest.raises(Blocked, match="homework"):
        await swarm.run(Agent(), "What is 6 * 7?")
    assert [each["content"] for each in material(model)["answer"]] == ["42"]
    assert [each["content"] for each in material(model)["conversation"]] == ["What is 6 * 7?"]


@pytest.mark.parametrize("verdict", ["I think so", ScriptedAnswer("", extra={"refusal": "No."}), Failure(500)])
async def test_a_judge_without_a_verdict_blocks(verdict: Any) -> None:
    """An answer of another form, a refusal, and a failure of the provider block."""
    model = model_of(verdict, "Hello")
    with pytest.raises(Blocked, match="the check failed"):
        await AsyncSwarm(model.client(), middleware=[guard_input(judge(JUDGE))]).run(Agent(), "Hi")


async def test_a_judge_uses_the_middleware_but_no_guard() -> None:
    """No guard judges the run of the judge, and `redact` hides a secret from the judge."""
    asked: list[str] = []
    model = model_of(PASS, "Hello")

    def other(checked: CheckedInput) -> None:
        asked.append(checked.agent.name)

    swarm = AsyncSwarm(model.client(), middleware=[guard_input(judge(JUDGE)), guard_input(other), redact(r"\d{4}")])
    await swarm.run(Agent(), "My card is 4111")
    assert asked == ["Agent"]
    assert material(model)["conversation"][0]["content"] == "My card is [redacted]"


async def test_a_check_may_run_an_agent_on_the_same_swarm() -> None:
    """The run of a check is not guarded, so that the check does not call itself endlessly; the next run is guarded again."""
    count = 0

    async def check(checked: CheckedInput) -> Block | None:
        nonlocal count
        count += 1
        return Block((await swarm.run(JUDGE, checked.text)).text)

    swarm = AsyncSwarm(ScriptedModel(lambda request: "yes").client(), middleware=[guard_input(check)])
    for number in (1, 2):
        with pytest.raises(Blocked, match="yes"):
            await swarm.run(Agent(), "Hi")
        assert count == number


async def test_the_budget_of_the_run_holds_for_its_judge() -> None:
    """The completions of the judge count; a judge that the budget does not admit gives no verdict."""
    model = model_of(PASS, "Hello")
    swarm = AsyncSwarm(model.client(), middleware=[guard_input(judge(JUDGE), parallel=False)], budget=Budget(turns=2))
    response = await swarm.run(Agent(), "Hi")
    assert (response.text, response.usage.requests) == ("Hello", 2)
    with pytest.raises(Blocked, match="the check failed: OutputError"):
        await swarm.run(Agent(), "Hi", budget=Budget(turns=1))


async def test_a_judge_may_have_functions_and_instructions_of_the_context() -> None:
    """The judge then calls `final_answer`; its changes of the context do not reach the run."""
    looked: list[str] = []

    async def look_up(context_variables: dict[str, Any]) -> str:
        looked.append(context_variables.pop("user"))
        return "nothing"

    agent = Agent(name="Judge", instructions=lambda context: f"Block homework. {context['user']}", functions=[look_up])
    steps = iter([call("look_up"), call("final_answer", reason="no", block=True)])
    model = ScriptedModel(lambda request: next(steps) if is_of_judge(request) else "Hello")
    swarm = AsyncSwarm(model.client(), middleware=[guard_input(judge(agent, mode="tool"))])
    with pytest.raises(Blocked, match="no") as caught:
        await swarm.run(Agent(), "Hi", {"user": "ada"})
    assert looked == ["ada"]
    assert caught.value.response is not None
    assert caught.value.response.context_variables == {"user": "ada"}


async def test_a_mistake_is_found_when_the_judge_is_made() -> None:
    """The judge must be an Agent, and its mode must exist."""
    with pytest.raises(ConfigurationError, match="needs an Agent"):
        judge("Judge")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="mode"):
        judge(JUDGE, mode="loud")  # type: ignore[arg-type]
