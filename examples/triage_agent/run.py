"""Talk to the tea shop: a short fixed conversation, or your own with `--chat` (which needs `pip install ".[cli]"`)."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from agents import CONTEXT, triage_agent

from aswarm import AsyncSwarm, CompletionFinished, Event, HandedOff, ToolCallFinished, ToolCallStarted

CONVERSATION = [
    "Hello! Which green tea do you have?",
    "Good. And my teapot from order 4711 arrived broken, I want my money back.",
    "Yes, please.",
]


async def main() -> None:
    """Send the messages one after another. Each run starts with the agent, messages and context variables of the last run."""
    agent, context = triage_agent, CONTEXT
    messages: list[Any] = []
    async with AsyncSwarm() as swarm:
        for text in CONVERSATION:
            print(f"Customer: {text}")
            messages.append({"role": "user", "content": text})
            async with swarm.stream(agent, messages, context) as run:
                async for event in run:
                    show(event)
            messages += run.response.messages
            agent, context = run.response.agent, run.response.context_variables
    print(f"refunded orders: {context['refunded']}")


def show(event: Event) -> None:
    """Print one event."""
    match event:
        case CompletionFinished(message=message) if message["content"]:
            print(f"{message['sender']}: {message['content']}")
        case ToolCallStarted(name=name, arguments=arguments, agent=agent):
            print(f"    {agent.name} calls {name} {arguments}")
        case ToolCallFinished(content=content):
            print(f"    -> {content}")
        case HandedOff(source=source, target=target):
            print(f"    {source.name} hands over to {target.name}")
        case _:
            pass


if __name__ == "__main__":
    if "--chat" in sys.argv[1:]:
        from aswarm.repl import run_demo_loop

        run_demo_loop(triage_agent, context_variables=CONTEXT, stream=True)
    else:
        asyncio.run(main())
