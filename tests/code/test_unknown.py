"""Calls inside code whose outcome is unknown, because functions have run inside them and they do not continue."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from aswarm import Agent, Answer, AsyncSwarm, Budget, ConfigurationError, Deny, Response, agent_tool, tool
from aswarm._record.entry_maker import EntryMaker
from aswarm._record.facts import Facts
from aswarm._record.recorder import Recorder
from aswarm._run.options import RunOptions
from aswarm._tools.directory import AgentDirectory
from aswarm.code import code_tool
from aswarm.conversations import Conversation, MemoryStore
from aswarm.guards import Block, guard_tool
from aswarm.middleware import Handlers, ToolCall, ToolOutcome
from aswarm.runs import CallAnswer, LocalRuns, NewRun, Run
from aswarm.testing import Request, ScriptedModel, call, check_history
from tests.support.code.coded import USER, Log, resumed, swarm_of, told
from tests.support.code.coded import recorded as record_of
from tests.support.leaving.run_scenes import until
from tests.support.record.journaled import Died, rerun

pytestmark = pytest.mark.anyio

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

    def agent(self) -> Agent:
        """The agent, as each process makes it."""
        pay = tool(approve=True)(self.pay)
        helper = agent_tool(Agent(name="Helper", instructions="helper", functions=[self.charge, pay]))
        return Agent(name="Coder", instructions="coder", functions=[code_tool(helper, pay, Agent(name="Other"))])

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


def names(response: Response) -> list[str]:
    """The calls with an unknown outcome, by their ids."""
    return [each.id for each in response.unknown_calls]


@pytest.mark.parametrize("code", [GATHER, HANDED_OVER])
@pytest.mark.parametrize("decision", [{"outer.1": False}, {"outer.0": True, "outer.1": Deny("no")}])
async def test_a_call_with_functions_inside_is_not_reported_as_not_run(code: str, decision: dict[str, Any]) -> None:
    """A denial of its neighbour ends the code, or a handoff does."""
    bank = Bank(code)
    response = await bank.decided(Answer(decision))
    assert told(response).endswith(STOPPED)
    assert "not run, because" not in told(response)
    assert names(response) == ["outer.0"]
    assert bank.notes == ["charge 700"]


async def test_a_neighbour_that_has_not_started_is_still_not_run() -> None:
    """Each call has its own note."""
    bank = Bank("await asyncio.gather(helper(request='x'), pay(amount=5), pay(amount=6))")
    response = await bank.decided(Answer({"outer.1": False}))
    assert "[not run, because the code ended without them: pay (outer.2)]" in told(response)
    assert told(response).endswith(STOPPED)
    assert names(response) == ["outer.0"]


async def test_code_that_fails_names_only_calls_that_have_run() -> None:
    """No denied, blocked, invalid or late call; a denied call with functions inside has run. Also in a later run."""
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
        response = await resumed(agent, response, Answer({f"outer.{place}": False}), *earlier, middleware=[guard])
    assert told(response).endswith("[calls that ran before: charge (1)]")
    bank = Bank("try:\n    await helper(request='x')\nexcept PermissionError:\n    pass\n1 / 0")
    response = await bank.decided(Answer({"outer.0": False}))
    assert told(response).endswith("[calls that ran before: helper (1)]")


async def test_a_denied_call_with_functions_inside_is_listed() -> None:
    """The code gets the denial, and the call is listed as outside of code."""
    response = await Bank().decided(Answer({"outer.0": False}))
    assert "PermissionError: stopped: denied by the user, after functions had run inside" in told(response)
    assert names(response) == ["outer.0"]


async def test_a_guard_or_a_budget_that_refuses_the_call_leaves_it_unknown() -> None:
    bank = Bank()
    guard = guard_tool(lambda checked: Block("late") if checked.name == "helper" else None)
    for options in ({"swarm": {"middleware": [guard]}}, {"budget": Budget(tool_calls=1)}):
        response = await bank.decided(Answer({"outer.0": True, "outer.1": True}), **options)
        assert "stopped after functions had run inside, so its outcome is unknown" in told(response)
        assert "outer.0" in names(response)


async def test_a_decision_that_lets_the_call_wait_again_reports_nothing() -> None:
    """The approved neighbour runs, and the call still waits."""
    bank = Bank()
    response = await bank.decided(Answer({"outer.1": True}))
    assert (response.stop, names(response), bank.notes) == ("waiting", [], ["charge 700", "pay 5"])
    response = await bank.decided(Answer({"outer.1": True}), Answer({"outer.0": Answer({"p": True})}))
    assert (told(response), names(response)) == ('["Done.", "paid"]', [])


async def test_other_code_than_its_record_lists_the_call() -> None:
    """With the code, whose outcome is unknown too."""
    bank = Bank()
    response = await bank.swarm().run(bank.agent(), "Go")
    stored = json.loads(json.dumps([USER, *response.messages]))
    inner = stored[1]["waiting"][0]["data"]["messages"][0]["tool_calls"][1]
    inner["function"]["arguments"] = '{"amount": 6}'
    last = await bank.swarm().run(bank.agent(), stored, resume={"outer": True})
    assert names(last) == ["outer.0", "outer"]
    assert bank.notes == ["charge 700"]


async def test_a_cancelled_run_lists_each_call() -> None:
    """The call that runs, the call in which functions had run, and the code."""
    bank = Bank("await asyncio.gather(pay(amount=5), helper(request='x'))")
    response = await bank.swarm(concurrent_tools=False).run(bank.agent(), "Go")
    stored = json.loads(json.dumps([USER, *response.messages]))
    assert [each["name"] for each in response.waiting[0].data["waiting"]] == ["pay", "helper"]
    bank.stops = True
    kept: list[Response] = []

    async def run(scope: anyio.CancelScope) -> None:
        with scope:
            try:
                swarm = bank.swarm(middleware=[bank.noting])
                await swarm.run(bank.agent(), stored, resume={"outer": Answer({"outer.0": True})})
            except BaseException as error:
                kept.append(error.response)  # type: ignore[attr-defined]
                raise

    async with anyio.create_task_group() as group:
        scope = anyio.CancelScope()
        group.start_soon(run, scope)
        await until(lambda: "helper" in bank.waiting and "pay 5" in bank.notes)
        scope.cancel()
    assert sorted(names(kept[0])) == ["outer", "outer.0", "outer.1"]


async def test_code_in_an_agent_tool_reports_to_the_outer_run() -> None:
    """The answer of the inner run does not hide the call."""
    bank = Bank()
    coder = agent_tool(bank.agent())
    agent = Agent(name="Top", instructions="nested", functions=[coder])
    first = await bank.swarm().run(agent, "Go")
    assert (first.stop, names(first)) == ("waiting", [])
    stored = json.loads(json.dumps([USER, *first.messages]))
    decisions = {"n": Answer({"outer": Answer({"outer.1": False})})}
    last = await bank.swarm().run(agent, stored, resume=decisions)
    assert (last.text, names(last)) == ("Done.", ["outer.0"])
    assert bank.notes == ["charge 700"]


async def test_an_agent_tool_reports_the_calls_of_its_run() -> None:
    """Also if the inner run has answered; and a denial around it counts once."""

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
    assert (response.text, names(response)) == ("Done.", ["x"])


# --- kept runs --------------------------------------------------------------------------------------------------------


async def test_a_conversation_lists_the_call() -> None:
    bank = Bank()
    async with MemoryStore() as store:
        chat = Conversation(store, "c", bank.swarm(), agent=bank.agent())
        await chat.run("Go")
        response = await chat.resume({"outer": Answer({"outer.1": False})})
        stored = await chat.load()
    assert names(response) == [each.id for each in stored.unknown_calls] == ["outer.0"]


async def test_the_log_of_a_run_lists_the_call() -> None:
    """Its last entry, and the conversation."""
    bank = Bank()
    async with (
        MemoryStore() as store,
        bank.swarm() as swarm,
        LocalRuns(swarm, store=store, agents=[bank.agent()]) as runs,
    ):
        record = await runs.start(NewRun("ann", "c", [USER]))
        _ = [entry async for entry in Run(runs, record).entries()]
        answers = [CallAnswer("outer", data={"outer.1": False}, run_id=record.id)]
        record = await runs.start(NewRun("ann", "c", answers=answers))
        entries = [entry async for entry in Run(runs, record).entries()]
        stored = await store.load("ann/c")
    assert [each["id"] for each in entries[-1].response["unknown_calls"]] == ["outer.0"]
    assert stored is not None
    assert [each.id for each in stored.unknown_calls] == ["outer.0"]


async def recorded(bank: Bank, before: Any = (), stop: Any = None) -> tuple[Log, Response]:
    """Run with a record."""
    agent, log, maker = bank.agent(), Log(), EntryMaker()
    for entry in (*before, maker.started("r", "c", agent, [USER])):
        log.add(entry)
    recorder = Recorder(
        log, maker, AgentDirectory((agent,)), lambda *_: ConfigurationError(), facts=Facts(before), stop=stop
    )
    return log, await bank.swarm()._run_to_end(RunOptions(agent, [USER], run_id="r"), recorder)


async def test_a_run_that_is_closed_lists_the_call_that_waits() -> None:
    """The process died while the code waited, and the run is only replayed."""
    log, _ = await recorded(Bank())
    waits = next(n for n, entry in enumerate(log.entries) if entry.type == "CallWaiting")
    kept: list[Response] = []
    with anyio.CancelScope() as scope:
        try:
            await recorded(Bank(), log.entries[:waits], stop=scope.cancel)
        except BaseException as error:
            kept.append(error.response)  # type: ignore[attr-defined]
            raise
    assert names(kept[0]) == ["outer.0", "outer"]


async def test_code_that_waits_lists_its_unknown_calls_after_the_death_of_its_process() -> None:
    """The process died after the code had begun to wait, before the end of its run."""

    def late() -> None:
        """Take too long."""

    @tool(approve=True)
    async def gate() -> None:
        """Wait for an approval."""

    code = "try:\n    await late()\nexcept RuntimeError:\n    pass\nawait gate()"
    functions = [tool(timeout=1e-9)(late), gate]
    log, first = await record_of(code, functions)
    waits = next(n for n, entry in enumerate(log.entries) if entry.type == "CallWaiting")
    for end in (waits, waits + 1):
        _, again = await record_of(code, functions, log.entries[:end])
        assert (again.stop, names(again)) == (first.stop, names(first)) == ("waiting", ["outer.0"])


async def test_a_journal_does_not_repeat_a_call_with_functions_inside(tmp_path: Path) -> None:
    """The process dies after the call has waited, before its item has ended."""
    bank = Bank("await asyncio.gather(helper(request='x'), dies())")

    async def dies() -> str:
        """Die, after the call beside it has charged and waits."""
        await until(lambda: "helper" in bank.waiting)
        raise Died

    (run_code,) = bank.agent().functions
    agent = Agent(name="Coder", instructions="coder", functions=[code_tool(*run_code._inside, dies)])
    with pytest.raises(Died):
        await rerun(tmp_path / "journal", ScriptedModel(bank.answer).client(), agent, middleware=[bank.noting])
    response = await rerun(tmp_path / "journal", ScriptedModel(bank.answer).client(), agent)
    assert bank.notes == ["charge 700"]
    assert names(response) == ["outer.0", "outer.1"]
