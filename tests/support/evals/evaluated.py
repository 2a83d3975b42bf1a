"""Helpers for tests of evals: two agents, and a model whose script depends on the last message."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from aswarm import Agent, AsyncSwarm
from aswarm.evals import Case, CaseReport, Report, evaluate
from aswarm.testing import Request, ScriptedModel, Step

booked: list[str] = []


def book(city: str, nights: int = 1) -> str:
    """Book a room."""
    booked.append(city)
    return f"booked {city} for {nights}"


sales = Agent(name="Sales", instructions="You sell.", functions=[book])
desk = Agent(name="Desk", instructions="You answer, or hand over.", functions=[sales, book])


def answering(steps: Mapping[str, Step]) -> Callable[[Request], Step]:
    """Return a script: the step of the first key that is part of the last message."""

    def script(request: Request) -> Step:
        asked = str(request.messages[-1]["content"])
        return next(step for key, step in steps.items() if key in asked)

    return script


def swarm_that(steps: Mapping[str, Step] | Callable[[Request], Step], api: Any = "chat") -> AsyncSwarm:
    """Return a swarm with a scripted model."""
    return AsyncSwarm(ScriptedModel(steps if callable(steps) else answering(steps), api=api).client())


async def one(case: Case, steps: Mapping[str, Step] | Callable[[Request], Step], **options: Any) -> CaseReport:
    """Return the report of one case."""
    report: Report = await evaluate(desk, [case], swarm=swarm_that(steps), **options)
    return report.cases[0]
