"""A durable run over Claude whose process is killed in the middle of an answer: another process continues it with its thinking."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.support.anthropic_rules import Answer, AnthropicRules, text, thinking, use
from tests.support.providers.loopback import Reply, serve

PROGRAM = """
import asyncio, sys
from anthropic import AsyncAnthropic
from aswarm import Agent, AsyncSwarm
from aswarm.durable import DurableRuns

async def look(city: str) -> str:
    with open("looked.txt", "a") as file:
        print(city, file=file)
    return "rain"

async def main(url):
    agent = Agent(name="A", model="claude-opus-5-5", functions=[look])
    async with (
        AsyncAnthropic(api_key="k", base_url=url, max_retries=0) as client,
        DurableRuns(AsyncSwarm(client), agents=[agent], store="sqlite:///runs.db", version="1") as runs,
    ):
        run = await runs.start("A", "Weather?", run_id="r")
        print((await run.result()).text)

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.processes
@pytest.mark.heavy
@pytest.mark.asyncio
async def test_a_run_of_claude_that_is_killed_in_the_middle_of_an_answer(tmp_path: Path) -> None:
    """The call is not repeated. The server accepts the thinking of the first answer, which is bound to all that was before it."""
    rules = AnthropicRules(
        [
            Answer([thinking(), use("look", city="Oslo")]),
            Answer([thinking("Half"), text("It rains.")]),
            Answer([thinking(), text("Rain.")]),
        ]
    )

    def reply(body: dict[str, Any]) -> Reply:
        made = rules.reply(body, frozenset())
        if len(rules.requests) == 2 and not stalled.is_set():
            stalled.set()
            return Reply(made.pieces[:6], end="stall")
        return made

    stalled = anyio.Event()
    async with serve(reply) as server:
        command = [sys.executable, "-c", PROGRAM.replace("\\\\\\\\", "\\\\"), server.base_url.removesuffix("/v1")]
        with anyio.fail_after(240):
            first = await anyio.open_process(command, cwd=tmp_path, stdout=subprocess.PIPE)
            await stalled.wait()
            await anyio.sleep(0.2)
            first.kill()
            await first.aclose()
            second = await anyio.run_process(command, cwd=tmp_path)
    assert second.stdout.decode().strip() == "Rain."
    assert (tmp_path / "looked.txt").read_text() == "Oslo\n"
    assert (rules.refused, rules.dropped) == ([], [])
    kinds = [[block["type"] for block in message["content"]] for message in rules.requests[-1]["messages"]]
    assert kinds == [["text"], ["thinking", "tool_use"], ["tool_result"]]
