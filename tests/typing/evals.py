"""Typed use of `aswarm.evals`: checked by mypy and pyright strict, never run."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, assert_type

from aswarm import Agent, AsyncSwarm, Response
from aswarm.evals import Attempt, Case, CaseReport, Report, assert_case, evaluate, load_cases


def is_short(response: Response) -> bool:
    return len(response.text) < 99


async def polite(response: Response) -> bool:
    return "please" in response.text


CASES = [
    Case("Hi", function=None),
    Case("Hi", function="book", arguments={"city": str.istitle}),
    Case([{"role": "user", "content": "Hi"}], function=["a", "b"], name="both"),
    Case("Hi", judge="Is it polite?", check=is_short, agent=Agent(), context_variables={"user": 1}),
    Case("Hi", check=polite, run="completion", agent="agents:desk"),
    Case("Hi", check=lambda response: "hello" in response.text.lower()),
]


async def evaluation() -> None:
    report = await evaluate(Agent(), CASES, repeats=3, results=Path("results.json"), progress=True)
    assert_type(report, Report)
    assert_type(report.accuracy, float)
    assert_type(report.cases, list[CaseReport])
    assert_type(report.cases[0].attempts, list[Attempt])
    assert_type(report.cases[0].attempts[0].outcome, Literal["passed", "failed", "error"])
    await evaluate("agents:desk", [{"conversation": "Hi", "function": "None"}])
    assert_type(load_cases("cases.json", agent="agents:desk"), list[Case])
    async with AsyncSwarm() as swarm:
        assert_type(await assert_case(Agent(), CASES[0], swarm=swarm, threshold=0.9, judge_model="gpt-6-luna"), Report)
