"""A run of two calls at the same time, cut at each await of its writes: nothing runs or is announced without its stored start."""

from __future__ import annotations

from typing import Literal

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, Hold, RunError, tool
from aswarm.conversations import Change, Conversation, MemoryStore, Stored
from aswarm.guards import Block, Blocked, CheckedInput, guard_input
from aswarm.testing import ScriptedModel, call, check_history
from tests.support.conversations.stores import user

UNKNOWN = "cancelled; its outcome is unknown"
Mode = Literal["hangs", "hangs after", "fails", "fails after", "fails for good"]
LAST = 9  # the number of writes of the run without a cut
MODES: list[Mode] = ["hangs", "hangs after", "fails", "fails after", "fails for good"]


class CutStore(MemoryStore):
    """A store whose write number `number` goes wrong. `after`: the change is in the store nevertheless.

    `stored`: the answers of all calls in the store after each write; None for an open call.
    """

    def __init__(self, number: int, mode: Mode, scope: anyio.CancelScope) -> None:
        super().__init__()
        self.writes = 0
        self.stored: dict[str, str | None] = {}
        self._number, self._mode, self._scope = number, mode, scope

    async def write(self, conversation_id: str, change: Change, /) -> None:
        self.writes += 1
        is_cut = self.writes == self._number or (self._mode == "fails for good" and self.writes > self._number)
        if not is_cut or "after" in self._mode:
            await super().write(conversation_id, change)
            stored = await self.load(conversation_id)
            assert stored is not None
            check_history(stored.messages, allow_open=True)
            self.stored = answers(stored)
        if is_cut and "hangs" in self._mode:
            self._scope.cancel()
            await anyio.sleep(0.001)
            raise RunError("the answer of the store was lost")
        if is_cut:
            raise RunError("the disk is full")


def answers(stored: Stored) -> dict[str, str | None]:
    """Return the answers of the calls of a history; None for an open call."""
    found = {each["tool_call_id"]: each["content"] for each in stored.messages if each["role"] == "tool"}
    calls = [each["id"] for message in stored.messages for each in message.get("tool_calls") or ()]
    return {each: found.get(each) for each in calls}


class Cut:
    """A run with a store that goes wrong. `ran`: the calls whose functions ran; `announced`: the calls with an event."""

    def __init__(self, number: int, mode: Mode) -> None:
        self.scope = anyio.CancelScope()
        self.store = CutStore(number, mode, self.scope)
        self.ran: list[str] = []
        self.announced: list[str] = []

    def started(self, call_id: str) -> None:
        """Note a function that runs. Its start must be in the store."""
        assert self.store.stored[call_id] is not None
        self.ran.append(call_id)

    def chat(self) -> Conversation:
        """Return a conversation with calls at the same time, a handoff, a call that asks, and a refused input."""

        async def pay() -> str:
            """Pay."""
            self.started("p")
            await anyio.sleep(0.001)
            return "paid"

        async def send() -> str:
            """Send."""
            self.started("s")
            await anyio.sleep(0.002)
            return "sent"

        @tool(may_wait=True)
        async def ask() -> str:
            """Ask."""
            raise Hold("Really?")

        async def check(asked: CheckedInput) -> Block | None:
            return Block("no") if asked.text == "Bad" else None

        sales = Agent(name="Sales", functions=[ask])
        agent = Agent(functions=[pay, send, sales])
        script = [
            [call("pay", call_id="p"), call("send", call_id="s")],
            call("transfer_to_sales", call_id="t"),
            call("ask", call_id="a"),
        ]
        swarm = AsyncSwarm(ScriptedModel(script).client(), middleware=[guard_input(check)])
        return Conversation(self.store, "a", swarm, agent=agent)

    async def run(self, *, live: bool) -> BaseException | None:
        """Run until the call that asks, or the cut. Return the error."""
        chat = self.chat()
        try:
            with self.scope:
                if not live:
                    await chat.run("Go")
                    return None
                async with chat.stream("Go") as run:
                    async for event in run:
                        if type(event).__name__ == "ToolCallStarted":
                            self.announced.append(event.id)  # type: ignore[union-attr]
        except RunError as error:
            return error
        return None


# Trio runs tasks in a random order, and two calls may share a write.
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("mode", MODES)
async def test_a_run_that_is_cut_at_each_of_its_writes(mode: Mode, live: bool) -> None:
    """No function runs, and none is announced, before its start is in the store; the history has every result."""
    number = 0
    while True:
        number += 1
        cut = Cut(number, mode)
        error = await cut.run(live=live)
        store = cut.store
        assert not set(cut.announced) - {"t", "a"} - set(cut.ran) or cut.scope.cancel_called
        if store.writes < number:
            break
        stored = await store.load("a")
        if stored is None:
            assert not cut.ran
            continue
        check_history(stored.messages, allow_open=True)
        kept = answers(stored)
        assert all(kept[each] is not None for each in cut.ran)
        assert all(kept.get(each) is None or "not run" in str(kept[each]) for each in {"p", "s"} - set(cut.ran))
        if mode != "fails for good" and (live or number < LAST):  # the last write of `run` has no second try
            assert stored.stop is not None
        if error is not None and error.response is not None and mode != "fails for good" and number < LAST:  # type: ignore[attr-defined]
            assert stored.messages == [user("Go"), *error.response.messages]  # type: ignore[attr-defined]
    assert store.writes == LAST


@pytest.mark.parametrize("mode", ["hangs after", "fails after"])
async def test_a_refused_message_is_removed_by_a_write_whose_answer_is_lost(mode: Mode) -> None:
    """The error of the guard is the error of the run."""
    cut = Cut(2, mode)
    with cut.scope, pytest.raises(Blocked):
        await cut.chat().run("Bad")
    stored = await cut.store.load("a")
    assert stored is not None
    assert (stored.messages, stored.stop) == ([], "error")


async def test_two_calls_that_end_at_the_same_time_share_a_write() -> None:
    """While one write is on its way, the other calls wait; the next write has the results of all."""
    writes: list[int] = []
    gate = anyio.Event()

    class SlowStore(MemoryStore):
        async def write(self, conversation_id: str, change: Change, /) -> None:
            await anyio.sleep(0.01)
            writes.append(sum(each["role"] == "tool" for each in change.messages))
            await super().write(conversation_id, change)

    async def wait() -> str:
        """Wait."""
        await gate.wait()
        return "waited"

    async def open_gate() -> str:
        """Open."""
        gate.set()
        return "opened"

    calls = [*(call("wait") for _ in range(8)), call("open_gate")]
    swarm = AsyncSwarm(ScriptedModel([calls, "Done."]).client())
    await Conversation(SlowStore(), "a", swarm, agent=Agent(functions=[wait, open_gate])).run("Go")
    assert len(writes) == 6  # the message; the first start, then all others; the first result, then all others; the end
