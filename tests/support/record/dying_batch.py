"""A batch that is killed while an eager call runs and its completion goes on: `python dying_batch.py JOURNAL`.

It prints a line when the function runs, and then waits for its death.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import anyio

from aswarm import Agent, tool
from aswarm.middleware import CompletionRequest
from tests.support.record.journaled import rerun


class Endless:
    """A source that writes two calls, and never ends the completion."""

    async def complete(self, _: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        for index in range(2):
            made = {"index": index, "id": f"c{index}", "function": {"name": "look", "arguments": f'{{"x": "{index}"}}'}}
            yield {"choices": [{"index": 0, "delta": {"tool_calls": [made]}, "finish_reason": None}]}
        await anyio.sleep_forever()


@tool(repeatable=True)
async def look(x: str) -> str:
    print("runs", x, flush=True)
    await anyio.sleep_forever()
    return x


if __name__ == "__main__":
    anyio.run(lambda: rerun(Path(sys.argv[1]), Endless(), Agent(functions=[look]), eager_tools="always"))
