"""Agents as tools inside code: how many run at a time, one budget over all, and approvals inside their runs."""

from __future__ import annotations

import re
from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, Budget, Deny, Reply, agent_tool, tool
from aswarm.code import code_tool
from aswarm.testing import Request, ScriptedModel, Step, call

pytestmark = pytest.mark.asyncio

CODE = """\
async def ask(number):
    try:
        return await read(request=f"document {number}")
    except PermissionError as error:
        return "denied"

await asyncio.gather(*[ask(number) for number in range(20)])"""


def answer(request: Request) -> Step:
    """The editor runs the code; a reader opens its document, and repeats the result."""
    last = request.messages[-1]
    if "run_code" in request.tool_names:
        return "Done." if last["role"] == "tool" else call("run_code", call_id="code", code=CODE)
    if last["role"] == "user":
        return call("open", call_id="inner", number=int(re.findall(r"\d+", last["content"])[-1]))
    return str(last["content"])


def editor(open_document: Any, **options: Any) -> Agent:
    """Return an editor whose code calls a reader that calls this function."""
    reader = Agent(name="Reader", functions=[tool(name="open")(open_document)])
    return Agent(name="Editor", functions=[code_tool(tool(**options)(agent_tool(reader, name="read")))])


async def test_a_limiter_limits_the_agents_that_run_at_a_time() -> None:
    """All others wait for a token before their first completion."""
    active, most = 0, 0

    async def open_document(number: int) -> str:
        """Open a document."""
        nonlocal active, most
        active += 1
        most = max(most, active)
        await anyio.sleep(0.005)
        active -= 1
        return f"text {number}"

    response = await AsyncSwarm(ScriptedModel(answer)).run(
        editor(open_document, limiter=anyio.CapacityLimiter(5)), "hi"
    )
    assert response.messages[1]["content"].count("text") == 20
    assert most == 5


@pytest.mark.parametrize("budget", [Budget(turns=30), Budget(tool_calls=30)])
async def test_one_budget_counts_the_code_and_all_agents(budget: Budget) -> None:
    """The limit is exact, although twenty agents run together; `run_code` and the calls of `read` count too."""
    opened: list[int] = []

    async def open_document(number: int) -> str:
        """Open a document."""
        opened.append(number)
        return "text"

    model = ScriptedModel(answer)
    response = await AsyncSwarm(model).run(editor(open_document), "hi", budget=budget)
    assert response.stop == "budget"
    if budget.turns:
        assert len(model.requests) == budget.turns
    else:
        assert len(opened) == len({*opened}) == 30 - 1 - 20


async def test_approvals_inside_agents_inside_code_beside_a_denial() -> None:
    """Each waiting agent is decided on its own; no agent whose call is denied runs its function, and none runs twice."""
    opened: list[int] = []

    @tool(approve=lambda arguments, _: arguments["number"] % 3 == 0)
    async def open_document(number: int) -> str:
        """Open a document."""
        opened.append(number)
        return f"text {number}"

    model = ScriptedModel(answer)
    swarm, agent = AsyncSwarm(model), editor(open_document)
    messages: list[Any] = [{"role": "user", "content": "hi"}]
    asked = await swarm.run(agent, messages)
    waiting = asked.waiting[0].data["waiting"]
    assert len(waiting) == 7
    decisions: dict[str, Any] = {}
    for number, each in enumerate(waiting):
        (inner,) = each["data"]["waiting"]
        decisions[each["id"]] = Reply({inner["id"]: Deny("no") if number == 0 else True})
    response = await swarm.run(agent, [*messages, *asked.messages], resume={"code": Reply(decisions)})
    assert response.stop == "answer"
    assert sorted(opened) == [number for number in range(20) if number != 0]
    assert response.unknown_calls == []
