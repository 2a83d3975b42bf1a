"""Many conversations at once: one `AsyncSwarm`, one agent, a task for each conversation.

The runs share no data, so they need no lock. The limiter belongs to the resource that is limited, here the warehouse.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import anyio

from aswarm import Agent, AsyncSwarm, tool

ORDERS = {"Ada": "is being packed", "Grace": "is on its way", "Alan": "was delivered"}
warehouse = anyio.CapacityLimiter(2)  # it answers two questions at a time, for any number of conversations


@tool(limiter=warehouse)
async def order_state(context_variables: Mapping[str, Any]) -> str:
    """Where this customer's order is."""
    await asyncio.sleep(0.05)
    return f"The order of {context_variables['name']} {ORDERS[context_variables['name']]}."


clerk = Agent(name="Clerk", instructions="You tell customers about their order.", functions=[order_state])


async def converse(swarm: AsyncSwarm, name: str) -> list[str]:
    """Hold a conversation of two questions, and return the answers."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Where is my order?"}]
    first = await swarm.run(clerk, messages, {"name": name})
    messages += [*first.messages, {"role": "user", "content": "Thank you!"}]
    second = await swarm.run(clerk, messages, first.context_variables)
    return [first.text, second.text]


async def main() -> None:
    """Serve all customers at once. If one conversation fails, the task group cancels the others and raises the error."""
    async with AsyncSwarm() as swarm, asyncio.TaskGroup() as group:
        tasks = {name: group.create_task(converse(swarm, name)) for name in ORDERS}
    for name, task in tasks.items():
        print(f"{name}: {task.result()}")


asyncio.run(main())
