"""The exceptions: their tree, and their fields."""

from __future__ import annotations

import copy
import pickle
from itertools import pairwise

import pytest

from aswarm import (
    AswarmError,
    CompletionError,
    ConfigurationError,
    Response,
    RunError,
    StreamInterrupted,
    ToolArgumentsError,
    ToolError,
    ToolNotFound,
    ToolTimeout,
)

ALL = [AswarmError, ConfigurationError, RunError, CompletionError, StreamInterrupted]


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


@pytest.mark.parametrize("kind", ALL)
def test_an_error_says_its_text_and_has_no_response_until_it_is_given_one(kind: type[AswarmError]) -> None:
    """`.response` is always there; None if no run has started."""
    error = kind("what happened")
    assert str(error) == "what happened"
    assert error.response is None


@pytest.mark.parametrize("kind", ALL)
def test_errors_share_no_response(kind: type[AswarmError]) -> None:
    """A response set on an error stays on that error."""
    error = kind("x")
    error.response = Response(stop="error")
    assert kind("y").response is None


@pytest.mark.parametrize("kind", ALL)
def test_errors_cross_processes(kind: type[AswarmError]) -> None:
    """An error survives pickling and copying with its fields: batch programs hand errors around."""
    error = kind("x")
    error.response = Response(messages=[{"role": "user", "content": "Hi"}], stop="error")
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is kind
        assert str(again) == "x"
        assert again.response == error.response


def test_a_pickled_completion_error_keeps_its_status() -> None:
    """Status and advice survive pickling."""
    error = CompletionError("x", status_code=429, retryable=True, retry_after=1.5)
    again = pickle.loads(pickle.dumps(error))
    assert (again.status_code, again.retryable, again.retry_after) == (429, True, 1.5)


@pytest.mark.parametrize("kind", [RunError, CompletionError, StreamInterrupted])
def test_an_error_of_a_run_has_the_text_of_the_unfinished_completion(kind: type[RunError]) -> None:
    """`partial` is a str, empty where there is none."""
    assert kind("x").partial == ""


def test_a_completion_error_says_whether_to_try_again() -> None:
    """Status and advice are attributes; without word from the provider, do not retry."""
    error = CompletionError("slow down", status_code=429, retryable=True)
    assert (error.status_code, error.retryable) == (429, True)
    assert (CompletionError("x").status_code, CompletionError("x").retryable) == (None, False)


def test_a_broken_stream_may_be_tried_again() -> None:
    """A stream that broke is retryable unless it is known to be otherwise."""
    assert (StreamInterrupted("x").status_code, StreamInterrupted("x").retryable) == (None, True)
    assert StreamInterrupted("x", status_code=400, retryable=False).retryable is False
