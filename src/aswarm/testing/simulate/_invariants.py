"""Invariants of every run, as functions of a world at the end of its program. A broken invariant raises AssertionError."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from aswarm._values.agent import Response
from aswarm._values.events import CompletionFinished, HandedOff, ToolCallFinished, ToolCallStarted, TurnStarted
from aswarm.testing._history import check_history

from ._world import SimulatedRun, World


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


def nothing_twice(world: World) -> None:
    """Each call starts once, and finishes once."""
    for run, _ in _ended(world):
        for kind in (ToolCallStarted, ToolCallFinished):
            twice = [place for place, number in _by_call(run, kind).items() if number > 1]
            assert not twice, f"{run.name}: {kind.__name__} more than once for (turn, index) {twice}"  # noqa: S101


def unknown_outcomes_reported(world: World) -> None:
    """Each started call has a tool message or waits, and each call with an unknown outcome is in `unknown_calls`.

    A reader that leaves may miss the end of a call whose result is in the history.
    """
    for run, response in _ended(world):
        answers = [str(message["content"]) for message in response.messages if message["role"] == "tool"]
        lost = len(_by_call(run, ToolCallStarted)) - len(answers) - len(response.waiting)
        assert lost <= 0, f"{run.name}: {lost} started calls have no tool message and do not wait"  # noqa: S101
        hidden = sum("outcome is unknown" in text for text in answers) - len(response.unknown_calls)
        assert hidden <= 0, f"{run.name}: {hidden} calls with an unknown outcome are not reported"  # noqa: S101


def log_folds_to_history(world: World) -> None:
    """The events of a run that was read to its end contain its history."""
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
        assert [each.get("content") for each in folded] == texts, f"{run.name}: the events differ from the history"  # noqa: S101


def context_as_sequential(world: World, sequential: World) -> None:
    """The context variables of each answered run equal its result in the same universe with one call at a time."""
    names = {run.name: response for run, response in _ended(sequential) if response.stop == "answer"}
    for run, response in _ended(world):
        if response.stop == "answer" and run.name in names:
            expected, found = names[run.name].context_variables, response.context_variables
            assert found == expected, f"{run.name}: the context is {found}; with one call at a time {expected}"  # noqa: S101


DEFAULT = (valid_history, nothing_twice, unknown_outcomes_reported, log_folds_to_history)
"""The invariants of one world. `context_as_sequential` compares two worlds, so it is apart."""
