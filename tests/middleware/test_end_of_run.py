"""`run.on_end`: a middleware gets the end of its run, once, in each way in which a run can end."""

from __future__ import annotations

import gc
import logging
from contextlib import aclosing
from typing import Any

import anyio
import pytest

from aswarm import Agent, AswarmError, AsyncSwarm, CompletionError, ConfigurationError, Response, RunError
from aswarm.middleware import Handlers, Middleware
from aswarm.testing import Failure, call
from tests.support.leaving.run_scenes import until
from tests.support.middleware.middlewares import around_completions, passed_on
from tests.support.providers.sources import script_of
from tests.support.run.ways_to_run import FACES, consume

Ends = list[tuple[Response, AswarmError | None]]


def calling(*callbacks: Any) -> Middleware:
    """A middleware that adds these callbacks."""

    def wrap(handlers: Handlers) -> Handlers:
        for callback in callbacks:
            handlers.run.on_end(callback)
        return handlers

    return wrap


def ending(steps: list[Any], *more: Any) -> tuple[AsyncSwarm, Ends]:
    """A swarm with a middleware that keeps the ends of its runs, and these ends."""
    ends: Ends = []
    keeping = calling(lambda response, error: ends.append((response, error)))
    return AsyncSwarm(script_of(steps).client(), middleware=[*more, keeping]), ends


@pytest.mark.parametrize("face", FACES)
async def test_the_end_of_a_run_is_reported_once(face: str) -> None:
    """The middleware gets the response of the caller, and no error."""
    swarm, ends = ending(["Hello."])
    left: list[Response] = []
    await consume(swarm, Agent(), face, left)
    assert [(end is left[0], error) for end, error in ends] == [(True, None)]
    assert left[0].stop == "answer"


async def test_the_end_comes_before_the_last_event() -> None:
    """A reader that stops at `RunFinished` has not left early."""
    swarm, ends = ending(["Hello."])
    async with swarm.stream(Agent(), "Hi") as run:
        seen = [len(ends) async for _ in run]
    assert seen == [*[0] * (len(seen) - 1), 1]
    assert ends[0][0].stop == "answer"


def divide(_: Handlers) -> Handlers:
    raise ZeroDivisionError("no")


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize(
    ("middleware", "kind", "cause"),
    [
        ([], CompletionError, "BadRequestError"),
        ([divide], RunError, "ZeroDivisionError"),
        ([lambda _: None], ConfigurationError, "NoneType"),
    ],
    ids=["the provider", "other code", "the caller"],
)
async def test_an_error_is_reported_with_its_response(face: str, middleware: Any, kind: Any, cause: str) -> None:
    """The middleware gets the error of the caller, which has its response and its cause already."""
    causes: list[str] = []
    noting = calling(lambda _, error: causes.append(type(error.__cause__).__name__))
    swarm, ends = ending([Failure(400, "no")], *middleware, noting)
    with pytest.raises(kind) as caught:
        await consume(swarm, Agent(), face, [])
    ((response, error),) = ends
    assert error is caught.value
    assert type(error) is kind
    assert error.response is response
    assert (response.stop, causes) == ("error", [cause])


async def test_a_run_that_is_cancelled_is_reported() -> None:
    """The response has the messages so far, and there is no error."""

    async def wait() -> str:
        scope.cancel()
        await anyio.sleep_forever()
        return "never"

    swarm, ends = ending([call("wait")])
    with anyio.CancelScope() as scope:
        await swarm.run(Agent(functions=[wait]), "Hi")
    ((response, error),) = ends
    assert (response.stop, error) == ("cancelled", None)
    assert [message["role"] for message in response.messages] == ["assistant", "tool"]


@pytest.mark.parametrize("events", [0, 1, 2, 3])
async def test_a_stream_that_is_left_is_reported(events: int) -> None:
    """The end comes when the block is left; a stream that was never read has no end, and has called no middleware."""
    swarm, ends = ending(["Hello."])
    async with swarm.stream(Agent(), "Hi") as run:
        for _ in range(events):
            await anext(run)
        assert ends == []
    assert [(response.stop, error) for response, error in ends] == [("cancelled", None)] * (events > 0)


async def test_a_stream_that_is_dropped_is_reported() -> None:
    """The end comes when the event loop has closed the stream."""
    swarm, ends = ending(["Hello."])

    async def read_one() -> None:
        await anext(swarm.run(Agent(), "Hi", stream=True))

    await read_one()
    gc.collect()
    await until(lambda: ends)
    assert ends[0][0].stop == "cancelled"


async def test_the_innermost_middleware_is_called_first() -> None:
    """Each callback gets the same response."""
    seen: list[tuple[str, Response]] = []
    outer, inner = (calling(lambda end, _, name=name: seen.append((name, end))) for name in ("outer", "inner"))
    response = await AsyncSwarm(script_of(["Hello."]).client(), middleware=[outer, inner]).run(Agent(), "Hi")
    assert [(name, end is response) for name, end in seen] == [("inner", True), ("outer", True)]


async def test_a_callback_that_fails_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The failure is logged with the run's id; the other callbacks are called, and the run has its answer."""
    swarm, ends = ending(["Hello."], calling(lambda _, __: 1 / 0))
    with caplog.at_level(logging.ERROR, logger="aswarm"):
        response = await swarm.run(Agent(), "Hi", run_id="mine")
    assert (response.text, len(ends)) == ("Hello.", 1)
    (record,) = caplog.records
    assert record.__dict__["run_id"] == "mine"
    assert record.exc_info


async def test_the_end_comes_after_the_last_handler() -> None:
    """A completion that is left is closed before the end of the run."""
    seen: list[str] = []

    async def watched(complete: Any, request: Any) -> Any:
        try:
            async with aclosing(passed_on(complete, request)) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            seen.append("completion")

    swarm, _ = ending(["Hello."], calling(lambda _, __: seen.append("run")), around_completions(watched))
    async with swarm.stream(Agent(), "Hi") as run:
        await anext(run)
        await anext(run)
    assert seen == ["completion", "run"]
