"""A batch whose items wait for a decision, and items with decisions."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aswarm import Agent, ConfigurationError, tool
from aswarm.batch import Completed, Item
from tests.support.batch.batches import Echo, answer, call, outcomes_of, text_of

USER = {"role": "user", "content": "x"}


class Shop:
    """An agent whose payment needs an approval, and a model that calls it. `paid`: the number of payments."""

    def __init__(self) -> None:
        self.paid = 0

        @tool(approve=True)
        async def pay() -> str:
            self.paid += 1
            return "paid"

        self.agent = Agent(functions=[pay])
        self.source = Echo(self.gate)

    async def gate(self, text: str) -> Any:
        return answer("", [call("pay")]) if text == "x" else None


def stored(outcome: Any) -> list[Any]:
    """Return the history after a round trip through JSON."""
    history: list[Any] = json.loads(json.dumps([USER, *outcome.response.messages]))
    return history


@pytest.mark.parametrize("has_journal", [False, True], ids=["without a journal", "with a journal"])
async def test_an_item_waits_and_another_one_continues_it(has_journal: bool, tmp_path: Path) -> None:
    """The outcome of a waiting item is Completed, and a new item with its history and a decision is answered."""
    shop = Shop()
    journal = tmp_path / "run.sqlite" if has_journal else None
    [outcome] = await outcomes_of(shop.source, [Item("x", id="a")], shop.agent, journal=journal)
    assert isinstance(outcome, Completed)
    assert (outcome.response.stop, [each.name for each in outcome.response.open_calls]) == ("waiting", ["pay"])
    if has_journal:
        [again] = await outcomes_of(Echo(), [Item("x", id="a")], shop.agent, journal=journal)
        assert again.response == outcome.response
    items = [Item(stored(outcome), id="a2", resume={"c1": True}), Item(stored(outcome), id="a3", resume={"c1": False})]
    texts = [text_of(each) for each in await outcomes_of(shop.source, items, shop.agent, journal=journal, ordered=True)]
    assert texts == ["paid", "not run: denied by the user"]
    if has_journal:
        assert texts == [
            text_of(each) for each in await outcomes_of(Echo(), items, shop.agent, journal=journal, ordered=True)
        ]
    assert shop.paid == 1


@pytest.mark.parametrize(
    ("resume", "words"),
    [({"c2": True}, "no open call"), (3, "resume must be"), (False, "end with open calls")],
    ids=str,
)
async def test_decisions_that_do_not_fit_fail_their_item_alone(resume: Any, words: str) -> None:
    """An item whose decisions do not fit fails without running a call, and the other items run."""
    shop = Shop()
    [outcome] = await outcomes_of(shop.source, ["x"], shop.agent)
    first, second = await outcomes_of(
        shop.source, [Item(stored(outcome), resume=resume), "y"], shop.agent, ordered=True
    )
    assert isinstance(first.error, ConfigurationError)
    assert words in str(first.error)
    assert (text_of(second), shop.paid) == ("y", 0)


PROGRAM = """
import asyncio, os, signal, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from tests.support.batch.batches import Echo
from aswarm import Agent, Approve, tool
from aswarm.batch import Item

folder = Path(sys.argv[2])
resume = {"True": True, "all": Approve.all()}[sys.argv[3]]

@tool(approve=True)
async def pay():
    with (folder / "ran").open("a") as file:
        file.write("pay ")
    return "paid"

@tool(approve=True)
def ship():
    with (folder / "ran").open("a") as file:
        file.write("ship ")
    os.kill(os.getpid(), signal.SIGKILL)

def made(name):
    return {"id": name, "type": "function", "function": {"name": name, "arguments": "{}"}}

asking = {"role": "assistant", "content": None, "tool_calls": [made("pay"), made("ship")]}
item = Item([{"role": "user", "content": "x"}, asking], id="a", resume=resume)

async def main():
    async with Echo().swarm().batch(Agent(functions=[pay, ship]), [item], journal=folder / "run.sqlite") as outcomes:
        async for outcome in outcomes:
            print(outcome.error or outcome.response.text or outcome.response.stop)

asyncio.run(main())
"""


@pytest.mark.processes
def test_a_process_that_is_killed_in_an_approved_call_runs_none_twice(tmp_path: Path) -> None:
    """In another process, the journal continues an item with the same `resume`, and refuses it with another one."""

    def run(folder: Path, resume: str) -> subprocess.CompletedProcess[str]:
        folder.mkdir(exist_ok=True)
        command = [sys.executable, "-c", PROGRAM, str(Path(__file__).parents[2]), str(folder), resume]
        return subprocess.run(command, check=False, capture_output=True, text=True)

    killed = tmp_path / "killed"
    assert run(killed, "all").returncode == -signal.SIGKILL
    assert run(killed, "all").stdout.strip() == "cancelled; its outcome is unknown"
    assert "differs from the item with this id" in run(killed, "True").stdout
    assert (killed / "ran").read_text() == "pay ship "
    waits = tmp_path / "waits"
    assert run(waits, "True").stdout.strip() == "waiting"
    assert not (waits / "ran").exists()
