"""Two processes get the same approval, and a third gets it later. See agui.py.

`AgentState` with a session store has no lock ("ensure only one caller advances it at a time"). The service has one: while a detached run
is active, it answers with 409. The lock is in the memory of one process; "coordination is not shared across endpoint registrations,
workers, or replicas".
"""

from __future__ import annotations

import agui
from agent_framework import Agent, tool
from agent_framework.openai import OpenAIChatClient
from stage import FOLDER, GO_ON, both_ready, main, refund

PLACE = FOLDER / "interrupt.txt"  # what the page of a browser remembers


async def serve() -> None:
    """Serve."""
    tools = [tool(refund, approval_mode="always_require")]
    await agui.serve(Agent(OpenAIChatClient(model="gpt-5"), name="desk", tools=tools, default_options={"store": False}))


async def ask() -> None:
    """Run until the call waits."""
    events = await agui.say("Refund order 7.")
    PLACE.write_text(events[-1]["outcome"]["interrupts"][0]["id"])


async def approve() -> None:
    """Approve the call at the same time as the other process."""
    await both_ready()
    await agui.approve(PLACE.read_text())


async def approve_again() -> None:
    """Approve the call after both."""
    await agui.approve(PLACE.read_text())


async def go_on() -> None:
    """Continue the conversation."""
    await agui.say(GO_ON)


if __name__ == "__main__":
    main(serve, ask, approve, approve_again, go_on)
