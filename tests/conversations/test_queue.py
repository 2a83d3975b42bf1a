"""Runs of one conversation in one process run one after another."""

from __future__ import annotations

from typing import Any

import anyio

from aswarm import Agent, AsyncSwarm
from aswarm.conversations import Conversation, MemoryStore
from aswarm.testing import ScriptedAnswer, ScriptedModel, call, check_history
from tests.support.conversations.stores import user


def slow_chat(store: MemoryStore, name: str = "a", agent: Agent | None = None, script: Any = None) -> Conversation:
    """A conversation whose model needs a moment for each answer."""
    model = ScriptedModel(
        script or (lambda request: ScriptedAnswer(f"to {request.messages[-1]['content']}", delay=0.02))
    )
    return store.conversation(name, AsyncSwarm(model.client()), agent=agent or Agent())


async def contents(store: MemoryStore) -> list[Any]:
    """Return the texts of the conversation "a"."""
    stored = await store.load("a")
    assert stored is not None
    check_history(stored.messages)
    return [each["content"] for each in stored.messages]


async def test_runs_start_in_the_order_of_their_calls() -> None:
    """Another `Conversation` object of the same id is in the same queue, and each run sees all runs before it."""
    store = MemoryStore()
    async with anyio.create_task_group() as group:
        for number in range(6):
            group.start_soon(slow_chat(store).run, str(number))
            await anyio.sleep(0.002)
    assert await contents(store) == [text for number in range(6) for text in (str(number), f"to {number}")]


async def test_runs_of_other_conversations_do_not_wait() -> None:
    """A conversation with the same id in another store is another conversation."""
    store, started = MemoryStore(), list[str]()
    together = anyio.Event()

    async def meet(name: str) -> str:
        """Meet."""
        started.append(name)
        if len(started) == 3:
            together.set()
        await together.wait()
        return name

    agent = Agent(functions=[meet])
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for place, chat, name in ((store, "a", "a"), (store, "b", "b"), (MemoryStore(), "a", "c")):
                group.start_soon(slow_chat(place, chat, agent, [call("meet", name=name), "Done."]).run, "Go")
    assert sorted(started) == ["a", "b", "c"]


async def test_a_run_that_is_cancelled_while_it_waits() -> None:
    """It has written nothing, and later runs keep their order."""
    store = MemoryStore()
    chat = slow_chat(store)
    waiting = anyio.CancelScope()

    async def wait() -> None:
        with waiting:
            await chat.run("cancelled")

    async with anyio.create_task_group() as group, chat.stream("first") as run:
        group.start_soon(wait)
        await anyio.sleep(0.01)
        group.start_soon(chat.run, "third")
        await anyio.sleep(0.01)
        waiting.cancel()
        async for _ in run:
            pass
    assert await contents(store) == ["first", "to first", "third", "to third"]


async def test_replacing_a_history_waits_too() -> None:
    """A new history does not come between the messages of a run."""
    store = MemoryStore()
    chat = slow_chat(store)
    async with anyio.create_task_group() as group:
        group.start_soon(chat.run, "first")
        await anyio.sleep(0.005)
        await chat.replace([user("other")])
    assert await contents(store) == ["other"]


async def test_a_run_inside_a_tool_of_the_same_conversation_is_an_error() -> None:
    """It would wait for the run around it, for ever."""
    store = MemoryStore()
    agent = Agent()

    async def again(kind: str) -> str:
        """Ask again."""
        if kind == "other":
            return (await slow_chat(store, "b").run("inner")).text
        if kind == "plain":
            return (await slow_chat(store).run("inner")).text
        await slow_chat(store).replace([])
        return ""

    agent.functions.append(again)
    calls = [call("again", kind=kind) for kind in ("plain", "other", "replace")]
    with anyio.fail_after(60):
        await slow_chat(store, "a", agent, [calls, "Done."]).run("outer")
    _, _, plain, other, replaced, _ = await contents(store)
    assert "would wait for its own run" in plain and "would wait for its own run" in replaced
    assert other == "to inner"


async def test_a_task_of_a_tool_may_run_the_conversation_later() -> None:
    """A task of a tool may run the conversation once the outer run has finished."""
    store = MemoryStore()
    chat = slow_chat(store)
    async with anyio.create_task_group() as group:

        async def later(after: anyio.Event) -> None:
            await after.wait()
            await chat.run("later")

        ended = anyio.Event()

        async def leave() -> str:
            """Leave a task."""
            group.start_soon(later, ended)
            return "left"

        await slow_chat(store, "a", Agent(functions=[leave]), [call("leave"), "Done."]).run("outer")
        ended.set()
    assert (await contents(store))[-1] == "to later"


async def test_a_stream_may_be_closed_by_another_task() -> None:
    """The finalizer of a generator closes a stream in another task."""
    store = MemoryStore()
    stream = slow_chat(store).stream("first")
    await stream.__aenter__()
    async with anyio.create_task_group() as group:
        group.start_soon(stream.__aexit__, None, None, None)
    assert (await slow_chat(store).run("second")).text == "to second"
    assert (await contents(store))[-1] == "to second"
