"""A conversation as a workflow of Temporal, for the program that must survive a crash.

Follows https://docs.temporal.io/develop/python/integrations/strands-agents. The refund is an activity that is never repeated: an
activity that died reaches its time limit, and a hook tells the model what this means.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

from temporalio import activity, workflow
from temporalio.client import Client, WorkflowHandle
from temporalio.common import RetryPolicy, WorkflowIDConflictPolicy
from temporalio.exceptions import TimeoutError as ActivityTimeout
from temporalio.service import RPCError
from temporalio.strands_agents import StrandsPlugin, TemporalAgent
from temporalio.strands_agents.workflow import activity_as_tool
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    from common import model
    from stage import FOLDER, PORT, effect, refund
    from strands.hooks import AfterToolCallEvent, HookProvider, HookRegistry
    from strands.vended_interventions.hitl import HumanInTheLoop


@activity.defn(name="refund")
async def pay(order: int) -> str:
    """Refund an order."""
    return await refund(order)


class Interrupted(HookProvider):
    """Tells the model that a call was started, and has no result."""

    def register_hooks(self, registry: HookRegistry) -> None:
        """Register the hook."""
        registry.add_callback(AfterToolCallEvent, self.tell)

    def tell(self, event: AfterToolCallEvent) -> None:
        """Change the result of a call that reached its time limit."""
        if isinstance(event.exception, ActivityTimeout):
            event.result["content"] = [{"text": "Interrupted after its start. The outcome is unknown."}]


@workflow.defn
class Conversation:
    """A conversation. Each message and each decision is a signal."""

    def __init__(self) -> None:
        """Make the agent. The function `refund` needs an approval, and has one attempt."""
        once = RetryPolicy(maximum_attempts=1)
        limit = timedelta(seconds=10)
        self.agent = TemporalAgent(
            model="openai",
            start_to_close_timeout=timedelta(seconds=60),
            tools=[activity_as_tool(pay, start_to_close_timeout=limit, retry_policy=once)],
            interventions=[HumanInTheLoop()],
            hooks=[Interrupted()],
            callback_handler=None,
        )
        self.texts: list[str] = []
        self.decisions: list[str] = []
        self.state = "new"

    @workflow.signal
    def say(self, text: str) -> None:
        """Get a message of the user."""
        self.texts.append(text)
        self.state = "runs"

    @workflow.signal
    def decide(self, decision: str) -> None:
        """Get a decision of a person."""
        self.decisions.append(decision)
        self.state = "runs"

    @workflow.query
    def now(self) -> str:
        """Return the state."""
        return self.state

    @workflow.run
    async def run(self) -> None:
        """Answer each message."""
        while True:
            await workflow.wait_condition(lambda: bool(self.texts))
            result = await self.agent.invoke_async(self.texts.pop(0))
            while result.stop_reason == "interrupt":
                self.state = "waits"
                await workflow.wait_condition(lambda: bool(self.decisions))
                decision = self.decisions.pop(0)
                ids = [each.id for each in result.interrupts]
                answers = [{"interruptResponse": {"interruptId": key, "response": decision}} for key in ids]
                result = await self.agent.invoke_async(answers)
            self.state = "answered"


def become_the_server() -> NoReturn:
    """Become the development server of Temporal, with a file for its store."""
    effect("ready")
    command = Path(sys.executable).with_name("temporal")
    path = os.fspath(command) if command.exists() else shutil.which("temporal")
    assert path
    arguments = ["server", "start-dev", "--headless", "--port", str(PORT), "--db-filename", str(FOLDER / "temporal.db")]
    os.execv(path, [path, *arguments])  # noqa: S606 - so that it ends with the scenario


@asynccontextmanager
async def conversation() -> AsyncIterator[WorkflowHandle[Conversation, None]]:
    """Work in this process, and return the conversation."""
    client = await connect()
    work = Worker(client, task_queue="desk", workflows=[Conversation], activities=[pay])
    async with work:
        yield await client.start_workflow(
            Conversation.run, id="ann", task_queue="desk", id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING
        )


async def connect() -> Client:
    """Return a client, when the server is there."""
    while True:
        try:
            return await Client.connect(f"127.0.0.1:{PORT}", plugins=[StrandsPlugin(models={"openai": model})])
        except (RuntimeError, RPCError):
            await asyncio.sleep(0.2)


async def until(state: str, of: WorkflowHandle[Conversation, None]) -> None:
    """Wait for a state of the conversation."""
    while await of.query(Conversation.now) != state:
        await asyncio.sleep(0.1)
