"""Invariants of every run, as functions of a world at the end of its program. A broken invariant raises AssertionError.

They check the runs of `World.run`, the calls of all swarms of `World.swarm`, and the logs that `Clients` have read.

PYTEST_DONT_REWRITE: the texts of these assertions are complete.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import dropwhile
from typing import Any

from aswarm._record.entries import Entry
from aswarm._record.fold import fold
from aswarm._values.agent import Response
from aswarm._values.events import CompletionFinished, HandedOff, ToolCallFinished, ToolCallStarted, TurnStarted
from aswarm.testing._history import check_history

from ._world import SimulatedRun, World

# ruff: noqa: S101 - the invariants assert


def _ended(world: World) -> Iterator[tuple[SimulatedRun, Response]]:
    for run in world.runs:
        if run.response is not None:
            yield run, run.response


def _by_call(run: SimulatedRun, kind: type[ToolCallStarted | ToolCallFinished]) -> Counter[tuple[int, int]]:
    """Return the number of events of a kind, by turn and index of the call."""
    turn, counts = 0, Counter[tuple[int, int]]()
    for _, event in run.events:
        if isinstance(event, TurnStarted):
            turn = event.turn
        elif isinstance(event, ToolCallStarted | ToolCallFinished) and isinstance(event, kind):
            counts[turn, event.index] += 1
    return counts


def valid_history(world: World) -> None:
    """The history of each run is valid, however the run ended."""
    for run, response in _ended(world):
        check_history([*run.messages, *response.messages], allow_open=response.stop != "answer", ordered=False)
    for log in world.logs.values():
        first, last = log[0].fields, log[-1]
        if last.response and not first["calls"]:
            # Tool messages before the message of the user answer calls of an earlier run.
            asked = dropwhile(lambda message: message["role"] == "tool", first["messages"])
            made = [*asked, *last.response["messages"]]
            check_history(made, allow_open=last.response["stop"] != "answer", ordered=False)


# --- calls ---


def nothing_twice(world: World) -> None:
    """Each call starts once and finishes once, also over crashes. A repeatable function may start again."""
    for run, _ in _ended(world):
        for kind in (ToolCallStarted, ToolCallFinished):
            twice = [place for place, number in _by_call(run, kind).items() if number > 1]
            assert not twice, f"{run.name}: {kind.__name__} more than once for (turn, index) {twice}"
    counts = Counter((call.run, call.turn, call.index) for call in world.calls if not call.repeatable)
    started = [key for key, number in counts.items() if number > 1]
    assert not started, f"functions started more than once: (run, turn, index) {started}"
    for run_id, log in world.logs.items():
        finished = Counter(key for key, kind, _ in _calls(log) if kind == "ToolCallFinished")
        twice = [key for key, number in finished.items() if number > 1]
        assert not twice, f"the log of {run_id} has ToolCallFinished more than once for (turn, index) {twice}"


def unknown_outcomes_reported(world: World) -> None:
    """Each started call has a tool message or waits, and each call with an unknown outcome is in `unknown_calls`.

    A reader that leaves may miss the end of a call whose result is in the history.
    """
    for run, response in _ended(world):
        answers = [str(message["content"]) for message in response.messages if message["role"] == "tool"]
        lost = len(_by_call(run, ToolCallStarted)) - len(answers) - len(response.waiting)
        assert lost <= 0, f"{run.name}: {lost} started calls have no tool message and do not wait"
        _check_unknown(run.name, answers, len(response.unknown_calls))
    for run_id, log in world.logs.items():
        if end := log[-1].response:
            answers = [str(message["content"]) for message in end["messages"] if message["role"] == "tool"]
            _check_unknown(run_id, answers, len(end["unknown_calls"]))
            lost = len(_without_outcome(log)) - len(end["unknown_calls"])
            assert lost <= 0, f"the log of {run_id} has {lost} started calls without an outcome that are not reported"


def _check_unknown(name: str, answers: Sequence[str], reported: int) -> None:
    hidden = sum("outcome is unknown" in text for text in answers) - reported
    assert hidden <= 0, f"{name}: {hidden} calls with an unknown outcome are not reported"


def _calls(log: Sequence[Entry]) -> Iterator[tuple[tuple[int, int], str, Mapping[str, Any]]]:
    """Yield the entries of calls: the turn and index, the kind, and the fields."""
    turn = 0
    for entry in log:
        if entry.type == "TurnStarted":
            turn = entry.fields["turn"]
        elif entry.type in {"ToolCallStarted", "ToolCallFinished", "ToolCallWithdrawn", "CallWaiting"}:
            yield (turn, entry.fields["index"]), entry.type, entry.fields


def _without_outcome(log: Sequence[Entry]) -> set[tuple[int, int]]:
    started: set[tuple[int, int]] = set()
    for key, kind, _ in _calls(log):
        if kind == "ToolCallStarted":
            started.add(key)
        else:
            started.discard(key)
    return started


# --- events and logs ---


def log_folds_to_history(world: World) -> None:
    """The events of a run that was read to its end contain its history, and so does each log."""
    for run, response in _ended(world):
        if response.stop != "answer" or any(isinstance(event, HandedOff) for _, event in run.events):
            continue  # the note of a replaced handoff is only in the history
        folded: list[dict[str, Any]] = []
        results: dict[int, str] = {}
        for _, event in run.events:
            if isinstance(event, ToolCallFinished):
                results[event.index] = event.content
            elif isinstance(event, CompletionFinished):
                folded += [{"content": results[index]} for index in sorted(results)]
                folded.append(event.message)
                results = {}
        texts = [message.get("content") for message in response.messages]
        assert [each.get("content") for each in folded] == texts, f"{run.name}: the events differ from the history"
    for run_id, log in world.logs.items():
        ends = [entry.seq for entry in log if entry.is_last]
        assert ends == [log[-1].seq], f"the log of {run_id} has the ends {ends}"
        if log[-1].response:
            before, after = fold(log[:-1]).response_messages, log[-1].response["messages"]
            # The calls of a run that was stopped while it waited are closed only in its end.
            assert after[: len(before)] == before, f"the log of {run_id} folds to {before}, and its end has {after}"


def context_as_sequential(world: World, sequential: World) -> None:
    """The context variables of each answered run equal its result in the same universe with one call at a time.

    The number of a run without a name depends on the order of the starts, so these runs are compared in any order.
    """
    left: dict[str, list[Any]] = {}
    for run, response in _answered(sequential):
        left.setdefault(_compared_as(run), []).append(response.context_variables)
    counts = Counter(_compared_as(run) for run, _ in _answered(world))
    for run, response in _answered(world):
        name, found = _compared_as(run), response.context_variables
        expected = left.get(name, [])
        if len(expected) == counts[name]:  # otherwise some runs have no equal
            assert found in expected, f"{run.name}: the context is {found}; with one call at a time {expected[0]}"
            expected.remove(found)
            counts[name] -= 1


def _compared_as(run: SimulatedRun) -> str:
    return "" if run.is_numbered else run.name


def _answered(world: World) -> Iterator[tuple[SimulatedRun, Response]]:
    return ((run, response) for run, response in _ended(world) if response.stop == "answer")


# --- budgets ---


def budget_kept(world: World) -> None:
    """No run makes a request or a call above its budget of turns, tokens or tool calls. `then="answer"` allows one more turn."""
    for run in world.runs:
        if (budget := run.budget) is None:
            continue
        calls = sum(_by_call(run, ToolCallStarted).values())
        assert calls <= _most(budget.tool_calls), f"{run.name}: {calls} calls started, and its budget has {budget}"
        turns = tokens = above = 0
        for _, event in run.events:
            if isinstance(event, TurnStarted):
                above += turns >= _most(budget.turns) or tokens >= _most(budget.tokens)
                turns += 1
            elif isinstance(event, CompletionFinished):
                tokens += event.usage.total_tokens
        allowed = 1 if budget.then == "answer" else 0
        assert above <= allowed, f"{run.name}: {above} requests after the end of its budget {budget}"


def _most(limit: int | None) -> float:
    return float("inf") if limit is None else limit


DEFAULT_INVARIANTS = (valid_history, nothing_twice, unknown_outcomes_reported, log_folds_to_history, budget_kept)
"""The invariants of one world. `context_as_sequential` compares two worlds, so it is apart."""
