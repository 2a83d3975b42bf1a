"""Context variables: data for functions and for instructions. The model does not get these data."""

import asyncio
from typing import Any

from aswarm import Agent, AsyncSwarm, Result


def instructions(context_variables: dict[str, Any]) -> str:
    """Return the instructions. Called before each completion, with the current context variables."""
    return f"You work in a bicycle shop. You are talking to {context_variables['name']}. Be brief."


async def reserve(context_variables: dict[str, Any], article: str) -> Result:
    """Put an article aside for this customer."""
    reserved = [*context_variables["reserved"], article]
    number = context_variables["customer_number"]  # the model does not get it, and cannot choose another one
    return Result(value=f"{article} reserved for customer {number}", context_variables={"reserved": reserved})


clerk = Agent(name="Clerk", instructions=instructions, functions=[reserve])


async def main() -> None:
    """Reserve an article. The caller's dict does not change; the response has a new dict."""
    before = {"name": "Ada", "customer_number": 4711, "reserved": ["lamp"]}
    async with AsyncSwarm() as swarm:
        response = await swarm.run(clerk, "Please put a bell aside for me.", before)
    print(response.text)
    print(f"before: {before}")
    print(f"after:  {response.context_variables}")


asyncio.run(main())
