"""What a middleware is told when its run ends: once, however that happens."""

from __future__ import annotations

import gc
import logging
from contextlib import aclosing
from typing import Any

import anyio
import pytest

from aswarm import Agent, AswarmError, AsyncSwarm, CompletionError, ConfigurationError, Response, RunError, Swarm
from aswarm.middleware import Handlers, Middleware
from aswarm.testing import Failure, call
from tests.support.leaving.run_scenes import until
from tests.support.middleware.middlewares import around_completions, passed_on
from tests.support.providers.sources import script_of
from tests.support.run.ways_to_run import FACES, consume

pytestmark = pytest.mark.anyio
Ends = list[tuple[Response, AswarmError | None]]


def ends_into(ends: Ends) -> Middleware:
    """A middleware that keeps the ends of its runs."""

    def wrap(handlers: Handlers) -> Handlers:
        handlers.run.on_end(lambda response, error: ends.append((response, error)))
        return handlers

    return wrap


@pytest.mark.parametrize("face", FACES)
async def test_the_end_of_a_run_is_reported_once(face: str) -> None:
    """With the response that the caller gets, and without an error."""
    ends: Ends = []
    swarm = AsyncSwarm(script_of(["Hello."]).client(), middleware=[ends_into(ends)])
    left: list[Response] = []
    await consume(swarm, Agent(), face, left)
    assert [(end is left[0], error) for end, error in ends] == [(True, None)]
    assert left[0].stop == "answer"


async def test_the_end_comes_before_the_last_event() -> None:
    """A reader that stops at `RunFinished` has not left early."""
    ends: Ends = []
    swarm = AsyncSwarm(script_of(["Hello."]).client(), middleware=[ends_into(ends)])
    async with swarm.stream(Agent(), "Hi") as run:
        seen = [len(ends) async for _ in run]
    assert seen == [*[0] * (len(seen) - 1), 1]
    assert ends[0][0].stop == "answer"


@pytest.mark.parametrize("face", FACES)
async def test_an_error_is_reported_with_its_response(face: str) -> None:
    """The error is the one that the caller gets, and has its response already."""
    ends: Ends = []
    swarm = AsyncSwarm(script_of([Failure(400, "no")]).client(), middleware=[ends_into(ends)])
    with pytest.raises(CompletionError) as caught:
        await consume(swarm, Agent(), face, [])
    ((response, error),) = ends
    assert error is caught.value
    assert error.response is response
    assert response.stop == "error"


async def test_an_error_of_other_code_is_reported_with_its_cause() -> None:
    """It is a RunError, whose cause is what was raised."""
    ends: Ends = []
    causes: list[BaseException | None] = []

    def fail(handlers: Handlers) -> Handlers:
        handlers.run.on_end(lambda _response, error: causes.append(error and error.__cause__))
        raise ZeroDivisionError("no")

    swarm = AsyncSwarm(script_of([]).client(), middleware=[fail, ends_into(ends)])
    with pytest.raises(RunError):
        await swarm.run(Agent(), "Hi")
    assert [type(cause) for cause in causes] == [ZeroDivisionError]
    assert [type(error) for _, error in ends] == [RunError]


async def test_a_mistake_of_the_caller_is_reported() -> None:
    """So is a ConfigurationError that is found while the run runs."""
    ends: Ends = []
    swarm = AsyncSwarm(script_of([]).client(), middleware=[lambda _: None, ends_into(ends)])  # type: ignore[list-item, return-value]
    with pytest.raises(ConfigurationError):
        await swarm.run(Agent(), "Hi")
    assert [(response.stop, type(error)) for response, error in ends] == [("error", ConfigurationError)]


async def test_a_run_that_is_cancelled_is_reported() -> None:
    """The response has what had happened; there is no error."""
    ends: Ends = []

    async def wait() -> str:
        scope.cancel()
        await anyio.sleep_forever()
        return "never"

    swarm = AsyncSwarm(script_of([call("wait")]).client(), middleware=[ends_into(ends)])
    with anyio.CancelScope() as scope:
        await swarm.run(Agent(functions=[wait]), "Hi")
    ((response, error),) = ends
    assert (response.stop, error) == ("cancelled", None)
    assert [message["role"] for message in response.messages] == ["assistant", "tool"]


@pytest.mark.parametrize("events", [1, 2, 3])
async def test_a_stream_that_is_left_is_reported(events: int) -> None:
    """After `break`, when the block is left."""
    ends: Ends = []
    swarm = AsyncSwarm(script_of(["Hello."]).client(), middleware=[ends_into(ends)])
    async with swarm.stream(Agent(), "Hi") as run:
        for _ in range(events):
            await anext(run)
        assert ends == []
    assert [(response.stop, error) for response, error in ends] == [("cancelled", None)]


async def test_a_stream_that_is_dropped_is_reported() -> None:
    """When the event loop has closed it."""
    ends: Ends = []
    swarm = AsyncSwarm(script_of(["Hello."]).client(), middleware=[ends_into(ends)])

    async def read_one() -> None:
        await anext(swarm.run(Agent(), "Hi", stream=True))

    await read_one()
    gc.collect()
    await until(lambda: ends)
    assert ends[0][0].stop == "cancelled"


async def test_a_stream_that_is_never_read_has_no_end() -> None:
    """Its middleware was not called either."""
    ends: Ends = []
    swarm = AsyncSwarm(script_of([]).client(), middleware=[ends_into(ends)])
    async with swarm.stream(Agent(), "Hi"):
        pass
    assert ends == []


async def test_the_innermost_middleware_is_told_first() -> None:
    """As for the end of a completion; each callback gets the same response."""
    seen: list[tuple[str, Response]] = []

    def named(name: str) -> Middleware:
        def wrap(handlers: Handlers) -> Handlers:
            handlers.run.on_end(lambda response, _error: seen.append((name, response)))
            return handlers

        return wrap

    swarm = AsyncSwarm(script_of(["Hello."]).client(), middleware=[named("outer"), named("inner")])
    response = await swarm.run(Agent(), "Hi")
    assert [(name, end is response) for name, end in seen] == [("inner", True), ("outer", True)]


async def test_a_callback_that_fails_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged with the run's id; the other callbacks are called, and the run has its answer."""
    ends: Ends = []

    def fail(handlers: Handlers) -> Handlers:
        handlers.run.on_end(lambda _response, _error: 1 / 0)  # type: ignore[arg-type, return-value]
        return handlers

    swarm = AsyncSwarm(script_of(["Hello."]).client(), middleware=[ends_into(ends), fail])
    with caplog.at_level(logging.ERROR, logger="aswarm"):
        response = await swarm.run(Agent(), "Hi", run_id="mine")
    assert response.text == "Hello."
    assert len(ends) == 1
    (record,) = caplog.records
    assert record.__dict__["run_id"] == "mine"
    assert record.exc_info


async def test_a_run_inside_a_tool_has_an_end_of_its_own() -> None:
    """The inner run ends first."""
    ends: Ends = []
    swarm = AsyncSwarm(script_of([call("ask"), "Inner.", "Outer."]).client(), middleware=[ends_into(ends)])

    async def ask() -> str:
        return (await swarm.run(Agent(), "Hi")).text

    await swarm.run(Agent(functions=[ask]), "Hi")
    assert [response.text for response, _ in ends] == ["Inner.", "Outer."]


async def test_the_end_comes_after_the_last_handler() -> None:
    """A completion that is left is closed before the run has ended."""
    seen: list[str] = []

    async def watched(complete: Any, request: Any) -> Any:
        try:
            async with aclosing(passed_on(complete, request)) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            seen.append("completion")

    def note(handlers: Handlers) -> Handlers:
        handlers.run.on_end(lambda _response, _error: seen.append("run"))
        return handlers

    swarm = AsyncSwarm(script_of(["Hello."]).client(), middleware=[note, around_completions(watched)])
    async with swarm.stream(Agent(), "Hi") as run:
        await anext(run)
        await anext(run)
    assert seen == ["completion", "run"]


def test_the_end_of_a_run_of_swarm_is_reported() -> None:
    """`Swarm` has the same middleware."""
    ends: Ends = []
    swarm = Swarm(script_of(["Hello."] * 2).client(), middleware=[ends_into(ends)])
    assert swarm.run(Agent(), "Hi") is not None
    for _ in swarm.run(Agent(), "Hi", stream=True):
        break
    gc.collect()
    assert ends[0][0].text == "Hello."
