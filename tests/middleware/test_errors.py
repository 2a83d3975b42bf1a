"""What a middleware raises ends the run as an error of the run, with what had happened; other calls are cancelled."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, CompletionError, ConfigurationError, Response, RunError, StreamInterrupted
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
from tests.support.middleware.middlewares import Chunks, around_calls, around_completions, passed_on
from tests.support.providers.sources import KINDS, ForeignSource, client_of, script_of
from tests.support.run.ways_to_run import FACES, answers, cancel_when, consume

pytestmark = pytest.mark.anyio


async def look() -> str:
    """Look."""
    return "sunny"


async def raised(
    swarm: AsyncSwarm, agent: Agent, face: str, kind: type[BaseException] = RunError
) -> tuple[Any, Response]:
    """The error of a run, which has the response that the run has; what the run leaves is checked."""
    left: list[Response] = []
    async with nothing_left_behind():
        with pytest.raises(kind) as caught:
            await consume(swarm, agent, face, left)
    assert caught.value.response == left[0]
    assert left[0].stop == "error"
    check_history(left[0].messages, allow_open=True)
    return caught.value, left[0]


# --- in the function that wraps ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("face", FACES)
async def test_an_error_of_the_middleware_itself(face: str) -> None:
    """It is raised in place of the first request, as the cause of a RunError; an inner middleware was called."""
    called: list[str] = []

    def inner(handlers: Handlers) -> Handlers:
        called.append("inner")
        return handlers

    def broken(handlers: Handlers) -> Handlers:
        raise KeyError("no such tenant")

    script = script_of([])
    error, response = await raised(AsyncSwarm(script.client(), middleware=[broken, inner]), Agent(), face)
    assert str(error) == "KeyError: 'no such tenant'"
    assert isinstance(error.__cause__, KeyError)
    assert response.messages == []
    assert called == ["inner"]
    assert script.bodies == []


class Wrapping:
    """A middleware that is an object; it returns what it was made with."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __call__(self, handlers: Handlers) -> Any:
        return self.value


def forgets(handlers: Handlers) -> Any:
    """A middleware without `return`."""


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize(
    ("middleware", "name", "returned"),
    [
        (forgets, "forgets", "NoneType"),
        (partial(forgets), "partial", "NoneType"),
        (Wrapping({}), "Wrapping", "dict"),
        (lambda handlers: (handlers.complete, handlers.call_tool), "<lambda>", "tuple"),
        (lambda handlers: Handlers, "<lambda>", "type"),
    ],
    ids=["a function", "a partial", "an object", "a tuple", "the class"],
)
async def test_what_is_no_handlers_is_a_configuration_error(
    middleware: Any, name: str, returned: str, face: str
) -> None:
    """The text names the middleware, what it returned, and how to make `Handlers`."""
    swarm = AsyncSwarm(ScriptedModel([]).client(), middleware=[middleware])
    error, _ = await raised(swarm, Agent(), face, ConfigurationError)
    assert f"{name} returned {returned}" in str(error)
    assert "dataclasses.replace(handlers, complete=...)" in str(error)


async def test_an_async_middleware_is_told_to_be_a_plain_function() -> None:
    """`async def` is a mistake that is easily made; the text says what to write, and no coroutine is left over."""

    async def slow(handlers: Handlers) -> Handlers:
        return handlers

    swarm = AsyncSwarm(ScriptedModel([]).client(), middleware=[slow])  # type: ignore[list-item]
    error, _ = await raised(swarm, Agent(), "run", ConfigurationError)
    assert "slow returned coroutine; it must be a plain function that returns Handlers" in str(error)


@pytest.mark.parametrize("wrong", [None, "timing", {"complete": 1}], ids=str)
async def test_what_cannot_be_called_is_refused_at_once(wrong: Any) -> None:
    """`AsyncSwarm(middleware=[...])` names what is no function, and where to read on."""
    with pytest.raises(ConfigurationError, match=rf"not {type(wrong).__name__}; see aswarm\.middleware"):
        AsyncSwarm(ScriptedModel([]).client(), middleware=[wrong])


@pytest.mark.parametrize("wrong", [forgets, 7], ids=["a function", "a number"])
async def test_middleware_that_is_no_list_is_refused_at_once(wrong: Any) -> None:
    """One middleware in place of a list is told to be put into a list."""
    with pytest.raises(ConfigurationError, match=r"middleware must be a list, not .* middleware=\[\.\.\.\]"):
        AsyncSwarm(ScriptedModel([]).client(), middleware=wrong)


# --- in `complete` ----------------------------------------------------------------------------------------------------


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
    """It is the cause of a RunError; the turn before it stays, what of the answer was there is in `partial`."""
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
    """A middleware that raises an `AswarmError` gives the run that very error, with the response."""
    error = kind("busy")
    swarm = AsyncSwarm(script_of([call("look"), "Sunny."]).client(), middleware=[failing("before", error)])
    caught, response = await raised(swarm, Agent(functions=[look]), face, kind)
    assert caught is error
    assert len(response.messages) == 2


async def test_the_error_of_a_run_inside_a_middleware_keeps_its_own_response() -> None:
    """A guard that asks another agent: its failure is the cause, and the outer run has its own response."""
    guard = AsyncSwarm(script_of([]).client())

    async def guarded(inner: CompletionHandler, request: CompletionRequest) -> Chunks:
        await guard.run(Agent(name="guard"), "Is this fine?", max_turns=1)
        async for chunk in passed_on(inner, request):
            yield chunk

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


@pytest.mark.parametrize("face", FACES)
async def test_an_answer_that_a_middleware_ends_early_is_interrupted(face: str) -> None:
    """A completion handler that yields nothing, or no finish reason, has not answered."""

    async def nothing(inner: CompletionHandler, request: CompletionRequest) -> Chunks:
        return
        yield

    swarm = AsyncSwarm(script_of([]).client(), middleware=[around_completions(nothing)])
    error, _ = await raised(swarm, Agent(), face, StreamInterrupted)
    assert "the answer was empty" in str(error)


@pytest.mark.parametrize("chunk", [None, "text", 7, []], ids=str)
async def test_what_is_no_chunk_is_named(chunk: Any) -> None:
    """A middleware that yields something else than a mapping has yielded no completion; the text quotes it."""

    async def odd(inner: CompletionHandler, request: CompletionRequest) -> Chunks:
        yield chunk

    swarm = AsyncSwarm(script_of([]).client(), middleware=[around_completions(odd)])
    error, _ = await raised(swarm, Agent(), "run", CompletionError)
    assert f"{chunk!r}" in str(error)


@pytest.mark.parametrize("face", FACES)
async def test_complete_that_is_no_generator_is_a_configuration_error(face: str) -> None:
    """`async def complete` without `yield` is told to be an async generator function; no coroutine is left over."""

    async def forgot(inner: CompletionHandler, request: CompletionRequest) -> Any:
        return inner(request)

    swarm = AsyncSwarm(script_of([]).client(), middleware=[around_completions(forgot)])  # type: ignore[arg-type]
    error, _ = await raised(swarm, Agent(), face, ConfigurationError)
    assert "must return an async generator" in str(error)


# --- in `call_tool` ---------------------------------------------------------------------------------------------------


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
    """Calls of the same group are cancelled and awaited, those that had finished keep their answer, later ones open."""
    events: list[str] = []

    async def quick() -> str:
        events.append("quick")
        return "done"

    async def slow() -> str:
        events.append("slow began")
        try:
            await anyio.sleep(60)
        finally:
            events.append("slow ended")
        return "never"

    def later() -> str:
        events.append("later")
        return "never"

    script = script_of([[call("quick"), call("slow"), call("look"), call("later")]])
    swarm = AsyncSwarm(
        script.client(), middleware=[refusing("look", Mine("no"), lambda: {"quick", "slow began"} <= set(events))]
    )
    error, response = await raised(swarm, Agent(functions=[quick, slow, look, later]), face)
    assert str(error) == "Mine: no"
    assert isinstance(error.__cause__, Mine)
    assert sorted(events) == ["quick", "slow began", "slow ended"]
    assert answers(response) == {"quick": "done", "slow": "cancelled; its outcome is unknown"}


@pytest.mark.parametrize("face", FACES)
async def test_an_error_after_the_function_leaves_its_outcome_unknown(face: str) -> None:
    """A call whose function has run and whose middleware then fails is never run a second time."""

    async def late(inner: ToolHandler, call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
        await inner(call, context, started)
        raise Mine("late")

    swarm = AsyncSwarm(script_of([call("look")]).client(), middleware=[around_calls(late)])
    _, response = await raised(swarm, Agent(functions=[look]), face)
    assert answers(response) == {"look": "cancelled; its outcome is unknown"}


@pytest.mark.parametrize("face", FACES)
async def test_an_error_before_the_function_leaves_the_call_open(face: str) -> None:
    """A call that a middleware never passed on can be resumed."""
    swarm = AsyncSwarm(script_of([call("look")]).client(), middleware=[refusing("look", Mine("no"))])
    _, response = await raised(swarm, Agent(functions=[look]), face)
    assert answers(response) == {}
    again = AsyncSwarm(script_of(["Done."]).client())
    history = [{"role": "user", "content": "Hi"}, *response.messages]
    assert answers(await again.run(Agent(functions=[look]), history, resume=True)) == {"look": "sunny"}


@pytest.mark.parametrize("face", FACES)
async def test_a_run_that_is_cancelled_in_a_middleware_is_cancelled(face: str) -> None:
    """A middleware that waits around a call is cancelled with the run, and the call stays open."""
    waits = anyio.Event()

    async def wait(inner: ToolHandler, call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
        waits.set()
        await anyio.sleep(60)
        return await inner(call, context, started)

    swarm = AsyncSwarm(script_of([call("look")]).client(), middleware=[around_calls(wait)])
    response = await cancel_when(waits.is_set, swarm, Agent(functions=[look]), face)
    assert answers(response) == {}
    assert len(response.messages) == 1


async def test_a_tool_error_of_a_middleware_ends_the_run() -> None:
    """`ToolError` is for functions: raised around the inner handler it is an error of the middleware like any other."""
    from aswarm import ToolError

    swarm = AsyncSwarm(script_of([call("look")]).client(), middleware=[refusing("look", ToolError("No."))])
    error, _ = await raised(swarm, Agent(functions=[look]), "run")
    assert str(error) == "ToolError: No."
