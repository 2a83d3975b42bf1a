"""Show an answer while the model writes it: with typed events, and with Swarm's dicts."""

import asyncio

from aswarm import Agent, AsyncSwarm, TextDelta, ToolCallFinished, ToolCallStarted


async def opening_hours(day: str) -> str:
    """When the shop is open on a day of the week."""
    return "closed" if day.lower() == "sunday" else "9:00 to 18:00"


clerk = Agent(name="Clerk", instructions="You work in a bicycle shop.", functions=[opening_hours])


async def typed_events(swarm: AsyncSwarm, question: str) -> None:
    """Show the events of `stream`. If the block ends early, the connection is closed, and the history stays valid."""
    async with swarm.stream(clerk, question) as run:
        async for event in run:
            match event:
                case TextDelta(text=text):
                    print(text, end="|", flush=True)
                case ToolCallStarted(name=name, arguments=arguments):
                    print(f"{name}({arguments})", end=" ", flush=True)
                case ToolCallFinished(content=content):
                    print(f"-> {content}")
    print(f"\n{len(run.response.messages)} messages, {run.response.usage.total_tokens} tokens")


async def swarm_events(swarm: AsyncSwarm, question: str) -> None:
    """Show the dicts of `run(stream=True)`: deltas between two delimiters, and the response at the end."""
    async for event in swarm.run(clerk, question, stream=True):
        if "response" in event:
            print(f"{len(event['response'].messages)} messages")
        elif "delim" in event:
            print(event)
        elif event["content"]:
            print(repr(event["content"]), flush=True)


async def main() -> None:
    """Ask the same question in both ways."""
    async with AsyncSwarm() as swarm:
        await typed_events(swarm, "Are you open on Sunday?")
        await swarm_events(swarm, "Are you open on Sunday?")


asyncio.run(main())
