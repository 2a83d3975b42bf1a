"""A process with durable runs: `python durable_process.py URL FOLDER [runs] [seconds]`, and what tests need to start and check it.

The model is a rule, and has no state: it answers from the history that it gets, so any process can continue a run. Every
function notes in a file of the folder when it begins and when it has ended, with its key.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sqlite3
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aswarm import Agent, AsyncSwarm, Result, current_call, tool
from aswarm.testing import Answer, Request, ScriptedModel, call

UNKNOWN = "cancelled; its outcome is unknown"
FOLDER = Path()
PAUSE = float(os.environ.get("DURABLE_PAUSE", "0.01"))


def note(kind: str, key: str) -> None:
    """Write a line that stays, whatever happens to the process."""
    with (FOLDER / "effects.txt").open("a") as file:
        file.write(f"{kind} {key}\n")


async def work(number: int, context_variables: dict[str, Any]) -> str:
    """Do something that must not be done twice."""
    key = current_call().key
    note("begin", key)
    if number == 13:
        os.kill(os.getpid(), 9)
    await asyncio.sleep(PAUSE * random.random())
    context_variables[f"n{number}"] = number
    note("end", key)
    return f"worked {number}"


@tool(repeatable=True)
async def look(number: int) -> str:
    """Look something up: it may run again."""
    await asyncio.sleep(PAUSE * random.random())
    return f"looked {number}"


async def ask_clerk() -> Result:
    """Hand off."""
    return Result(value="clerk", agent=CLERK)


CLERK = Agent(name="Clerk", functions=[work, look])
BOSS = Agent(name="Boss", functions=[work, look, ask_clerk])


def answer(request: Request) -> Any:
    """Three turns of calls, then what they have returned."""
    messages = request.body["messages"]
    asked = next(message["content"] for message in reversed(messages) if message["role"] == "user")
    turns = sum(message["role"] == "assistant" for message in messages)
    if asked == "die":
        return call("work", number=13) if turns == 0 else Answer("alive")
    if turns == 0:
        return [call("work", number=1), call("look", number=2), call("work", number=3)]
    if turns == 1:
        return call("ask_clerk")
    if turns == 2:
        return [call("work", number=4), call("work", number=5)]
    return Answer(" ".join(str(message["content"]) for message in messages if message["role"] == "tool"))


def model() -> ScriptedModel:
    """The rule, as a model."""
    return ScriptedModel(answer, cut=8)


async def main(url: str, folder: str, count: int, seconds: float) -> None:
    """Start the runs, and execute what there is until they have ended."""
    global FOLDER
    FOLDER = Path(folder)
    from aswarm.durable import DurableRuns

    settings: dict[str, Any] = json.loads(os.environ.get("DURABLE_SETTINGS", "{}"))
    async with (
        AsyncSwarm(model().client()) as swarm,
        DurableRuns(
            swarm,
            agents=[BOSS, CLERK],
            store=url,
            **{"version": "1", "failover_seconds": 0.3, "max_deaths": 1000, **settings},
        ) as runs,
    ):
        print("ready", flush=True)
        for number in range(count):
            await runs.start("Boss", "Go!", run_id=f"run-{number}")
        for number in range(count):
            await (await runs.run(f"run-{number}")).wait()
        print("done", flush=True)
        await asyncio.sleep(seconds)


@dataclass
class Checked:
    """What the checker has found. `unknown`: how many calls were told as unknown. `faults`: must be empty."""

    ended: int = 0
    unknown: int = 0
    faults: list[str] = field(default_factory=list[str])


def check(records: dict[str, Any], effects: str) -> Checked:
    """Check the ends of runs against the effects. `records`: the responses as JSON data, by run; None for one without an end.

    A call that began twice, a call that was told as done and did not end, a call that was told as unknown and did not begin,
    an answer that is not the one of its calls, and a run without an end are faults.
    """
    found = Checked()
    lines = [line.split(" ", 1) for line in effects.splitlines()]
    began = Counter(key for kind, key in lines if kind == "begin")
    ended = Counter(key for kind, key in lines if kind == "end")
    found.faults += [f"{key} began {count} times" for key, count in began.items() if count > 1]
    for run_id, response in records.items():
        if response is None:
            found.faults.append(f"{run_id} has not ended")
            continue
        found.ended += 1
        told = [message["content"] for message in response["messages"] if message["role"] == "tool"]
        keys = [(1, 0, "work"), (1, 1, "look"), (1, 2, "work"), (2, 0, "clerk"), (3, 0, "work"), (3, 1, "work")]
        if len(told) != len(keys):
            found.faults.append(f"{run_id} has {len(told)} answers: {told}")
            continue
        for content, (turn, position, name) in zip(told, keys, strict=True):
            key = f"{run_id}:{turn}:{position}"
            if content == UNKNOWN and name != "look":
                found.unknown += 1
            elif name != "work":
                if content != {"look": "looked 2", "clerk": "clerk"}[name]:
                    found.faults.append(f"{key} was told as {content!r}")
            elif not content.startswith("worked ") or ended[key] != 1:
                found.faults.append(f"{key} was told as {content!r}, and ended {ended[key]} times")
        numbers = [content.removeprefix("worked ") for content in told if content.startswith("worked ")]
        context = response["context_variables"]
        if any(f"n{number}" not in context for number in numbers):
            found.faults.append(f"{run_id} has lost a change of the context: {context}")
        if response["text"] != " ".join(told):
            found.faults.append(f"{run_id} has the answer {response['text']!r}")
    return found


def responses(url: str, count: int) -> dict[str, Any]:
    """What the last entries of the runs say."""
    statement = "SELECT data FROM aswarm_run_entries WHERE run = ? ORDER BY first DESC LIMIT 1"
    found: dict[str, Any] = {}
    if url.startswith("sqlite"):
        connection: Any = sqlite3.connect(url.removeprefix("sqlite:///"))
    else:
        import psycopg

        connection, statement = psycopg.connect(url), statement.replace("?", "%s")
    for number in range(count):
        rows = connection.execute(statement, (f"run-{number}",)).fetchall()
        last = json.loads(bytes(rows[0][0]).split(b"\n")[-1]) if rows else {}
        found[f"run-{number}"] = last.get("response") if last.get("type") == "RunFinished" else None
    connection.close()
    return found


def started(url: str, folder: Path, count: int = 0, seconds: float = 0, **settings: Any) -> subprocess.Popen[str]:
    """A process of its own, which prints "ready" when it executes runs."""
    environment = {**os.environ, "DURABLE_SETTINGS": json.dumps(settings)}
    command = [sys.executable, str(Path(__file__)), url, str(folder), str(count), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=folder)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))
