"""The store has the response of a run, however the run ends and whenever its process dies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, Hold, RunError, tool
from aswarm.conversations import Change, Conversation, MemoryStore, SQLiteStore, Store
from aswarm.middleware import CompletionHandler
from aswarm.sources import CompletionRequest
from aswarm.testing import ScriptedModel, call, check_history
from tests.support.conversations.stores import read, user
from tests.support.middleware.middlewares import Chunks, around_completions, passed_on
from tests.support.runtime.virtual_time import virtual_backend

UNKNOWN = "cancelled; its outcome is unknown"
Json = dict[str, Any]


@pytest.fixture(params=["memory", "sqlite"])
def kind(request: pytest.FixtureRequest) -> str:
    """The kind of store."""
    return request.param


def chat_of(store: Store, agent: Agent, *script: Any, **options: Any) -> Conversation:
    """The conversation "a"."""
    return Conversation(store, "a", AsyncSwarm(ScriptedModel(script).client(), **options), agent=agent)


async def pay() -> str:
    """Pay."""
    return "paid"


async def answers(store: Store) -> list[str | None]:
    """Return the answers of all calls in the store, in order; None for an open call."""
    stored = await store.load("a")
    assert stored is not None
    check_history(stored.messages, allow_open=True)
    calls = [each["id"] for message in stored.messages for each in message.get("tool_calls") or ()]
    found = {each["tool_call_id"]: each["content"] for each in stored.messages if each["role"] == "tool"}
    return [found.get(each) for each in calls]


async def test_the_message_is_written_before_the_model_is_asked(store: Store) -> None:
    """The message is in the store even if the provider never answers."""
    seen: list[Any] = []

    class Source:
        async def complete(self, request: CompletionRequest) -> AsyncIterator[Json]:
            seen.append(await store.load("a"))
            yield {"choices": [{"message": {"role": "assistant", "content": "Hi."}}]}

    await Conversation(store, "a", AsyncSwarm(Source()), agent=Agent()).run("Hi")
    assert (seen[0].messages, seen[0].stop, seen[0].agent) == ([user("Hi")], None, "Agent")


async def test_a_result_and_a_question_are_written_while_a_call_beside_them_runs(store: Store) -> None:
    """They do not wait for the end of the turn; a call that has asked before it did anything is open, with its question."""
    ended = anyio.Event()

    @tool(may_wait=True)
    async def ask() -> str:
        """Ask."""
        raise Hold("Really?")

    async def slow() -> str:
        """Be slow."""
        await ended.wait()
        return "slow"

    chat = chat_of(store, Agent(functions=[pay, ask, slow]), [call("slow"), call("pay"), call("ask")])
    async with anyio.create_task_group() as group:
        group.start_soon(chat.run, "Go")
        with anyio.fail_after(60):
            while (stored := await store.load("a")) is None or not any(each.reason for each in stored.open_calls):
                await anyio.sleep(0.005)
            while await answers(store) != [UNKNOWN, "paid", None]:
                await anyio.sleep(0.005)
        assert [each.reason for each in stored.open_calls] == ["Really?"]
        ended.set()
    stored = await store.load("a")
    assert stored is not None and stored.stop == "waiting"
    assert await answers(store) == ["slow", "paid", None]


async def test_a_handoff_is_written_before_the_next_completion(store: Store) -> None:
    """The new agent starts with the handoff in the store."""
    states: list[Any] = []

    async def watch(inner: CompletionHandler, request: CompletionRequest) -> Chunks:
        states.append(await store.load("a"))
        async for chunk in passed_on(inner, request):
            yield chunk

    agent, script = Agent(functions=[Agent(name="Sales")]), [call("transfer_to_sales"), "Hi."]
    await chat_of(store, agent, *script, middleware=[around_completions(watch)]).run("Go")
    assert [(each.agent, len(each.messages)) for each in states] == [("Agent", 1), ("Sales", 3)]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("delay", [0.0, 0.001, 0.003, 0.01, 0.03])
async def test_tasks_that_are_cancelled_natively(store: Store, delay: float) -> None:
    """`task.cancel()` respects no shield; whatever it interrupts, the conversation stays valid."""

    async def slow(number: int) -> str:
        """Be slow."""
        await asyncio.sleep(0.005)
        return str(number)

    calls = [call("slow", number=number) for number in range(3)]
    chat = chat_of(store, Agent(functions=[slow]), calls, "Done.", "Done.")
    task = asyncio.create_task(chat.run("Go"))
    await asyncio.sleep(delay)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    done = await asyncio.gather(task, return_exceptions=True)
    stored = await chat.load()
    check_history(stored.messages, allow_open=True)
    if stored.revision and isinstance(done[0], asyncio.CancelledError):
        assert stored.stop in ("cancelled", "answer")
    await chat.run("And?")
    check_history((await chat.load()).messages)


class FailingStore(MemoryStore):
    """A store whose writes fail from number `first` to number `last`, counted from 1. `mode`: how."""

    def __init__(self, first: int, last: int, mode: str = "before") -> None:
        super().__init__()
        self.writes = 0
        self._failing = range(first, last + 1)
        self._mode = mode

    async def write(self, conversation_id: str, change: Change, /) -> None:
        self.writes += 1
        fails = self.writes in self._failing
        if not fails or self._mode == "after":
            await super().write(conversation_id, change)
        if fails and self._mode == "cancelled":
            raise anyio.get_cancelled_exc_class()("by the event loop")
        if fails:
            raise RunError("the disk is full")


@pytest.mark.parametrize("number", range(1, 5))
@pytest.mark.parametrize("mode", ["before", "after"])
async def test_a_write_that_fails_ends_the_run(number: int, mode: str) -> None:
    """No function runs whose start could not be written. The last write is tried again, and has everything."""
    ran: list[int] = []

    async def pay() -> str:
        """Pay."""
        ran.append(number)
        return "paid"

    store = FailingStore(number, number, mode)
    chat = chat_of(store, Agent(functions=[pay]), call("pay"), "Done.", "Next.")
    with pytest.raises(RunError, match="the disk is full") as caught:
        await chat.run("Go")
    assert len(ran) == (number > 2)
    stored = await chat.load()
    check_history(stored.messages, allow_open=True)
    if number in (2, 3):
        assert caught.value.response is not None
        assert stored.messages == [user("Go"), *caught.value.response.messages]
        assert await answers(store) == [None if number == 2 else "paid"]
    if number == 4:  # the last one
        assert caught.value.response is not None and caught.value.response.text == "Done."
    assert (await chat.run("And?")).text in ("Done.", "Next.")


async def test_a_store_that_fails_for_good(caplog: pytest.LogCaptureFixture) -> None:
    """The error of the run is raised, and the error of the last write is logged."""
    store = FailingStore(3, 99)
    chat = chat_of(store, Agent(functions=[pay]), call("pay"), "Done.")
    with caplog.at_level(logging.ERROR, "aswarm"), pytest.raises(RunError, match="the disk is full") as caught:
        await chat.run("Go")
    assert caught.value.response is not None and caught.value.response.messages[-1]["content"] == "paid"
    assert "the conversation 'a' could not be written" in caplog.text
    assert await answers(store) == [UNKNOWN]


async def test_a_stream_whose_last_write_fails() -> None:
    """The reader gets the error with the response of the run, and no RunFinished."""
    chat = chat_of(FailingStore(2, 99), Agent(), "Done.")
    events: list[str] = []
    with pytest.raises(RunError, match="the disk is full") as caught:
        await read(chat.stream("Go"), events)
    assert events[-1] == "CompletionFinished"
    assert caught.value.response is not None and caught.value.response.text == "Done."


async def test_a_stream_that_is_left_and_cannot_be_written() -> None:
    """The error comes when the block is left."""
    with pytest.raises(RunError, match="the disk is full") as caught:
        async with chat_of(FailingStore(2, 99), Agent(), "Done.").stream("Go"):
            pass
    assert caught.value.response is not None and caught.value.response.stop == "cancelled"


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("number", range(1, 5))
async def test_a_write_that_the_event_loop_cancels_is_done_again(number: int) -> None:
    """The end of `asyncio.run` cancels all tasks, and the run does not notice the cancelled write."""
    chat = chat_of(FailingStore(number, number, "cancelled"), Agent(functions=[pay]), call("pay"), "Done.")
    assert (await chat.run("Go")).text == "Done."
    stored = await chat.load()
    roles = ["user", "assistant", "tool", "assistant"]
    assert (stored.stop, [each["role"] for each in stored.messages]) == ("answer", roles)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_an_event_loop_that_ends_in_the_last_write() -> None:
    """All tasks are cancelled; the run repeats the write, and is cancelled then."""
    writing = asyncio.Event()

    class SlowStore(MemoryStore):
        async def write(self, conversation_id: str, change: Change, /) -> None:
            if change.stop is not None:
                writing.set()
                await asyncio.sleep(0.02)
            await super().write(conversation_id, change)

    chat = chat_of(SlowStore(), Agent(), "Done.")
    before = asyncio.all_tasks()
    task = asyncio.create_task(chat.run("Go"))
    await writing.wait()
    others = asyncio.all_tasks() - before
    assert others == {task}
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    stored = await chat.load()
    assert (stored.stop, len(stored.messages)) == ("answer", 2)


def test_an_event_loop_that_is_closed_in_the_last_write() -> None:
    """Python closes the coroutine of the run at last. Nothing can be written then, and the coroutine ends."""
    loop = asyncio.new_event_loop()

    class SlowStore(MemoryStore):
        async def write(self, conversation_id: str, change: Change, /) -> None:
            if change.stop is not None:
                loop.stop()
                await asyncio.sleep(60)
            await super().write(conversation_id, change)

    run = chat_of(SlowStore(), Agent(), "Done.").run("Go")
    task = loop.create_task(run)
    loop.run_forever()
    loop.close()
    with pytest.raises(RuntimeError):
        run.close()
    assert not task.done()


@asynccontextmanager
async def sleeping(store: Store) -> AsyncIterator[anyio.CancelScope]:
    """A run that is in a function until its scope is cancelled; it may end after the block."""
    started, scope = anyio.Event(), anyio.CancelScope()

    async def sleep() -> None:
        """Sleep."""
        started.set()
        await anyio.sleep_forever()

    async def run() -> None:
        with scope:
            await chat_of(store, Agent(functions=[sleep]), call("sleep")).run("Go")

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await started.wait()
        yield scope


async def test_a_store_that_closes_waits_for_the_runs_that_end(path: Path) -> None:
    """Servers cancel the open requests and end the lifespan in one moment: their responses are still written."""
    store = SQLiteStore(path)
    await store.__aenter__()
    async with sleeping(store) as scope:
        scope.cancel()
        await store.__aexit__(None, None, None)
    async with SQLiteStore(path) as store:
        stored = await store.load("a")
        assert stored is not None
        assert (stored.stop, await answers(store)) == ("cancelled", [UNKNOWN])


@pytest.mark.parametrize("anyio_backend", [*map(virtual_backend, ("asyncio", "trio"))], ids=["asyncio", "trio"])
async def test_a_store_that_closes_does_not_wait_for_a_run_without_end(path: Path) -> None:
    """After some seconds it is closed. The history is valid, as after the death of a process."""
    store = SQLiteStore(path)
    await store.__aenter__()
    async with sleeping(store) as scope:
        await store.__aexit__(None, None, None)
        async with SQLiteStore(path) as reader:
            stored = await reader.load("a")
            assert stored is not None
            assert (stored.stop, await answers(reader)) == (None, [UNKNOWN])
        scope.cancel()
