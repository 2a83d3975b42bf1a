"""Talk to the museum's desk: a short fixed conversation, or your own with `--chat` (which needs `pip install ".[cli]"`).

The answers are printed live.
"""

# ruff: noqa: RUF001 - Chinese has its own punctuation

from __future__ import annotations

import asyncio
import sys
from typing import Any

from agents import english_agent

from aswarm import AsyncSwarm, CompletionFinished, Event, HandedOff, TextDelta

CONVERSATION = [
    "Hello! When are you open?",
    "Hola, ¿cuánto cuesta la entrada para dos adultos y un niño?",
    "你好！可以带狗进去吗？",
    "Thank you. And on Mondays?",
]


async def main() -> None:
    """Send the messages one after another. The agent that answered last gets the next message."""
    agent = english_agent
    messages: list[Any] = []
    async with AsyncSwarm() as swarm:
        for text in CONVERSATION:
            print(f"Visitor: {text}")
            messages.append({"role": "user", "content": text})
            async with swarm.stream(agent, messages) as run:
                async for event in run:
                    show(event)
            messages += run.response.messages
            agent = run.response.agent


def show(event: Event) -> None:
    """Print one event."""
    match event:
        case TextDelta(text=text):
            print(text, end="", flush=True)
        case CompletionFinished(message=message) if message["content"]:
            print(f"  ({message['sender']})")
        case HandedOff(source=source, target=target):
            print(f"    {source.name} hands over to {target.name}")
        case _:
            pass


if __name__ == "__main__":
    if "--chat" in sys.argv[1:]:
        from aswarm.repl import run_demo_loop

        run_demo_loop(english_agent, stream=True)
    else:
        asyncio.run(main())
