"""A run as the code of a test, also from the route of the playground. The tests run the code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest

from aswarm import Agent, Hold, current_call, tool
from aswarm.runs import Entry, show_everything
from aswarm.testing import ScriptedAnswer, call, run_as_test
from tests.support.serve.served import Served, served

pytestmark = pytest.mark.asyncio


async def look(number: int, **more: Any) -> str:
    """Look something up."""
    return f"found {number}"


@tool(name="from")
async def from_(name: str) -> str:
    """Has an argument that `call` has too."""
    return f"from {name}"


@tool(approve=True)
async def erase(name: str) -> str:
    """Erase something."""
    return f"{name} is erased"


@tool(may_wait=True)
async def ask() -> str:
    """Ask the user."""
    if current_call().answer is None:
        raise Hold("Which one?")
    return f"the user says {current_call().answer}"


clerk = Agent(name="The Clerk", functions=[look, from_, erase, ask])
IMPORT = f"from {__name__} import clerk  # the agent 'The Clerk'\n"


def shown(script: Any, agent: Agent = clerk, **settings: Any) -> Any:
    """Serve the agent with the page of a developer."""
    return served(script, agents=agent, page=True, show=show_everything, **settings)


async def code_of(it: Served, run: str) -> str:
    """Wait for the end of a run, and return its test."""
    await it.ended(run)
    code: str = (await it.ann.get(f"/runs/{run}/test")).json()["test"]
    return code


async def passes(code: str) -> None:
    """Run the test that the code has."""
    names: dict[str, Any] = {}
    exec(compile(code, "test_run.py", "exec"), names)
    [test] = [value for name, value in names.items() if name.startswith("test_")]
    await test()


SCRIPTS: dict[str, Sequence[Any]] = {
    "an answer": ['It\'s "quoted",\nin two lines.'],
    "a call": [call("look", number=1), "Done."],
    "calls and a text": [ScriptedAnswer("Both.", [call("look", number=1), call("look", number=2)]), "Done."],
    "calls alone": [[call("look", number=1), call("look", number=2)], "Done."],
    "arguments that are no names": [
        [call("from", name="me"), call("look", '{"number": 1, "a-b": 2}'), call("look", "{")],
        "Done.",
    ],
    "a call without arguments": [call("look", ""), "Done."],
}


@pytest.mark.parametrize("name", SCRIPTS)
async def test_a_run_becomes_a_test_that_passes(name: str) -> None:
    """The test scripts the answers of the model, and asserts the calls, the agent and the answer."""
    async with shown(SCRIPTS[name]) as it:
        code = await code_of(it, await it.say("What is new?"))
        assert "async def test_what_is_new():" in code
        assert IMPORT in code
        await passes(code)


async def test_a_handoff_a_history_and_context_variables_are_in_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test starts with the messages before the run, and with its first context variables. Other users get no test."""

    async def context(request: Any) -> dict[str, Any]:
        return {"customer": "Ada"}

    boss = Agent(name="class", functions=[clerk])  # a name of Python; no module has this agent
    agents: Any = ModuleType("my_agents")
    agents.agent = boss
    async with shown(["Hello.", call("transfer_to_the_clerk"), "I am the clerk."], boss, context=context) as it:
        await code_of(it, await it.say())
        run = await it.say("!")
        code = await code_of(it, run)
        assert (await it.bob.get(f"/runs/{run}/test")).status_code == 404
    assert "from my_agents import agent  # correct this line: no module has the agent 'class'" in code
    assert "async def test_this_run():" in code
    assert "'content': 'Hi!'" in code
    assert "context_variables={'customer': 'Ada'}" in code
    assert "response.agent.name == 'The Clerk'" in code
    monkeypatch.setitem(sys.modules, "my_agents", agents)
    await passes(code)


DECISIONS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "approve": (call("erase", call_id="c", name="a"), {"approve": True}, "True"),
    "edit": (
        call("erase", call_id="c", name="a"),
        {"approve": True, "arguments": {"name": "b"}},
        "{'approve': {'arguments': {'name': 'b'}}}",
    ),
    "deny": (call("erase", call_id="c", name="a"), {"approve": False, "reason": "no"}, "{'deny': 'no'}"),
    "answer": (call("ask", call_id="c"), {"content": "both"}, "{'answer': 'both'}"),
    "result": (call("ask", call_id="c"), {}, "'known'"),
}


@pytest.mark.parametrize("name", DECISIONS)
async def test_decisions_are_in_the_test(name: str) -> None:
    """A run that waits, and the run that continues it, are tests that pass; the second test has the decision."""
    step, answer, literal = DECISIONS[name]
    async with shown([step, "Done."]) as it:
        waits = await it.say("Erase it.")
        code = await code_of(it, waits)
        assert "resume" not in code
        await passes(code)
        if answer:
            body = {"answers": [{"call": "c", "run": waits, **answer}]}
            run = (await it.ann.post("/conversations/c/runs", json=body)).json()["run"]
        else:  # a program may give the result of the call
            run = (await (await it.service.get_run(waits, user="ann")).answer({"c": "known"})).id
        code = await code_of(it, run)
        assert f"resume={{'0': {literal}}}" in code
        await passes(code)


FORMS: list[tuple[Any, str]] = [
    ({"c": {"deny": "late"}}, "{'c': {'deny': 'late'}}"),
    ({}, "True"),
    (False, "True"),
    (True, "Approve.all()"),
]


@pytest.mark.parametrize(("recorded", "literal"), FORMS)
async def test_a_recorded_resume_is_in_the_test(recorded: Any, literal: str) -> None:
    """A log of another program may have decisions in JSON form, none, or true, which approved all calls."""
    open_call = {"index": 0, "id": "c", "name": "erase", "arguments": '{"name": "a"}'}
    made = {"type": "function", "id": "c", "function": {"name": "erase", "arguments": '{"name": "a"}'}}
    head = {"role": "assistant", "content": None, "tool_calls": [made]}
    fields = {
        "run_id": "r",
        "agent": "The Clerk",
        "before": 2,
        "messages": [],
        "calls": [open_call],
        "resume": recorded,
    }
    log = [Entry(0, 5, "RunStarted", fields), Entry(1, 6, "RunStopped", {"reason": "cancelled"})]
    code = run_as_test(log, [{"role": "user", "content": "Erase it."}, head], clerk)
    assert f", resume={literal})" in code
    assert ("import Approve, AsyncSwarm\n" in code) is (recorded is True)
    compile(code, "test", "exec")


async def test_readers_who_may_not_see_everything_have_no_test_of_a_run() -> None:
    """A test has the context variables and the texts of exceptions, which `show_answers` hides."""
    async with served(["Hello."], page=True) as it:
        run = await it.say("Hi!")
        await it.ended(run)
        assert (await it.ann.get(f"/runs/{run}/test")).status_code == 404
        assert (await it.ann.get("/graph")).json()["tests"] is False  # the page has no button


async def test_the_agent_is_imported_by_the_name_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent of the main module is imported by the name of the file."""
    program: Any = ModuleType("__main__")
    program.triage, program.__file__ = Agent(name="The Clerk"), "/srv/shop.py"
    async with shown(["Hello."], program.triage) as it:
        run = await it.say()
        monkeypatch.setitem(sys.modules, "__main__", program)
        assert "from shop import triage  # the agent" in await code_of(it, run)
        monkeypatch.undo()
        assert "from my_agents import the_clerk  # correct this line: " in await code_of(it, run)
