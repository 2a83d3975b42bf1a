"""A process whose run has a long result, and which is killed once: `python -m tests.support.middleware.spilling_process FOLDER KIND`.

KIND: "repeatable" or "once" for the function, "code" for code that prints the result of the function. The first process is killed
(kill -9) between the write of the text and the record of the outcome. The process that finishes the run writes "result.json".
"""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio

from aswarm import Agent, AsyncSwarm, tool
from aswarm.code import CodeLimits, code_tool
from aswarm.conversations import SQLiteStore
from aswarm.middleware import Handlers, Started, ToolCall, ToolOutcome, spill_results
from aswarm.runs import LocalRuns, NewRun, RunNotFound
from aswarm.testing import Request, ScriptedModel, call

TEXT = "".join(f"row {number:06}\n" for number in range(15_000))  # three parts of a store


async def main(folder: Path, kind: str) -> None:
    """Start the run, or take it over."""

    def rows() -> str:
        """Return many rows."""
        with (folder / "notes.txt").open("a") as file:
            file.write("rows\n")
        return TEXT

    def killed(handlers: Handlers) -> Handlers:
        async def call_tool(made: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
            outcome = await handlers.call_tool(made, context, started)
            if made.parent is None and made.name in ("rows", "run_code") and not (folder / "killed").exists():
                (folder / "killed").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return outcome

        return replace(handlers, call_tool=call_tool)

    def answer(request: Request) -> Any:
        results = [message["content"] for message in request.messages if message["role"] == "tool"]
        if not results:
            return call("run_code", code="await rows()") if kind == "code" else call("rows")
        return "Done." if len(results) > 1 else call("search_result", text="row 014999")

    function = tool(repeatable=kind == "repeatable")(rows)
    code = code_tool(function, limits=CodeLimits(output_characters=1_000_000))
    agent = Agent(name="A", functions=[code if kind == "code" else function])
    async with (
        SQLiteStore(folder / "chats.sqlite") as store,
        AsyncSwarm(ScriptedModel(answer).client(), middleware=[killed, spill_results(1_000)]) as swarm,
        LocalRuns(swarm, store=store, agents=agent, version="1") as runs,
    ):
        try:
            run = await runs.get_run("r", user="ann")
        except RunNotFound:
            run = await runs.start(NewRun("ann", "c", "Go", run_id="r"))
        await run.last_entry()
        stored = await store.load("ann/c")
        assert stored is not None
        owner = "conversation:ann/c"
        texts: dict[str, str] = {}
        for handle in await store.results.handles(owner):
            parts = [await store.results.read(owner, handle, number) for number in range(4)]
            texts[handle] = "".join(filter(None, parts))
        result = {"history": stored.messages, "texts": texts}
        (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]), sys.argv[2])
