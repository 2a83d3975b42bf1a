"""Starts the run in one process, kills this process, and continues the run in another process.

`run.py work FILE`: the process that executes the run, until the run waits for an approval, or ends.
`run.py approve FILE`: a process in which a person approves; it executes the rest of the run.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from agents import DOCUMENTS, TOGETHER, editor

from aswarm import AsyncSwarm, Budget, Reply
from aswarm.runs import LocalRuns

QUESTION = "For how many hours did the pump run, over all reports?"
# One budget for the editor, its code and all readers.
BUDGET = Budget(turns=100, tool_calls=200)
KILL_AFTER = 15  # documents


def open_runs(swarm: AsyncSwarm, file: str) -> LocalRuns:
    """Return the runs of the file. With a `version`, a process continues the runs of a dead process."""
    return LocalRuns(swarm, agents=[editor], store=file, version="1", failover_seconds=0.2)


async def work(file: str) -> None:
    """Start the run, or continue it after a crash, until it waits or ends."""
    async with AsyncSwarm(budget=BUDGET) as swarm, open_runs(swarm, file) as runs:
        known = await runs.list(user="ann")
        run = await runs.get_run(known[0].id, user="ann") if known else await runs.start(editor, QUESTION, user="ann")
        response = await run.result()
        for call in response.waiting:
            for inside in call.data["waiting"]:
                print(f"waits: {inside['name']} {inside['arguments']}")


async def approve(file: str) -> None:
    """Approve the open call, and print the answer."""
    async with AsyncSwarm(budget=BUDGET) as swarm, open_runs(swarm, file) as runs:
        (record,) = await runs.list(user="ann")
        run = await runs.get_run(record.id, user="ann")
        (call,) = (await run.result()).waiting
        decisions = {inside["id"]: True for inside in call.data["waiting"]}
        response = await (await run.answer({call.id: Reply(decisions)})).result()
        print(response.text)


def show() -> None:
    """Kill the first process in the middle, continue in a second one, and approve in a third."""
    with tempfile.TemporaryDirectory() as folder:
        file, log = str(Path(folder, "runs.sqlite")), Path(folder, "calls")
        log.touch()
        environment = {**os.environ, "FAN_OUT_LOG": str(log)}
        first = subprocess.Popen([sys.executable, __file__, "work", file], env=environment)
        while len(log.read_text().splitlines()) < KILL_AFTER and first.poll() is None:
            time.sleep(0.01)
        first.kill()
        first.wait()
        print(f"killed while documents were read: {KILL_AFTER <= len(log.read_text().splitlines()) < len(DOCUMENTS)}")
        for command in ("work", "approve"):
            subprocess.run([sys.executable, __file__, command, file], env=environment, check=True)
        calls = log.read_text().splitlines()
        read = [call for call in calls if call.startswith("open")]
        again = len(read) - len({*read})
        print(f"{len({*read})} documents; read again after the kill: at most {TOGETHER}: {again <= TOGETHER}")
        print(f"published: {[call for call in calls if call.startswith('publish')]}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["work", file]:
            asyncio.run(work(file))
        case ["approve", file]:
            asyncio.run(approve(file))
        case _:
            show()
