"""A small batch with a journal, and a model that follows a script."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from aswarm import Agent, AsyncSwarm, CompletionRequest, Response
from aswarm._record.journal import Journal
from aswarm._run.options import RunOptions

Json = dict[str, Any]
BATCH = {"agent": "Agent"}


def says(text: str) -> Json:
    """Return an answer."""
    return {"role": "assistant", "content": text}


def calls(*names: str, **arguments: str) -> Json:
    """Return an answer with calls; `arguments` is JSON text by name. The id of a call is its name and position."""
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": f"{name}-{n}",
                "type": "function",
                "function": {"name": name, "arguments": arguments.get(name, "{}")},
            }
            for n, name in enumerate(names)
        ],
    }


class Script:
    """A `CompletionSource` that returns these messages in order, or raises them if they are exceptions; `asked`: the requests."""

    def __init__(self, *steps: Json | BaseException) -> None:
        self._steps = iter(steps)
        self.asked: list[CompletionRequest] = []

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        self.asked.append(request)
        step = next(self._steps)
        if isinstance(step, BaseException):
            raise step
        usage = {
            "prompt_tokens": 10,
            "completion_tokens": 5,
            "total_tokens": 15,
            "prompt_tokens_details": {"cached": 2},
        }
        yield {"choices": [{"index": 0, "message": step, "finish_reason": "stop"}], "usage": usage}


async def begin(
    journal: Journal, item: str, agent: Agent, messages: Any = "Hi", own_context: Json | None = None
) -> Response:
    """Run an item with one answer of the model."""
    swarm = AsyncSwarm(client=Script(says("Done")))
    return await journal.run(item, RunOptions(agent, messages), swarm._run_to_end, own_context)


async def rerun(
    path: Path,
    model: Any,
    agent: Agent,
    messages: Any = "Hi",
    context: Json | None = None,
    agents: Iterable[Agent] = (),
    **options: Any,
) -> Response:
    """Run a batch of the one item "a": open it, run it to its end, close it."""
    swarm = AsyncSwarm(client=model, **options)
    async with Journal(path, BATCH, agents) as journal:
        return await journal.run("a", RunOptions(agent, messages, context), swarm._run_to_end)


class Died(BaseException):
    """The simulated death of the process."""


def dies() -> BaseException:
    """Simulate the death of the process at this step of a `Script`."""
    return Died()


def noting(notes: list[str], name: str, result: Callable[[], Any] = lambda: "done") -> Callable[[], Any]:
    """Return a function of this name that notes its calls."""

    async def function() -> Any:
        notes.append(name)
        return result()

    function.__name__ = name
    return function


def kinds(path: Path) -> list[str]:
    """Return the types of the entries in the file, in order, without the entries of turns."""
    with closing(sqlite3.connect(path)) as file:
        rows = file.execute("SELECT data FROM aswarm_entry ORDER BY run, first").fetchall()
    entries = [json.loads(line) for (data,) in rows for line in data.split(b"\n")]
    return [entry["type"] for entry in entries if entry["type"] != "TurnStarted"]


def fail_from(path: Path, kind: str) -> None:
    """Simulate a full disk from the first write of an entry of this type."""
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        file.execute(
            "CREATE TRIGGER full BEFORE INSERT ON aswarm_entry WHEN CAST(NEW.data AS TEXT) LIKE "
            f"""'%"type":"{kind}"%' BEGIN SELECT RAISE(ABORT, 'disk full'); END"""
        )


def repair(path: Path) -> None:
    """Undo `fail_from`."""
    with closing(sqlite3.connect(path)) as file:
        file.execute("DROP TRIGGER full")
