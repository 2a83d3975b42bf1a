"""Asks both agents the same question, and prints what their answers cost."""

from __future__ import annotations

import asyncio
import time

from agents import with_code, with_tools

from aswarm import Agent, AsyncSwarm, ToolCallStarted
from aswarm.events import ToolProgress

QUESTION = "For which of this month's orders did items not arrive, and how many cents do we owe for each?"


async def ask(swarm: AsyncSwarm, agent: Agent) -> None:
    """Print the answer of an agent, its completions, calls and tokens, and its seconds."""
    started, calls = time.monotonic(), 0
    async with swarm.stream(agent, QUESTION, deltas=False) as run:
        async for event in run:
            inside = event.value if isinstance(event, ToolProgress) else event  # the calls of the code
            calls += isinstance(inside, ToolCallStarted) and inside.name != "run_code"
    response = run.response
    usage, seconds = response.usage, time.monotonic() - started
    print(f"{agent.name}: {response.text}")
    print(f"    {usage.requests} completions, {calls} calls, {usage.total_tokens} tokens, in {seconds:.2f} s")


async def main() -> None:
    """Ask the agent with plain tools, then the agent with code."""
    async with AsyncSwarm() as swarm:
        _ = swarm.client  # imports openai, which is not part of an answer
        for agent in (with_tools, with_code):
            await ask(swarm, agent)


if __name__ == "__main__":
    asyncio.run(main())
