"""A process with one durable run and eager tools: `python dying_eager_run.py FOLDER first|next|whole`.

The model asks for `work`, then writes the calls of `look` and `work`, and then answers. Each function notes its call in a
file of the folder. The first process starts the run; its model never finishes the second completion, so that the process can
be killed between the early start of `look` and its turn. The next process continues the run. "whole": one process does all.
The last two print the response.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from aswarm import Agent, AsyncSwarm, current_call, tool
from aswarm.durable import DurableRuns
from aswarm.middleware import CompletionRequest

FOLDER, ROLE = Path(sys.argv[1]), sys.argv[2]
RUN = "eager"


def note(name: str) -> None:
    """Write a line that survives the death of the process."""
    with (FOLDER / "calls.txt").open("a") as file:
        file.write(f"{ROLE} {name} {current_call().key}\n")


async def work() -> str:
    """Do something that must not be done twice."""
    note("work")
    return "worked"


@tool(repeatable=True)
async def look() -> str:
    """Look something up: it may run again."""
    note("look")
    return "looked"


def is_recorded(text: str) -> bool:
    """Return whether an entry with the text is committed: the run does not wait for the commit of a result."""
    with closing(sqlite3.connect(FOLDER / "runs.db")) as database:
        entries = database.execute("SELECT data FROM aswarm_entry").fetchall()
    return any(text.encode() in data for (data,) in entries)


class Model:
    """The model. `calls`: the names of the calls of each turn."""

    calls = (("work",), ("look", "work"))

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        turn = sum(message["role"] == "assistant" for message in request.body["messages"])
        if turn == len(self.calls):
            yield {"choices": [{"index": 0, "delta": {"content": "Done."}, "finish_reason": "stop"}]}
            return
        for index, name in enumerate(self.calls[turn]):
            made = {"index": index, "id": f"{turn}-{index}", "function": {"name": name, "arguments": "{}"}}
            yield {"choices": [{"index": 0, "delta": {"tool_calls": [made]}, "finish_reason": None}]}
        while turn == 1 and ROLE == "first":
            await asyncio.sleep(0.01)
            if "look" in (FOLDER / "calls.txt").read_text() and is_recorded("worked"):
                print("ready to die", flush=True)
                await asyncio.sleep(3600)
        yield {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}


async def main() -> None:
    store, agent = f"sqlite:///{FOLDER / 'runs.db'}", Agent(name="Boss", functions=[work, look])
    async with (
        AsyncSwarm(Model(), eager_tools="always") as swarm,
        DurableRuns(swarm, agents=[agent], store=store, version="1", failover_seconds=0.3) as runs,
    ):
        if ROLE != "next":
            await runs.start("Boss", "Go", run_id=RUN)
        response = await (await runs.find_run(RUN)).result()
        messages = [{key: value for key, value in each.items() if value} for each in response.messages]
        print(
            json.dumps({"messages": messages, "stop": response.stop, "unknown": len(response.unknown_calls)}),
            flush=True,
        )


if __name__ == "__main__":
    asyncio.run(main())
