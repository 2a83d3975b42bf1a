"""Two versions over one store: entries of a newer version, and agents that only the other version has."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, ConfigurationError, tool
from aswarm.conversations import SQLiteStore
from aswarm.runs import AnswersRefused, Entry, LocalRuns, NewRun, Run, show_answers, show_everything
from aswarm.serve import AGUIWire, OpenAIWire, VercelWire
from aswarm.testing import ScriptedModel, call

TURN = Entry(1, 0, "TurnStarted", {"agent": "Boss", "turn": 1})
LATER = Entry(2, 0, "Later", {"instructions": "secret", "index": 0})


def test_users_get_no_entry_of_an_unknown_type() -> None:
    """A type that only a newer version knows may have data that is not for users, like RequestSent."""
    assert show_answers(LATER) is None
    assert show_everything(LATER) is LATER
    assert show_answers(TURN) is TURN


@pytest.mark.parametrize("wire", [AGUIWire(), OpenAIWire("Boss"), VercelWire()], ids=lambda wire: type(wire).__name__)
def test_a_wire_with_a_protocol_of_its_own_sends_no_frame_for_an_unknown_type(wire: Any) -> None:
    """Not even with show=show_everything."""
    assert list(wire.encode(LATER)) == []


@pytest.mark.asyncio
async def test_an_answer_for_an_agent_that_the_process_lacks_is_refused_and_can_be_sent_again(tmp_path: Path) -> None:
    """During an upgrade that renames an agent, a request may reach a process of the other version."""

    @tool(approve=True)
    async def refund(order: int) -> str:
        """Refund an order."""
        return f"refunded {order}"

    @asynccontextmanager
    async def process(name: str, *script: Any) -> AsyncGenerator[LocalRuns]:
        agent = Agent(name=name, functions=[refund])
        async with (
            AsyncSwarm(ScriptedModel(script).client()) as swarm,
            SQLiteStore(tmp_path / "chats.db") as store,
            LocalRuns(swarm, store=store, agents=agent, version="1") as runs,
        ):
            yield runs

    async with process("Orders", call("refund", call_id="c1", order=7)) as runs:
        new = NewRun("ann", "c", "Refund order 7!", run_id="r")
        assert (await (await runs.start(new)).last_entry()).response["stop"] == "waiting"
    async with process("Sales") as runs:
        waits = Run(runs, await runs.get("r", user="ann"))
        with pytest.raises(
            ConfigurationError, match="needs the agent 'Orders', which this process does not have; add it"
        ):
            await waits.answer({"c1": True})
    async with process("Orders", "Done.") as runs:
        waits = Run(runs, await runs.get("r", user="ann"))
        answered = await waits.answer({"c1": True})
        assert (await answered.result()).text == "Done."


@pytest.mark.asyncio
@pytest.mark.processes
@pytest.mark.parametrize("names", ["asked", "answered"])
async def test_a_call_that_may_have_run_in_a_dead_process_is_not_answered_again(names: str, tmp_path: Path) -> None:
    """A process of another version has closed its run, and could not replay it."""
    refunded, began, go = list[int](), anyio.Event(), anyio.Event()

    @tool(approve=True)
    async def refund(order: int) -> str:
        """Refund an order."""
        refunded.append(order)
        began.set()
        await go.wait()
        return f"refunded {order}"

    @asynccontextmanager
    async def process(name: str, file: str, *script: Any, version: str = "1") -> AsyncGenerator[LocalRuns]:
        agent = Agent(name=name, functions=[refund])
        async with (
            AsyncSwarm(ScriptedModel(script).client()) as swarm,
            SQLiteStore(tmp_path / file) as store,
            LocalRuns(swarm, store=store, agents=agent, version=version) as runs,
        ):
            yield runs

    async with process("Orders", "chats.db", call("refund", call_id="c1", order=7), "Done.") as runs:
        asked = await runs.start(NewRun("ann", "c", "Refund order 7!", run_id="r"))
        await asked.result()
        answered = await asked.answer({"c1": True})
        await began.wait()
        with (
            closing(sqlite3.connect(tmp_path / "chats.db")) as source,
            closing(sqlite3.connect(tmp_path / "dead.db")) as copy,
        ):
            source.backup(copy)  # as it is on the disk of the dead process
        go.set()
        await answered.result()
    async with process("Sales", "dead.db", version="2") as runs:
        last = await Run(runs, await runs.get(answered.id, user="ann")).last_entry()
        assert (last.type, [each["name"] for each in last.response["unknown_calls"]]) == ("RunStopped", ["refund"])
        [told] = [each for each in last.response["messages"] if each["role"] == "tool"]
        assert told["content"] == "cancelled; its outcome is unknown"
    async with process("Orders", "dead.db") as runs:
        waits = Run(runs, await runs.get(asked.id if names == "asked" else answered.id, user="ann"))
        if names == "asked":
            assert (await waits.answer({"c1": True})).id == answered.id
        with pytest.raises(AnswersRefused, match="does not wait for an answer"):
            await waits.answer({"c1": True} if names == "answered" else {"c1": "done"})
    assert refunded == [7]


@pytest.mark.asyncio
@pytest.mark.processes
async def test_the_conversation_has_the_recorded_messages_of_a_run_that_a_newer_version_cannot_replay(
    tmp_path: Path,
) -> None:
    """The instructions have changed. The finished call keeps its result, and the call that may have run says so."""
    began, go = anyio.Event(), anyio.Event()

    def look() -> str:
        """Look."""
        return "order 7"

    async def refund() -> str:
        """Refund."""
        began.set()
        await go.wait()
        return "refunded"

    @asynccontextmanager
    async def process(instructions: str, file: str, *script: Any) -> AsyncGenerator[tuple[LocalRuns, ScriptedModel]]:
        model = ScriptedModel(script)
        agent = Agent(name="Orders", instructions=instructions, functions=[look, refund])
        async with (
            AsyncSwarm(model.client()) as swarm,
            SQLiteStore(tmp_path / file) as store,
            LocalRuns(swarm, store=store, agents=agent, version=instructions) as runs,
        ):
            yield runs, model

    async with process("old", "chats.db", call("look"), call("refund"), "Done.") as (runs, _):
        run = await runs.start(NewRun("ann", "c", "Refund my order!"))
        await began.wait()
        with (
            closing(sqlite3.connect(tmp_path / "chats.db")) as source,
            closing(sqlite3.connect(tmp_path / "dead.db")) as copy,
        ):
            source.backup(copy)
        go.set()
        await run.result()
    async with process("new", "dead.db", "I shall look whether it was refunded.") as (runs, model):
        last = await Run(runs, await runs.get(run.id, user="ann")).last_entry()
        assert (last.type, [each["name"] for each in last.response["unknown_calls"]]) == ("RunStopped", ["refund"])
        await (await runs.start(NewRun("ann", "c", "Go on!"))).result()
        told = [message["content"] for message in model.requests[0].messages if message["role"] == "tool"]
        assert told == ["order 7", "cancelled; its outcome is unknown"]
