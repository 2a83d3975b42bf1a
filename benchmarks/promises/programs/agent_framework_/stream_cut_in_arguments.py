"""The connection to the model breaks inside the arguments of a call.

Follows https://learn.microsoft.com/en-us/agent-framework/workflows/checkpoints: the workflow continues from the checkpoint of its input,
and asks the model again. The whole turn is one step of the workflow, so calls that had finished before the cut would run again. Without a
workflow, the first message of the user is lost.
"""

from __future__ import annotations

from agent_framework import Agent, FileCheckpointStorage, Workflow, WorkflowBuilder
from agent_framework.exceptions import AgentFrameworkException
from agent_framework.openai import OpenAIChatClient
from stage import FOLDER, GO_ON, book_hotel, main

CHECKPOINTS = FileCheckpointStorage(FOLDER / "checkpoints")


def workflow() -> Workflow:
    """Return a workflow of one agent."""
    desk = Agent(OpenAIChatClient(model="gpt-5"), name="desk", tools=[book_hotel], default_options={"store": False})
    return WorkflowBuilder(start_executor=desk, name="desk", checkpoint_storage=CHECKPOINTS).build()


async def stream() -> None:
    """Read the events until the stream breaks."""
    try:
        async for _ in workflow().run("Book the hotel.", stream=True):
            pass
    except AgentFrameworkException as error:
        print(f"{type(error).__name__}: {error}")


async def go_on() -> None:
    """Continue from the last checkpoint in another process, then continue the conversation."""
    desk = workflow()
    last = await CHECKPOINTS.get_latest(workflow_name="desk")
    await desk.run(checkpoint_id=last.checkpoint_id)
    await desk.run(GO_ON)


if __name__ == "__main__":
    main(stream, go_on)
