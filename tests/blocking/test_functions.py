"""The threads of functions, hooks and clients of a `Swarm`: blocking code runs in the thread of the caller, in notebooks too."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from aswarm import Agent, Response, RunError, Swarm, tool
from aswarm.testing import ScriptedAnswer, call, check_history
from aswarm.tools import ToolFailure
from tests.support.blocking.blocking import CLIENTS, FACES, PLACES, consume
from tests.support.blocking.plain_client import BlockingClient
from tests.support.providers.bodies import completion
from tests.support.run.one_turn import contents

every_place = pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())
every_face = pytest.mark.parametrize("face", FACES)
every_client = pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS.keys())
Place = Callable[[Callable[[], Any]], Any]


def thread() -> str:
    """Which thread this is, from the point of view of the test."""
    return "caller" if threading.current_thread() is threading.main_thread() else "another"


async def quick() -> str:
    await asyncio.sleep(0)
    return "quick"


@every_client
@every_face
@every_place
def test_plain_functions_run_in_the_callers_thread(place: Place, face: str, client: Callable[..., Any]) -> None:
    """So do plain instructions, and functions that never block; a function with an option for its own thread has one."""
    seen: dict[str, str] = {}

    def instructions() -> str:
        seen["instructions"] = thread()
        return "Go."

    @tool(thread=False)
    def light() -> str:
        return thread()

    @tool(concurrent=True)
    def together() -> str:
        return thread()

    @tool(timeout=5)
    def bounded() -> str:
        return thread()

    @tool(abandon_on_cancel=True)
    def left() -> str:
        return thread()

    agent = Agent(instructions=instructions, functions=[thread, light, together, bounded, left])
    names = ["thread", "light", "together", "bounded", "left"]
    with Swarm(client([call(name) for name in names], "Done")) as swarm:
        response = place(lambda: consume(swarm, agent, face))
    assert contents(response) == ["caller", "caller", "another", "another", "another"]
    assert seen == {"instructions": "caller"}


@every_place
@pytest.mark.parametrize("is_async", [False, True])
def test_a_hook_is_asked_in_the_callers_thread(place: Place, is_async: bool) -> None:
    """A plain `tool_error` runs where plain functions do; an async one works too."""

    def fail() -> str:
        raise ValueError("no")

    def hook(failure: ToolFailure) -> str:
        return f"{type(failure.error).__name__} in {thread()}"

    async def async_hook(failure: ToolFailure) -> str:
        return "async"

    with Swarm(BlockingClient(call("fail"), "Done"), tool_error=async_hook if is_async else hook) as swarm:
        response = place(lambda: swarm.run(Agent(functions=[fail]), "Go"))
    assert contents(response) == ["async" if is_async else "ValueError in caller"]


@every_face
@every_place
def test_a_blocking_client_is_called_in_the_callers_thread(place: Place, face: str) -> None:
    """Asking, and every piece of a stream: so the data that it keeps for its thread is there."""
    client = BlockingClient(call("quick"), "Done")
    with Swarm(client) as swarm:
        place(lambda: consume(swarm, Agent(functions=[quick]), face))
    assert client.threads == {threading.get_ident()}


@every_place
def test_async_functions_run_in_one_thread(place: Place) -> None:
    """All callers share the thread of the event loop: a client of a database, for example, belongs to that loop."""
    seen: list[tuple[threading.Thread, asyncio.AbstractEventLoop]] = []

    async def where() -> str:
        seen.append((threading.current_thread(), asyncio.get_running_loop()))
        return thread()

    with Swarm(BlockingClient(*[call("where"), "Done"] * 3)) as swarm, ThreadPoolExecutor(1) as pool:
        agent = Agent(functions=[where])
        responses = [
            place(lambda: swarm.run(agent, "Go")),
            swarm.run(agent, "Go"),
            pool.submit(swarm.run, agent, "Go").result(),
        ]
    assert [contents(response) for response in responses] == [["another"]] * 3
    assert len(set(seen)) == 1


VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
TRACE: contextvars.ContextVar[str] = contextvars.ContextVar("trace", default="none")


@every_face
@every_place
def test_a_context_variable_that_a_plain_function_sets(place: Place, face: str) -> None:
    """It stays set, for the next function and for the caller, as if the caller had called the function."""

    def set_it() -> str:
        VARIABLE.set("by the function")
        return VARIABLE.get()

    def work() -> tuple[str, Response]:
        VARIABLE.set("by the caller")
        response = consume(swarm, Agent(functions=[current, set_it]), face)
        return VARIABLE.get(), response

    calls = [call("current"), call("set_it"), call("current")]
    with Swarm(BlockingClient(calls, "Done")) as swarm:
        context = contextvars.copy_context()
        after, response = context.run(place, work)
    assert after == "by the function"
    assert contents(response) == ["by the caller", "by the function", "by the function"]


def current() -> str:
    return VARIABLE.get()


@every_place
def test_a_context_variable_that_the_run_sets(place: Place) -> None:
    """A plain function sees it, as of a tracer around the run; when the function has returned, the caller does not."""

    class Traced:
        """A client on the event loop that sets a variable for the rest of the run."""

        async def complete(self, request: Any) -> Any:
            TRACE.set("of the run")
            answered = request.body["messages"][-1]["role"] == "tool"
            yield completion(
                ScriptedAnswer("Done") if answered else ScriptedAnswer(calls=[call("look"), call("change")])
            )

    def look() -> str:
        return TRACE.get()

    def change() -> str:
        TRACE.set("of the function")
        return TRACE.get()

    def work(functions: list[Any]) -> tuple[str, list[str]]:
        response = Swarm(Traced()).run(Agent(functions=functions), "Go")
        return TRACE.get(), contents(response)

    after, told = contextvars.copy_context().run(place, lambda: work([look]))
    assert (after, told[0]) == ("none", "of the run")
    after, told = contextvars.copy_context().run(place, lambda: work([look, change]))
    assert (after, told) == ("of the function", ["of the run", "of the function"])


def test_within_trio() -> None:
    """A running trio is a running event loop too."""

    async def main() -> Response:
        return swarm.run(Agent(functions=[quick, thread]), "Go")

    with Swarm(BlockingClient([call("quick"), call("thread")], "Done")) as swarm:
        assert contents(trio.run(main)) == ["quick", "caller"]


@every_client
@every_place
def test_a_run_inside_a_function(place: Place, client: Callable[..., Any]) -> None:
    """A plain function may run the same Swarm; its functions are in the same thread again."""

    def deeper() -> str:
        return ", ".join(contents(swarm.run(Agent(functions=[thread, quick]), "Deeper")))

    steps = [call("deeper"), [call("thread"), call("quick")], "Deep", "Done"]
    with Swarm(client(*steps)) as swarm:
        response = place(lambda: swarm.run(Agent(functions=[deeper]), "Go"))
    assert contents(response) == ["caller, quick"]


@every_place
def test_a_run_inside_an_async_function_is_refused(place: Place) -> None:
    """It would wait for the event loop that it blocks; the error has the remedy."""

    async def deeper() -> str:
        return swarm.run(Agent(), "Deeper").text

    with Swarm(BlockingClient(call("deeper"), "Done")) as swarm:
        (told,) = contents(place(lambda: swarm.run(Agent(functions=[deeper]), "Go")))
    assert told.startswith("Error: ConfigurationError: an async function cannot wait for a Swarm")


def test_a_run_that_ends_while_its_function_runs() -> None:
    """The function is awaited, and its call has its result; a function that waits for its turn is not called, and stays open."""
    called: list[str] = []

    async def nap() -> str:
        await asyncio.sleep(0.02)
        return "slept"

    @tool(thread=False, concurrent=True)
    def hold() -> str:
        called.append("hold")
        with ThreadPoolExecutor(1) as pool, Swarm(BlockingClient(call("nap"), "Done")) as other:
            return pool.submit(other.run, Agent(functions=[nap]), "Go").result().text

    @tool(thread=False, concurrent=True)
    def queued() -> str:
        called.append("queued")
        return "never"

    async def fail() -> str:
        await asyncio.sleep(0.001)
        raise ValueError("no")

    async def hook(failure: ToolFailure) -> str:
        raise RuntimeError("enough")

    client = BlockingClient([call("hold"), call("queued"), call("fail")])
    with Swarm(client, tool_error=hook) as swarm, pytest.raises(RunError, match="enough") as caught:
        swarm.run(Agent(functions=[hold, queued, fail]), "Go")
    assert called == ["hold"]
    assert caught.value.response is not None
    assert contents(caught.value.response) == ["Done", "Error: the call failed."]
    check_history(caught.value.response.messages, allow_open=True)


@pytest.mark.parametrize(
    ("cancelled", "text"),
    [
        ("async instructions", "were cancelled, but not by their run"),
        ("plain instructions", "were cancelled, but not by their run"),
        ("client", "other code has cancelled something"),
    ],
)
def test_a_cancellation_without_ctrl_c_is_an_error_of_the_run(cancelled: str, text: str) -> None:
    """For a thread that waits, a bare CancelledError would mean nothing. No request is sent without the instructions."""

    async def cancel(**_: Any) -> Any:
        raise asyncio.CancelledError

    def cancel_now() -> str:
        raise asyncio.CancelledError("other")

    client: Any = BlockingClient()
    if cancelled == "client":
        client = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=cancel)))
    instructions: Any = {"async instructions": cancel, "plain instructions": cancel_now}.get(cancelled, "Go.")
    with Swarm(client) as swarm, pytest.raises(RunError, match=text) as caught:
        swarm.run(Agent(instructions=instructions), "Go")
    assert caught.value.response is not None
    assert cancelled == "client" or client.requests == []
