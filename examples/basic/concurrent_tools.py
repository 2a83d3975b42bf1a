"""Two functions that the model calls in one turn run at the same time; the results keep the order of the calls.

The calls run together because the function is `async def` and does not write to the context variables.
"""

import asyncio

from aswarm import Agent, AsyncSwarm, ToolCallFinished, ToolCallStarted

PRICES = {"Rome": (35, 0.4), "Oslo": (52, 0.2)}  # EUR, and the seconds that the price service takes


async def shipping_cost(city: str) -> str:
    """Return the cost of sending a bicycle to a city."""
    euros, seconds = PRICES[city]  # the model gets the text of a KeyError, and can ask for another city
    await asyncio.sleep(seconds)
    return f"{city}: {euros} EUR"


clerk = Agent(name="Clerk", instructions="You work in a bicycle shop.", functions=[shipping_cost])


async def main() -> None:
    """Print the start and the end of each call, and the messages that the model gets."""
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
