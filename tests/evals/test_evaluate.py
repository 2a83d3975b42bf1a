"""`evaluate`: the outcome of an attempt, and how many run at once."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, ConfigurationError, Response, tool
from aswarm.evals import Case, evaluate
from aswarm.sources import CompletionRequest
from aswarm.testing import Failure, ScriptedModel, call
from tests.support.evals import evaluated
from tests.support.evals.evaluated import answering, desk, one, sales, swarm_that


@pytest.fixture(autouse=True)
def _nothing_booked() -> None:
    evaluated.booked.clear()


async def test_for_calls_alone_nothing_is_executed() -> None:
    """A case with only calls requests one completion, and executes no call."""
    report = await one(Case("Go", function="book"), {"Go": call("book", city="Rome")})
    assert report.accuracy == 1
    assert evaluated.booked == []
    assert report.attempts[0].stop == "tool_calls"


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_a_whole_run_executes_calls_and_handoffs(api: str) -> None:
    """The agent after a handoff makes the expected call, and the call is executed."""
    steps = {"Go": call("transfer_to_sales"), '"Sales"': call("book", city="Rome"), "booked": "It is booked."}
    case = Case("Go", function="book", run="whole", arguments={"city": "Rome"})
    report = (await evaluate(desk, [case], swarm=swarm_that(steps, api))).cases[0]
    assert report.accuracy == 1
    assert evaluated.booked == ["Rome"]
    assert report.attempts[0].did == 'called transfer_to_sales(), book({"city": "Rome"}), answered \'It is booked.\''


async def test_context_variables_reach_the_run_and_every_run_has_its_own() -> None:
    """The next attempt does not see a change of the context."""

    def visit(context_variables: dict[str, Any]) -> str:
        context_variables["visits"].append(1)
        return str(len(context_variables["visits"]))

    agent = Agent(functions=[visit])
    case = Case("Go", check=lambda done: done.context_variables["visits"] == [1], context_variables={"visits": []})
    swarm = swarm_that({"Go": call("visit"), "1": "Once."})
    report = await evaluate(agent, [case], swarm=swarm, repeats=3)
    assert report.accuracy == 1, report


async def polite(response: Response) -> bool:
    return "please" in response.text


async def asserts(response: Response) -> None:
    assert response.text == "Hello!"


def raises(error: Exception) -> Any:
    def check(response: Response) -> bool:
        raise error

    return check


@pytest.mark.parametrize(
    ("check", "outcome", "reason"),
    [
        (lambda response: response.text == "Hello!", "passed", ""),
        (
            lambda response: None,
            "failed",
            "<lambda> returned None; return True for a right response, or declare `-> None`",
        ),
        (asserts, "passed", ""),
        (polite, "failed", "polite returned False"),
        (raises(AssertionError("no greeting")), "failed", "check: no greeting"),
        (raises(KeyError("x")), "error", "KeyError: 'x'"),
    ],
)
async def test_a_check_in_plain_python(check: Any, outcome: str, reason: str) -> None:
    """A check is plain or async; an assertion is a failure, any other exception is an error, and the response is kept."""
    [attempt] = (await one(Case("Hi", check=check), {"Hi": "Hello!"})).attempts
    assert (attempt.outcome, attempt.reason, attempt.text) == (outcome, reason, "Hello!")


async def test_a_failed_attempt_never_stops_the_others() -> None:
    """A failed attempt is an error with its text and its messages, and the other attempts finish."""
    cases = [
        Case("down", function=None),
        Case("Go", function=None, run="whole"),
        Case([{"role": "assistant", "tool_calls": [call_left_open()]}], function=None),
        Case("Hi", function=None),
    ]
    steps = {"down": Failure(500, "overloaded"), "Go": call("book", city="Rome"), "booked": Failure(400), "Hi": "Hello"}
    report = await evaluate(desk, cases, swarm=swarm_that(steps), repeats=2, concurrency=3)
    assert [case.accuracy for case in report.cases] == [0, 0, 0, 1]
    assert (report.errors, report.total, report.accuracy) == (6, 8, 0.25)
    first, second, third, _ = (case.attempts[0] for case in report.cases)
    assert "overloaded" in first.reason
    assert second.did == 'called book({"city": "Rome"})'
    assert "resume=True" in third.reason


def call_left_open() -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": "book", "arguments": "{}"}}


class Crowd:
    """Answers when `size` requests wait at the same time. `most`: the largest number of waiting requests."""

    def __init__(self, size: int) -> None:
        self._size, self._all_here = size, anyio.Event()
        self.here = self.most = self.answered = 0

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        self.here += 1
        self.most = max(self.most, self.here)
        if self.here == self._size:
            self._all_here.set()
        with anyio.fail_after(120):  # only if too few requests come
            await self._all_here.wait()
        await anyio.sleep(0)
        self.here -= 1
        self.answered += 1
        yield {"choices": [{"message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}]}


@pytest.mark.parametrize(("cases", "repeats", "concurrency", "expected"), [(1, 9, 4, 4), (3, 3, 4, 4), (2, 2, 9, 4)])
async def test_attempts_run_at_once_up_to_the_limit(cases: int, repeats: int, concurrency: int, expected: int) -> None:
    """Cases and their repeats share one limit."""
    crowd = Crowd(expected)
    wanted = [Case(f"Hi {number}", function=None) for number in range(cases)]
    report = await evaluate(desk, wanted, swarm=AsyncSwarm(crowd), repeats=repeats, concurrency=concurrency)
    assert report.accuracy == 1
    assert (crowd.most, crowd.answered) == (expected, cases * repeats)
    assert all([attempt.number for attempt in case.attempts] == list(range(1, repeats + 1)) for case in report.cases)


async def test_agents_of_cases_and_of_the_evaluation() -> None:
    """The agent of a case replaces the agent of the evaluation, and either may be a name."""
    model = ScriptedModel(lambda _: "Hi")
    cases = [Case("a", function=None), Case("b", function=None, agent=sales)]
    cases += [Case("c", function=None, agent="tests.support.evals.evaluated:sales")]
    await evaluate("tests.support.evals.evaluated:desk", cases, swarm=AsyncSwarm(model.client()), concurrency=1)
    assert [request.messages[0]["content"] for request in model.requests] == [
        desk.instructions,
        sales.instructions,
        sales.instructions,
    ]


@pytest.mark.parametrize("extent", ["completion", "whole"])
async def test_a_call_that_waits_for_a_decision_counts_as_called(extent: Any) -> None:
    """The case passes by the call, the report has the end of the run, and the call is not executed."""

    @tool(approve=True)
    async def erase(city: str) -> str:
        raise AssertionError("a call that waits ran")

    model = ScriptedModel([call("erase", city="Rome")] * 2)
    keeper = Agent(name="Keeper", functions=[erase])
    cases = [
        Case("Erase!", function="erase", arguments={"city": "Rome"}, run=extent),
        Case("Erase!", function="book", run=extent),
    ]
    report = await evaluate(keeper, cases, swarm=AsyncSwarm(model.client()), concurrency=1)
    first, second = (each.attempts[0] for each in report.cases)
    ending = ", waits for a decision" if extent == "whole" else ""
    assert (first.outcome, first.did) == ("passed", 'called erase({"city": "Rome"})' + ending)
    assert (second.outcome, second.stop) == ("failed", "waiting" if extent == "whole" else "tool_calls")
    assert report.to_dict()["results"][0]["attempts"][0]["stop"] == first.stop


async def test_model_and_turns_hold_for_every_run() -> None:
    """`model_override` and `max_turns` hold for every run, and the report names the reached limit."""
    model = ScriptedModel(answering({"Go": call("book", city="Rome")}))
    case = Case("Go", check=lambda response: response.text)
    report = await evaluate(desk, [case], swarm=AsyncSwarm(model.client()), model_override="local", max_turns=1)
    assert [request.body["model"] for request in model.requests] == [report.cases[0].model] == ["local"]
    assert report.cases[0].attempts[0].did == 'called book({"city": "Rome"}), was stopped by max_turns'


@pytest.mark.parametrize(
    ("agent", "cases", "options", "error"),
    [
        (desk, [], {}, "there are no cases"),
        (desk, [Case("Hi", function=None)], {"repeats": 0}, "repeats and concurrency must be whole numbers from 1"),
        (
            desk,
            [Case("Hi", function=None)],
            {"concurrency": 1.5},
            "repeats and concurrency must be whole numbers from 1",
        ),
        (None, [Case("Hi", function=None)], {}, "the case 'Hi' has no agent"),
        (desk, "cases.json", {}, r"must be a list of cases, not 'cases.json'; .*load_cases"),
        (
            "tests.support.evals.evaluated:nobody",
            [Case("Hi", function=None)],
            {},
            "there is no agent 'tests.support.evals.evaluated:nobody'",
        ),
        (desk, [Case("Hi", function=None)], {"judge_swarm": object()}, "needs an AsyncSwarm, not object"),
    ],
)
async def test_mistakes_of_the_caller_are_found_before_anything_is_sent(
    agent: Any, cases: Any, options: dict[str, Any], error: str
) -> None:
    """A mistake of the caller is raised before the first request."""
    with pytest.raises(ConfigurationError, match=error):
        await evaluate(agent, cases, swarm=AsyncSwarm(ScriptedModel([]).client()), **options)


async def test_without_a_client_there_is_one_error_and_no_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """An evaluation without an API key raises one error."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigurationError, match="OPENAI_API_KEY"):
        await evaluate(desk, [Case("Hi", function=None)])
