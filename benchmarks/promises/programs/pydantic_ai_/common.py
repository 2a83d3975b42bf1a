"""What the programs of pydantic-ai share: the agent, its steps in SQLite, the history after a crash, and a paused run.

They follow https://ai.pydantic.dev/message-history/, https://ai.pydantic.dev/deferred-tools/ and, for crashes, the page of
`StepPersistence` of pydantic-ai-harness:
https://github.com/pydantic/pydantic-ai/tree/main/src/pydantic_ai_harness/pydantic_ai_harness/step_persistence
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, ModelMessage, ModelRequest
from pydantic_ai.conversation import Conversation, ConversationTypeAdapter
from pydantic_ai.messages import SystemPromptPart, repair_messages
from pydantic_ai_harness import StepPersistence
from pydantic_ai_harness.step_persistence import SqliteStepStore, continue_run
from stage import FOLDER, GO_ON

STORE = SqliteStepStore(database=str(FOLDER / "steps.db"))
PAUSED = FOLDER / "paused.json"
CHAT = "ann"


def agent(*tools: Any, name: str = "desk", instructions: str | None = None) -> Agent[None, Any]:
    """Return an agent that saves its steps."""
    return Agent(
        "openai:gpt-5",
        name=name,
        instructions=instructions,
        tools=tools,
        output_type=[str, DeferredToolRequests],
        capabilities=[StepPersistence(store=STORE, agent_name=name)],
    )


async def history() -> list[ModelMessage]:
    """Return the newest saved messages of the conversation, with the calls that may have run ("Failure recovery")."""
    # A run that pauses has no snapshot, so the program saves its conversation itself.
    messages = paused().messages if PAUSED.exists() else []
    notes = []
    for run in await STORE.list_runs(conversation_id=CHAT):
        with suppress(LookupError):  # killed before the first snapshot
            messages = await continue_run(STORE, run_id=run.run_id, include_interrupted=True)
        notes += [
            f"tool {record.tool_name} ({record.tool_call_id}) may or may not have run"
            for record in await STORE.list_unresolved_tool_effects(run_id=run.run_id)
        ]
    messages = repair_messages(messages)
    return [*messages, *(ModelRequest(parts=[SystemPromptPart(note)]) for note in notes)]


async def go_on_with(desk: Agent[None, Any]) -> None:
    """Continue the conversation."""
    await desk.run(GO_ON, message_history=await history(), conversation_id=CHAT)


async def pause(desk: Agent[None, Any], text: str) -> None:
    """Run until calls wait, and save the conversation."""
    result = await desk.run(text, conversation_id=CHAT)
    PAUSED.write_bytes(ConversationTypeAdapter.dump_json(result.conversation))


def paused() -> Conversation:
    """Return the saved conversation."""
    return ConversationTypeAdapter.validate_json(PAUSED.read_bytes())


async def approve_calls(desk: Agent[None, Any], *call_ids: str, run_id: str | None = None) -> Any:
    """Approve calls of the saved conversation, and return the result of the run that continues.

    `StepPersistence` refuses a second run with the same `run_id`.
    """
    return await answer(desk, DeferredToolResults(approvals=dict.fromkeys(call_ids, True)), run_id)


async def answer(desk: Agent[None, Any], results: DeferredToolResults, run_id: str | None = None) -> Any:
    """Answer the calls of the saved conversation, and return the result of the run that continues."""
    return await desk.run(conversation=paused(), deferred_tool_results=results, run_id=run_id)
