"""`keep_prefix`: each request starts with the whole request before it, whatever agents take over."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aswarm import Agent, AsyncSwarm, Budget, ConfigurationError, Response, Result, open_calls, tool
from aswarm.conversations import last
from aswarm.decisions import Approve
from aswarm.middleware import LateRole, fallback, keep_prefix
from aswarm.testing import Failure, Request, ScriptedModel, Step, call, check_history, check_middleware
from tests.support.openai_rules import OpenAIRules

Json = dict[str, Any]
OPENAI = "https://api.openai.com/v1"
NAMES = ("Triage", "Orders", "Refunds")


def look() -> str:
    """Look."""
    return "seen"


def ship() -> str:
    """Ship."""
    return "shipped"


def refund() -> str:
    """Refund."""
    return "refunded"


def team() -> dict[str, Agent]:
    """Three agents that can all hand over to each other. The last has no instructions."""
    agents = {
        name: Agent(name=name, instructions=f"The rules of {name}.", functions=[own])
        for name, own in zip(NAMES, (look, ship, refund), strict=True)
    }
    agents["Refunds"].instructions = None
    for agent in agents.values():
        agent.functions += [other for other in agents.values() if other is not agent]
    return agents


Plan = list[tuple[str, list[list[str]]]]
"""For each run: the name of its first agent ("" for the last agent of the run before), and the names of calls of each turn."""
calls = st.lists(st.sampled_from(["look", "ship", "refund", *NAMES]), min_size=1, max_size=3, unique=True)
plans = st.lists(st.tuples(st.sampled_from(["", "", *NAMES]), st.lists(calls, max_size=4)), min_size=1, max_size=4)


def steps_of(plan: Plan) -> Iterator[Step]:
    ids = map("call{}".format, count())
    for _, turns in plan:
        for names in turns:
            yield [call(f"transfer_to_{n.lower()}" if n in NAMES else n, call_id=next(ids)) for n in names]
        yield "Done."


async def chat(swarm: AsyncSwarm, plan: Plan, agents: dict[str, Agent], *, stream: bool = False) -> list[Json]:
    """Run the plan as one conversation. Return its messages."""
    messages: list[Json] = []
    agent = agents["Triage"]
    for number, (first, _) in enumerate(plan):
        agent = agents[first] if first else agent
        messages.append({"role": "user", "content": f"question {number}"})
        if stream:
            async with swarm.stream(agent, messages) as events:
                async for _ in events:
                    pass
            response: Response = events.response
        else:
            response = await swarm.run(agent, messages)
        messages += response.messages
        agent = response.agent or agent
    return messages


def swarm_of(model: ScriptedModel, middleware: Any, api: str) -> AsyncSwarm:
    """Return a swarm at the host of OpenAI, with one of its APIs, or at another host."""
    if api == "other":
        return AsyncSwarm(model, middleware=[middleware])
    return AsyncSwarm(model.client(base_url=OPENAI), api=api, middleware=[middleware])  # type: ignore[arg-type]


def text_of(message: Json) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def active(request: Request) -> str:
    """Return the agent that the newest instructions of the request name."""
    texts = [text for message in request.messages if message["role"] != "assistant" for text in [text_of(message)]]
    *_, newest = re.finditer(r"You are now the assistant (\w+)\.", "\n".join(texts))
    return newest[1]


def extends(later: Request, earlier: Request) -> bool:
    return later.body.get("tools") == earlier.body.get("tools") and (
        later.messages[: len(earlier.messages)] == earlier.messages
    )


@pytest.mark.parametrize("anyio_backend", ["asyncio", pytest.param("trio", marks=pytest.mark.heavy)])
@pytest.mark.parametrize("api", ["chat", "responses", "other"])
@pytest.mark.parametrize("role", ["auto", "user"])
@given(plan=plans, stream=st.booleans())
async def test_each_request_extends_the_one_before_it(api: str, role: LateRole, plan: Plan, stream: bool) -> None:
    """Whatever agents take over: in one turn with other calls, twice, back, or from outside. The history does not change."""
    agents = team()
    model = ScriptedModel(steps_of(plan))
    messages = await chat(swarm_of(model, keep_prefix(agents["Triage"], role=role), api), plan, agents, stream=stream)
    check_history(messages)
    assert all(extends(*pair) for pair in zip(model.requests[1:], model.requests, strict=False))
    assert [active(request) for request in model.requests] == [
        m["sender"] for m in messages if m["role"] == "assistant"
    ]
    without = ScriptedModel(steps_of(plan))
    assert messages == await chat(swarm_of(without, lambda handlers: handlers, api), plan, team(), stream=stream)


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_openai_gets_developer_messages_with_breakpoints_and_allowed_tools(api: str) -> None:
    """The whole request after a handoff and a return, in both APIs."""
    plan: Plan = [("", [["Orders"], ["ship"]]), ("Triage", [])]
    agents = team()
    model = ScriptedModel(steps_of(plan))
    await chat(swarm_of(model, keep_prefix(agents["Triage"], base="The base."), api), plan, agents)
    first, *_, last_request = model.requests
    late = [m for m in last_request.messages if m["role"] == "developer"]
    assert [text_of(message) for message in late] == [
        "The base.",
        "You are now the assistant Triage. Its instructions:\n\nThe rules of Triage.",
        "You are now the assistant Orders. Its instructions:\n\nThe rules of Orders.",
        "You are now the assistant Triage. Follow its instructions above.",
    ]
    assert all(m["content"][0]["prompt_cache_breakpoint"] == {"mode": "explicit"} for m in late)
    functions = ["look", "transfer_to_orders", "transfer_to_refunds", "ship", "transfer_to_triage", "refund"]
    assert first.tool_names == last_request.tool_names == functions
    choice = last_request.body["tool_choice"]
    allowed = choice if api == "responses" else choice["allowed_tools"]
    assert (choice["type"], allowed["mode"]) == ("allowed_tools", "auto")
    assert [entry.get("function", entry)["name"] for entry in allowed["tools"]] == functions[:3]


async def test_another_server_gets_messages_of_the_user_and_the_names_of_the_functions() -> None:
    """No second system message and no `allowed_tools`; with role "tool", the text is part of the result of the handoff."""
    plan: Plan = [("", [["Orders"]])]
    for role, roles in (
        ("auto", ["system", "user", "assistant", "tool", "user"]),
        ("tool", ["system", "user", "assistant", "tool"]),
    ):
        agents = team()
        model = ScriptedModel(steps_of(plan))
        await chat(swarm_of(model, keep_prefix(agents["Triage"], role=role), "other"), plan, agents)  # type: ignore[arg-type]
        request = model.requests[-1]
        assert [message["role"] for message in request.messages] == roles
        assert request.messages[-1]["content"].endswith(
            "The rules of Orders.\n\nCall only these functions: ship, transfer_to_triage, transfer_to_refunds."
        )
        assert request.body.get("tool_choice", "auto") == "auto"


def differing(**fields: Any) -> Callable[[], Any]:
    return lambda: keep_prefix(Agent(name="A"), Agent(name="B", **fields))


@tool(private=True)
def secret() -> str:
    """Open the vault."""
    return "open"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (differing(model="gpt-6"), "differ in model"),
        (differing(model_settings={"temperature": 0}), "differ in model_settings"),
        (differing(output=int), "differ in output"),
        (differing(history=last(5)), "differ in history"),
        (differing(parallel_tool_calls=False), "differ in parallel_tool_calls"),
        (differing(functions=[secret]), "'secret' of the agent 'B' is private"),
        (lambda: keep_prefix(Agent(name="A", functions=[Agent(name="B", output=int)])), "differ in output"),
        (
            lambda: keep_prefix(
                Agent(name="A", functions=[look]), Agent(name="B", functions=[tool(name="look")(ship)])
            ),
            "different tools named 'look'",
        ),
        (lambda: keep_prefix(Agent(name="A"), Agent(name="A")), "two agents named 'A'"),
    ],
)
def test_agents_that_cannot_share_a_start_are_refused(make: Callable[[], Any], reason: str) -> None:
    """The error names the agents and the difference."""
    with pytest.raises(ConfigurationError, match=reason):
        make()


@pytest.mark.parametrize("api", ["chat", "other"])
async def test_a_call_of_a_tool_of_another_agent_is_answered_and_never_runs(api: str) -> None:
    """A server may ignore `allowed_tools`."""
    ran: list[str] = []

    def vault() -> str:
        """Open the vault."""
        ran.append("vault")
        return "open"

    agents = team()
    agents["Refunds"].functions.append(vault)
    model = ScriptedModel([call("vault"), "Done."])
    response = await swarm_of(model, keep_prefix(agents["Triage"]), api).run(agents["Triage"], "hi")
    assert ran == []
    assert "vault" in model.requests[0].tool_names
    assert "not found" in response.messages[1]["content"]


async def test_an_alternative_of_fallback_gets_its_own_form() -> None:
    """`fallback` before `keep_prefix` in the list: the first model is at OpenAI, the second is not."""
    agents = team()
    failing, model = ScriptedModel([Failure(503)]), ScriptedModel(["Done."])
    swarm = AsyncSwarm(
        failing.client(base_url=OPENAI), api="chat", middleware=[fallback(model), keep_prefix(agents["Triage"])]
    )
    await swarm.run(agents["Triage"], "hi")
    assert failing.requests[0].messages[0]["role"] == "developer"
    assert [message["role"] for message in model.requests[0].messages] == ["system", "user"]


async def test_an_agent_without_functions_may_call_none() -> None:
    """It gets the tools of the others with the choice "none"; without a budget for another turn, the choice is "none" too."""
    quiet = Agent(name="Quiet", instructions="Be quiet.")
    busy = Agent(name="Busy", instructions="Be busy.", functions=[look])
    model = ScriptedModel([call("look"), "Done.", "Done."])
    swarm = AsyncSwarm(model.client(base_url=OPENAI), api="chat", middleware=[keep_prefix(quiet, busy)])
    await swarm.run(busy, "hi", budget=Budget(turns=1, then="answer"))
    await swarm.run(quiet, "hi")
    assert [request.body.get("tool_choice", "auto") for request in model.requests] == ["auto", "none", "none"]
    assert all(request.tool_names == ["look"] for request in model.requests)


async def test_an_undeclared_agent_gets_its_own_request(caplog: pytest.LogCaptureFixture) -> None:
    """A handoff to it is logged; a run of it alone is not."""
    other = Agent(name="Other", instructions="Other rules.")

    def leave() -> Result:
        """Leave."""
        return Result(value="left", agent=other)

    known = Agent(name="Known", functions=[leave])
    model = ScriptedModel(["Done.", call("leave"), "Done."])
    swarm = AsyncSwarm(model, middleware=[keep_prefix(known)])
    await swarm.run(other, "hi")
    assert not caplog.records
    await swarm.run(known, "hi")
    assert "does not know the agent 'Other'" in caplog.text
    assert model.requests[-1].messages[0] == {"role": "system", "content": "Other rules."}


async def test_instructions_of_a_function_are_sent_where_the_agent_took_over() -> None:
    """The first text of this run stays in its place; another text of the active agent replaces it, or comes last at a return."""
    texts = map("text {}".format, count())
    agents = team()
    agents["Orders"].instructions = lambda: next(texts)
    plan: Plan = [("", [["Orders"], ["Triage"], ["Orders"]])]
    model = ScriptedModel(steps_of(plan))
    await chat(AsyncSwarm(model, middleware=[keep_prefix(agents["Triage"])]), plan, agents)
    sent = [re.findall(r"text \d", "".join(map(text_of, request.messages))) for request in model.requests]
    assert sent == [[], ["text 0"], ["text 0"], ["text 0", "text 1"]]


@pytest.mark.parametrize("api", ["responses", "other"])
async def test_a_handoff_beside_a_waiting_call_resumes_with_the_same_start(api: str) -> None:
    """The turn with the handoff waits for an approval, and continues in another run."""

    @tool(approve=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    agents = team()
    agents["Triage"].functions.append(pay)
    model = ScriptedModel([[call("pay"), call("transfer_to_orders")], "Done."])
    swarm = swarm_of(model, keep_prefix(agents["Triage"]), api)
    waiting = await swarm.run(agents["Triage"], "hi")
    messages: list[Any] = [{"role": "user", "content": "hi"}, *waiting.messages]
    decisions = {each.id: Approve() for each in open_calls(messages)}
    response = await swarm.run(agents["Triage"], messages, resume=decisions)
    assert response.messages[-1]["sender"] == "Orders"
    assert extends(model.requests[1], model.requests[0])
    assert active(model.requests[1]) == "Orders"


async def test_a_typed_answer_is_in_the_tools_of_all_agents() -> None:
    """`run(output=)` adds `final_answer` to each request; a forced answer is a choice among the same tools at OpenAI."""
    agents = team()
    for api, same in (("chat", True), ("other", False)):
        model = ScriptedModel([call("transfer_to_orders"), "no number", call("final_answer", value=1)])
        response = await swarm_of(model, keep_prefix(agents["Triage"]), api).run(agents["Triage"], "hi", output=int)
        assert response.output == 1
        assert model.requests[0].tool_names[-1] == "final_answer"
        assert extends(model.requests[1], model.requests[0])
        assert (model.requests[2].tool_names == model.requests[1].tool_names) is same


@pytest.mark.parametrize("keep", [2, 4])
async def test_a_trimmed_history_still_has_the_instructions(keep: int) -> None:
    """`last(n)` removes the place where the agent took over: its instructions then come first."""
    agents = team()
    for agent in agents.values():
        agent.history = last(keep)
    plan: Plan = [("", [["Orders"]]), *[("", [["ship"]])] * 5]
    model = ScriptedModel(steps_of(plan))
    await chat(AsyncSwarm(model, middleware=[keep_prefix(agents["Triage"])]), plan, agents)
    assert active(model.requests[-1]) == "Orders"
    assert "The rules of Orders." in "".join(map(text_of, model.requests[-1].messages))


def test_it_obeys_the_rules_of_middleware() -> None:
    """See `check_middleware`."""
    check_middleware(keep_prefix(Agent(name="A")))


async def test_a_model_that_refuses_breakpoints_gets_none_after_the_first_answer() -> None:
    """An older model gets none at all; a refusal by name is repeated once without them, and remembered."""
    agents = team()
    refusal = Failure(400, message="prompt_cache_breakpoint is not supported on this model")
    model = ScriptedModel([refusal, "Done.", "Done.", "Done."])
    swarm = swarm_of(model, keep_prefix(agents["Triage"]), "chat")
    await swarm.run(agents["Triage"], "hi")
    await swarm.run(agents["Triage"], "hi")
    await swarm.run(agents["Triage"], "hi", model_override="gpt-5")
    has_one = ["prompt_cache_breakpoint" in str(request.body) for request in model.requests]
    assert has_one == [True, False, False, False]


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_a_model_that_refuses_allowed_tools_gets_only_these_tools(api: Any) -> None:
    """The refusal is repeated once, and remembered."""
    agents = team()
    model = OpenAIRules(steps_of(plan := [("", [["Orders"], ["ship"]])]), allowed_tools=False)
    swarm = AsyncSwarm(model.client(), api=api, middleware=[keep_prefix(agents["Triage"])])
    await chat(swarm, plan, agents)
    names = [["look", "transfer_to_orders", "transfer_to_refunds"]] + [
        ["transfer_to_triage", "transfer_to_refunds", "ship"]
    ] * 2
    assert [sorted(request.tool_names) for request in model.requests] == [*map(sorted, names)]
    assert len(model.refused) == 1
