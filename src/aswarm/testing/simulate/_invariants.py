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
from aswarm._values.events import CompletionFinished, ToolCallFinished, ToolCallStarted, TurnStarted
from aswarm._values.usage import Usage
from aswarm.testing._history import check_history

from ._world import Place, SimulatedRun, World

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
    effects = (call for call in world.calls if not call.repeatable)
    started = [place for place, number in Counter(call.place for call in effects).items() if number > 1]
    assert not started, f"functions started more than once: (run, turn, index, index of the code) {started}"
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
        lost = len(_by_call(run, ToolCallStarted)) - len(answers) - len(response.open_calls)
        assert lost <= 0, f"{run.name}: {lost} started calls have no tool message and do not wait"
        _check_unknown(run.name, answers, len(response.unknown_calls))
    for run_id, log in world.logs.items():
        if end := log[-1].response:
            answers = [str(message["content"]) for message in end["messages"] if message["role"] == "tool"]
            _check_unknown(run_id, answers, len(end["unknown_calls"]))
            lost = len(_without_outcome(log)) - len(end["unknown_calls"])
            assert lost <= 0, f"the log of {run_id} has {lost} started calls without an outcome that are not reported"


def started_calls_closed(world: World) -> None:
    """No call whose function has started is open, because a later run would execute it again.

    A function that has raised Hold may run again, with the decision, and so may a repeatable function.
    """
    started = {call.place for call in world.calls if not call.repeatable} - world.held
    for run, response in _ended(world):
        turn = sum(message["role"] == "assistant" for message in response.messages)
        places: Iterator[Place] = ((run.id, turn, call.index, None) for call in response.open_calls)
        left = [place for place in places if place in started]
        assert not left, f"{run.name}: started calls are open: (run, turn, index) {[place[:3] for place in left]}"


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
        # The note of a replaced handoff is only in the history.
        finished = (event for _, event in run.events if isinstance(event, ToolCallFinished))
        if response.stop == "answer" and all(event.handoff is None for event in finished):
            # Messages of the user, and corrections of an answer of the wrong type, have no event.
            texts = [message.get("content") for message in response.messages if message["role"] != "user"]
            assert _texts_of(run) == texts, f"{run.name}: the events differ from the history"
    for run_id, log in world.logs.items():
        ends = [entry.seq for entry in log if entry.is_last]
        assert ends == [log[-1].seq], f"the log of {run_id} has the ends {ends}"
        if log[-1].response:
            before, after = fold(log[:-1]).response_messages, log[-1].response["messages"]
            # The calls of a run that was stopped while it waited are closed only in its end.
            assert after[: len(before)] == before, f"the log of {run_id} folds to {before}, and its end has {after}"


def _texts_of(run: SimulatedRun) -> list[Any]:
    """Return the contents of the messages that the events of a run contain."""
    texts = list[Any]()
    results: dict[int, str] = {}
    for _, event in run.events:
        if isinstance(event, ToolCallFinished):
            results[event.index] = event.content
        elif isinstance(event, CompletionFinished):
            texts += [*_in_order(results), event.message.get("content")]
            results = {}
    return [*texts, *_in_order(results)]


def _in_order(results: Mapping[int, str]) -> list[str]:
    return [results[index] for index in sorted(results)]


def context_as_sequential(world: World, sequential: World) -> None:
    """The context and the agent of each answered run equal its result in the same universe with one call at a time.

    The number of a run without a name depends on the order of the starts, so these runs are compared in any order.
    """
    left: dict[str, list[Any]] = {}
    for run, response in _answered(sequential):
        left.setdefault(_compared_as(run), []).append(_result_of(response))
    counts = Counter(_compared_as(run) for run, _ in _answered(world))
    for run, response in _answered(world):
        name, found = _compared_as(run), _result_of(response)
        expected = left.get(name, [])
        if len(expected) == counts[name]:  # otherwise some runs have no equal
            if found not in expected:
                (agent, context), (other, alone) = found, expected[0]
                assert context == alone, f"{run.name}: the context is {context}; with one call at a time {alone}"
                raise AssertionError(f"{run.name}: the agent is {agent}; with one call at a time {other}")
            expected.remove(found)
            counts[name] -= 1


def _result_of(response: Response) -> tuple[str, dict[str, Any]]:
    return response.agent.name, response.context_variables


def _compared_as(run: SimulatedRun) -> str:
    return "" if run.is_numbered else run.name


def _answered(world: World) -> Iterator[tuple[SimulatedRun, Response]]:
    return ((run, response) for run, response in _ended(world) if response.stop == "answer")


def context_recorded(world: World) -> None:
    """The context variables at the end of each log equal the first ones with all recorded changes, also after a crash."""
    for run_id, log in world.logs.items():
        if end := log[-1].response:
            recorded, found = fold(log[:-1]).context, end["context_variables"]
            assert recorded == found, f"the log of {run_id} records the context {recorded}, and its end has {found}"


# --- the provider ---


def streams_closed(world: World) -> None:
    """Each response of a `Provider` is closed at the end of the program. A crash closes the responses of its process."""
    for answer in world.answers:
        was_killed = answer.owner is not None and answer.owner.is_dead
        is_closed = answer.closed_at is not None and answer.closed_at <= world.seconds
        assert is_closed or was_killed, f"the response of {answer.provider} of {answer.at:.4f} s is open at the end"


_COUNTS = ("requests", "prompt_tokens", "completion_tokens", "total_tokens")
# The last bytes of a stream, such as `data: [DONE]`, say nothing new, so a client need not read them.
_BYTES_OF_AN_END = 20


def usage_adds_up(world: World) -> None:
    """The usage of each run has all its completions, and all runs together have no more than the providers have answered.

    The second part is checked if each swarm of the program has a `Provider` and no middleware, because a middleware may use
    another model, and may add to the usage.
    """
    for run, response in _ended(world):
        usages = [event.usage for _, event in run.events if isinstance(event, CompletionFinished)]
        seen = sum(usages, Usage())
        for count in _COUNTS:
            lost = getattr(seen, count) - getattr(response.usage, count)
            assert lost <= 0, f"{run.name}: the usage has {lost} {count} less than the completions"
    for run_id, log in world.logs.items():
        if end := log[-1].response:
            recorded, found = fold(log[:-1]).usage, end["usage"]
            lost = [count for count in _COUNTS if found.get(count, 0) < recorded[count]]
            assert not lost, f"the end of the log of {run_id} has the usage {found}, and its completions {recorded}"
    if world._counts_all:  # noqa: SLF001 - of this package
        whole = [answer.usage for answer in world.answers if answer.left <= _BYTES_OF_AN_END]
        answered, reported = sum(filter(None, whole), Usage()), _reported(world)
        for count in _COUNTS if None not in whole else ("requests",):
            most = len(whole) if count == "requests" else getattr(answered, count)
            assert reported[count] <= most, (
                f"all runs have used {reported[count]} {count}, the providers answered {most}"
            )


def _reported(world: World) -> Counter[str]:
    usages: dict[str, Any] = {run_id: log[-1].response.get("usage", {}) for run_id, log in world.logs.items()}
    for run, response in _ended(world):
        usages[run.id] = {count: getattr(response.usage, count) for count in _COUNTS}
    reported = Counter[str]()
    for usage in usages.values():
        reported.update({count: usage.get(count, 0) for count in _COUNTS})
    return reported


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


DEFAULT_INVARIANTS = (
    valid_history,
    nothing_twice,
    unknown_outcomes_reported,
    started_calls_closed,
    log_folds_to_history,
    context_recorded,
    streams_closed,
    usage_adds_up,
    budget_kept,
)
"""The invariants of one world. `context_as_sequential` compares two worlds, so it is apart."""
