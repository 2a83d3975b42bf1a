"""The program of the project's README: a handoff, a function and the answer, as events."""

import asyncio

from aswarm import Agent, AsyncSwarm, TextDelta, ToolCallStarted


async def look_up_order(order_id: int) -> str:
    """Look up an order of the customer."""
    return f"Order {order_id} was delivered yesterday."


orders = Agent(name="Orders", instructions="Help with orders.", functions=[look_up_order])
triage = Agent(name="Triage", instructions="Hand over to the right agent.", functions=[orders])


async def main() -> None:
    async with AsyncSwarm() as swarm, swarm.stream(triage, "Where is my order 42?") as run:
        async for event in run:
            match event:
                case TextDelta(text):
                    print(text, end="", flush=True)
                case ToolCallStarted(name=name, arguments=arguments):
                    print(f"[{name}({arguments})]")
    print(f"\n({run.response.agent.name}, {run.response.usage.total_tokens} tokens)")


asyncio.run(main())
