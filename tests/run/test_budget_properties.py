"""Properties of budgets: nothing is admitted above a limit, and `spent` names a limit that was reached."""

from __future__ import annotations

import functools
import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import anyio
from hypothesis import given
from hypothesis import strategies as st

from aswarm import Agent, AsyncSwarm, Budget, Response, current_call
from aswarm.sources import CompletionRequest
from aswarm.testing import check_history

Turn = tuple[int, list[Any]]  # the tokens of a completion, and its calls
counts = st.none() | st.integers(1, 5)
budgets = st.builds(
    Budget,
    turns=counts,
    tokens=st.none() | st.integers(1, 300),
    tool_calls=st.none() | st.integers(0, 6),
    repeats=counts,
    then=st.sampled_from(["stop", "answer"]),
)
tokens = st.integers(1, 120)
looks = st.tuples(st.integers(0, 2), st.integers(0, 1))  # argument and result
inner_turns = st.lists(st.tuples(tokens, st.lists(looks, min_size=1, max_size=3)), max_size=4)
# In the outer run, a call may run an agent inside, with its turns.
outer_turns = st.lists(st.tuples(tokens, st.lists(looks | inner_turns, min_size=1, max_size=3)), max_size=5)


class World:
    """Runs of drawn turns. `requests`: the requests of each run, and `ran`: its calls, by the first message of the run."""

    def __init__(self, script: list[Turn], inner: Budget | None = None) -> None:
        self.scripts: dict[str, list[Turn]] = {"Go": script}
        self.requests: dict[str, list[int]] = {}
        self.ran: list[int] = []
        self.results: dict[str, int] = {}
        self.inner: dict[str, Response] = {}
        self.inner_budget = inner
        self.swarm = AsyncSwarm(self)
        self.agent = Agent(functions=[self.look, self.ask])

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        key = request.body["messages"][1]["content"]
        made = self.requests.setdefault(key, [])
        used, calls = self.scripts[key][len(made)] if len(made) < len(self.scripts[key]) else (10, [])
        made.append(used)
        asked = [self.asked(f"{key}.{len(made)}.{n}", each) for n, each in enumerate(calls)]
        message = {"role": "assistant", "content": None if asked else "Done.", "tool_calls": asked or None}
        usage = {"prompt_tokens": used, "completion_tokens": 0, "total_tokens": used}
        yield {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}

    def asked(self, call_id: str, made: Any) -> dict[str, Any]:
        name, arguments = ("ask", {"key": call_id}) if isinstance(made, list) else ("look", {"at": made[0]})
        if isinstance(made, list):
            self.scripts[call_id] = made
        else:
            self.results[call_id] = made[1]
        return {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}

    async def look(self, at: int) -> str:
        await anyio.lowlevel.checkpoint()
        self.ran.append(at)
        return str(self.results[current_call().id])

    async def ask(self, key: str) -> str:
        self.ran.append(-1)
        self.inner[key] = await self.swarm.run(Agent(functions=[self.look]), key, budget=self.inner_budget)
        return self.inner[key].text

    def run(self, budget: Budget) -> Response:
        response = anyio.run(functools.partial(self.swarm.run, self.agent, "Go", budget=budget))
        check_history([{"role": "user", "content": "Go"}, *response.messages])
        return response


def check(budget: Budget, response: Response, made: list[int]) -> None:
    """The requests of one run are within its budget, and `spent` names one of its limits."""
    is_last = response.stop == "budget" and budget.then == "answer"
    requests = len(made) - is_last
    assert budget.turns is None or requests <= budget.turns
    assert budget.tokens is None or not requests or sum(made[: requests - 1]) < budget.tokens
    assert (response.stop == "budget") == (response.spent is not None)


@given(budgets, inner_turns)
def test_a_run_stays_within_its_budget(budget: Budget, script: list[Turn]) -> None:
    """A run never has more calls than the limit, makes no request after it, and `spent` names a limit that was reached."""
    world = World(script)
    response = world.run(budget)
    made = world.requests["Go"]
    check(budget, response, made)
    assert response.usage.total_tokens == sum(made)
    assert budget.tool_calls is None or len(world.ran) <= budget.tool_calls
    if response.stop == "answer":
        assert len(made) == len(script) + 1
    if response.spent in ("turns", "tokens"):
        used = {"turns": len(made), "tokens": sum(made)}
        assert used[response.spent] >= getattr(budget, response.spent)
    elif response.spent is not None:
        assert getattr(budget, response.spent) is not None


@given(budgets, st.none() | budgets, outer_turns)
def test_runs_that_share_a_budget_stay_within_it_together(
    outer: Budget, inner: Budget | None, script: list[Turn]
) -> None:
    """Runs inside of calls, some of them concurrent, and each with its own budget, are within the outer budget together."""
    world = World(script, inner)
    response = world.run(outer)
    made = [used for each in world.requests.values() for used in each]
    answers = (response.stop == "budget" and outer.then == "answer") + sum(
        each.stop == "budget" and inner is not None and inner.then == "answer" for each in world.inner.values()
    )
    assert response.usage.total_tokens == sum(made)
    assert outer.turns is None or len(made) - answers <= outer.turns
    assert outer.tool_calls is None or len(world.ran) <= outer.tool_calls
    for key, each in world.inner.items():
        if inner is not None:
            check(inner, each, world.requests.get(key, []))


@given(st.integers(1, 4), st.lists(looks, max_size=20))
def test_no_call_repeats_more_often_than_it_may(limit: int, script: list[tuple[int, int]]) -> None:
    """A call is refused exactly if it has had the same result `limit` times since the last new result of any call."""
    world = World([(1, [each]) for each in script])
    response = world.run(Budget(repeats=limit))
    last: dict[int, int] = {}
    since_new: dict[int, int] = {}
    answers = [message["content"] for message in response.messages if message["role"] == "tool"]
    for answer, (argument, result) in zip(answers, script, strict=False):
        assert answer.startswith("not run") == (since_new.get(argument) == limit)
        if answer.startswith("not run"):
            continue
        if last.get(argument) == result:
            since_new[argument] = since_new.get(argument, 0) + 1
        else:
            since_new = {argument: 1}
        last[argument] = result
    assert len(answers) == len(script) or response.spent == "repeats"
