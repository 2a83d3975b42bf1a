"""The exceptions: their tree, and their fields."""

from __future__ import annotations

import pickle
import traceback
from datetime import date
from itertools import pairwise

import pytest

from aswarm import Agent, AswarmError, AsyncSwarm, CompletionError, ConfigurationError, RunError, ToolError
from aswarm._values.errors import MissingKeyError, UndeclaredHold
from aswarm.conversations import MemoryStore
from aswarm.errors import StreamInterrupted, ToolArgumentsError, ToolNotFound, ToolTimeout
from aswarm.testing import ScriptedModel


def test_the_tree() -> None:
    """A caller who catches RunError has everything that ended a run, and no mistake of their own."""
    for parent, child in pairwise([Exception, AswarmError, RunError, CompletionError, StreamInterrupted]):
        assert child.__bases__ == (parent,)
    assert ConfigurationError.__bases__ == (AswarmError,)
    assert not issubclass(ConfigurationError, RunError)


@pytest.mark.parametrize("kind", [ToolNotFound, ToolArgumentsError, ToolTimeout])
def test_the_errors_of_tools(kind: type[ToolError]) -> None:
    """They are a tree of their own: none of them ends a run, so `except AswarmError` does not catch them."""
    assert kind.__bases__ == (ToolError,)
    assert ToolError.__bases__ == (Exception,)
    assert str(kind("No such order.")) == "No such order."
    assert not ToolTimeout("late").still_running


def test_a_completion_error_says_whether_to_try_again() -> None:
    """Status and advice are attributes; without word from the provider, do not retry."""
    error = CompletionError("slow down", status_code=429, retryable=True)
    assert (error.status_code, error.retryable) == (429, True)
    assert (CompletionError("x").status_code, CompletionError("x").retryable) == (None, False)


def test_a_broken_stream_may_be_tried_again() -> None:
    """A stream that broke is retryable unless it is known to be otherwise."""
    assert (StreamInterrupted("x").status_code, StreamInterrupted("x").retryable) == (None, True)
    assert StreamInterrupted("x", status_code=400, retryable=False).retryable is False


async def test_a_traceback_and_a_pickle_of_an_internal_error_have_its_public_class() -> None:
    """The program of the reader never sees a name that it cannot catch, also in the record of a run."""
    async with AsyncSwarm(ScriptedModel(["Hi!"])) as swarm, MemoryStore() as store:
        with pytest.raises(ConfigurationError) as caught:
            await store.conversation("1", swarm, agent=Agent()).run("Hi", {"day": date(2026, 11, 27)})
    assert traceback.format_exception_only(caught.value)[0].startswith(
        "aswarm.ConfigurationError: a conversation keeps"
    )
    assert type(pickle.loads(pickle.dumps(caught.value))) is ConfigurationError
    undeclared = UndeclaredHold("x", has_started=True)
    assert type(pickle.loads(pickle.dumps(undeclared))) is ConfigurationError
    assert [type(undeclared).__name__, MissingKeyError.__qualname__] == ["ConfigurationError"] * 2
