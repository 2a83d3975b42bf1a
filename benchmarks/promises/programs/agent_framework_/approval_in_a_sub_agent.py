"""A call of a second agent waits.

`Agent.as_tool()` does not pass on the approvals of a child ("Use a workflow when approval is interactive, delayed, or durable"), and in
a workflow the second agent is no tool of the first. So the tool of the first agent is only a declaration, and the program returns the
result, as in
https://github.com/microsoft/agent-framework/blob/main/python/samples/03-workflows/human-in-the-loop/agents_with_declaration_only_tools.py.
To run the second agent, with a session of its own, is work of the program.
"""

from __future__ import annotations

from agent_framework import Content, FunctionTool, Message
from common import agent, approve_call, approved, pause, run
from stage import GO_ON, look_up, main, refund

CASHIER = agent(look_up, approved(refund), name="cashier", instructions="You are the cashier.")
TASK = {"type": "object", "properties": {"task": {"type": "string"}}, "required": ["task"]}
DESK = agent(FunctionTool(name="cashier", description="Refund an order.", input_model=TASK))


async def ask() -> None:
    """Run the first agent until it calls the second, and the second until its call waits."""
    result = await run(DESK, "Refund order 7.")
    contents = [content for message in result.messages for content in message.contents]
    [call] = [content for content in contents if content.type == "function_call"]
    await pause(CASHIER, call.parse_arguments()["task"], chat=call.call_id)


async def approve() -> None:
    """Approve in another process, and return the answer of the second agent to the first."""
    answer = await approve_call(CASHIER, "call_refund", chat="call_ask")
    await run(DESK, Message("tool", [Content.from_function_result("call_ask", result=answer.text)]))


async def go_on() -> None:
    """Continue the conversation."""
    await run(DESK, GO_ON)


if __name__ == "__main__":
    main(ask, approve, go_on)
