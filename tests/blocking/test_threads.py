"""One `Swarm` in several threads at once: they share one event loop, and every plain function stays in its thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from openai import AsyncOpenAI

from aswarm import Agent, Swarm, ToolCallFinished, ToolCallStarted, tool
from aswarm.testing import Request, ScriptedAnswer, ScriptedModel, call, check_history
from tests.support.blocking.blocking import FACES, consume, in_notebook, until
from tests.support.blocking.plain_client import BlockingClient
from tests.support.providers.bodies import completion
from tests.support.run.one_turn import contents

THREADS = 8


def name() -> str:
    return threading.current_thread().name


async def quick() -> str:
    await asyncio.sleep(0.0005)
    return "quick"


def answer(messages: list[dict[str, Any]]) -> ScriptedAnswer:
    """Calls everything once, then is done; a run inside a function is done at once."""
    if messages[-1]["content"] == "Deeper" or messages[-1]["role"] == "tool":
        return ScriptedAnswer("Done")
    return ScriptedAnswer(calls=[call("name"), call("quick"), call("deeper"), call("quick"), call("apart")])


class Client(BlockingClient):
    """Answers any number of requests at once."""

    def _create(self, **request: Any) -> Any:
        made = answer(request["messages"])
        return self._streamed(made) if request["stream"] else completion(made)


def scripted() -> AsyncOpenAI:
    def step(request: Request) -> ScriptedAnswer:
        return answer(request.messages)

    return ScriptedModel(step, cut=3).client()


@pytest.mark.parametrize("client", [Client, scripted])
@pytest.mark.parametrize("notebooks", [0, THREADS // 2, THREADS])
def test_eight_threads(client: Callable[[], Any], notebooks: int) -> None:
    """Threads of scripts and threads with an event loop, all ways to run, runs inside functions, worker threads."""
    swarm = Swarm(client())

    def deeper() -> str:
        return f"{swarm.run(Agent(), 'Deeper').text} in {name()}"

    @tool(concurrent=True)
    def apart() -> str:
        return "here" if name().startswith("runner") else "apart"

    agent = Agent(functions=[name, quick, deeper, apart])

    def runs() -> str:
        here = name()
        for number in range(6):
            response = consume(swarm, agent, FACES[number % 3])
            check_history(response.messages)
            assert contents(response) == [here, "quick", f"Done in {here}", "quick", "apart"]
        return here

    def work(number: int) -> str:
        return in_notebook(runs) if number < notebooks else runs()  # type: ignore[no-any-return]

    with ThreadPoolExecutor(THREADS, thread_name_prefix="runner") as pool:
        assert len(list(pool.map(work, range(THREADS)))) == THREADS
    until(lambda: not [thread for thread in threading.enumerate() if "worker" in thread.name])


def test_a_function_of_one_thread_does_not_hold_up_the_others() -> None:
    """While one caller is busy with its plain function, the runs of others go on."""
    gate = threading.Event()

    def hold() -> str:
        return "passed" if gate.wait(120) else "waited in vain"

    swarm = Swarm(BlockingClient(call("hold"), "Done"))
    holder = Agent(functions=[hold])
    with swarm, ThreadPoolExecutor(1) as pool:
        held = pool.submit(swarm.run, holder, "Go")
        until(lambda: swarm.client.requests)
        other = Swarm(BlockingClient(call("quick"), "Done"))
        assert contents(other.run(Agent(functions=[quick]), "Go")) == ["quick"]
        gate.set()
        assert contents(held.result()) == ["passed"]


def holding() -> tuple[threading.Event, threading.Event, Callable[[], Awaitable[str]]]:
    """Return an event of the start of a function, a gate that lets it return, and the function."""
    began, gate = threading.Event(), threading.Event()

    async def hold() -> str:
        began.set()
        while not gate.is_set():
            await asyncio.sleep(0.001)
        return "held"

    return began, gate, hold


def test_closing_while_another_thread_runs() -> None:
    """What is idle is closed; a run in another thread goes on, and so does a stream that is being read."""
    model = ScriptedModel([ScriptedAnswer("Hello", pause=0.001)], cut=1)
    began, gate, hold = holding()
    swarm = Swarm(model.client())
    idle = swarm.run(Agent(), "Go", stream=True)
    next(idle)
    swarm.client = BlockingClient(call("hold"), "Done")
    busy = swarm.run(Agent(functions=[hold]), "Go", stream=True)
    with ThreadPoolExecutor(1) as pool:
        events = pool.submit(list, busy)
        began.wait()
        swarm.close()
        gate.set()
        assert events.result()[-1]["response"].text == "Done"
    assert not model.open_streams
    assert list(idle) == []


def test_a_stream_dropped_while_another_thread_waits() -> None:
    """It is closed, and the run of the other thread goes on."""
    model = ScriptedModel([ScriptedAnswer("Hello", pause=0.001)], cut=1)
    began, gate, hold = holding()
    with Swarm(model.client()) as swarm, ThreadPoolExecutor(1) as pool:
        stream = swarm.run(Agent(), "Go", stream=True)
        next(stream)
        swarm.client = BlockingClient(call("hold"), "Done")
        run = pool.submit(swarm.run, Agent(functions=[hold]), "Go")
        began.wait()
        del stream
        until(lambda: not model.open_streams)
        gate.set()
        assert run.result().text == "Done"


def test_a_live_function_while_the_consumer_does_something_else() -> None:
    """Between two events its async functions go on; a plain function waits until its caller reads again."""
    done = threading.Event()
    order: list[str] = []

    async def soon() -> str:
        await asyncio.sleep(0.001)
        done.set()
        return "done"

    def note() -> str:
        order.append(f"note in {name()}")
        return "noted"

    client = BlockingClient([call("soon"), call("note")], "Done")
    with Swarm(client) as swarm, swarm.stream(Agent(functions=[soon, note]), "Go") as run:
        for event in run:
            if isinstance(event, ToolCallStarted | ToolCallFinished):
                order.append(f"{type(event).__name__} {event.name}")
            if order == ["ToolCallStarted soon"]:
                assert done.wait(120)
                swarm.client = BlockingClient("Done")
                assert swarm.run(Agent(), "Go").text == "Done"
                assert len(order) == 1
                swarm.client = client
    assert contents(run.response) == ["done", "noted"]
    assert order == [
        "ToolCallStarted soon",
        "ToolCallFinished soon",
        "ToolCallStarted note",
        f"note in {name()}",
        "ToolCallFinished note",
    ]
