"""One error object that is raised in several runs: each run has an error of its class, with its own response."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any

import pytest

from aswarm import Agent, AsyncSwarm, CompletionError, Hold, RunError
from aswarm.errors import StreamInterrupted
from aswarm.sources import CompletionRequest
from aswarm.testing import ScriptedModel, call

pytestmark = pytest.mark.asyncio


class Failing:
    """A source that raises one stored error, as a circuit breaker does."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        raise self.error
        yield {}


async def failures(error: Exception) -> tuple[RunError, RunError]:
    """Return the errors of two runs, one after the other."""
    swarm = AsyncSwarm(Failing(error))
    with pytest.raises(RunError) as first:
        await swarm.run(Agent(), "Hi", run_id="one")
    with pytest.raises(RunError) as second:
        await swarm.run(Agent(), "Hi", run_id="two")
    return first.value, second.value


async def test_a_stored_completion_error_stays_one() -> None:
    """The second run has an error of the same type with the same status; the first keeps its own response."""
    stored = CompletionError("too busy", status_code=429, retryable=True, retry_after=3.0)
    first, second = await failures(stored)
    assert first is stored
    assert isinstance(second, CompletionError)
    assert (str(second), second.status_code, second.retryable, second.retry_after) == ("too busy", 429, True, 3.0)
    assert first.response is not None
    assert second.response is not None
    assert (first.response.run_id, second.response.run_id) == ("one", "two")
    assert second.__cause__ is stored  # it has no cause of its own


async def test_the_cause_is_the_exception_of_the_provider_in_each_run() -> None:
    """`__cause__` is the same exception in both runs."""
    stored = CompletionError("too busy")
    stored.__cause__ = ValueError("429")
    first, second = await failures(stored)
    assert second is not first
    assert first.__cause__ is second.__cause__ is stored.__cause__


class OfAcme(CompletionError):
    """An error that needs more than its text to be made."""

    def __init__(self, provider: str, *, text: str) -> None:
        super().__init__(f"{provider}: {text}")


@pytest.mark.parametrize("stored", [StreamInterrupted("cut", status_code=502), OfAcme("acme", text="cut")])
async def test_a_stored_error_of_a_subclass_stays_one(stored: CompletionError) -> None:
    """The second run has the class, the text and the fields, also if `args` are not the arguments of the constructor."""
    _, second = await failures(stored)
    assert type(second) is type(stored)
    assert (str(second), second.status_code) == (str(stored), stored.status_code)
    assert second.__cause__ is stored


async def test_another_error_of_a_run_inside_is_wrapped_as_before() -> None:
    """A RunError that is not about a completion is wrapped, and its class is in the text."""
    _, second = await failures(RunError("the inner run failed"))
    assert str(second) == "RunError: the inner run failed"


async def test_a_mistake_in_another_run_is_a_failed_call() -> None:
    """The model of the outer run reads it."""

    async def holds() -> None:
        raise Hold("sure?")

    async def ask() -> None:
        await AsyncSwarm(ScriptedModel([call("holds")]).client()).run(Agent(functions=[holds]), "Go")

    response = await AsyncSwarm(ScriptedModel([call("ask"), "Done"]).client()).run(Agent(functions=[ask]), "Go")
    assert "write @tool(may_wait=True)" in response.messages[1]["content"]
