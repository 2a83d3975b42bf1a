"""Talk to the bookshop: a short fixed conversation, or your own with `--chat` (which needs `pip install ".[cli]"`)."""

from __future__ import annotations

import asyncio
import sys
from datetime import date
from typing import Any

from agents import assistant

from aswarm import AsyncSwarm, CompletionFinished, Event, HandedOff, ToolCallFinished, ToolCallStarted

# The shop's data about the customer after the login. The day is fixed, so that every run is the same.
CONTEXT: dict[str, Any] = {
    "name": "Ines",
    "orders": [501, 502, 430],
    "today": date(2025, 3, 14),
    "about": None,
    "returns": [],
}
CONVERSATION = [
    "Where are my orders 501 and 502?",
    "I want to send A Cook's Year back, I have it already.",
    "And Bread as well, it is dull.",
    "Then recommend me something about nature instead, for 25 euros at most.",
]


async def main() -> None:
    """Send the messages one after another. Each run starts with the agent, messages and context variables of the last run."""
    agent, context = assistant, CONTEXT
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
    print(f"accepted returns: {context['returns']}")


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

        run_demo_loop(assistant, context_variables=CONTEXT, stream=True)
    else:
        asyncio.run(main())
