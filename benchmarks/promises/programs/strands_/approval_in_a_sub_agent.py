"""A call of a sub-agent waits.

Follows https://strandsagents.com/docs/user-guide/concepts/multi-agent/agents-as-tools/ (`Agent.as_tool()`): the session of the first
agent stores the interrupted turn of the second.
"""

from __future__ import annotations

from common import answers, model, remember, session
from stage import GO_ON, look_up, main, refund
from strands import Agent, tool
from strands.vended_interventions.hitl import HumanInTheLoop


def desk() -> Agent:
    """Return an agent with another agent as a tool."""
    cashier = Agent(
        name="cashier",
        description="Refunds orders.",
        model=model(),
        system_prompt="You are the cashier.",
        tools=[tool(look_up), tool(refund)],
        interventions=[HumanInTheLoop(allowed_tools=["look_up"])],
        callback_handler=None,
    )
    return Agent(model=model(), tools=[cashier.as_tool()], session_manager=session(), callback_handler=None)


async def ask() -> None:
    """Run until the call of the sub-agent waits."""
    remember(await desk().invoke_async("Refund order 7."))


async def approve() -> None:
    """Approve in another process."""
    await desk().invoke_async(answers())


async def go_on() -> None:
    """Continue the conversation."""
    await desk().invoke_async(GO_ON)


if __name__ == "__main__":
    main(ask, approve, go_on)
