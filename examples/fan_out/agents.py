"""An editor that lets readers read forty documents, five at a time, and publishes the result after an approval."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import anyio

from aswarm import Agent, agent_tool, tool
from aswarm.code import code_tool

DOCUMENTS = {number: f"Report {number}: the pump ran for {number * 7 % 40} hours." for number in range(1, 41)}
TOGETHER = 5  # readers that run at a time
LOG = os.environ.get("FAN_OUT_LOG")  # the file in which the functions note their calls


def note(text: str) -> None:
    """Note a call, so that `run.py` can count the calls of all processes."""
    if LOG:
        with Path(LOG).open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")


async def open_document(number: int) -> str:
    """Return the text of a document."""
    note(f"open {number}")
    await asyncio.sleep(0.05)  # a slow archive
    return DOCUMENTS[number]


reader = Agent(
    name="Reader", instructions="Open the document, and answer with a number alone.", functions=[open_document]
)


async def list_documents() -> list[int]:
    """List the numbers of the documents."""
    return [*DOCUMENTS]


@tool(approve=True)
async def publish(title: str, hours: int) -> str:
    """Publish a result."""
    note(f"publish {hours}")
    return f"{title}: {hours} hours."


# `repeatable`: a reader that a crash has interrupted may read again.
read = tool(limiter=anyio.CapacityLimiter(TOGETHER), repeatable=True)(agent_tool(reader, name="read"))
editor = Agent(
    name="Editor",
    instructions="Write code: let `read` answer for each document, and publish the result.",
    functions=[code_tool(list_documents, read, publish)],
)
