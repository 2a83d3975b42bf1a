"""Code in durable runs: it waits for decisions, and continues after the death of its process."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest

from aswarm import Agent, current_call, tool
from aswarm.code import code_tool
from aswarm.durable import DurableRuns
from aswarm.runs import CallAnswer, NewRun, Run
from aswarm.testing import ScriptedModel, call
from tests.support.durable.durables import Shop, die, durable

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]


@dataclass
class Desk:
    """Functions for code. `look` runs until `go` is set."""

    notes: list[str] = field(default_factory=list[str])
    began: anyio.Event = field(default_factory=anyio.Event)
    go: anyio.Event = field(default_factory=anyio.Event)

    def agent(self) -> Agent:
        @tool(approve=True)
        async def pay(number: int) -> int:
            """Pay."""
            assert current_call().is_approved
            self.notes.append(f"pay {number}")
            return number

        @tool(repeatable=True)
        async def look() -> int | None:
            """Look; it may run again."""
            self.notes.append("look")
            self.began.set()
            await self.go.wait()
            return None

        return Agent(name="A", functions=[code_tool(pay, look)])


def script_of(code: str) -> ScriptedModel:
    return ScriptedModel([call("run_code", call_id="outer", code=code), "Done."])


async def entries_of(runs: DurableRuns, new: NewRun) -> tuple[str, list[Any]]:
    """The id of a new run, and its entries."""
    record = await runs.start(new)
    return record.id, [entry async for entry in Run(runs, record).entries()]


def results(entries: list[Any]) -> list[str]:
    return [entry.fields["content"] for entry in entries if entry.type == "ToolCallFinished"]


USER = {"role": "user", "content": "Go"}


async def test_a_durable_run_waits_inside_its_code(tmp_path: Path) -> None:
    """Its next run continues the code, from the record in SQLite."""
    desk = Desk()
    desk.go.set()
    model = script_of("first = await pay(1)\nsecond = await look()\n[first, second]")
    async with durable(tmp_path, model, Shop(), agents=[desk.agent()]) as runs:
        run_id, first = await entries_of(runs, NewRun("ann", "c", [USER]))
        answers = [CallAnswer("outer", data={"outer.0": True}, run_id=run_id)]
        _, last = await entries_of(runs, NewRun("ann", "c", answers=answers))
    assert first[-1].response["stop"] == "waiting"
    assert results(last) == ["[1, null]"]
    assert desk.notes == ["pay 1", "look"]


async def test_changed_arguments_change_nothing_else_after_the_death_of_the_process(tmp_path: Path) -> None:
    """The process dies after the approved calls. The next one gets their values from the record, and repeats nothing."""
    first, second = Desk(), Desk()
    second.go.set()
    model = script_of("a, b = await asyncio.gather(pay(1), pay(2))\nc = await look()\n[a + b, c]")
    decision = {f"outer.{place}": {"approve": {"arguments": {"number": place + 5}}} for place in range(2)}
    async with durable(tmp_path, model, Shop(), agents=[first.agent()]) as runs:
        run_id, _ = await entries_of(runs, NewRun("ann", "c", [USER]))
        answers = [CallAnswer("outer", data=decision, run_id=run_id)]
        record = await runs.start(NewRun("ann", "c", answers=answers))
        await first.began.wait()
        die(runs)
    async with durable(tmp_path, model, Shop(), agents=[second.agent()]) as runs:
        entries = [entry async for entry in Run(runs, record).entries()]
    assert results(entries) == ["[11, null]"]
    assert entries[-1].response.get("unknown_calls", []) == []
    assert (sorted(first.notes), second.notes) == (["look", "pay 5", "pay 6"], ["look"])
