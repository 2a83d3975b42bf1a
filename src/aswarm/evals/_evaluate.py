"""`evaluate`: runs the cases, several at once, and decides the outcome of each attempt.

A failed attempt never ends the others. A cancelled evaluation keeps the attempts that were finished.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any

import anyio

from aswarm._agent import Agent, Response, as_response, default_model, model_of
from aswarm._errors import AswarmError, ConfigurationError, set_attribute
from aswarm._json import is_count
from aswarm._output import answer_text
from aswarm._run.options import MAX_TURNS
from aswarm._swarm import AsyncSwarm
from aswarm._tools.hints import name_of

from ._calls import calls_of, unexpected, unexpected_output
from ._case import Case, as_case
from ._files import ResultsFile, import_agent
from ._judge import Judge, Verdict
from ._names import FunctionNames
from ._progress import progress_on
from ._report import Attempt, CaseReport, Outcome, Report


async def evaluate(
    agent: Agent | str | None,
    cases: Iterable[Case | Mapping[str, Any]],
    *,
    swarm: AsyncSwarm | None = None,
    repeats: int = 1,
    concurrency: int = 10,
    model_override: str | None = None,
    max_turns: float = MAX_TURNS,
    judge_model: str | None = None,
    judge_swarm: AsyncSwarm | None = None,
    results: str | os.PathLike[str] | None = None,
    progress: bool = False,
) -> Report:
    """Run every case `repeats` times, each time as a separate run, and report how often it passed.

    `agent`: for the cases that do not name one: an `Agent`, or "module:attribute". None if every case names its own.
    `cases`: from `load_cases`, or made in Python; mappings as in a file are accepted. `Case` says what passes.
    `swarm`: by default `AsyncSwarm()`, from the environment. `concurrency`: how many attempts run at once, over all
    cases; every case has its first attempt before any case has its second. `model_override`, `max_turns`: of every run;
    no run makes more than 100 completions unless `max_turns` says so.
    `judge_model`: by default `model_override`, or the model of the case's agent. `judge_swarm`: for a judge on another
    server. `results`: a JSON file; a record of this evaluation is appended to it. `progress`: show the progress on
    stderr, if that is a terminal.

    An exception in an attempt is an error of that attempt: it is in the report, and the attempt has not passed. If the
    evaluation itself is cancelled (Ctrl-C), the finished attempts are in `results` and in the exception's `.report`.

    Raises ConfigurationError, before the first request, for a case, an agent, a client or a results file that cannot be
    used.
    """
    if not (is_count(repeats) and is_count(concurrency)):
        raise ConfigurationError(
            f"repeats and concurrency must be whole numbers from 1, not {repeats!r} and {concurrency!r}"
        )
    for given in (swarm, judge_swarm):
        _check_swarm(given)
    planned = list(_planned(agent, cases, model_override, swarm.model if swarm else default_model()))
    if not planned:
        raise ConfigurationError("there are no cases")
    record = None if results is None else ResultsFile(results)
    async with AsyncExitStack() as stack:
        swarm = await stack.enter_async_context(AsyncSwarm()) if swarm is None else swarm
        judge = Judge(judge_swarm or swarm)
        swarm.client  # noqa: B018 - raises without a key; otherwise every attempt would fail for it
        runner = _AttemptRunner(swarm, judge, model_override, max_turns, judge_model)
        return await _run_all(runner, planned, repeats, concurrency, record, progress=progress)


@dataclass(frozen=True, slots=True)
class _PlannedCase:
    """A case in the report, and its agent; None if the case runs no agent and names none.

    `hint`: what a failed attempt adds to its reason; empty unless the case names a function that no agent has.
    """

    report: CaseReport
    agent: Agent | None
    hint: str


def _check_swarm(given: object) -> None:
    # With a blocking Swarm every attempt would cost a request, and then fail.
    if not isinstance(given, AsyncSwarm | None):
        raise ConfigurationError(f"evaluate needs an AsyncSwarm, not {type(given).__name__}")


def _planned(
    agent: Agent | str | None, cases: Iterable[Case | Mapping[str, Any]], model_override: str | None, default_model: str
) -> Iterator[_PlannedCase]:
    functions = FunctionNames()
    for case in map(as_case, cases):
        named = agent if case.agent is None else case.agent
        if named is None and case.extent != "nothing":
            raise ConfigurationError(f"the case {str(case)!r} has no agent; pass one, or name it as module:attribute")
        found = import_agent(named) if isinstance(named, str) else named
        runs = None if case.extent == "nothing" else found
        hint = "" if runs is None else functions.hint(case, runs)
        names = ("", "") if runs is None else (runs.name, model_override or model_of(runs, default_model))
        yield _PlannedCase(CaseReport(case, [], *names), found, hint)


async def _run_all(
    runner: _AttemptRunner,
    planned: list[_PlannedCase],
    repeats: int,
    concurrency: int,
    record: ResultsFile | None,
    *,
    progress: bool,
) -> Report:
    report = Report([case.report for case in planned])
    total = len(planned) * repeats
    # Shared by the workers: each takes the next job.
    jobs = ((case, number) for number in range(1, repeats + 1) for case in planned)
    try:
        with progress_on(sys.stderr if progress else None, total) as show:
            async with anyio.create_task_group() as workers:
                for _ in range(min(concurrency, total)):
                    workers.start_soon(_work, runner, jobs, show)
    except BaseException as error:
        set_attribute(error, "report", report)
        report.interrupted = report.total < total
        with suppress(Exception):  # nothing may replace a cancellation
            _record(record, report)
        raise
    _record(record, report)
    return report


def _record(record: ResultsFile | None, report: Report) -> None:
    if record is not None:
        try:
            record.append(report.to_dict())
        except Exception as error:
            set_attribute(error, "report", report)  # its attempts have cost requests
            raise


async def _work(
    runner: _AttemptRunner, jobs: Iterator[tuple[_PlannedCase, int]], show: Callable[[Attempt], None]
) -> None:
    for case, number in jobs:
        attempt = await runner.run(case, number)
        case.report.add(attempt)
        show(attempt)


@dataclass(frozen=True, slots=True)
class _AttemptRunner:
    """Runs attempts, with the settings that all of them share."""

    swarm: AsyncSwarm
    judge: Judge
    model_override: str | None
    max_turns: float
    judge_model: str | None

    async def run(self, planned: _PlannedCase, number: int) -> Attempt:
        """One attempt at one case. Raises only cancellation, and exceptions that end the process."""
        case, agent = planned.report.case, planned.agent
        response: Response | None = None
        try:
            response = await self._respond(case, agent)
            verdict = await self._verdict(planned, response)
        except Exception as error:  # noqa: BLE001 - it is in the report
            # The error of a run carries the partial response. After the run, the error can be of the judge.
            partial = as_response(getattr(error, "response", None) if response is None else response)
            verdict = Verdict(passed=False, reason=_text_of(error))
            return _attempt(number, "error", partial or Response(), verdict)
        return _attempt(number, "passed" if verdict.passed else "failed", response, verdict)

    async def _respond(self, case: Case, agent: Agent | None) -> Response:
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

    async def _verdict(self, planned: _PlannedCase, response: Response) -> Verdict:
        case, agent = planned.report.case, planned.agent
        failure = unexpected(case, calls_of(response.messages))
        if failure is not None and planned.hint:
            failure = f"{failure} ({planned.hint})"
        failure = failure or unexpected_output(case, response)
        if failure is None and case.check is not None:
            failure = await _check(case.check, response)
        if failure is not None or case.judge is None:
            return Verdict(failure is None, failure or "")
        model = self.judge_model or self.model_override or model_of(agent or Agent(), self.swarm.model)
        return await self.judge.ask(case.judge, [*case.messages, *response.messages], model)


def _text_of(error: Exception) -> str:
    return str(error) if isinstance(error, AswarmError) else f"{type(error).__name__}: {error}"


async def _check(check: Callable[[Response], Any], response: Response) -> str | None:
    """Why the check failed; None if it passed."""
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
        answer_text(response.messages),
        tuple(response.messages),
        response.stop,
        response.usage + verdict.usage,
    )
