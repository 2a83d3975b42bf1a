"""An error of a middleware ends the run as an error of the run with its messages so far, and cancels other calls."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from typing import Any

import anyio
import pytest

from aswarm import (
    Agent,
    AsyncSwarm,
    CompletionError,
    ConfigurationError,
    Response,
    RunError,
    ToolError,
)
from aswarm.middleware import (
    CompletionHandler,
    CompletionRequest,
    Handlers,
    Middleware,
    Started,
    ToolCall,
    ToolHandler,
    ToolOutcome,
)
from aswarm.testing import ScriptedModel, call, check_history
from tests.support.leaving.run_scenes import nothing_left_behind
from tests.support.middleware.middlewares import Chunks, around_calls, around_completions
from tests.support.providers.sources import KINDS, ForeignSource, client_of, script_of
from tests.support.run.ways_to_run import FACES, answers, consume


async def look() -> str:
    """Look."""
    return "sunny"


async def raised(
    swarm: AsyncSwarm, agent: Agent, face: str, kind: type[BaseException] = RunError
) -> tuple[Any, Response]:
    """Return the error of a run and its response, which are one; the run leaves no task and a valid history."""
    left: list[Response] = []
    async with nothing_left_behind():
        with pytest.raises(kind) as caught:
            await consume(swarm, agent, face, left)
    assert caught.value.response == left[0]
    assert left[0].stop == "error"
    check_history(left[0].messages, allow_open=True)
    return caught.value, left[0]


def forgets(handlers: Handlers) -> Any:
    """A middleware without `return`."""


class Wrapping:
    """A middleware that is an object, and returns a dict."""

    def __call__(self, handlers: Handlers) -> Any:
        return {}


async def slow(handlers: Handlers) -> Handlers:
    """A middleware with `async def`, which is a common mistake."""
    return handlers


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize(
    ("middleware", "name", "returned"),
    [
        (forgets, "forgets", "NoneType"),
        (partial(forgets), "partial", "NoneType"),
        (Wrapping(), "Wrapping", "dict"),
        (lambda handlers: (handlers.complete, handlers.call_tool), "<lambda>", "tuple"),
        (lambda handlers: Handlers, "<lambda>", "type"),
        (slow, "slow", "coroutine"),
    ],
    ids=["a function", "a partial", "an object", "a tuple", "the class", "async def"],
)
async def test_a_middleware_that_returns_no_handlers(middleware: Any, name: str, returned: str, face: str) -> None:
    """The error names the middleware, its result and the right way to make `Handlers`, and no coroutine is left."""
    swarm = AsyncSwarm(ScriptedModel([]).client(), middleware=[middleware])
    error, _ = await raised(swarm, Agent(), face, ConfigurationError)
    assert f"{name} returned {returned}; it must be a plain function that returns Handlers" in str(error)
    assert "dataclasses.replace(handlers, complete=...)" in str(error)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        *(
            ([item], rf"not {type(item).__name__}; see aswarm\.middleware")
            for item in (None, "timing", {"complete": 1})
        ),
        (forgets, r"middleware must be a list, not .* middleware=\[\.\.\.\]"),
        (7, r"middleware must be a list, not .* middleware=\[\.\.\.\]"),
    ],
    ids=["None", "a text", "a dict", "a function", "a number"],
)
async def test_middleware_must_be_a_list_of_functions(wrong: Any, text: str) -> None:
    """`AsyncSwarm(middleware=...)` raises at once, with the fault and the remedy."""
    with pytest.raises(ConfigurationError, match=text):
        AsyncSwarm(ScriptedModel([]).client(), middleware=wrong)


class Mine(Exception):
    """An error of a user."""


def failing(moment: str, error: Exception) -> Middleware:
    """Middleware that raises before, in or after the second completion of a run."""

    def wrap(handlers: Handlers) -> Handlers:
        count = 0

        async def complete(inner: CompletionHandler, request: CompletionRequest) -> Chunks:
            nonlocal count
            count += 1
            if count == 2 and moment == "before":
                raise error
            async with aclosing(inner(request)) as chunks:
                async for chunk in chunks:
                    yield chunk
                    if count == 2 and moment == "in" and "Su" in str(chunk):
                        raise error
            if count == 2:
                raise error

        return around_completions(complete)(handlers)

    return wrap


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("moment", ["before", "in", "after"])
async def test_an_error_in_complete(moment: str, face: str, kind: str) -> None:
    """The error is the cause of a RunError; the turn before stays, and `partial` has the answer so far."""
    script = script_of([call("look"), "Sunny."])
    client = client_of(kind, script)
    swarm = AsyncSwarm(client, middleware=[failing(moment, Mine("no"))])
    error, response = await raised(swarm, Agent(functions=[look]), face)
    assert type(error) is RunError
    assert str(error) == "Mine: no"
    assert isinstance(error.__cause__, Mine)
    assert [message["role"] for message in response.messages] == ["assistant", "tool"]
    is_cut = moment == "in" and face != "run"
    assert error.partial == {"before": "", "in": "Sun" if is_cut else "Sunny.", "after": "Sunny."}[moment]
    if isinstance(client, ForeignSource):
        assert client.open_streams == 0


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("kind", [CompletionError, ConfigurationError, RunError])
async def test_an_error_of_ours_is_raised_as_it_is(kind: Any, face: str) -> None:
    """An `AswarmError` of a middleware is the error of the run, with the response."""
    error = kind("busy")
    swarm = AsyncSwarm(script_of([call("look"), "Sunny."]).client(), middleware=[failing("before", error)])
    caught, response = await raised(swarm, Agent(functions=[look]), face, kind)
    assert caught is error
    assert len(response.messages) == 2


async def test_the_error_of_a_run_inside_a_middleware_keeps_its_own_response() -> None:
    """If the agent of a guard fails, its error is the cause, and the outer run has its own response."""

    async def guarded(inner: CompletionHandler, request: CompletionRequest) -> Chunks:
        await guard.run(Agent(name="guard"), "Is this fine?", max_turns=1)
        yield {}

    async def refused(inner: CompletionHandler, request: CompletionRequest) -> Chunks:
        raise RunError("refused")
        yield

    guard = AsyncSwarm(script_of([]).client(), middleware=[around_completions(refused)])
    swarm = AsyncSwarm(script_of([]).client(), middleware=[around_completions(guarded)])
    error, response = await raised(swarm, Agent(name="outer"), "run")
    assert str(error) == "RunError: refused"
    assert error.__cause__.response.agent.name == "guard"
    assert response.agent is not None
    assert response.agent.name == "outer"


@pytest.mark.parametrize("chunk", [None, "text", 7, []], ids=str)
async def test_a_wrong_chunk_is_named(chunk: Any) -> None:
    """A middleware must yield mappings; the error shows any other value."""

    async def odd(inner: CompletionHandler, request: CompletionRequest) -> Chunks:
        yield chunk

    swarm = AsyncSwarm(script_of([]).client(), middleware=[around_completions(odd)])
    error, _ = await raised(swarm, Agent(), "run", CompletionError)
    assert f"{chunk!r}" in str(error)


@pytest.mark.parametrize("face", FACES)
async def test_complete_that_is_no_generator_is_a_configuration_error(face: str) -> None:
    """The error asks for an async generator function, and no coroutine is left."""

    async def forgot(inner: CompletionHandler, request: CompletionRequest) -> Any:
        return inner(request)

    swarm = AsyncSwarm(script_of([]).client(), middleware=[around_completions(forgot)])  # type: ignore[arg-type]
    error, _ = await raised(swarm, Agent(), face, ConfigurationError)
    assert "must return an async generator" in str(error)


def refusing(name: str, error: Exception, when: Callable[[], bool] = lambda: True) -> Middleware:
    """Middleware that raises at the call of this name."""

    async def refuse(inner: ToolHandler, call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
        if call.name != name:
            return await inner(call, context, started)
        while not when():
            await anyio.sleep(0.001)
        raise error

    return around_calls(refuse)


@pytest.mark.parametrize("face", FACES)
async def test_an_error_in_call_tool_cancels_the_other_calls(face: str) -> None:
    """Calls of the group are cancelled and awaited, finished calls keep their results, later calls stay open."""
    events: list[str] = []

    async def quick() -> str:
        events.append("quick")
        return "done"

    async def slow() -> str:
        events.append("slow started")
        try:
            await anyio.sleep(60)
        finally:
            events.append("slow stopped")
        return "never"

    def later() -> str:
        events.append("later")
        return "never"

    script = script_of([[call("quick"), call("slow"), call("look"), call("later")]])
    swarm = AsyncSwarm(
        script.client(), middleware=[refusing("look", Mine("no"), lambda: {"quick", "slow started"} <= set(events))]
    )
    error, response = await raised(swarm, Agent(functions=[quick, slow, look, later]), face)
    assert str(error) == "Mine: no"
    assert isinstance(error.__cause__, Mine)
    assert sorted(events) == ["quick", "slow started", "slow stopped"]
    assert answers(response) == {"quick": "done", "slow": "cancelled; its outcome is unknown"}


@pytest.mark.parametrize("face", FACES)
async def test_an_error_after_the_function_leaves_its_outcome_unknown(face: str) -> None:
    """If a middleware fails after the function, the call is never run a second time."""

    async def late(inner: ToolHandler, call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
        await inner(call, context, started)
        raise Mine("late")

    swarm = AsyncSwarm(script_of([call("look")]).client(), middleware=[around_calls(late)])
    _, response = await raised(swarm, Agent(functions=[look]), face)
    assert answers(response) == {"look": "cancelled; its outcome is unknown"}


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("failure", [Mine("no"), ToolError("No.")], ids=["an error", "a ToolError"])
async def test_an_error_before_the_function_leaves_the_call_open(face: str, failure: Exception) -> None:
    """A call that a middleware never passed on can be resumed; a `ToolError` of a middleware ends the run too."""
    swarm = AsyncSwarm(script_of([call("look")]).client(), middleware=[refusing("look", failure)])
    error, response = await raised(swarm, Agent(functions=[look]), face)
    assert str(error) == f"{type(failure).__name__}: {failure}"
    assert answers(response) == {}
    again = AsyncSwarm(script_of(["Done."]).client())
    history = [{"role": "user", "content": "Hi"}, *response.messages]
    assert answers(await again.run(Agent(functions=[look]), history, resume=True)) == {"look": "sunny"}
