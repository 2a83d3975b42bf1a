"""A run as the code of a test, which is run here."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from aswarm import Agent, AsyncSwarm, Hold, current_call, tool
from aswarm.conversations import MemoryStore
from aswarm.runs import CallAnswer, Entry, LocalRuns, NewRun, Run, show_everything
from aswarm.serve._run_as_test import run_as_test
from aswarm.testing import ScriptedAnswer, ScriptedModel, call
from tests.support.serve.served import served

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
boss = Agent(name="class", functions=[clerk])  # a name that Python has taken


async def logs_of(
    script: Any, *asked: str | CallAnswer, agent: Agent = clerk, **more: Any
) -> tuple[list[list[Entry]], list[Any]]:
    """The logs of runs that follow each other in one conversation, and its messages before the last one."""
    logs, before = [], list[Any]()
    store = MemoryStore()
    async with AsyncSwarm(ScriptedModel(script).client()) as swarm, LocalRuns(swarm, store=store, agents=agent) as runs:
        for each in asked:
            stored = await store.load("ann/c")
            before = [] if stored is None else stored.messages
            said = (
                {"answers": [replace(each, run_id=logs[-1][0].fields["run_id"])]}
                if isinstance(each, CallAnswer)
                else {"messages": [{"role": "user", "content": each}]}
            )
            run = Run(runs, await runs.start(NewRun("ann", "c", **{**said, **more})))
            logs.append([entry async for entry in run.entries()])
    return logs, before


async def passes(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test that the code has."""
    agents = ModuleType("my_agents")
    agents.the_clerk, agents.agent = clerk, boss  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_agents", agents)
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
async def test_a_run_becomes_a_test_that_passes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test scripts what the model has said, and asserts the calls, the agent and the answer."""
    [log], before = await logs_of(SCRIPTS[name], "What is new?")
    code = run_as_test(log, before)
    assert "async def test_what_is_new():" in code
    await passes(code, monkeypatch)


async def test_a_handoff_a_history_and_context_variables_are_in_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test begins with the messages before the run, and with the context variables that it began with."""
    script = ["Hello.", call("transfer_to_the_clerk"), "I am the clerk."]
    logs, before = await logs_of(script, "Hi!", "!", agent=boss, context_variables={"customer": "Ada"})
    code = run_as_test(logs[1], before)
    assert "from my_agents import agent  # correct this line: no module has the agent 'class'" in code
    assert "async def test_this_run():" in code
    assert "context_variables={'customer': 'Ada'}" in code
    assert "response.agent.name == 'The Clerk'" in code
    await passes(code, monkeypatch)


DECISIONS = {
    "approve": (call("erase", call_id="c", name="a"), CallAnswer("c", approve=True), "True"),
    "edit": (
        call("erase", call_id="c", name="a"),
        CallAnswer("c", approve=True, arguments={"name": "b"}),
        "{'approve': {'arguments': {'name': 'b'}}}",
    ),
    "deny": (call("erase", call_id="c", name="a"), CallAnswer("c", approve=False, reason="no"), "{'deny': 'no'}"),
    "answer": (call("ask", call_id="c"), CallAnswer("c", data="both"), "{'answer': 'both'}"),
}


@pytest.mark.parametrize("name", DECISIONS)
async def test_decisions_are_in_the_test(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that waits, and the run that continues it, are tests that pass; the second one has the decision."""
    step, answer, literal = DECISIONS[name]
    logs, before = await logs_of([step, "Done."], "Erase it.", answer)
    await passes(run_as_test(logs[0], []), monkeypatch)
    code = run_as_test(logs[1], before)
    assert f"resume={{'0': {literal}}}" in code
    await passes(code, monkeypatch)


async def test_other_forms_of_decisions_are_kept() -> None:
    """A decision in its JSON form, and the True of a run that resumes, stay as they are."""
    [first, second], before = await logs_of(
        [call("erase", call_id="c", name="a"), "Done."], "Erase it.", CallAnswer("c", approve=True)
    )
    started = second[0]
    for resume, literal in (
        ({"c": {"deny": "late"}}, "{'c': {'deny': 'late'}}"),
        ({"c": False}, "{'c': False}"),
        (True, "True"),
        (False, "True"),
    ):
        changed = Entry(0, started.at_ms, "RunStarted", {**started.fields, "resume": resume})
        assert f", resume={literal})" in run_as_test([changed, *second[1:]], before)
    assert "resume" not in run_as_test(first, [])


async def test_the_route_has_the_test_of_a_run() -> None:
    """`GET /runs/{r}/test`, with the messages before the run; other users get 404."""
    async with served(["Hello.", "Again."], page=True, show=show_everything) as it:
        for text in ("Hi!", "And now?"):
            run = await it.say(text)
            await it.ended(run)
            assert (await it.ann.get(f"/runs/{run}/test")).status_code == 200
        code = (await it.ann.get(f"/runs/{run}/test")).json()["test"]
        assert "'content': 'Hi!'" in code
        assert "test_and_now" in code
        assert (await it.bob.get(f"/runs/{run}/test")).status_code == 404


async def test_readers_who_may_not_see_everything_have_no_test_of_a_run() -> None:
    """It has the context variables and the texts of exceptions, which `show_answers` hides."""
    async with served(["Hello."], page=True) as it:
        run = await it.say("Hi!")
        await it.ended(run)
        assert (await it.ann.get(f"/runs/{run}/test")).status_code == 404
        assert (await it.ann.get("/graph")).json()["tests"] is False  # the page has no button


async def test_the_agent_is_imported_from_the_module_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the name of the program's file if it is the program itself; an agent in no module leaves a line to be corrected."""
    [log], before = await logs_of(["Hello."], "Hi!")
    assert f"from {__name__} import clerk  # the agent 'The Clerk'\n" in run_as_test(log, before, clerk)
    await passes(run_as_test(log, before, clerk), monkeypatch)
    program = ModuleType("__main__")
    program.triage = elsewhere = Agent(name="The Clerk")  # type: ignore[attr-defined]
    program.__file__ = "/srv/shop.py"
    monkeypatch.setitem(sys.modules, "__main__", program)
    assert "from shop import triage  # the agent" in run_as_test(log, before, elsewhere)
    monkeypatch.undo()
    assert "from my_agents import the_clerk  # correct this line: " in run_as_test(log, before, elsewhere)
