"""One agent hands the conversation over to another: by a function that returns an agent, or by an agent in `functions`."""

import asyncio

from aswarm import Agent, AsyncSwarm

workshop = Agent(name="Workshop", instructions="You repair bicycles. Ask what you need to know, in one sentence.")
sales = Agent(name="Sales", instructions="You sell bicycles.")


async def send_to_workshop() -> Agent:
    """For everything that is broken."""
    return workshop


# An agent among the functions is a handoff: the model gets a function `transfer_to_sales`.
reception = Agent(
    name="Reception",
    instructions="You are the reception of a bicycle shop. Send the customer on.",
    functions=[send_to_workshop, sales],
)


async def main() -> None:
    """Ask the reception. The workshop answers, and is the agent of the next run."""
    async with AsyncSwarm() as swarm:
        response = await swarm.run(reception, "My brakes squeal.")
    for message in response.messages:
        if message["role"] == "assistant":
            calls = [call["function"]["name"] for call in message["tool_calls"] or []]
            print(f"{message['sender']}: {calls or message['content']}")
    print(f"now talking to: {response.agent.name}")


asyncio.run(main())
