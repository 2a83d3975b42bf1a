"""Each invariant of the simulation fails for a world that breaks it, and passes for a world that keeps it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from aswarm import Agent, Budget, CompletionFinished, OpenCall, Response, ToolCallStarted, Usage
from aswarm.events import TurnStarted
from aswarm.runs import Entry
from aswarm.testing.simulate import (
    DEFAULT_INVARIANTS,
    SimulatedAnswer,
    SimulatedCall,
    SimulatedRun,
    World,
    budget_kept,
    context_as_sequential,
    context_recorded,
    log_folds_to_history,
    nothing_twice,
    started_calls_closed,
    streams_closed,
    timeline,
    unknown_outcomes_reported,
    usage_adds_up,
    valid_history,
)
from aswarm.testing.simulate._provider import _FaultyBody
from aswarm.testing.simulate._search import write_file

AGENT = Agent(name="a")
CALLS = [{"id": str(index), "type": "function", "function": {"name": "f", "arguments": "{}"}} for index in range(2)]
USER = {"role": "user", "content": "Hi"}
HEAD = {"role": "assistant", "content": None, "tool_calls": CALLS[:1]}
RESULT = {"role": "tool", "tool_call_id": "0", "tool_name": "f", "content": "done"}
LAST = {"role": "assistant", "content": "Bye"}


def log_of(*entries: tuple[str, dict[str, Any]], messages: list[Any], **response: Any) -> World:
    """Return a world with a log: a run with one call, these entries, and an end with these messages."""
    world = World(0)
    first: dict[str, Any] = {"run_id": "1", "agent": "a", "messages": [USER], "calls": [], "before": 0}
    completion = {"message": HEAD, "finish_reason": "tool_calls", "usage": response.pop("tokens", {})}
    usual: dict[str, Any] = {"stop": "answer", "unknown_calls": [], "agent": "a", "context_variables": {}, "usage": {}}
    end = {"response": {"messages": messages, **usual, **response}}
    kinds = [
        ("RunStarted", first),
        ("TurnStarted", {"agent": "a", "turn": 1}),
        ("CompletionFinished", completion),
        *entries,
        ("RunFinished", end),
    ]
    world.logs["1"] = [Entry(seq, 0, kind, fields) for seq, (kind, fields) in enumerate(kinds)]
    return world


STARTED: tuple[str, dict[str, Any]] = ("ToolCallStarted", {"index": 0, "id": "0", "name": "f", "arguments": "{}"})
FINISHED: tuple[str, dict[str, Any]] = ("ToolCallFinished", {"index": 0, "id": "0", "name": "f", "content": "done"})
GOOD = [HEAD, RESULT]


def started_twice() -> World:
    world = World(0)
    world.calls += [SimulatedCall(0, "1", 1, 0, "0", "f", "{}", repeatable=False)] * 2
    return world


def with_budget(budget: Budget, *events: Any) -> World:
    used = sum((event.usage for event in events if isinstance(event, CompletionFinished)), Usage())
    response = Response(messages=[], agent=AGENT, stop="budget", usage=used)
    world = with_answer(usage=used)
    world.runs.append(SimulatedRun("1", [USER], [(0.0, event) for event in events], response, budget=budget))
    return world


def turns(number: int) -> list[Any]:
    usage = Usage(total_tokens=10)
    return [
        each for turn in range(number) for each in (TurnStarted(AGENT, turn), CompletionFinished(LAST, "stop", usage))
    ]


def starts(number: int) -> list[Any]:
    return [ToolCallStarted(index, str(index), "f", "{}", AGENT) for index in range(number)]


def with_answer(**changed: Any) -> World:
    """Return a world with one answer of a provider, which was read and closed."""
    world = World(0)
    fields: dict[str, Any] = {"at": 0.0, "provider": "model", "size": 99, "usage": Usage(requests=1), "left": 0}
    world.answers.append(SimulatedAnswer(**{**fields, "closed_at": 0.0, **changed}))
    return world


def with_usage(used: Usage, *events: Any, answered: Usage | None = None) -> World:
    """Return a world with one run that has this usage, and one answer of the provider."""
    world = with_answer(usage=answered)
    response = Response(messages=[], agent=AGENT, stop="answer" if not events else "budget", usage=used)
    world.runs.append(SimulatedRun("1", [USER], [(0.0, event) for event in events], response))
    return world


def open_call(*, held: bool = False) -> World:
    """Return a world whose run has an open call that has started."""
    world, call = World(0), SimulatedCall(0, "r", 1, 0, "0", "f", "{}", repeatable=False)
    world.calls.append(call)
    world.held |= {call.place} if held else set()
    response = Response(messages=[HEAD], agent=AGENT, stop="waiting", open_calls=[OpenCall(0, "0", "f", "{}", "a")])
    world.runs.append(SimulatedRun("1", [USER], [], response, id="r"))
    return world


CHANGED: tuple[str, dict[str, Any]] = ("ContextChanged", {"changes": {"a": 1}, "removed": [], "by": ["0"]})
FIVE = {"requests": 0, "prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 5}

BROKEN: list[tuple[Callable[[World], None], World, str]] = [
    (valid_history, log_of(STARTED, FINISHED, messages=[HEAD, LAST]), "has no answer"),
    (nothing_twice, log_of(STARTED, FINISHED, FINISHED, messages=GOOD), "ToolCallFinished more than once"),
    (nothing_twice, started_twice(), "functions started more than once"),
    (unknown_outcomes_reported, log_of(STARTED, messages=GOOD), "1 started calls without an outcome"),
    (
        unknown_outcomes_reported,
        log_of(messages=[HEAD, {**RESULT, "content": "cancelled; its outcome is unknown"}]),
        "1 calls with an unknown outcome",
    ),
    (log_folds_to_history, log_of(STARTED, FINISHED, messages=[HEAD, {**RESULT, "content": "other"}]), "folds to"),
    (log_folds_to_history, log_of(("RunStopped", {"reason": "x"}), messages=[]), "has the ends"),
    (context_recorded, log_of(STARTED, FINISHED, CHANGED, messages=GOOD), "records the context {'a': 1}"),
    (streams_closed, with_answer(closed_at=None), "the response of model of 0.0000 s is open at the end"),
    (streams_closed, with_answer(closed_at=1.0), "is open at the end"),
    (usage_adds_up, with_usage(Usage(requests=1), *turns(1)), "has 10 total_tokens less than the completions"),
    (usage_adds_up, with_usage(Usage(requests=2)), "all runs have used 2 requests, the providers answered 1"),
    (
        usage_adds_up,
        with_usage(Usage(requests=1, total_tokens=9), answered=Usage(requests=1, total_tokens=5)),
        "all runs have used 9 total_tokens, the providers answered 5",
    ),
    (usage_adds_up, log_of(messages=[], usage={}, tokens=FIVE), "the end of the log of 1 has the usage"),
    (started_calls_closed, open_call(), "started calls are open"),
    (budget_kept, with_budget(Budget(tool_calls=1), *starts(2)), "2 calls started"),
    (budget_kept, with_budget(Budget(turns=1), *turns(2)), "1 requests after the end"),
    (budget_kept, with_budget(Budget(tokens=10, then="answer"), *turns(3)), "2 requests after the end"),
]
NO_RESPONSE = log_of(STARTED, FINISHED, messages=GOOD)
NO_RESPONSE.logs["1"] = [*NO_RESPONSE.logs["1"][:-1], Entry(9, 0, "RunFailed", {"error": {}})]
KEPT = [
    NO_RESPONSE,
    log_of(STARTED, FINISHED, messages=GOOD),
    log_of(STARTED, messages=[HEAD, {**RESULT, "content": "cancelled; its outcome is unknown"}], unknown_calls=[{}]),
    with_budget(Budget(turns=2, tool_calls=2, tokens=10, then="answer"), *turns(2)),
    open_call(held=True),
    with_answer(closed_at=None, owner=SimpleNamespace(is_dead=True)),
]


def test_the_time_line_and_the_file_have_the_logs_that_clients_have_read(tmp_path: Path) -> None:
    """A run of `World.run` has entries only in a report."""
    world = log_of(STARTED, FINISHED, messages=GOOD)
    world.runs.append(SimulatedRun("left out", []))
    assert any("1: ToolCallFinished index=0" in line for line in timeline(world))
    write_file(world, tmp_path / "runs.jsonl")
    assert (tmp_path / "runs.jsonl").read_text().count('{"run":"1"') == len(world.logs["1"])


@pytest.mark.parametrize(("invariant", "world", "text"), BROKEN, ids=[text for _, _, text in BROKEN])
def test_an_invariant_fails(invariant: Callable[[World], None], world: World, text: str) -> None:
    """Its text names the run and the fault."""
    with pytest.raises(AssertionError, match=text):
        invariant(world)


@pytest.mark.parametrize(
    "world", KEPT, ids=["no response", "a call", "an unknown outcome", "a budget", "a Hold", "a crash"]
)
def test_a_good_world_keeps_all_invariants(world: World) -> None:
    """No invariant is too strict for it."""
    for invariant in DEFAULT_INVARIANTS:
        invariant(world)


def test_runs_without_an_equal_are_not_compared() -> None:
    """The universe with one call at a time may have ended fewer runs."""
    world = World(0)
    world.runs.append(SimulatedRun("1", [USER], response=Response(messages=[], agent=AGENT)))
    context_as_sequential(world, World(0))


async def test_the_first_end_of_an_answer_counts() -> None:
    """A client may close a response again."""
    answer = SimulatedAnswer(0, "model", 0, None, 0)
    body = _FaultyBody(World(0), answer, httpx.ByteStream(b""), "")
    await body.aclose()
    closed_at = answer.closed_at
    await body.aclose()
    assert answer.closed_at == closed_at
