"""Both streams beyond their events: reading, closing, and refused uses."""

from __future__ import annotations

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, tool
from aswarm.testing import ScriptedAnswer, ScriptedModel, call


def swarm_of(*steps: object) -> AsyncSwarm:
    """Return a swarm whose model streams these steps letter by letter."""
    return AsyncSwarm(client=ScriptedModel(steps, cut=1).client())


async def test_a_classic_stream_is_an_async_generator() -> None:
    """`asend` and `athrow` work as on any async generator; an exception that is thrown in propagates and ends the run."""
    stream = swarm_of("Hello").run(Agent(), "Hi", stream=True)
    assert await stream.asend(None) == {"delim": "start"}
    with pytest.raises(KeyError, match="mine"):
        await stream.athrow(KeyError("mine"))
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    assert stream.response.stop == "cancelled"


async def test_an_event_stream_wants_its_block() -> None:
    """Reading without `async with` is an error that shows the line to write."""
    run = swarm_of("Hello").stream(Agent(), "Hi")
    with pytest.raises(RuntimeError, match=r"async with swarm\.stream"):
        await anext(run)


async def test_an_event_stream_is_entered_once() -> None:
    """A second block is an error that names the remedy, and the response stays."""
    run = swarm_of("Hello").stream(Agent(), "Hi")
    async with run:
        assert [event async for event in run]
        with pytest.raises(RuntimeError, match="only once"):
            await run.__aenter__()
    with pytest.raises(RuntimeError, match=r"only once; call swarm\.stream\(\.\.\.\) again"):
        async with run:
            pass
    assert run.response.text == "Hello"


async def test_two_tasks_cannot_read_one_run() -> None:
    """A second reader gets an error, and a task that closes the stream too; the first reader continues."""
    stream = swarm_of(ScriptedAnswer("Hello", delay=0.05)).run(Agent(), "Hi", stream=True)
    seen: list[object] = []

    async def read() -> None:
        seen.append(await anext(stream))

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        await anyio.sleep(0.01)
        with pytest.raises(RuntimeError, match="read by another task"):
            await anext(stream)
        with pytest.raises(RuntimeError, match="read by another task"):
            await stream.aclose()
    assert seen == [{"delim": "start"}]
    await stream.aclose()
    await stream.aclose()


async def test_a_set_in_the_context_is_merged_when_it_changed() -> None:
    """A plain function with a timeout, which works on a copy, may change a set."""

    @tool(timeout=10)
    def mark(context_variables: dict[str, set[int]]) -> str:
        context_variables["marks"].add(2)
        return "ok"

    given = {"marks": {1}, "kept": {3}}
    response = await swarm_of(call("mark"), "Done").run(Agent(functions=[mark]), "Hi", given)
    assert response.context_variables == {"marks": {1, 2}, "kept": {3}}
    assert given == {"marks": {1}, "kept": {3}}


class Unsigned:
    """A callable whose signature cannot be read, as of some C functions."""

    __signature__ = "none"

    def __call__(self, context: dict[str, str]) -> str:
        return f"You are {context['name']}."


async def test_instructions_without_a_signature_get_the_context() -> None:
    """Instructions whose signature cannot be read get the context."""
    model = ScriptedModel(["Hello"])
    await AsyncSwarm(client=model.client()).run(Agent(instructions=Unsigned()), "Hi", {"name": "Ann"})
    assert model.requests[0].messages[0]["content"] == "You are Ann."
