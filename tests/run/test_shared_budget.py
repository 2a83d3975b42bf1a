"""`SharedBudget`: the limits of several runs together, one after another, at once, in threads and inside tools."""

from __future__ import annotations

import threading
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aswarm import (
    Agent,
    AsyncSwarm,
    Budget,
    BudgetError,
    ConfigurationError,
    SharedBudget,
    Swarm,
    agent_tool,
    tool,
)
from aswarm.conversations import MemoryStore
from aswarm.testing import ScriptedAnswer, ScriptedModel, call, check_history

PRICES = {"gpt-6-luna": (1.0, 1.0)}


async def look() -> str:
    """Look around."""
    await anyio.sleep(0)
    return "seen"


def agent_of(name: str = "A", *functions: Any) -> Agent:
    return Agent(name=name, model="gpt-6-luna", functions=list(functions or (look,)))


def answer(text: str, tokens: int) -> ScriptedAnswer:
    return ScriptedAnswer(text, usage={"prompt_tokens": tokens, "completion_tokens": 0, "total_tokens": tokens})


def swarm_of(*steps: Any, **options: Any) -> tuple[AsyncSwarm, ScriptedModel]:
    model = ScriptedModel(steps)
    return AsyncSwarm(model.client(), **options), model


# --- runs one after another -------------------------------------------------------------------------------------------
async def test_the_limits_count_over_all_runs() -> None:
    """The second run has the turns that the first has left, and the third run sends no request."""
    swarm, model = swarm_of(call("look"), "One.", call("look"), "never")
    budget = SharedBudget(turns=3)
    responses = [await swarm.run(agent_of(), "Go", budget=budget) for _ in range(3)]
    assert [each.stop for each in responses] == ["answer", "budget", "budget"]
    assert [each.spent for each in responses] == [None, "turns", "turns"]
    assert (len(model.requests), responses[2].messages) == (3, [])
    assert budget.used == {"turns": 3, "tokens": sum(each.usage.total_tokens for each in responses), "tool_calls": 2}
    for each in responses:
        check_history([{"role": "user", "content": "Go"}, *each.messages])


@pytest.mark.parametrize("limit", ["tokens", "cost"])
async def test_tokens_and_dollars_count_over_all_runs(limit: str) -> None:
    """The usage of a response is only that of its run."""
    swarm, model = swarm_of(answer("One.", 600_000), answer("Two.", 600_000), "never")
    budget = SharedBudget(tokens=1_000_000) if limit == "tokens" else SharedBudget(cost=1.0, prices=PRICES)
    responses = [await swarm.run(agent_of(), "Go", budget=budget) for _ in range(3)]
    assert [(each.stop, each.spent) for each in responses] == [("answer", None), ("answer", None), ("budget", limit)]
    assert [each.usage.total_tokens for each in responses] == [600_000, 600_000, 0]
    assert len(model.requests) == 2
    assert budget.used == {
        "turns": 2, "tokens": 1_200_000, "tool_calls": 0, **({"cost": 1.2} if limit == "cost" else {})}  # fmt: skip


async def test_calls_that_the_common_limit_refuses() -> None:
    """A run stops when one of its own calls is refused; a run without calls still answers."""
    swarm, _ = swarm_of([call("look"), call("look")], "One.", [call("look"), call("look")], "Two.")
    budget = SharedBudget(tool_calls=3)
    first, second, third = [await swarm.run(agent_of(), "Go", budget=budget) for _ in range(3)]
    assert [each.stop for each in (first, second, third)] == ["answer", "budget", "answer"]
    assert second.messages[-1]["content"] == "not run: the budget of 3 tool calls is used up"
    assert budget.used["tool_calls"] == 3


async def test_then_applies_to_each_run() -> None:
    """With "answer" each run may request a last completion; with "raise" each run raises."""
    swarm, model = swarm_of(call("look"), "Last.", "Last too.")
    budget = SharedBudget(turns=1, then="answer")
    responses = [await swarm.run(agent_of(), "Go", budget=budget) for _ in range(2)]
    assert [(each.stop, each.text) for each in responses] == [("budget", "Last."), ("budget", "Last too.")]
    assert model.requests[1].body["tool_choice"] == "none"
    strict = SharedBudget(turns=1, then="raise")
    swarm, _ = swarm_of("One.")
    await swarm.run(agent_of(), "Go", budget=strict)
    with pytest.raises(BudgetError, match="the budget of 1 turn is used up"):
        await swarm.run(agent_of(), "Go", budget=strict)


async def test_the_seconds_start_with_the_first_run() -> None:
    """A later run is cut when the seconds since the start of the first run are over."""

    async def wait() -> str:
        await anyio.sleep_forever()
        return ""

    swarm, model = swarm_of("One.", call("wait"), "never")
    budget = SharedBudget(seconds=0.2)
    await anyio.sleep(0.25)  # before the first run
    assert (await swarm.run(agent_of(), "Go", budget=budget)).stop == "answer"
    cut = await swarm.run(agent_of("A", wait), "Go", budget=budget)
    assert (cut.stop, cut.spent) == ("budget", "seconds")
    assert "the budget of 0.2 seconds is used up" in cut.messages[-1]["content"]
    late = await swarm.run(agent_of(), "Go", budget=budget)
    assert (late.stop, late.spent, len(model.requests)) == ("budget", "seconds", 2)


async def test_a_run_after_an_approval_counts_on() -> None:
    """The run that is resumed has what the first run left; the call counts when it runs."""
    approved = tool(approve=True)(look)
    swarm, _ = swarm_of(call("look", call_id="c"), "One.", call("look", call_id="d"))
    budget = SharedBudget(turns=3, tool_calls=1)
    agent = agent_of("A", approved)
    asked = await swarm.run(agent, "Go", budget=budget)
    assert (asked.stop, budget.used["tool_calls"]) == ("waiting", 0)
    history = [{"role": "user", "content": "Go"}, *asked.messages]
    response = await swarm.run(agent, history, resume={"c": True}, budget=budget)
    assert (response.stop, budget.used["tool_calls"], budget.used["turns"]) == ("answer", 1, 2)
    again = await swarm.run(agent, "Go", budget=budget)
    history = [{"role": "user", "content": "Go"}, *again.messages]
    refused = await swarm.run(agent, history, resume={"d": True}, budget=budget)
    assert (refused.stop, refused.spent, budget.used["turns"]) == ("budget", "tool_calls", 3)


# --- runs at once -----------------------------------------------------------------------------------------------------
@settings(max_examples=30, deadline=None)
@given(runs=st.integers(1, 6), turns=st.integers(1, 12), calls=st.integers(0, 8), width=st.integers(1, 3))
async def test_concurrent_runs_never_exceed_turns_and_calls(runs: int, turns: int, calls: int, width: int) -> None:
    """However the runs interleave, the requests and the started calls stay in the limits, and each history is valid."""
    started: list[int] = []

    async def count() -> str:
        started.append(1)
        await anyio.sleep(0)
        return f"{len(started)}"

    model = ScriptedModel([*[[call("count") for _ in range(width)]] * 200])
    swarm, budget = AsyncSwarm(model.client()), SharedBudget(turns=turns, tool_calls=calls)
    responses: list[Any] = []

    async def one() -> None:
        responses.append(await swarm.run(agent_of("A", count), "Go", budget=budget))

    async with anyio.create_task_group() as group:
        for _ in range(runs):
            group.start_soon(one)
    assert (len(model.requests), len(started)) == (budget.used["turns"], budget.used["tool_calls"])
    assert len(model.requests) <= turns
    assert len(started) <= calls
    assert {each.stop for each in responses} == {"budget"}
    assert {each.spent for each in responses} <= {"turns", "tool_calls"}
    assert budget.used["tokens"] == sum(each.usage.total_tokens for each in responses)
    for each in responses:
        check_history([{"role": "user", "content": "Go"}, *each.messages])


async def test_a_cancelled_run_keeps_what_it_has_used() -> None:
    """Its request stays counted, and the next run has one less."""
    swarm, model = swarm_of(call("hang"), "Two.", "never")
    started = anyio.Event()

    async def hang() -> str:
        started.set()
        await anyio.sleep_forever()
        return ""

    budget = SharedBudget(turns=2)
    async with anyio.create_task_group() as group:

        async def run() -> None:
            await swarm.run(agent_of("A", hang), "Go", budget=budget)

        group.start_soon(run)
        await started.wait()
        group.cancel_scope.cancel()
    assert budget.used["turns"] == 1
    assert (await swarm.run(agent_of(), "Go", budget=budget)).stop == "answer"
    assert (await swarm.run(agent_of(), "Go", budget=budget)).stop == "budget"
    assert len(model.requests) == 2


def test_runs_of_several_threads_share_it() -> None:
    """Four blocking swarms, each with its own thread, send exactly as many requests as the limit allows."""
    budget = SharedBudget(turns=40)
    models = [ScriptedModel([call("look")] * 60) for _ in range(4)]

    def work(model: ScriptedModel) -> None:
        with Swarm(model.client()) as swarm:
            swarm.run(agent_of(), "Go", budget=budget)

    threads = [threading.Thread(target=work, args=(model,)) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(len(model.requests) for model in models) == 40 == budget.used["turns"]


# --- inside tools, and in other ways to run ---------------------------------------------------------------------------
async def test_an_agent_as_a_tool_counts_once() -> None:
    """The inner run counts for the shared budget of its outer run."""
    inner = agent_of("Inner")
    swarm, model = swarm_of(call("ask", request="Hi"), call("look"), "Inner.", "Outer.")
    budget = SharedBudget(turns=4)
    response = await swarm.run(agent_of("Outer", agent_tool(inner, name="ask")), "Go", budget=budget)
    assert (response.stop, budget.used["turns"], len(model.requests)) == ("answer", 4, 4)
    assert budget.used["tokens"] == response.usage.total_tokens


async def test_a_run_inside_a_run_with_the_same_budget_counts_once() -> None:
    """At the limit the inner run stops, and `then` applies to the outer run."""
    budget = SharedBudget(turns=2, then="answer")

    async def ask() -> str:
        response = await swarm.run(agent_of("Inner"), "Hi", budget=budget)
        return f"{response.stop} {response.spent}"

    swarm, model = swarm_of(call("ask"), call("look"), "Outer.")
    response = await swarm.run(agent_of("Outer", ask), "Go", budget=budget)
    assert response.messages[1]["content"] == "budget turns"
    assert (response.stop, response.text, budget.used["turns"]) == ("budget", "Outer.", 3)
    assert len(model.requests) == 3


async def test_an_inner_run_with_a_shared_budget_of_its_own_counts_for_both() -> None:
    """The runs of a tool share a smaller budget, inside the budget of the outer run."""
    small = SharedBudget(turns=2)

    async def ask() -> str:
        found = [await swarm.run(agent_of("Inner"), "Hi", budget=small) for _ in range(2)]
        return ", ".join(f"{each.stop} {each.spent}" for each in found)

    swarm, _ = swarm_of(call("ask"), "One.", call("look"), "Outer.")
    budget = SharedBudget(turns=10, tool_calls=3)
    response = await swarm.run(agent_of("Outer", ask), "Go", budget=budget)
    assert response.messages[1]["content"] == "answer None, budget turns"
    assert (small.used["turns"], budget.used["turns"], budget.used["tool_calls"]) == (2, 4, 2)


async def test_a_batch_and_a_conversation_share_it() -> None:
    """The items of a batch count together, and so does a run of a conversation."""
    swarm, model = swarm_of("One.", "Two.", "Three.", "never")
    budget = SharedBudget(turns=3)
    async with MemoryStore() as store:
        chat = store.conversation("c", swarm, agent=agent_of())
        assert (await chat.run("Go", budget=budget)).stop == "answer"
    async with swarm.batch(agent_of(), ["a", "b", "c"], concurrency=1, budget=budget) as outcomes:
        stops = [each.response.stop async for each in outcomes if each.response]
    assert (stops, len(model.requests)) == (["answer", "answer", "budget"], 3)


async def test_a_swarm_can_have_a_shared_budget() -> None:
    """It limits all runs of the swarm together; a budget of a run replaces it."""
    budget = SharedBudget(turns=1)
    swarm, _ = swarm_of("One.", "Two.", budget=budget)
    first, second = [await swarm.run(agent_of(), "Go") for _ in range(2)]
    assert (first.stop, second.stop) == ("answer", "budget")
    assert (await swarm.run(agent_of(), "Go", budget=Budget())).stop == "answer"


def test_a_shared_budget_checks_its_limits_and_equals_only_itself() -> None:
    with pytest.raises(ConfigurationError, match="turns of a Budget"):
        SharedBudget(turns=0)
    one, other = SharedBudget(turns=1), SharedBudget(turns=1)
    assert one != other
    assert {one: 1, other: 2}[one] == 1
    assert repr(one).startswith("SharedBudget(turns=1, tokens=None")
