"""The exceptions: their tree, and their fields."""

from __future__ import annotations

from itertools import pairwise

import pytest

from aswarm import AswarmError, CompletionError, ConfigurationError, RunError, ToolError
from aswarm.errors import StreamInterrupted, ToolArgumentsError, ToolNotFound, ToolTimeout


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
