"""Runs whose model writes code once, and helpers to continue them and to record them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from aswarm import Agent, AsyncSwarm, Response
from aswarm._record.entries import Entry
from aswarm._record.entry_maker import EntryMaker
from aswarm._record.facts import Facts
from aswarm._record.recorder import Recorder
from aswarm._run.options import RunOptions
from aswarm._tools.directory import AgentDirectory
from aswarm.code import code_tool
from aswarm.testing import Request, ScriptedModel, call

USER = {"role": "user", "content": "Go"}


def agent_of(*functions: Any, **options: Any) -> Agent:
    """An agent with one function, `run_code`."""
    return Agent(name="Coder", functions=[code_tool(*functions, **options)])


def swarm_of(code: str, **options: Any) -> AsyncSwarm:
    """A swarm whose model writes this code, and answers "Done."."""

    def answer(request: Request) -> Any:
        has_called = any(message["role"] == "assistant" for message in request.messages)
        return "Done." if has_called else call("run_code", call_id="outer", code=code)

    return AsyncSwarm(ScriptedModel(answer).client(), **options)


async def run_code(code: str, *functions: Any, swarm: dict[str, Any] | None = None, **options: Any) -> Response:
    """Run an agent whose model writes this code."""
    return await swarm_of(code, **(swarm or {})).run(agent_of(*functions, **options), "Go")


async def result_of(code: str, *functions: Any, **options: Any) -> str:
    """The tool message of the code."""
    return told(await run_code(code, *functions, **options))


def told(response: Response) -> str:
    """The tool message of the code."""
    (content,) = (each["content"] for each in response.messages if each["role"] == "tool" and "waiting" not in each)
    return str(content)


def waiting_inside(response: Response) -> list[dict[str, Any]]:
    """The calls inside the code that wait."""
    (outer,) = response.waiting
    calls: list[dict[str, Any]] = outer.data["waiting"]
    return calls


async def resumed(agent: Agent, response: Response, decision: Any, *history: Any, **options: Any) -> Response:
    """Continue a run that waits, from its history as JSON, as another process does."""
    stored = json.loads(json.dumps([USER, *history, *response.messages]))
    return await swarm_of("", **options).run(agent, stored, resume={"outer": decision})


# --- records ----------------------------------------------------------------------------------------------------------


@dataclass
class Log:
    """A log in memory. `committed`: the number of entries at the last commit."""

    entries: list[Entry] = field(default_factory=list[Entry])
    committed: int = 0

    def add(self, entry: Entry) -> None:
        """Add an entry, as its JSON."""
        self.entries.append(Entry.from_dict(json.loads(entry.to_log())))

    async def commit(self) -> None:
        """Commit."""
        self.committed = len(self.entries)


async def recorded(
    code: str,
    functions: Sequence[Any],
    before: Iterable[Entry] = (),
    stop: Callable[[], None] | None = None,
    context: dict[str, Any] | None = None,
) -> tuple[Log, Response]:
    """Run with a record. `before`: the entries of an earlier attempt. `stop`: only replay, see `Recorder`."""
    agent, log, maker = agent_of(*functions), Log(), EntryMaker()
    options = RunOptions(agent, [USER], context, run_id="r")
    for entry in (*before, maker.started("r", "c", agent, [USER], context_variables=context)):
        log.add(entry)
    facts = Facts(before)

    def mismatch(turn: int, parts: str) -> Any:
        raise AssertionError((turn, parts))

    recorder = Recorder(log, maker, AgentDirectory((agent,)), mismatch, facts=facts, stop=stop)
    return log, await swarm_of(code)._run_to_end(options, recorder)
