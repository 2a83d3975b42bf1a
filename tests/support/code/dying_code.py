"""A process whose run executes code until it is killed: `python dying_code.py FOLDER`.

A process starts the run "r", or takes it over. Each execution of a function is noted in a file. The process that finishes the
run writes the log, the history and the unknown calls to "result.json".
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import anyio

from aswarm import Agent, AsyncSwarm
from aswarm.code import code_tool
from aswarm.conversations import SQLiteStore
from aswarm.runs import LocalRuns, NewRun, RunNotFound
from aswarm.testing import Request, ScriptedModel, call

CODE = """
import random
results = []
for step in range(5):
    seed = random.random()
    try:
        results.append(await asyncio.gather(*[work(step * 3 + number, seed) for number in range(3)]))
    except RuntimeError as error:
        results.append(str(error))
results
"""


class DyingCode:
    """The processes of one run, from the side of their parent."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def run_for(self, seconds: float) -> bool:
        """Start a process, and kill it (kill -9) this time after its first call. Return whether it has finished the run before."""
        process = subprocess.Popen([sys.executable, __file__, str(self._folder)])
        before, deadline = len(self.notes()), math.inf
        while process.poll() is None and time.monotonic() < deadline:
            if deadline == math.inf and len(self.notes()) > before:
                deadline = time.monotonic() + seconds
            time.sleep(0.002)
        if process.poll() is None:
            process.kill()
        process.wait()
        return (self._folder / "result.json").exists()

    def notes(self) -> list[str]:
        """Return the executions of functions, in all processes."""
        notes = self._folder / "notes.txt"
        return notes.read_text().splitlines() if notes.exists() else []

    def counts(self) -> Counter[str]:
        """Return the number of executions of each call."""
        return Counter(self.notes())

    def result(self) -> dict[str, Any]:
        """Return the result of the last process."""
        data: dict[str, Any] = json.loads((self._folder / "result.json").read_text())
        return data


async def main(folder: Path) -> None:
    """Start the run, or take it over."""

    async def work(number: int, seed: float) -> int:
        """Work."""
        with (folder / "notes.txt").open("a") as file:
            file.write(f"{number} {seed}\n")
        await anyio.sleep(0.02)
        return number * number

    def answer(request: Request) -> Any:
        has_called = any(message["role"] == "assistant" for message in request.messages)
        return "done" if has_called else call("run_code", code=CODE)

    async with (
        SQLiteStore(folder / "chats.sqlite") as store,
        AsyncSwarm(ScriptedModel(answer).client()) as swarm,
        LocalRuns(swarm, store=store, agents=Agent(name="A", functions=[code_tool(work)]), version="1") as runs,
    ):
        try:
            run = await runs.get_run("r", user="ann")
        except RunNotFound:
            run = await runs.start(NewRun("ann", "c", [{"role": "user", "content": "Go"}], run_id="r"))
        entries = [entry async for entry in run.entries()]
        stored = await store.load("ann/c")
        assert stored is not None
        unknown = entries[-1].response["unknown_calls"]
        result = {"entries": [each.to_dict() for each in entries], "history": stored.messages, "unknown": unknown}
        whole = folder / "result.tmp"
        whole.write_text(json.dumps(result))
        whole.rename(folder / "result.json")


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]))
