"""The approved action has run, then the model fails. See agui.py: the snapshot after the action has its result.

The store of the snapshots is in the memory of the service. A store that survives a restart is work of the application.
Without this service, the history is stored after the run, and the result is lost. `ResponsesHostServer` refunds twice.
"""

from __future__ import annotations

import agui
from agent_framework import Agent, tool
from agent_framework.openai import OpenAIChatClient
from stage import FOLDER, GO_ON, main, refund

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
    """Approve the call. The model then fails."""
    await agui.approve(PLACE.read_text())


async def recover() -> None:
    """Send the approval again: the service answers with the stored result, and does not repeat the action."""
    await agui.approve(PLACE.read_text())


async def go_on() -> None:
    """Continue the conversation."""
    await agui.say(GO_ON)


if __name__ == "__main__":
    main(serve, ask, approve, recover, go_on)
