"""Runs whose model writes code once, and helpers to continue them, to record them and to cut their records."""

from __future__ import annotations

import json
import secrets
import shutil
import sqlite3
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from aswarm import Agent, AsyncSwarm, Response
from aswarm.code import code_tool
from aswarm.conversations import MemoryStore, SQLiteStore, Store, Stored
from aswarm.runs import CallAnswer, Entry, LocalRuns, NewRun, Run
from aswarm.testing import Request, ScriptedModel, call
from tests.support.leaving.run_scenes import until

USER = {"role": "user", "content": "Go"}
Json = dict[str, Any]


def agent_of(*functions: Any, **options: Any) -> Agent:
    """Return an agent with one function, `run_code`."""
    return Agent(name="Coder", functions=[code_tool(*functions, **options)])


def swarm_of(code: str, **options: Any) -> AsyncSwarm:
    """Return a swarm whose model writes this code, and answers "Done."."""

    def answer(request: Request) -> Any:
        has_called = any(message["role"] == "assistant" for message in request.messages)
        return "Done." if has_called else call("run_code", call_id="outer", code=code)

    return AsyncSwarm(ScriptedModel(answer).client(), **options)


async def run_code(code: str, *functions: Any, swarm: Json | None = None, **options: Any) -> Response:
    """Run an agent whose model writes this code."""
    return await swarm_of(code, **(swarm or {})).run(agent_of(*functions, **options), "Go")


async def result_of(code: str, *functions: Any, **options: Any) -> str:
    """Return the tool message of the code."""
    return result_in(await run_code(code, *functions, **options))


def result_in(response: Response | Stored) -> str:
    """Return the tool message of the code."""
    (content,) = (each["content"] for each in response.messages if each["role"] == "tool" and "waiting" not in each)
    return str(content)


def unknown(response: Response | Stored) -> list[str]:
    """Return the ids of the calls with an unknown outcome."""
    return [each.id for each in response.unknown_calls]


def waiting_inside(response: Response) -> list[Json]:
    """Return the calls inside the code that wait."""
    (outer,) = response.open_calls
    calls: list[Json] = outer.data["waiting"]
    return calls


async def resumed(agent: Agent, response: Response, decision: Any, *history: Any, **options: Any) -> Response:
    """Continue a run that waits, from its history as JSON, as another process does."""
    stored = json.loads(json.dumps([USER, *history, *response.messages]))
    return await swarm_of("", **options).run(agent, stored, resume={"outer": decision})


async def cancelled(
    swarm: AsyncSwarm, agent: Agent, when: Callable[[], object], *messages: Any, **more: Any
) -> Response:
    """Cancel a run when the condition is true, unless it has finished before. Return its response."""
    kept: list[Response] = []

    async def run() -> None:
        try:
            kept.append(await swarm.run(agent, list(messages) or [USER], **more))
        except BaseException as error:
            kept.append(error.response)  # type: ignore[attr-defined]
            raise

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await until(when)
        group.cancel_scope.cancel()
    return kept[0]


@dataclass
class Log:
    """The journal of a run. `entries`: its entries, as JSON."""

    path: Path
    entries: list[Json]

    def first(self, count: int) -> Log:
        """Return the log of a process that has died after this number of entries."""
        return Log(self.path, json.loads(json.dumps(self.entries[:count])))

    def places(self, kind: str, inside: str | None = None) -> list[int]:
        """Return the places of the entries of this type; `inside`: with the progress of a call inside code."""
        return [
            place
            for place, entry in enumerate(self.entries)
            if entry["type"] == kind and inside in (None, entry.get("value", {}).get("type"))
        ]

    @property
    def inside(self) -> list[Json]:
        """The entries of calls inside code."""
        return [entry["value"] | entry for entry in self.entries if entry["type"] == "ToolProgress"]


async def recorded(
    folder: Path, code: str, functions: Sequence[Any], before: Log | None = None, **options: Any
) -> tuple[Log, Response]:
    """Run code with a journal. `before`: the journal of an earlier process."""
    return await journaled(folder, swarm_of(code), agent_of(*functions), before, **options)


async def journaled(
    folder: Path, swarm: AsyncSwarm, agent: Agent, before: Log | None = None, **options: Any
) -> tuple[Log, Response]:
    """Run a batch of one item with a journal."""
    path = folder / f"{secrets.token_hex(6)}.sqlite"
    if before is not None:
        shutil.copy(before.path, path)
        data = b"\n".join(json.dumps(entry).encode() for entry in before.entries)
        with closing(sqlite3.connect(path)) as file:
            (run,) = file.execute("SELECT DISTINCT run FROM aswarm_entry").fetchone()
            file.execute("DELETE FROM aswarm_entry")
            row = (run, before.entries[0]["seq"], before.entries[-1]["seq"], data)
            file.execute("INSERT INTO aswarm_entry (run, first, last, data) VALUES (?, ?, ?, ?)", row)
            file.execute("UPDATE aswarm_run SET status = 'running'")
            file.commit()
    async with swarm.batch(agent, ["Go"], journal=path, **options) as outcomes:
        (outcome,) = [outcome async for outcome in outcomes]
    if outcome.response is None:
        raise outcome.error or AssertionError
    with closing(sqlite3.connect(path)) as file:
        rows = file.execute("SELECT data FROM aswarm_entry ORDER BY first").fetchall()
    return Log(path, [json.loads(line) for (data,) in rows for line in data.split(b"\n")]), outcome.response


@asynccontextmanager
async def local_runs(
    agent: Agent, swarm: AsyncSwarm, store: Store | None = None, version: str = "1"
) -> AsyncGenerator[LocalRuns]:
    """Open runs of this process."""
    store = store or MemoryStore()
    async with store, swarm, LocalRuns(swarm, store=store, agents=[agent], version=version) as runs:
        yield runs


async def kept_run(runs: LocalRuns, *decisions: tuple[str, Any]) -> list[Entry]:
    """Start a run of the conversation "ann/c", and decide on its call each time it waits. Return the last entries."""
    run = await runs.start(NewRun("ann", "c", [USER]))
    entries = [entry async for entry in run.entries()]
    for call_id, data in decisions:
        answers = [CallAnswer(call_id, data=data, run_id=run.id)]
        run = await runs.start(NewRun("ann", "c", answers=answers))
        entries = [entry async for entry in run.entries()]
    return entries


async def next_process(
    folder: Path, first: tuple[Agent, AsyncSwarm], when: Callable[[], object], second: Agent, version: str = "1"
) -> Stored:
    """Start a run, and copy the file of its process when the condition is true, as if the process had died there.

    The next process continues the run, or closes it if its version is another one. Return the conversation at the end.
    """
    async with local_runs(*first, SQLiteStore(folder / "1.sqlite")) as runs:
        run = await runs.start(NewRun("ann", "c", [USER], run_id="r"))
        await until(when)
        with (
            closing(sqlite3.connect(folder / "1.sqlite")) as source,
            closing(sqlite3.connect(folder / "2.sqlite")) as copy,
        ):
            source.backup(copy)
        await run.cancel()
        _ = [entry async for entry in run.entries()]
    store = SQLiteStore(folder / "2.sqlite")
    async with local_runs(second, swarm_of(""), store, version) as runs:
        _ = [entry async for entry in Run(runs, await runs.get("r", user="ann")).entries()]
        stored = await store.load("ann/c")
    assert stored is not None
    return stored
