"""A process with durable runs: `python durable_process.py '{"url": ..., "folder": ..., ...}'`, or faster: `forked`.

The model is a rule without state: it answers from the history, so any process can continue a run. Every function writes a note
to a file of its process at its start and at its end, with its key and the version of the code. A process may also start runs,
answer runs that wait for an approval, and cancel runs that sleep; any process may execute them. The id of a run contains its
version and its kind: "v1-pay-0-7".
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from dataclasses import asdict, dataclass
from itertools import count
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import anyio

from aswarm import Agent, AsyncSwarm, Result, current_call, tool
from aswarm.durable import DurableRuns
from aswarm.runs import RunNotFound, RunRecord, ShuttingDown
from aswarm.testing import Request, ScriptedAnswer, ScriptedModel, call
from tests.support.serve.record_checker import record_faults

SLEEP = 20.0


@dataclass(frozen=True)
class Process:
    """The settings of a process. `folder`: its working folder, also for the notes.

    `kinds`: the kinds of the runs that it starts, at most `count`, while fewer than `at_once` run in all processes and the folder
    has no file "enough". `pause`: the maximum seconds of a function. `clock`: its clock jumps by so many seconds, forward and
    back, every `clock_every` seconds. `is_batch`: it starts all runs at once, and stops after them.
    """

    url: str
    folder: str
    slot: int = 0
    version: str = "1"
    kinds: tuple[str, ...] = ("go",)
    count: int = 0
    at_once: int = 30
    pause: float = 0.01
    clock: float = 0.0
    clock_every: float = 0.7
    max_deaths: int = 1000
    is_batch: bool = False


given = Process("", "")


def note(*words: str) -> None:
    """Write a line that survives the death of the process. Its first word is the time, of a clock that all processes share."""
    with Path(given.folder, "effects.txt").open("a") as file:
        file.write(f"{time.clock_gettime_ns(time.CLOCK_MONOTONIC)} {' '.join(words)}\n")


# --- agents -----------------------------------------------------------------------------------------------------------


async def work(number: int, context_variables: dict[str, Any]) -> str:
    """Do something that must not be done twice."""
    key = current_call().key
    note("begin", key, given.version)
    await asyncio.sleep(given.pause * random.random())
    context_variables[f"n{number}"] = number
    note("end", key, given.version)
    return f"worked {number}"


@tool(repeatable=True)
async def look(number: int) -> str:
    """Look something up: it may run again."""
    await asyncio.sleep(given.pause * random.random())
    return f"looked {number}"


@tool(approve=True)
async def pay(run: str) -> str:
    """Pay, once."""
    note("begin", f"{run}:pay", given.version)
    await asyncio.sleep(given.pause * random.random())
    note("end", f"{run}:pay", given.version)
    return f"paid {run}"


async def sleep(run: str) -> str:
    note("begin", f"{run}:sleep", given.version)
    try:
        await asyncio.sleep(SLEEP)
    finally:
        note("end", f"{run}:sleep", given.version)
    return "slept"


@tool(repeatable=True)
async def crash(run: str) -> str:
    """Kill the process."""
    note("crash", f"{run}:crash", given.version)
    os.kill(os.getpid(), signal.SIGKILL)
    return ""


async def ask_clerk() -> Result:
    """Hand off."""
    return Result(value="clerk", agent=CLERK)


CLERK = Agent(name="Clerk", functions=[work, look])
BOSS = Agent(name="Boss", functions=[work, look, pay, sleep, crash, ask_clerk])


def answer(request: Request) -> Any:
    """Return one call, or three turns of calls; then their results."""
    messages = request.body["messages"]
    asked = next(message["content"] for message in reversed(messages) if message["role"] == "user")
    turns = sum(message["role"] == "assistant" for message in messages)
    kind = asked.split("-")[1]
    if kind != "go" and turns == 0:
        return call(kind, run=asked)
    if kind == "go" and turns == 0:
        return [call("work", number=1), call("look", number=2), call("work", number=3)]
    if kind == "go" and turns == 1:
        return call("ask_clerk")
    if kind == "go" and turns == 2:
        return [call("work", number=4), call("work", number=5)]
    return ScriptedAnswer(" ".join(str(message["content"]) for message in messages if message["role"] == "tool"))


def is_approved(run_id: str) -> bool:
    """Return the decision about this run, which is the same in every process."""
    return int(run_id.split("-")[-1]) % 4 != 0


# --- a process --------------------------------------------------------------------------------------------------------


class User:
    """Starts, answers and cancels runs. A failed call is noted, and repeated."""

    def __init__(self, runs: DurableRuns) -> None:
        self.runs = runs
        self.answered = set[str]()
        self.busy = set[asyncio.Task[None]]()
        lines = Path(given.folder, "effects.txt").read_text().splitlines()
        started = [line.split()[2] for line in lines if line.split()[1] == "start"]
        # The last run again: after a kill, the process does not know whether the run was recorded.
        self.numbers = count(int(started[-1].split("-")[-1]) if started else 0)
        self.next = next(self.numbers)

    async def use(self) -> None:
        while True:
            try:
                await self.step()
            except Exception as error:
                failed(error)
            await asyncio.sleep(0.05)

    async def step(self) -> None:
        """Start a run if there are too few, and serve the waiting and sleeping runs."""
        running = await self.runs.records(status="running", limit=1000)
        is_enough = self.next >= given.count or Path(given.folder, "enough").exists()
        if not is_enough and len(running) < given.at_once:
            kind = given.kinds[self.next % len(given.kinds)]
            run_id = f"{given.version}-{kind}-{given.slot}-{self.next}"
            note("start", run_id)
            await self.runs.start("Boss", run_id, run_id=run_id)
            note("started", run_id)
            self.next = next(self.numbers)
        for record in running:
            if "-sleep-" in record.id and random.random() < 0.1:
                self.begin(self.cancel(record))
        for record in await self.runs.records(status="waiting", limit=1000):
            if record.id.startswith(given.version) and record.id not in self.answered:
                self.answered.add(record.id)
                self.begin(self.answer(record))

    def begin(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self.busy.add(task)
        task.add_done_callback(self.busy.discard)

    async def cancel(self, record: RunRecord) -> None:
        """Cancel a run, and note it. After the note, the run must have no effect."""
        try:
            await self.runs.cancel(record.id, user=record.user)
            note("cancelled", record.id)
        except RunNotFound:  # its process was killed before the run was recorded
            return
        except Exception as error:
            failed(error)

    async def answer(self, record: RunRecord) -> None:
        """Answer a waiting run; other processes do the same, so it may be answered twice."""
        try:
            run = await self.runs.find_run(record.id)
            waiting = (await run.result()).open_calls
            await run.answer({call.id: is_approved(record.id) for call in waiting})
            note("answered", record.id)
        except Exception as error:
            self.answered.discard(record.id)
            failed(error)


def failed(error: Exception) -> None:
    """Note that a call of a user has failed. A process that stops starts no run."""
    if isinstance(error, ShuttingDown):
        return
    note("failed", repr(error).replace("\n", " "))
    traceback.print_exc()


async def step_clock() -> None:
    """Let the clock of this process jump, without end, by replacing `time.time`."""
    at, clock, clock_ns = 0.0, time.time, time.time_ns
    time.time = lambda: clock() + at
    time.time_ns = lambda: clock_ns() + int(at * 1e9)
    for turn in count():
        at = given.clock * (0, 1, 0, -1)[turn % 4]
        await asyncio.sleep(given.clock_every)


async def main(ready: Any = None) -> None:
    Path(given.folder, "effects.txt").touch()
    asked_to_end = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asked_to_end.set)
    clock = asyncio.create_task(step_clock()) if given.clock else None
    async with (
        AsyncSwarm(ScriptedModel(answer, cut=8).client()) as swarm,
        DurableRuns(
            swarm,
            agents=[BOSS, CLERK],
            store=given.url,
            version=given.version,
            failover_seconds=0.3,
            max_deaths=given.max_deaths,
        ) as runs,
    ):
        if ready is None:
            print("ready", flush=True)
        else:
            ready.send(True)
        if given.is_batch:
            names = [f"{given.version}-go-0-{number}" for number in range(given.count)]
            for name in names:
                await runs.start("Boss", name, run_id=name)
            for name in names:
                await (await runs.get_run(name)).wait()
            return
        user = User(runs)
        using = asyncio.create_task(user.use())
        await asked_to_end.wait()
        for task in (using, *user.busy):  # with closed runs, their calls would fail
            task.cancel()
        await runs.drain(1)
    if clock is not None:
        clock.cancel()


def _forked(process: Process, ready: Any) -> None:
    global given
    given = process
    os.chdir(process.folder)
    log = os.open("log.txt", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    random.seed()
    asyncio.run(main(ready))


def prepare(folder: str) -> None:
    """Import everything in this process, so that its copies need not."""
    global given
    given = Process(f"sqlite:///{folder}/first.db", folder, is_batch=True, count=1)
    asyncio.run(main())


def forked(process: Process) -> tuple[BaseProcess, Any]:
    """Start a copy of this process, with all imports. Returns it, and a connection that is readable when it executes runs."""
    Path(process.folder).mkdir(exist_ok=True)
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    made = context.Process(target=_forked, args=(process, send), daemon=True)
    made.start()
    send.close()
    return made, receive


def records_checked(url: str, folder: str) -> list[str]:
    """Return the contradictions between the logs, the conversations and the answers of all runs. A copy of this process checks."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    made = context.Process(target=_check_records, args=(url, folder, send), daemon=True)
    made.start()
    assert receive.poll(300), f"the records in {url} cannot be checked"
    faults: list[str] = receive.recv()
    made.join()
    return faults


def _check_records(url: str, folder: str, send: Any) -> None:
    os.chdir(folder)
    send.send(asyncio.run(_faults_of_records(url)))


async def _faults_of_records(url: str) -> list[str]:
    faults: list[str] = []
    async with (
        AsyncSwarm(ScriptedModel(answer).client()) as swarm,
        DurableRuns(swarm, agents=[BOSS, CLERK], store=url, version="checker", concurrency=0) as runs,
    ):
        histories: dict[str | None, list[Any]] = {None: []}
        for kept in await runs.store.list(limit=1_000_000):
            stored = await runs.store.load(kept.id)
            histories[kept.id.partition("/")[2]] = stored.messages if stored else []
        for record in await runs.records(limit=1_000_000):
            entries = [entry async for entry in (await runs.find_run(record.id)).entries()]
            history = histories.get(record.conversation, [])
            faults += [f"{record.id}: {fault[:400]}" for fault in record_faults(entries, history)]
    return faults


def started(process: Process) -> subprocess.Popen[str]:
    """Start another process, which prints "ready" when it executes runs."""
    command = [sys.executable, "-m", "tests.support.durable.durable_process", json.dumps(asdict(process))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=process.folder, env=environment)


if __name__ == "__main__":
    given = Process(**json.loads(sys.argv[1]))
    anyio.run(main)
