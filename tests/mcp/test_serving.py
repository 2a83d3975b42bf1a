"""Agents as a server: what its clients see, read by our own client and by the SDK's."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from mcp import Client

from aswarm import Agent, AsyncSwarm, ConfigurationError, tool
from aswarm.mcp import MCPServer, serve_agents
from aswarm.testing import Failure, ScriptedModel, call

pytestmark = pytest.mark.anyio


async def look_up(order: int) -> str:
    """Look up an order."""
    return f"Order {order} has left."


orders = Agent(name="Orders Desk", functions=[look_up])
triage = Agent(name="Triage", functions=[orders])


def texts(result: Any) -> tuple[bool, str]:
    """Whether a result is an error, and its text."""
    return bool(result.is_error), result.content[0].text


async def test_each_agent_is_a_tool_and_its_run_is_told_as_progress() -> None:
    """The client gets what the run does while it does it, and the answer as the result."""
    model = ScriptedModel([call("transfer_to_orders_desk"), call("look_up", order=7), "It has left."])
    seen: list[Any] = []

    async def report(done: float, total: float | None, message: str | None) -> None:
        seen.append((done, message))

    async with AsyncSwarm(model.client()) as swarm, Client(serve_agents(triage, swarm, name="desk")) as client:
        listed = (await client.list_tools()).tools
        assert [(each.name, each.input_schema["required"]) for each in listed] == [
            ("triage", ["request"]),
            ("orders_desk", ["request"]),
        ]
        result = await client.call_tool("triage", {"request": "Where is order 7?"}, progress_callback=report)
    assert texts(result) == (False, "It has left.")
    assert seen == [
        (1, "Triage: asks the model"),
        (2, "calls transfer_to_orders_desk"),
        (3, "hands off to Orders Desk"),
        (4, "Orders Desk: asks the model"),
        (5, "calls look_up"),
        (6, "Orders Desk: asks the model"),
    ]


async def test_an_agent_of_one_program_is_a_function_of_an_agent_of_another() -> None:
    """Our client takes what our server gives."""
    theirs, ours = ScriptedModel(["Order 7 has left."]), ScriptedModel([call("triage", request="Order 7?"), "Done."])
    async with (
        AsyncSwarm(theirs.client()) as served,
        AsyncSwarm(ours.client()) as swarm,
        MCPServer(serve_agents([triage], served)) as desk,
    ):
        response = await swarm.run(Agent(functions=[*desk.functions]), "Ask.")
    assert response.messages[1]["content"] == "Order 7 has left."


@tool(approve=True)
def erase() -> str:
    """Erase all."""
    return "erased"


@pytest.mark.parametrize(
    ("script", "options", "text"),
    [
        (
            [call("erase")],
            {},
            "The agent Clerk cannot continue here, because a call waits for a decision. erase: needs approval",
        ),
        ([call("nothing")], {"max_turns": 1}, "The agent Clerk stopped: its turns are used up."),
        ([Failure(400, "too long")], {}, "CompletionError: "),
    ],
    ids=["a call waits", "a limit", "the provider fails"],
)
async def test_a_run_without_an_answer_is_an_error_for_the_client(script: Any, options: Any, text: str) -> None:
    """The text says why."""
    async with AsyncSwarm(ScriptedModel(script).client(max_retries=0)) as swarm:
        server = serve_agents([Agent(name="Clerk", functions=[erase])], swarm, **options)
        async with Client(server) as client:
            is_error, told = texts(await client.call_tool("clerk", {"request": "Go"}))
    assert is_error
    assert told.startswith(text)


@pytest.mark.parametrize(
    ("name", "arguments"), [("clerk", {}), ("nobody", {"request": "Go"}), ("clerk", {"request": 7})]
)
async def test_a_call_that_means_nothing_is_answered_with_what_to_do(name: str, arguments: dict[str, Any]) -> None:
    """No run begins."""
    async with (
        AsyncSwarm(ScriptedModel([]).client()) as swarm,
        Client(serve_agents([Agent(name="Clerk")], swarm)) as client,
    ):
        result = await client.call_tool(name, arguments)
    assert texts(result) == (True, "Call one of clerk, with the argument `request`, a text.")


async def test_a_client_that_cancels_cancels_the_run() -> None:
    """The function of the agent is cancelled too."""
    began, cancelled = anyio.Event(), anyio.Event()

    async def search() -> str:
        began.set()
        try:
            await anyio.sleep(60)
        except anyio.get_cancelled_exc_class():
            cancelled.set()
            raise
        return "found"

    async with (
        AsyncSwarm(ScriptedModel([call("search")]).client()) as swarm,
        Client(serve_agents([Agent(name="Clerk", functions=[search])], swarm)) as client,
    ):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.call_tool, "clerk", {"request": "Go"})
            await began.wait()
            tasks.cancel_scope.cancel()
        with anyio.fail_after(10):
            await cancelled.wait()


async def test_agents_that_a_client_could_not_tell_apart_are_refused() -> None:
    """Two agents of one name, or one without."""
    async with AsyncSwarm(ScriptedModel([]).client()) as swarm:
        for agents in ([Agent(name="A"), Agent(name="a")], [Agent(name="?")]):
            with pytest.raises(ConfigurationError, match="give each agent its own name"):
                serve_agents(agents, swarm)
