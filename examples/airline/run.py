"""Talk to the airline: a fixed conversation, or your own with `--chat` (which needs `pip install ".[cli]"`).

    python examples/airline/run.py [cancel | change | --chat]

In "cancel", the customer cancels a flight and then reports a lost bag, so triage is active twice.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from agents import CONTEXT, triage

from aswarm import AsyncSwarm, CompletionFinished, Event, HandedOff, ToolCallFinished, ToolCallStarted

CONVERSATIONS = {
    "cancel": [
        "Hello, I am ill and have to cancel my flight to Lisbon.",
        "The refund, please.",
        "Yes, there is: my suitcase did not arrive last week. The tag is SK402117.",
        "Yes, please bring it there.",
        "No, thank you.",
    ],
    "change": [
        "Could I fly a day earlier?",
        "On 2027-05-20.",
        "Yes, book that one.",
        "No, that is all.",
    ],
}


async def main(conversation: list[str]) -> None:
    """Send the messages one after another. Each run starts with the agent, messages and context variables of the last run."""
    agent, context = triage, CONTEXT
    messages: list[Any] = []
    async with AsyncSwarm() as swarm:
        for text in conversation:
            print(f"Customer: {text}")
            messages.append({"role": "user", "content": text})
            async with swarm.stream(agent, messages, context, max_turns=10) as run:
                async for event in run:
                    show(event)
            messages += run.response.messages
            agent, context = run.response.agent, run.response.context_variables
    for name in ("flight", "baggage", "case"):
        print(f"{name}: {context.get(name)}")


def show(event: Event) -> None:
    """Print one event."""
    match event:
        case CompletionFinished(message=message) if message["content"]:
            print(f"{message['sender']}: {message['content']}")
        case ToolCallStarted(name=name, arguments=arguments, agent=agent) if not name.startswith("transfer_"):
            print(f"    {agent.name} calls {name} {arguments}")
        case ToolCallFinished(name=name, content=content) if not name.startswith("transfer_"):
            print(f"    -> {content}")
        case HandedOff(source=source, target=target):
            print(f"    {source.name} hands over to {target.name}")
        case _:
            pass


if __name__ == "__main__":
    choice = next(iter(sys.argv[1:]), "cancel")
    if choice == "--chat":
        from aswarm.repl import run_demo_loop

        run_demo_loop(triage, context_variables=CONTEXT, stream=True)
    else:
        asyncio.run(main(CONVERSATIONS[choice]))
