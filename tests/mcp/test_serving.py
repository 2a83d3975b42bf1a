"""Agents as a server for our own client and for the SDK's."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.types import ElicitResult

from aswarm import Agent, AsyncSwarm, ConfigurationError, Hold, Reply, Result, current_call, external_tool, tool
from aswarm.mcp import MCPServer, serve_agents
from aswarm.testing import Failure, ScriptedModel, call
from aswarm.tools import function_tool


async def look_up(order: int) -> str:
    """Look up an order."""
    return f"Order {order} has left."


orders = Agent(name="Orders Desk", functions=[look_up])
triage = Agent(name="Triage", functions=[orders])


EMPTY = {"type": "object", "properties": {}}


def texts(result: Any) -> tuple[bool, str]:
    """Return whether a result is an error, and its text."""
    return bool(result.is_error), result.content[0].text


@asynccontextmanager
async def client_of(model: ScriptedModel, agents: Any, *, server: Any = None, **options: Any) -> AsyncIterator[Client]:
    """Open a client of the SDK for these agents."""
    async with (
        AsyncSwarm(model.client(max_retries=0)) as swarm,
        Client(serve_agents(swarm, agents=agents, **(server or {})), **options) as client,
    ):
        yield client


async def ask(model: ScriptedModel, agents: Any, name: str = "clerk", **options: Any) -> tuple[bool, str]:
    """Call an agent."""
    async with client_of(model, agents, **options) as client:
        return texts(await client.call_tool(name, {"request": "Go"}))


async def test_each_agent_is_a_tool_and_its_run_is_progress() -> None:
    """The client gets the progress of the run, and the answer as the result."""
    model = ScriptedModel([call("transfer_to_orders_desk"), call("look_up", order=7), "It has left."])
    seen: list[Any] = []

    async def report(done: float, total: float | None, message: str | None) -> None:
        seen.append((done, message))

    async with client_of(model, triage, server={"name": "desk"}) as client:
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


@tool(approve=True)
def erase() -> str:
    """Erase all."""
    return "erased"


def leave(*_: Any) -> Any:
    """Raise SystemExit, as argparse does."""
    raise SystemExit(2)


@pytest.mark.parametrize(
    ("agent", "expected"),
    [
        (
            Agent(name="Clerk", functions=[function_tool(leave, name="leave", description="", parameters=EMPTY)]),
            (False, "Done."),
        ),
        (Agent(name="Clerk", instructions=leave), (True, "SystemExit: 2")),
    ],
    ids=["a function", "the instructions"],
)
async def test_an_exit_does_not_end_the_server(agent: Agent, expected: tuple[bool, str]) -> None:
    """An exit of a function is a failed call; any other exit is an error for its client. The next call has its answer."""
    model = ScriptedModel([call("leave"), "Done.", "Hello."] if agent.functions else ["Hello."])
    async with client_of(model, [agent, Agent(name="Other")]) as client:
        assert texts(await client.call_tool("clerk", {"request": "Go"})) == expected
        assert texts(await client.call_tool("other", {"request": "Go"})) == (False, "Hello.")


@pytest.mark.parametrize(
    ("step", "options", "text"),
    [
        (
            call("erase"),
            {},
            "The agent Clerk cannot continue here, because a call waits for a decision. erase: needs approval",
        ),
        (call("nothing"), {"max_turns": 1}, "The agent Clerk stopped: its turns are used up."),
        (Failure(400, "too long"), {}, "CompletionError: "),
    ],
    ids=["a call waits", "a limit", "the provider fails"],
)
async def test_a_run_without_an_answer_is_an_error_for_the_client(step: Any, options: Any, text: str) -> None:
    """The text has the reason."""
    is_error, shown = await ask(ScriptedModel([step]), [Agent(name="Clerk", functions=[erase])], server=options)
    assert is_error
    assert shown.startswith(text)


@pytest.mark.parametrize(
    ("name", "arguments"), [("clerk", {}), ("nobody", {"request": "Go"}), ("clerk", {"request": 7})]
)
async def test_a_wrong_call_is_answered_with_the_right_form(name: str, arguments: dict[str, Any]) -> None:
    """No run starts."""
    async with client_of(ScriptedModel([]), [Agent(name="Clerk")]) as client:
        result = await client.call_tool(name, arguments)
    assert texts(result) == (True, "Call one of clerk, with the argument `request`, a text.")


def clerk_of(*functions: Any) -> Agent:
    """Return an agent that another agent hands off to, so that the run waits in the second agent."""
    return Agent(name="Triage", functions=[Agent(name="Clerk", functions=[*functions])])


@tool(may_wait=True)
async def pay(amount: int) -> str:
    """Pay a bill."""
    if not current_call().is_approved:
        raise Hold("From which account?")
    return f"paid {amount} from {current_call().answer}"


TO_CLERK = call("transfer_to_clerk")
MODES = pytest.mark.parametrize("mode", ["auto", "legacy"], ids=["stateless", "with sessions"])


@MODES
@pytest.mark.parametrize(
    ("action", "content", "expected"),
    [
        ("accept", {"approve": True}, "erased"),
        ("accept", {"approve": False, "reason": "too late"}, "not run: denied by the user: too late"),
        ("accept", None, "not run: denied by the user"),
        ("decline", None, "not run: denied by the user"),
        ("cancel", None, None),
    ],
    ids=["approved", "denied", "left empty", "declined", "no decision"],
)
async def test_an_approval_is_asked_of_the_user_of_the_client(
    mode: Any, action: Any, content: Any, expected: Any
) -> None:
    """The run continues where it was, during the call or by a repeated call; without a decision, nothing runs."""
    asked: list[Any] = []

    async def answer(_: Any, params: Any) -> ElicitResult:
        asked.append((params.message, [*params.requested_schema["properties"]]))
        return ElicitResult(action=action, content=content)

    model = ScriptedModel([TO_CLERK, call("erase"), "Done."])
    shown = await ask(model, clerk_of(erase), "triage", mode=mode, elicitation_callback=answer)
    assert asked == [("Clerk: needs approval: erase({})", ["approve", "reason"])]
    if expected is None:
        assert shown == (True, "The agent has not continued, because the user has made no decision.")
    else:
        assert shown == (False, "Done.")
        assert model.requests[-1].messages[-1]["content"] == expected


@MODES
async def test_questions_of_functions_are_answered_one_turn_after_another(mode: Any) -> None:
    """Two questions come together and a third later; a cancelled question is asked again alone."""
    asked: list[str] = []
    questions = [f'From which account?: pay({{"amount": {amount}}})' for amount in (1, 2, 3)]

    async def answer(_: Any, params: Any) -> ElicitResult:
        question = params.message.partition(": ")[2]
        asked.append(question)
        if question == questions[1] and asked.count(question) == 1:
            return ElicitResult(action="cancel")
        return ElicitResult(
            action="accept", content={"approve": True, "answer": f"account {questions.index(question)}"}
        )

    script = [[call("pay", call_id="a", amount=1), call("pay", call_id="b", amount=2)], call("pay", amount=3), "Done."]
    model = ScriptedModel(script)
    agent = Agent(name="Clerk", functions=[pay])
    assert await ask(model, agent, mode=mode, elicitation_callback=answer) == (False, "Done.")
    expected = ["paid 1 from account 0", "paid 2 from account 1", "paid 3 from account 2"]
    assert [each["content"] for each in model.requests[-1].messages if each["role"] == "tool"] == expected
    assert sorted(asked[:2]) == questions[:2]  # a client may ask them at the same time
    assert asked[2:] == questions[1:]


async def test_an_approval_is_decided_by_the_client_of_another_swarm_and_not_made_up() -> None:
    """Our own client waits for it; the state is sealed, so an invented history is refused."""
    theirs = AsyncSwarm(ScriptedModel([call("erase"), "Done."]).client())
    async with theirs, MCPServer(serve_agents(theirs, agents=Agent(name="Clerk", functions=[erase]))) as desk:
        async with AsyncSwarm(ScriptedModel([call("clerk", call_id="c", request="Go")]).client()) as swarm:
            agent = Agent(functions=[*desk.functions])
            asked = await swarm.run(agent, "Ask.")
        [question] = asked.open_calls
        assert question.reason == "Clerk: needs approval: erase({})"
        assert "erase" not in question.data["state"]
        history = [{"role": "user", "content": "Ask."}, *asked.messages]
        for state, expected in [
            (json.dumps(["Clerk", [], {}]), "Invalid or expired requestState"),
            (question.data["state"], "Done."),
        ]:
            history[-1]["waiting"][0]["data"]["state"] = state
            async with AsyncSwarm(ScriptedModel(["Thanks."]).client()) as swarm:
                response = await swarm.run(agent, history, resume={"c": Reply({"0": {"approve": True}})})
            assert response.messages[0]["content"] == expected


async def test_a_call_without_an_answer_to_its_question_is_asked_again() -> None:
    """A client may have lost the answer of its user."""
    agent = Agent(name="Clerk", functions=[erase])
    async with client_of(ScriptedModel([call("erase")]), agent, elicitation_callback=_never) as client:
        arguments: Any = ("clerk", {"request": "Go"})
        first = await client.session.call_tool(*arguments, allow_input_required=True)
        again = await client.session.call_tool(*arguments, allow_input_required=True, request_state=first.request_state)
    assert again.input_requests == first.input_requests


async def _never(_: Any, __: Any) -> ElicitResult:
    raise AssertionError


@tool(may_wait=True)
async def ask_for_more() -> str:
    """Ask in a form of its own."""
    raise Hold("Which one?", data={"choices": ["a", "b"]})


async def remember() -> Result:
    """Keep what JSON lacks, and ask."""
    return Result(value="kept", context_variables={"x": object()})


elsewhere = external_tool(
    name="elsewhere", description="Runs in a browser.", parameters={"type": "object", "properties": {}}
)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ([call("ask_for_more")], "ask_for_more: Which one?"),
        ([call("elsewhere")], "elsewhere: runs outside of this program"),
        ([call("remember"), call("erase")], "erase: needs approval"),
    ],
    ids=["data", "external", "context"],
)
async def test_a_question_that_no_form_can_ask_is_an_error(script: Any, reason: str) -> None:
    """It is the same error as for a client that cannot ask."""
    agent = Agent(name="Clerk", functions=[ask_for_more, remember, erase, elsewhere])
    is_error, shown = await ask(ScriptedModel(script), agent, elicitation_callback=_never)
    assert is_error
    assert shown.endswith(f"waits for a decision. {reason}")


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

    agents = [Agent(name="Clerk", functions=[search])]
    async with client_of(ScriptedModel([call("search")]), agents) as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.call_tool, "clerk", {"request": "Go"})
            await began.wait()
            tasks.cancel_scope.cancel()
        with anyio.fail_after(60):
            await cancelled.wait()


async def test_agents_without_a_name_of_their_own_are_refused() -> None:
    """Each agent needs a name, and no other agent has it."""
    async with AsyncSwarm(ScriptedModel([]).client()) as swarm:
        for agents in ([Agent(name="A"), Agent(name="a")], [Agent(name="?")]):
            with pytest.raises(ConfigurationError, match="give each agent its own name"):
                serve_agents(swarm, agents=agents)
        with pytest.raises(ConfigurationError, match="one item is str"):
            serve_agents(swarm, agents=["A"])  # type: ignore[list-item]
