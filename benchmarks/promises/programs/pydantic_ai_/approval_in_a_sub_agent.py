"""A call of a second agent waits.

Follows https://github.com/pydantic/pydantic-ai/pull/7037, a recipe for https://ai.pydantic.dev/deferred-tools/: the tool that runs
the second agent saves its conversation and raises `ApprovalRequired`. The decision arrives as metadata of the approval. The parent
of `SubAgents` of the harness cannot approve the calls of a child.
"""

from __future__ import annotations

from common import agent, answer, go_on_with, pause
from pydantic_ai import Agent, ApprovalRequired, DeferredToolRequests, DeferredToolResults, RunContext, Tool
from pydantic_ai.conversation import ConversationTypeAdapter
from stage import FOLDER, look_up, main, refund

CASHIER = Agent(
    "openai:gpt-5",
    name="cashier",
    instructions="You are the cashier.",
    tools=[look_up, Tool(refund, requires_approval=True)],
    output_type=[str, DeferredToolRequests],
)


async def cashier(ctx: RunContext[None], task: str) -> str:
    """Ask the cashier."""
    held = FOLDER / f"{ctx.tool_call_id}.json"
    if ctx.tool_call_approved:
        results = DeferredToolResults(approvals=ctx.tool_call_metadata)
        conversation = ConversationTypeAdapter.validate_json(held.read_bytes())
        result = await CASHIER.run(conversation=conversation, deferred_tool_results=results)
    else:
        result = await CASHIER.run(task)
    if isinstance(result.output, DeferredToolRequests):
        held.write_bytes(ConversationTypeAdapter.dump_json(result.conversation))
        raise ApprovalRequired(metadata={"waiting": [call.tool_call_id for call in result.output.approvals]})
    return result.output


DESK = agent(cashier)


async def ask() -> None:
    """Run until the call of the cashier waits."""
    await pause(DESK, "Ask the cashier to refund order 7.")


async def approve() -> None:
    """Approve the call of the cashier in another process."""
    await answer(DESK, DeferredToolResults(approvals={"call_ask": True}, metadata={"call_ask": {"call_refund": True}}))


async def go_on() -> None:
    """Continue the conversation."""
    await go_on_with(DESK)


if __name__ == "__main__":
    main(ask, approve, go_on)
