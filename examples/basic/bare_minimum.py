"""The smallest program: an agent, a question, an answer."""

import asyncio

from aswarm import Agent, AsyncSwarm

clerk = Agent(name="Clerk", instructions="You work in a bicycle shop. Answer in one sentence.")


async def main() -> None:
    """Ask one question."""
    async with AsyncSwarm() as swarm:
        response = await swarm.run(clerk, "Do you sell bells?")
    print(response.text)


asyncio.run(main())
