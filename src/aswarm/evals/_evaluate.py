"""`evaluate`: runs the cases, several at once, and tells the attempts that passed from those that did not.

Decides what an attempt comes to. One attempt's failure never ends the others; a cancellation keeps what was done.
"""

from __future__ import annotations

import inspect
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import anyio

from aswarm._agent import Agent, Response
from aswarm._errors import AswarmError, ConfigurationError, set_attribute
from aswarm._swarm import AsyncSwarm
from aswarm._tools.hints import name_of

from ._calls import calls_of, unexpected
from ._case import Case, as_case
from ._files import import_agent
from ._judge import Judge, Verdict
from ._progress import progress_on
from ._report import Attempt, CaseReport, Outcome, Report
from ._results import ResultsFile


async def evaluate(
    agent: Agent | str | None,
    cases: Iterable[Case | Mapping[str, Any]],
    *,
    swarm: AsyncSwarm | None = None,
    repeats: int = 1,
    concurrency: int = 10,
    model_override: str | None = None,
    max_turns: float = math.inf,
    judge_model: str | None = None,
    judge_swarm: AsyncSwarm | None = None,
    results: str | os.PathLike[str] | None = None,
    progress: bool = False,
) -> Report:
    """Run every case `repeats` times, each an independent run, and report how often it passed.

    `agent`: for the cases that name none; an `Agent`, "module:attribute", or None where every case names its own.
    `cases`: of `load_cases`, or made in Python; mappings as in a file will do. What passes is said at `Case`.
    `swarm`: `AsyncSwarm()` from the environment where it is left out. `concurrency`: attempts at once, over all cases;
    every case has its first attempt before one has its second. `model_override`, `max_turns`: of every run.
    `judge_model`: by default `model_override`, or the model of the case's agent. `judge_swarm`: where the judge is on
    another server. `results`: a JSON file that a record of this evaluation is appended to. `progress`: on stderr,
    where that is a terminal.

    Whatever an attempt raises is an error of that attempt: told in the report, counted as not passed. Where the
    evaluation itself is cancelled (Ctrl-C), what was done until then is in `results`, and in the exception's `.report`.

    Raises ConfigurationError, before anything is sent, for a case, an agent, a client or a results file that cannot be
    used.
    """
    if repeats < 1 or concurrency < 1:
        raise ConfigurationError(f"repeats and concurrency must be at least 1, not {repeats} and {concurrency}")
    for given in (swarm, judge_swarm):
        _check_swarm(given)
    entries = list(_entries(agent, cases, model_override))
    if not entries:
        raise ConfigurationError("there are no cases")
    record = None if results is None else ResultsFile(results)
    async with AsyncExitStack() as stack:
        swarm = await stack.enter_async_context(AsyncSwarm()) if swarm is None else swarm
        judge = Judge(judge_swarm or swarm)
        swarm.client  # noqa: B018 - raises where there is none, which would else be an error of every attempt
        attempts = _Attempts(swarm, judge, model_override, max_turns, judge_model)
        return await _run_all(attempts, entries, repeats, concurrency, record, progress=progress)


@dataclass(frozen=True, slots=True)
class _Entry:
    """A case's place in the report, and its agent; None where it needs none and there is none."""

    report: CaseReport
    agent: Agent | None


def _check_swarm(given: object) -> None:
    # With a blocking Swarm, say, every attempt would be paid for, and then fail.
    if not isinstance(given, AsyncSwarm | None):
        raise ConfigurationError(f"evaluate needs an AsyncSwarm, not {type(given).__name__}")


def _entries(
    agent: Agent | str | None, cases: Iterable[Case | Mapping[str, Any]], model_override: str | None
) -> Iterator[_Entry]:
    for case in map(as_case, cases):
        named = agent if case.agent is None else case.agent
        if named is None and case.extent != "nothing":
            raise ConfigurationError(f"no agent for the case {str(case)!r}; pass one, or name it as module:attribute")
        found = import_agent(named) if isinstance(named, str) else named
        asked = None if case.extent == "nothing" else found
        names = ("", "") if asked is None else (asked.name, model_override or asked.model)
        yield _Entry(CaseReport(case, [], *names), found)


async def _run_all(
    attempts: _Attempts,
    entries: list[_Entry],
    repeats: int,
    concurrency: int,
    record: ResultsFile | None,
    *,
    progress: bool,
) -> Report:
    report = Report([entry.report for entry in entries])
    total = len(entries) * repeats
    # Shared by the workers: each takes the next one.
    jobs = ((entry, number) for number in range(1, repeats + 1) for entry in entries)
    try:
        with progress_on(sys.stderr if progress else None, total) as tell:
            async with anyio.create_task_group() as workers:
                for _ in range(min(concurrency, total)):
                    workers.start_soon(_work, attempts, jobs, tell)
    except BaseException as error:
        set_attribute(error, "report", report)
        raise
    finally:
        report.interrupted = report.total < total
        _record(record, report)
    return report


def _record(record: ResultsFile | None, report: Report) -> None:
    if record is not None:
        try:
            record.append(report.to_dict())
        except Exception as error:
            set_attribute(error, "report", report)  # it was paid for
            raise


async def _work(attempts: _Attempts, jobs: Iterator[tuple[_Entry, int]], tell: Callable[[Attempt], None]) -> None:
    for entry, number in jobs:
        attempt = await attempts.make(entry.report.case, entry.agent, number)
        entry.report.add(attempt)
        tell(attempt)


@dataclass(frozen=True, slots=True)
class _Attempts:
    """Makes attempts: what is the same for all of them."""

    swarm: AsyncSwarm
    judge: Judge
    model_override: str | None
    max_turns: float
    judge_model: str | None

    async def make(self, case: Case, agent: Agent | None, number: int) -> Attempt:
        """One attempt at one case. Raises nothing but cancellation."""
        response: Response | None = None
        try:
            response = await self._run(case, agent)
            verdict = await self._look(case, agent, response)
        except Exception as error:  # noqa: BLE001 - told in the report
            # What had happened before the run itself failed; later errors have their own responses, or none.
            left = getattr(error, "response", None) if response is None else response
            verdict = Verdict(passed=False, reason=_words(error))
            return _attempt(number, "error", left if isinstance(left, Response) else Response(), verdict)
        return _attempt(number, "passed" if verdict.passed else "failed", response, verdict)

    async def _run(self, case: Case, agent: Agent | None) -> Response:
        if agent is None or case.extent == "nothing":
            return Response()
        return await self.swarm.run(
            agent,
            case.messages,
            case.context_variables,
            self.model_override,
            max_turns=self.max_turns,
            execute_tools=case.extent == "whole",
        )

    async def _look(self, case: Case, agent: Agent | None, response: Response) -> Verdict:
        wrong = unexpected(case, calls_of(response.messages))
        if wrong is None and case.check is not None:
            wrong = await _checked(case.check, response)
        if wrong is not None or case.judge is None:
            return Verdict(wrong is None, wrong or "")
        model = self.judge_model or self.model_override or (agent or Agent()).model
        return await self.judge.ask(case.judge, [*case.messages, *response.messages], model)


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, AswarmError) else f"{type(error).__name__}: {error}"


async def _checked(check: Callable[[Response], Any], response: Response) -> str | None:
    """What the check did not like; None where it is content."""
    try:
        result = check(response)
        result = await result if inspect.isawaitable(result) else result
    except AssertionError as error:
        return f"{name_of(check)}: {error}"
    return None if result else f"{name_of(check)} returned {result!r}"


def _attempt(number: int, outcome: Outcome, response: Response, verdict: Verdict) -> Attempt:
    return Attempt(
        number,
        outcome,
        verdict.reason,
        tuple(calls_of(response.messages)),
        response.text,
        tuple(response.messages),
        response.stop,
        response.usage + verdict.usage,
    )
