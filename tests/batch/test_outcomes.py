"""The classes of outcomes: a completed item has a response, a failed one has an error, and tests of users may make both."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any, get_type_hints

import pytest

from aswarm import Agent, Response, RunError, UnknownCall, Usage
from aswarm.batch import Batch, Completed, Failed, Item, Outcome
from tests.support.batch.batches import Echo, outcomes_of

CALL = UnknownCall("1", "pay", "{}", "Payer")


@pytest.mark.anyio
async def test_a_batch_gives_both() -> None:
    """The class says how an item ended, also of an item that is not a conversation."""
    given: list[Any] = ["a", 7, Item("b", agent=Agent(functions=["nothing"]))]
    outcomes = await outcomes_of(Echo(), given, ordered=True)
    assert [type(outcome) for outcome in outcomes] == [Completed, Failed, Failed]
    assert all(isinstance(outcome, Outcome) for outcome in outcomes)
    assert all((outcome.response is None) == isinstance(outcome, Failed) for outcome in outcomes)
    assert all((outcome.error is None) == isinstance(outcome, Completed) for outcome in outcomes)


def test_a_test_of_a_user_may_make_them() -> None:
    """By position and by name; each class asks for what it is about."""
    response = Response(messages=[{"role": "assistant", "content": "Hi"}], unknown_calls=[CALL])
    completed = Completed("a", 0, response)
    assert completed == Completed(id="a", index=0, response=response, usage=Usage())
    assert (completed.error, completed.attempts, completed.unknown_calls) == (None, 0, [CALL])
    error = RunError("no")
    error.response = response
    failed = Failed("b", 1, error=error, metadata="m")
    assert (failed.response, failed.error, failed.metadata, failed.unknown_calls) == (None, error, "m", [CALL])
    assert completed != replace(completed, id="b") != failed
    assert type(pickle.loads(pickle.dumps(completed))) is Completed
    assert not hasattr(completed, "__dict__") and not hasattr(failed, "__dict__")
    with pytest.raises(TypeError, match="response"):
        Completed("a", 0)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="error"):
        Failed("a", 0)  # type: ignore[call-arg]


def test_a_match_tells_them_apart() -> None:
    """By class, and by the base class with a field."""
    for outcome, expected in [
        (Completed("a", 0, Response()), "completed"),
        (Failed("a", 0, error=OSError()), "failed"),
    ]:
        match outcome:
            case Outcome(error=OSError()):
                found = "failed"
            case Completed(response=Response()):
                found = "completed"
        assert found == expected


def test_the_type_is_the_same_for_checkers_and_at_run_time() -> None:
    """A batch gives a union of two real classes."""
    assert get_type_hints(Batch.__anext__)["return"] == Completed | Failed
    assert Completed.__module__ == Failed.__module__ == Outcome.__module__ == "aswarm.batch"
