"""A small batch with a journal, and a model that follows a script."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from aswarm import Agent, AsyncSwarm, Response
from aswarm.batch import Batch, Item
from aswarm.sources import CompletionRequest

Json = dict[str, Any]
BATCH = {"agent": "Agent"}


def says(text: str) -> Json:
    return {"role": "assistant", "content": text}


def calls(*names: str, **arguments: str) -> Json:
    """Return an answer with calls; `arguments` is JSON text by name. The id of a call is its name and position."""
    made = [
        {"id": f"{name}-{n}", "type": "function", "function": {"name": name, "arguments": arguments.get(name, "{}")}}
        for n, name in enumerate(names)
    ]
    return {"role": "assistant", "content": None, "tool_calls": made}


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
        usage: Json = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        usage["prompt_tokens_details"] = {"cached": 2}
        yield {"choices": [{"index": 0, "message": step, "finish_reason": "stop"}], "usage": usage}


def batch(path: str | Path, items: Iterable[Any] = (), model: Any = None, **options: Any) -> Batch:
    """Return a batch with a journal. Without a model, each item gets the answer "Done"."""
    return AsyncSwarm(model or Done()).batch(Agent(), items, journal=path, attempts=1, **options)


class Done:
    """A `CompletionSource` that answers each request with "Done"."""

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        yield {"choices": [{"index": 0, "message": says("Done"), "finish_reason": "stop"}]}


async def rerun(
    path: Path,
    model: Any,
    agent: Agent,
    messages: Any = "Hi",
    context: Json | None = None,
    agents: Iterable[Agent] = (),
    *,
    item: str = "a",
    resume: Any = False,
    **options: Any,
) -> Response:
    """Run a batch of one item: open it, run it to its end, close it. Raises the error of the item."""
    items = [Item(messages, id=item, agent=agent, resume=resume)]
    swarm = AsyncSwarm(client=model, **options)
    # The batch has an agent of its own, so that changes of the agent of the item do not make it another batch.
    async with swarm.batch(
        Agent(), items, journal=path, attempts=1, agents=agents, context_variables=context
    ) as outcomes:
        outcome = await anext(outcomes)
    if outcome.error is not None:
        raise outcome.error
    assert outcome.response is not None
    return outcome.response


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


def entries_of(path: Path) -> list[Json]:
    """Return the entries in the file, in order."""
    with closing(sqlite3.connect(path)) as file:
        rows = file.execute("SELECT data FROM aswarm_entry ORDER BY run, first").fetchall()
    return [json.loads(line) for (data,) in rows for line in data.split(b"\n")]


def kinds(path: Path) -> list[str]:
    """Return the types of the entries in the file, in order, without the entries of turns."""
    return [entry["type"] for entry in entries_of(path) if entry["type"] != "TurnStarted"]


def fail_from(path: Path, kind: str) -> None:
    """Simulate a full disk from the first write of an entry of this type."""
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        file.execute(
            "CREATE TRIGGER full BEFORE INSERT ON aswarm_entry WHEN CAST(NEW.data AS TEXT) LIKE "
            f"""'%"type":"{kind}"%' BEGIN SELECT RAISE(ABORT, 'disk full'); END"""
        )


def repair(path: Path) -> None:
    with closing(sqlite3.connect(path)) as file:
        file.execute("DROP TRIGGER full")
