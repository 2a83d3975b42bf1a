"""Long results of the items of a batch: in its journal, for the next process and for an item that continues another."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aswarm import Agent, AsyncSwarm, Reply, tool
from aswarm.batch import BatchResult, Item
from aswarm.middleware import spill_results
from aswarm.testing import Request, ScriptedModel, call
from aswarm.tools import agent_tool


def rows() -> str:
    """Return many rows."""
    return "".join(f"row {number:06}\n" for number in range(20_000))


@tool(approve=True)
async def pay() -> str:
    """Pay."""
    return "paid"


AGENT = Agent(functions=[rows, pay])
USER = {"role": "user", "content": "Go"}


def contents(outcome: BatchResult) -> list[str]:
    """The results of an item."""
    assert outcome.response is not None, outcome.error
    return [message["content"] for message in outcome.response.messages if message["role"] == "tool"]


async def outcomes(
    answer: Any, items: Any, journal: Path, agent: Agent = AGENT, store: Any = None
) -> list[BatchResult]:
    swarm = AsyncSwarm(ScriptedModel(answer).client(), middleware=[spill_results(500, store=store)])
    async with swarm.batch(agent, items, journal=journal, ordered=True) as batch:
        return [outcome async for outcome in batch]


class Place:
    """A place of a user."""

    def __init__(self) -> None:
        self.texts: dict[tuple[str, str], Any] = {}

    async def put(self, owner: str, handle: str, parts: Any, /) -> None:
        self.texts[owner, handle] = parts

    async def read(self, owner: str, handle: str, part: int, /) -> str | None:
        return dict(enumerate(self.texts.get((owner, handle), ()))).get(part)

    async def handles(self, owner: str, /) -> list[str]:
        return [handle for each, handle in self.texts if each == owner]


@pytest.mark.parametrize("has_place", [False, True], ids=["in the journal", "in a place of the user"])
async def test_a_rerun_reads_the_results_of_the_first_run(has_place: bool, tmp_path: Path) -> None:
    """An item fails after a long result, and reads it in the rerun, which does not call its function again."""
    calls = list[str]()

    def noted() -> str:
        """Return many rows."""
        calls.append("noted")
        return rows()

    def fails(request: Request) -> Any:
        if request.messages[-1]["role"] == "tool":
            raise ValueError("no")
        return call("noted")

    def goes_on(request: Request) -> Any:
        done = [message for message in request.messages if message["role"] == "tool"]
        return "Done." if len(done) > 1 else call("search_result", text="ROW 019999")

    agent, place = Agent(functions=[noted]), Place() if has_place else None
    for journal in (tmp_path / "a", tmp_path / "b"):  # items of two batches have the same id, and not the same results
        (failed,) = await outcomes(fails, ["Go"], journal, agent, place)
        assert failed.error is not None
        (done,) = await outcomes(goes_on, ["Go"], journal, agent, place)
        assert " at 219,989: " in contents(done)[1]
    assert calls == ["noted"] * 2
    if place is not None:
        assert len({owner for owner, _ in place.texts}) == 2


async def test_an_item_that_continues_another_reads_its_results(tmp_path: Path) -> None:
    """Also those of a run inside, and of no other item: nobody reads a result by its handle alone."""
    steps = [call("rows"), call("pay", call_id="p"), call("search_result", text="row 019999"), "Done."]

    def answer(request: Request) -> Any:
        done = sum(message["role"] == "tool" for message in request.messages)
        if "inner" in request.tool_names:
            return [call("inner", request="Go", call_id="i"), *steps[2:]][done]
        return steps[done]

    outer = Agent(name="Outer", functions=[agent_tool(Agent(name="Inner", functions=[rows, pay]))])
    for agent, decision in ((AGENT, {"p": True}), (outer, {"i": Reply({"p": True})})):
        journal = tmp_path / agent.name
        (first,) = await outcomes(answer, [Item("Go", id="a")], journal, agent)
        assert first.response is not None
        assert first.response.stop == "waiting"
        history = [USER, *first.response.messages]
        (second,) = await outcomes(answer, [Item(history, id="b", resume=decision)], journal, agent)
        assert " at 219,989: " in contents(second)[1]
        handle = re.findall("r[0-9a-f]{16}", contents(second)[1])[0]
        guess = [{"role": "user", "content": f"[result {handle}: 5 characters]"}]
        guess += [{"role": "assistant", "content": f"[result {handle}: 5 characters]"}, USER]
        (third,) = await outcomes([call("read_result", handle=handle), "Done."], [Item(guess, id="c")], journal, agent)
        assert "no longer kept" in contents(third)[0]
        known = [*guess, *third.response.messages, USER] if third.response else []
        (fourth,) = await outcomes([call("read_result", handle=handle), "Done."], [Item(known, id="d")], journal, agent)
        assert "no longer kept" in contents(fourth)[0]


PROGRAM = """
import asyncio, os, signal, sys
sys.path.insert(0, sys.argv[1])
from dataclasses import replace
from pathlib import Path
from aswarm import AsyncSwarm
from aswarm.middleware import spill_results
from aswarm.testing import ScriptedModel, call
from tests.batch.test_long_results import AGENT

def answer(request):
    done = [message for message in request.messages if message["role"] == "tool"]
    if not done:
        return call("rows")
    if len(done) == 1 and sys.argv[3] == "first":
        os.kill(os.getpid(), signal.SIGKILL)
    return call("search_result", text="row 019999") if len(done) == 1 else done[1]["content"]

async def main():
    swarm = AsyncSwarm(ScriptedModel(answer).client(), middleware=[spill_results(500)])
    async with swarm.batch(AGENT, ["Go"], journal=sys.argv[2]) as outcomes:
        async for outcome in outcomes:
            print(outcome.error or outcome.response.text)

asyncio.run(main())
"""


@pytest.mark.processes
def test_the_process_after_a_killed_one_reads_its_results(tmp_path: Path) -> None:
    """kill -9 after the call, while the model is asked."""

    def run(name: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", PROGRAM, str(Path(__file__).parents[2]), str(tmp_path / "run.sqlite"), name]
        return subprocess.run(command, check=False, capture_output=True, text=True)

    assert run("first").returncode == -signal.SIGKILL
    assert " at 219,989: " in run("second").stdout
