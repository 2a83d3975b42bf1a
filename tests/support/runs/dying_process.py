"""A process with a run that stops at one place until it is killed: `python dying_process.py FOLDER PLACE VERSION`.

Places: "completion" (the model has sent half of its text), "call" (a function runs), "between" (a completion is awaited).
A process starts the run "r", or takes it over. At "nowhere", it finishes the run and prints its log and its conversation.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import anyio

from aswarm import Agent, AsyncSwarm
from aswarm.conversations import SQLiteStore
from aswarm.runs import Entry, LocalRuns, NewRun, Run, RunNotFound
from aswarm.testing import Request, ScriptedAnswer, ScriptedModel, call


class DyingProcess:
    """A process, from the side of its parent. Its functions note their calls in a file; reaching the place is noted too."""

    def __init__(self, folder: Path, place: str, version: str) -> None:
        self._notes = folder / "notes.txt"
        self._before = len(self._lines())
        command = [sys.executable, __file__, str(folder), place, version]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        self._output = b""

    def _lines(self) -> list[str]:
        return self._notes.read_text().splitlines() if self._notes.exists() else []

    async def reach(self) -> None:
        """Wait until the process has reached its place, or has finished the run before it."""
        with anyio.fail_after(120):
            while not any(line in ("here", "ended") for line in self._lines()[self._before :]):
                assert self._process.poll() is None
                await anyio.sleep(0.01)
        await anyio.sleep(0.1)

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()
        self._process.communicate()

    async def finish(self) -> None:
        """Wait for the end of the process."""
        self._output, _ = await asyncio.to_thread(self._process.communicate, timeout=60)
        assert self._process.returncode == 0

    def result(self) -> tuple[list[Entry], list[Any]]:
        """Return the log and the conversation that it printed."""
        data = json.loads(self._output)
        return [Entry.from_dict(each) for each in data["entries"]], data["history"]

    def calls(self) -> Counter[str]:
        """Return the number of executions of each call, in all processes."""
        return Counter(line for line in self._lines() if line.startswith("count"))


async def main(folder: Path, place: str, version: str) -> None:
    """Start the run, or take it over."""

    def note(text: str) -> None:
        with (folder / "notes.txt").open("a") as file:
            file.write(f"{text}\n")

    async def count(number: int) -> str:
        """Count."""
        note(f"count {number}")
        if place == "call":
            note("here")
            await anyio.sleep(60)
        return f"counted {number}"

    def answer(request: Request) -> Any:
        turn = sum(message["role"] == "assistant" for message in request.messages)
        if place == "between" and turn > 0:
            note("here")
            return ScriptedAnswer("late", pause=60)
        if place == "completion" and turn > 0:
            note("here")
            return ScriptedAnswer("This is the whole answer." * 4, pause=0.3)
        return call("count", number=turn) if turn < 3 else ScriptedAnswer("This is the whole answer.")

    async with (
        SQLiteStore(folder / "chats.sqlite") as store,
        AsyncSwarm(ScriptedModel(answer, cut=4).client()) as swarm,
        LocalRuns(swarm, store=store, agents=Agent(name="A", functions=[count]), version=version or None) as runs,
    ):
        try:
            record = await runs.get("r", user="ann")
        except RunNotFound:
            record = await runs.start(NewRun("ann", "c", [{"role": "user", "content": "Go"}], run_id="r"))
        entries = [entry async for entry in Run(runs, record).entries()]
        stored = await store.load("ann/c")
        assert stored is not None
        if place == "nowhere":
            print(json.dumps({"entries": [entry.to_dict() for entry in entries], "history": stored.messages}))
            return
        note("ended")
        await anyio.sleep(60)


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]), sys.argv[2], sys.argv[3])
