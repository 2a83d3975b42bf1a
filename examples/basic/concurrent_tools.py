"""Two functions that the model calls in one turn run at the same time, and are answered in the order of the calls.

Both are `async def` and take no context: nothing could tell that they did not run one after the other.
"""

import asyncio

from aswarm import Agent, AsyncSwarm, ToolCallFinished, ToolCallStarted

PRICES = {"Rome": (35, 0.4), "Oslo": (52, 0.2)}  # EUR, and the seconds that the price service takes


async def shipping_cost(city: str) -> str:
    """What it costs to send a bicycle to a city."""
    euros, seconds = PRICES[city]  # a KeyError would be told to the model, which can then ask for another city
    await asyncio.sleep(seconds)
    return f"{city}: {euros} EUR"


clerk = Agent(name="Clerk", instructions="You work in a bicycle shop.", functions=[shipping_cost])


async def main() -> None:
    """Show the calls as they begin and end, then what the model was told."""
    question = "What is shipping to Rome, and to Oslo?"
    async with AsyncSwarm() as swarm, swarm.stream(clerk, question) as run:
        async for event in run:
            match event:
                case ToolCallStarted(arguments=arguments):
                    print(f"started: {arguments}")
                case ToolCallFinished(content=content):
                    print(f"finished: {content}")
    told = [message["content"] for message in run.response.messages if message["role"] == "tool"]
    print(f"the model was told: {told}")
    print(run.response.text)


asyncio.run(main())
