"""A stream of `Swarm` that its reader leaves at a tool event: what has not begun does not begin, what has begun is told."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

from aswarm import Agent, RunError, Swarm, SyncEventStream, ToolCallStarted, ToolFailure, tool
from aswarm.testing import call, check_history
from tests.support.blocking.blocking import CLIENTS, PLACES, results
from tests.support.blocking.plain_client import BlockingClient

every_client = pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS.keys())
every_place = pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())
Place = Callable[[Callable[[], Any]], Any]


def read_until(run: SyncEventStream, kind: type, name: str) -> None:
    for event in run:
        if isinstance(event, kind) and event.name == name:  # type: ignore[attr-defined]
            break


def leave_by_break(swarm: Swarm, agent: Agent, name: str) -> SyncEventStream:
    with swarm.stream(agent, "Go") as run:
        read_until(run, ToolCallStarted, name)
    return run


def leave_by_an_error(swarm: Swarm, agent: Agent, name: str) -> SyncEventStream:
    run = swarm.stream(agent, "Go")

    def fail() -> None:
        with run:
            read_until(run, ToolCallStarted, name)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    return run


def leave_by_close(swarm: Swarm, agent: Agent, name: str) -> SyncEventStream:
    run = swarm.stream(agent, "Go").__enter__()
    read_until(run, ToolCallStarted, name)
    run.close()
    return run


def leave_by_closing_the_swarm(swarm: Swarm, agent: Agent, name: str) -> SyncEventStream:
    run = swarm.stream(agent, "Go").__enter__()
    read_until(run, ToolCallStarted, name)
    swarm.close()
    return run


@every_client
@every_place
@pytest.mark.parametrize("leave", [leave_by_break, leave_by_an_error, leave_by_close, leave_by_closing_the_swarm])
def test_a_plain_function_does_not_begin_once_its_reader_has_left(leave: Any, place: Place, client: Any) -> None:
    """Left at its `ToolCallStarted`: the function is not called, and its call stays open, so that it can be resumed."""
    called: list[str] = []

    def first() -> str:
        called.append("first")
        return "done"

    def second() -> str:
        called.append("second")
        return "done"

    agent = Agent(functions=[first, second])
    with Swarm(client([call("first"), call("second")], "Done")) as swarm:
        run = place(lambda: leave(swarm, agent, "second"))
        assert called == ["first"]
        assert results(run.response) == ["done"]
        assert run.response.stop == "cancelled"
        history = [{"role": "user", "content": "Go"}, *run.response.messages]
        response = swarm.run(agent, history, resume=True)
    assert called == ["first", "second"]
    assert results(response) == ["done"]
    check_history([*history[1:], *response.messages])


def test_a_plain_function_does_not_begin_once_its_stream_was_dropped() -> None:
    """The same without `with`: the last reference goes away while the function waits for its turn."""
    called: list[str] = []

    def work() -> str:
        called.append("work")
        return "done"

    with Swarm(BlockingClient(call("work"))) as swarm:
        run = swarm.stream(Agent(functions=[work]), "Go").__enter__()
        read_until(run, ToolCallStarted, "work")
        del run
        gc.collect()
    assert called == []


def test_a_handoff_of_the_same_turn_answers_a_call_that_did_not_begin() -> None:
    """The new agent may not have the function: the call is answered as not run."""

    def work() -> str:
        raise AssertionError("called after the reader had left")

    other = Agent(name="Other")
    agent = Agent(functions=[other, work])
    with Swarm(BlockingClient([call("transfer_to_other"), call("work")])) as swarm:
        run = leave_by_break(swarm, agent, "work")
    assert results(run.response)[1] == "not run: interrupted"
    assert run.response.agent is other
    check_history(run.response.messages)


def test_a_plain_function_that_has_begun_is_told_with_its_result() -> None:
    """An async function beside it ends the run meanwhile: the function is awaited, and what it returned is kept."""
    began, failed = threading.Event(), threading.Event()

    @tool(thread=False, concurrent=True)
    def hold() -> str:
        began.set()
        failed.wait(120)
        return "held"

    async def fail() -> str:
        while not began.is_set():
            await asyncio.sleep(0.001)
        raise ValueError("no")

    async def hook(failure: ToolFailure) -> str:
        asyncio.get_running_loop().call_later(0.02, failed.set)
        raise RuntimeError("enough")

    agent = Agent(functions=[hold, fail])
    with (
        Swarm(BlockingClient([call("hold"), call("fail")]), tool_error=hook) as swarm,
        pytest.raises(RunError, match="enough") as caught,
    ):
        swarm.run(agent, "Go")
    assert caught.value.response is not None
    assert results(caught.value.response) == ["held", "Error: the call failed."]
