"""A batch with a journal, for a test that kills it: python killed_batch.py FOLDER ITEMS

Each item is handed off to an agent that only `agents=[...]` has; that agent pays. Each payment is a line of the
file `paid` in FOLDER, and each outcome a line of `outcomes`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import sys
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

from aswarm import Agent, AsyncSwarm, CompletionRequest

Json = dict[str, Any]
LINE = 128  # bytes; divides a page


def append(path: Path, line: str) -> None:
    """Append a line, whole or not at all: SIGKILL can cut a write where a page ends, and no line crosses a page."""
    with path.open("ab", buffering=0) as file:
        file.write(f"{line:<{LINE - 1}}\n".encode())


def _message(calls: list[tuple[str, Json]], content: str = "") -> Json:
    asked = [
        {"id": f"c-{name}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for name, arguments in calls
    ]
    return {"role": "assistant", "content": content, "tool_calls": asked or None}


class Model:
    """Calls `over`, after a handoff `pay`, and then answers with the result of the last call."""

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        await asyncio.sleep(random.random() * 0.02)
        item, *rest = [message["content"] for message in request.body["messages"] if message["role"] != "system"]
        if not rest:
            message = _message([("over", {})])
        elif "assistant" in rest[-1]:
            message = _message([("pay", {"item": item})])
        else:
            message = _message([], rest[-1])
        yield {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}


async def main(folder: Path, count: int) -> None:
    """Run the batch, or its remaining items."""

    async def pay(item: str) -> str:
        append(folder / "paid", item)
        await asyncio.sleep(random.random() * 0.02)
        return f"paid {item}"

    async def over() -> Agent:
        return next(hidden)

    cashier = Agent(name="Cashier", functions=[pay])
    hidden = itertools.repeat(cashier)
    triage = Agent(name="Triage", functions=[over])
    items = [(f"item {number}", str(number)) for number in range(count)]
    swarm = AsyncSwarm(client=Model())
    async with swarm.batch(triage, items, concurrency=20, journal=folder / "run.sqlite", agents=[cashier]) as outcomes:
        async for outcome in outcomes:
            if outcome.error is not None:
                raise outcome.error
            response = outcome.response
            assert response is not None and response.agent is not None
            known = [outcome.id, response.text, response.agent.name, outcome.attempts]
            append(folder / "outcomes", json.dumps(known))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
