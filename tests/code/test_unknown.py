"""Calls inside code with an unknown outcome, because functions have run inside them and they do not continue."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, Budget, Deny, Reply, Response, agent_tool, tool
from aswarm.code import code_tool
from aswarm.conversations import Conversation, MemoryStore
from aswarm.guards import Block, guard_tool
from aswarm.middleware import Handlers, ToolCall, ToolOutcome
from aswarm.testing import Request, ScriptedModel, call, check_history
from tests.support.code.coded import (
    USER,
    journaled,
    kept_run,
    local_runs,
    recorded,
    result_in,
    resumed,
    swarm_of,
    unknown,
)
from tests.support.leaving.run_scenes import until

GATHER = "await asyncio.gather(helper(request='x'), pay(amount=5))"
HANDED_OVER = f"try:\n    {GATHER}\nexcept PermissionError:\n    await transfer_to_other()"
STOPPED = (
    "[stopped after functions had run inside, because the code ended without them, so their outcome is unknown: "
    "helper (outer.0)]"
)


class Bank:
    """An agent whose code calls `helper`, an agent that charges and then waits for an approval of `pay`."""

    def __init__(self, code: str = GATHER) -> None:
        self.notes: list[str] = []
        self.code = code
        self.stops = False
        self.waiting: list[str] = []

    def noting(self, handlers: Handlers) -> Handlers:
        """A middleware that notes the calls that start to wait."""

        async def call_tool(made: ToolCall, context: dict[str, Any], started: Any) -> ToolOutcome:
            try:
                return await handlers.call_tool(made, context, started)
            except Exception as error:
                self.waiting += [made.name] if hasattr(error, "reason") else []
                raise

        return dataclasses.replace(handlers, call_tool=call_tool)

    async def charge(self, amount: int) -> str:
        """Charge."""
        self.notes.append(f"charge {amount}")
        return "charged"

    async def pay(self, amount: int) -> str:
        """Pay."""
        self.notes.append(f"pay {amount}")
        if self.stops:
            await anyio.sleep_forever()
        return "paid"

    def functions(self) -> list[Any]:
        """The functions of the code, as each process makes them."""
        pay = tool(approve=True)(self.pay)
        helper = agent_tool(Agent(name="Helper", instructions="helper", functions=[self.charge, pay]))
        return [helper, pay, Agent(name="Other")]

    def agent(self) -> Agent:
        """The agent, as each process makes it."""
        return Agent(name="Coder", instructions="coder", functions=[code_tool(*self.functions())])

    def answer(self, request: Request) -> Any:
        """Answer as the models of the agents."""
        results = [each for each in request.messages if each["role"] == "tool"]
        match request.messages[0]["content"], len(results):
            case "helper", 0:
                return call("charge", call_id="c", amount=700)
            case "helper", 1:
                return call("pay", call_id="p", amount=1)
            case "nested", 0:
                return call("coder", call_id="n", request="x")
            case "coder", 0:
                return call("run_code", call_id="outer", code=self.code)
            case _:
                return "Done."

    def swarm(self, **options: Any) -> AsyncSwarm:
        return AsyncSwarm(ScriptedModel(self.answer).client(), **options)

    async def decided(self, *decisions: Any, swarm: dict[str, Any] | None = None, **options: Any) -> Response:
        """Run until the code waits, and decide on its calls, each time from JSON."""
        history: list[Any] = [USER]
        response = await self.swarm().run(self.agent(), "Go")
        for decision in decisions:
            assert response.stop == "waiting"
            history = json.loads(json.dumps([*history, *response.messages]))
            response = await self.swarm(**(swarm or {})).run(
                self.agent(), history, resume={"outer": decision}, **options
            )
        check_history([*history, *response.messages], allow_open=response.stop == "waiting")
        return response


@pytest.mark.parametrize("code", [GATHER, HANDED_OVER])
@pytest.mark.parametrize("decision", [{"outer.1": False}, {"outer.0": True, "outer.1": Deny("no")}])
async def test_a_call_with_functions_inside_is_not_reported_as_not_run(code: str, decision: dict[str, Any]) -> None:
    """The code ends with the denial of its neighbour, or with a handoff."""
    bank = Bank(code)
    response = await bank.decided(Reply(decision))
    assert result_in(response).endswith(STOPPED)
    assert "not run, because" not in result_in(response)
    assert unknown(response) == ["outer.0"]
    assert bank.notes == ["charge 700"]


async def test_code_that_fails_names_only_calls_that_have_run() -> None:
    """Denied, blocked, invalid and late calls are not named; a denied call with functions inside has run."""
    waits = "try:\n    await pay(amount={})\nexcept PermissionError:\n    pass\n"
    code = "{}for n in (1, 'x'):\n    try:\n        await {}\n    except RuntimeError:\n        pass\n{}1 / 0"
    guard = guard_tool(lambda made: Block("no") if made.arguments == {"amount": 1} else None)

    async def charge(amount: int) -> str:
        """Charge."""
        return "charged"

    pay = tool(approve=True)(charge)
    agent = Agent(name="A", functions=[code_tool(charge, dataclasses.replace(pay, name="pay"), type_check=False)])
    written = code.format(waits.format(8), "charge(amount=n)", waits.format(9) + "await charge(amount=2)\n")
    response, history = await swarm_of(written, middleware=[guard]).run(agent, "Go"), list[Any]()
    for place in (0, 3):
        assert response.stop == "waiting"
        history += response.messages
        earlier = history[: -len(response.messages)]
        response = await resumed(agent, response, Reply({f"outer.{place}": False}), *earlier, middleware=[guard])
    assert result_in(response).endswith("[calls that ran before: charge (1)]")
    bank = Bank("try:\n    await helper(request='x')\nexcept PermissionError:\n    pass\n1 / 0")
    response = await bank.decided(Reply({"outer.0": False}))
    assert result_in(response).endswith("[calls that ran before: helper (1)]")


async def test_a_denied_call_with_functions_inside_is_listed() -> None:
    """The code gets the denial, and the call is listed as outside of code."""
    response = await Bank().decided(Reply({"outer.0": False}))
    assert "PermissionError: stopped: denied by the user, after functions had run inside" in result_in(response)
    assert unknown(response) == ["outer.0"]


async def test_a_guard_or_a_budget_that_refuses_the_call_leaves_it_unknown() -> None:
    """The text is that functions had run inside, and the outcome is unknown."""
    bank = Bank()
    guard = guard_tool(lambda checked: Block("late") if checked.name == "helper" else None)
    for options in ({"swarm": {"middleware": [guard]}}, {"budget": Budget(tool_calls=1)}):
        response = await bank.decided(Reply({"outer.0": True, "outer.1": True}), **options)
        assert "stopped after functions had run inside, so its outcome is unknown" in result_in(response)
        assert "outer.0" in unknown(response)


async def test_a_decision_that_lets_the_call_wait_again_reports_nothing() -> None:
    """The approved neighbour runs, and the call still waits."""
    bank = Bank()
    response = await bank.decided(Reply({"outer.1": True}))
    assert (response.stop, unknown(response), bank.notes) == ("waiting", [], ["charge 700", "pay 5"])
    response = await bank.decided(Reply({"outer.1": True}), Reply({"outer.0": Reply({"p": True})}))
    assert (result_in(response), unknown(response)) == ('["Done.", "paid"]', [])


async def test_code_in_an_agent_tool_reports_to_the_outer_run() -> None:
    """The answer of the inner run does not hide the unknown call."""
    bank = Bank()
    coder = agent_tool(bank.agent())
    agent = Agent(name="Top", instructions="nested", functions=[coder])
    first = await bank.swarm().run(agent, "Go")
    assert (first.stop, unknown(first)) == ("waiting", [])
    stored = json.loads(json.dumps([USER, *first.messages]))
    decisions = {"n": Reply({"outer": Reply({"outer.1": False})})}
    last = await bank.swarm().run(agent, stored, resume=decisions)
    assert (last.text, unknown(last)) == ("Done.", ["outer.0"])
    assert bank.notes == ["charge 700"]


async def test_an_agent_tool_reports_the_calls_of_its_run() -> None:
    """An unknown call of the inner run is listed also if the inner run has answered."""

    def late() -> str:
        return "late"

    def script(request: Request) -> Any:
        has_called = any(each["role"] == "tool" for each in request.messages)
        if request.messages[0]["content"] == "inner":
            return "failed" if has_called else call("late", call_id="x")
        return "Done." if has_called else call("inner", call_id="i", request="x")

    inner = Agent(name="Inner", instructions="inner", functions=[tool(timeout=1e-9)(late)])
    agent = Agent(name="Outer", instructions="outer", functions=[agent_tool(inner)])
    response = await AsyncSwarm(ScriptedModel(script).client()).run(agent, "Go")
    assert (response.text, unknown(response)) == ("Done.", ["x"])


async def test_a_conversation_and_a_log_list_the_call() -> None:
    """The response, the last entry of the log and the stored conversation have the unknown call."""
    bank, store = Bank(), MemoryStore()
    async with local_runs(bank.agent(), bank.swarm(), store) as runs:
        entries = await kept_run(runs, ("outer", {"outer.1": False}))
        stored = await store.load("ann/c")
    assert [each["id"] for each in entries[-1].response["unknown_calls"]] == ["outer.0"]
    assert stored is not None
    assert unknown(stored) == ["outer.0"]
    async with MemoryStore() as store:
        chat = Conversation(store, "c", bank.swarm(), agent=bank.agent())
        await chat.run("Go")
        response = await chat.resume({"outer": Reply({"outer.1": False})})
        assert unknown(response) == unknown(await chat.load()) == ["outer.0"]


async def test_code_that_waits_lists_its_unknown_calls_after_the_death_of_its_process(tmp_path: Path) -> None:
    """The process dies after the code has started to wait, before the end of its run."""

    def late() -> None:
        """Take too long."""

    @tool(approve=True)
    async def gate() -> None:
        """Wait for an approval."""

    code = "try:\n    await late()\nexcept RuntimeError:\n    pass\nawait gate()"
    functions = [tool(timeout=1e-9)(late), gate]
    log, first = await recorded(tmp_path, code, functions)
    (finished,) = log.places("RunFinished")
    for end in (finished - 1, finished):
        _, again = await recorded(tmp_path, code, functions, log.first(end))
        assert (again.stop, unknown(again)) == (first.stop, unknown(first)) == ("waiting", ["outer.0"])


async def test_a_journal_does_not_repeat_a_call_with_functions_inside(tmp_path: Path) -> None:
    """The process dies after the call has waited, before the end of its item."""
    bank = Bank("await asyncio.gather(helper(request='x'), dies())")

    async def dies() -> str:
        """Run after the call beside it has charged and waits."""
        await until(lambda: "helper" in bank.waiting)
        return "died"

    agent = Agent(name="Coder", instructions="coder", functions=[code_tool(*bank.functions(), dies)])
    log, _ = await journaled(tmp_path, bank.swarm(middleware=[bank.noting]), agent)
    cut = log.first(log.places("ToolProgress", "ToolCallFinished")[0])
    _, response = await journaled(tmp_path, bank.swarm(), agent, cut)
    assert bank.notes == ["charge 700"]
    assert unknown(response) == ["outer.0", "outer.1"]
