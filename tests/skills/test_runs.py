"""Runs of agents with skills: what is sent, and skills beside other features."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, TypedDict

import pytest

from aswarm import Agent, AsyncSwarm, Reply, Resource, Swarm, tool
from aswarm.conversations import SQLiteStore, without_tool_results
from aswarm.guards import Block, guard_tool
from aswarm.middleware import clip_results, keep_prefix, spill_results
from aswarm.skills import Skills, skills
from aswarm.testing import ScriptedModel, call, check_history
from tests.support.skills.folders import write_skill

SCRIPT = "total = sum([await price(item) for item in ['tea', 'jam']])\nprint(total)"


async def ring() -> str:
    """Ring."""
    return "rung"


@pytest.fixture
def read(tmp_path: Path) -> Skills:
    """A skill with a script, and another one."""
    write_skill(tmp_path / "bill", files={"scripts/total.py": SCRIPT}, body="Run scripts/total.py.")
    write_skill(tmp_path / "zip")
    return skills(tmp_path)


def contents(messages: list[dict[str, Any]], role: str) -> list[str]:
    return [message["content"] for message in messages if message["role"] == role]


def assert_each_request_extends_the_last(model: ScriptedModel) -> None:
    """Compare tools and messages, which stand in this order in the prompt."""
    bodies = [request.body for request in model.requests]
    for before, after in pairwise(bodies):
        assert json.dumps(before["tools"]) == json.dumps(after["tools"])
        assert after["messages"][: len(before["messages"])] == before["messages"]


async def test_the_model_loads_a_skill_and_reads_a_file(read: Skills) -> None:
    """Names and descriptions are in the instructions; the rest is in the history only after it was asked for."""
    model = ScriptedModel(
        [
            [call("load_skill", name="bill"), call("read_skill_file", name="bill", path="none")],
            call("read_skill_file", name="bill", path="scripts/total.py"),
            "5 euros.",
            "Bye.",
        ]
    )
    agent = read.add_to(Agent(instructions="You help.", functions=[ring]))
    async with AsyncSwarm(model.client()) as swarm:
        first = await swarm.run(agent, "The bill, please.")
        await swarm.run(agent, [{"role": "user", "content": "The bill, please."}, *first.messages, user("Thanks.")])
    assert contents(model.requests[0].messages, "system") == [f"You help.\n\n{read.instructions}"]
    assert read.instructions.endswith("The skills are:\n- bill: Task of bill.\n- zip: Task of zip.")
    assert model.requests[0].tool_names == ["ring", "load_skill", "read_skill_file"]
    loaded, missing, script = contents(first.messages, "tool")
    assert loaded == "Run scripts/total.py.\n\nFiles, for read_skill_file:\n- scripts/total.py"
    assert missing == "The skill 'bill' has no file 'none'. load_skill lists its files."
    assert script == SCRIPT
    assert "scripts/total.py" not in str(model.requests[0].body)
    assert_each_request_extends_the_last(model)
    check_history([user("The bill, please."), *first.messages])


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def test_another_process_makes_the_same_text(read: Skills, tmp_path: Path) -> None:
    """The prompt does not depend on the order in which a file system lists the folders."""
    other = tmp_path / "copy"
    for name in ("zip", "bill"):
        write_skill(other / name)
    assert skills(other / "zip", other / "bill").instructions == read.instructions


def test_added_twice_is_added_once(read: Skills) -> None:
    """A copy of the agent has the skills too."""
    assert repr(read) == "Skills('bill', 'zip')"
    agent = read.add_to(Agent(instructions="You help."))
    before = copy.deepcopy(agent.instructions), list(agent.functions)
    assert read.add_to(agent) is agent
    assert (agent.instructions, agent.functions) == before
    assert [each.name for each in copy.deepcopy(agent).functions] == ["load_skill", "read_skill_file"]


class Shop(TypedDict):
    name: str


def plain(context_variables: dict[str, Any]) -> str:
    return f"You work for {context_variables['name']}."


async def asynchronous(context_variables: dict[str, Any]) -> str:
    return f"You work for {context_variables['name']}."


async def typed(context_variables: Shop, suffix: Resource[str]) -> str:
    return f"You work for {context_variables['name']}{suffix}"


class Callable_:
    async def __call__(self, context_variables: dict[str, Any]) -> str:
        return f"You work for {context_variables['name']}."


def without_parameters() -> str:
    return "You work for Ann."


def nothing() -> str:
    return ""


@pytest.mark.parametrize("function", [plain, asynchronous, typed, Callable_(), without_parameters, nothing])
async def test_instructions_from_a_function(function: Callable[..., Any], read: Skills) -> None:
    """The text of the skills stands before the text of the function, in each turn."""
    model = ScriptedModel([call("load_skill", name="zip"), "Done."])
    async with AsyncSwarm(model.client(), resources={"suffix": "."}) as swarm:
        await swarm.run(read.add_to(Agent(instructions=function)), "Go", {"name": "Ann"})
    own = "" if function is nothing else "\n\nYou work for Ann."
    for request in model.requests:
        assert contents(request.messages, "system") == [read.instructions + own]


async def test_without_instructions_the_skills_are_the_instructions(read: Skills) -> None:
    """An agent may have no text of its own."""
    assert read.add_to(Agent(instructions=None)).instructions == read.instructions


async def test_each_agent_has_its_own_skills_behind_one_prefix(read: Skills, tmp_path: Path) -> None:
    """With `keep_prefix`, a handoff keeps the prompt, and an agent loads only skills of its own folder."""
    write_skill(tmp_path / "more/visa")
    travel = skills(tmp_path / "more").add_to(Agent(name="Travel", instructions="You book."))
    desk = read.add_to(Agent(name="Desk", instructions="You help.", functions=[travel]))
    model = ScriptedModel(
        [
            call("load_skill", name="bill"),
            call("transfer_to_travel"),
            [call("load_skill", name="visa"), call("load_skill", name="bill")],
            "Done.",
        ]
    )
    async with AsyncSwarm(model.client(), middleware=[keep_prefix(desk)]) as swarm:
        response = await swarm.run(desk, "A trip, please.")
    assert contents(response.messages, "tool")[2:] == ["Do it.", "There is no skill 'bill'. The skills are: visa."]
    assert_each_request_extends_the_last(model)


async def test_a_handoff_leaves_the_functions_with_their_agent(read: Skills) -> None:
    """Another agent without skills cannot load one."""
    other = Agent(name="Other", functions=[ring])
    model = ScriptedModel([call("transfer_to_other"), call("load_skill", name="zip"), "Done."])
    async with AsyncSwarm(model.client()) as swarm:
        response = await swarm.run(read.add_to(Agent(name="Desk", functions=[other])), "Go")
    assert contents(response.messages, "tool")[1] == "Error: Tool load_skill not found. Tools: ring."


async def test_an_open_call_is_continued_with_the_skills_of_the_next_process(tmp_path: Path) -> None:
    """A history that ends with open calls of skills is resumed elsewhere; a skill that is gone is an error for the model."""
    write_skill(tmp_path / "bill", body="Old.")
    write_skill(tmp_path / "zip")
    model = ScriptedModel([[call("load_skill", name="bill"), call("load_skill", name="zip")], "Done."])
    async with SQLiteStore(tmp_path / "chats.sqlite") as store, AsyncSwarm(model.client()) as swarm:
        agent = skills(tmp_path / "bill", tmp_path / "zip").add_to(Agent())
        response = await store.conversation("ann", swarm, agent=agent).run("Go", execute_tools=False)
        assert response.stop == "tool_calls"
    write_skill(tmp_path / "bill", body="New.")
    async with SQLiteStore(tmp_path / "chats.sqlite") as store, AsyncSwarm(model.client()) as swarm:
        agent = skills(tmp_path / "bill").add_to(Agent())
        response = await store.conversation("ann", swarm, agent=agent).resume(True)
    assert contents(response.messages, "tool") == ["New.", "There is no skill 'zip'. The skills are: bill."]
    assert response.text == "Done."


async def test_guards_and_trimming_see_calls_of_skills(read: Skills) -> None:
    """The functions are usual functions: a guard may refuse a skill, and a trimmed history may load it again."""
    model = ScriptedModel([call("load_skill", name="zip"), call("load_skill", name="bill"), "Done."] * 2)

    def only_bill(call: Any) -> Block | None:
        return None if call.arguments["name"] == "bill" else Block("not now")

    agent = read.add_to(Agent(history=without_tool_results(keep=1)))
    async with AsyncSwarm(model.client(), middleware=[clip_results(100), guard_tool(only_bill)]) as swarm:
        first = await swarm.run(agent, "Go")
        second = await swarm.run(agent, [user("Go"), *first.messages, user("Again")])
    for response in (first, second):
        assert contents(response.messages, "tool")[0] == "not run: not now"
        assert contents(response.messages, "tool")[1].startswith("Run scripts/total.py.")


async def test_a_skill_that_is_spilled_can_be_read_to_its_end(tmp_path: Path) -> None:
    """With `spill_results`, a fork in another process reads the rest of a skill, although the folder has changed."""
    lines = [f"Step {number}." for number in range(300)]
    text = "\n".join(lines)
    folder = write_skill(tmp_path / "long", body=text)
    spill = spill_results(500)
    model = ScriptedModel(
        [call("load_skill", name="long"), "Read on.", call("search_result", text=lines[150]), "Done."]
    )
    async with SQLiteStore(tmp_path / "chats.sqlite") as store, AsyncSwarm(model.client(), middleware=[spill]) as swarm:
        first = await store.conversation("ann", swarm, agent=skills(folder).add_to(Agent())).run("Go")
        await store.fork("ann", "ben")
    (head,) = contents(first.messages, "tool")
    assert len(head) <= 500
    assert lines[150] not in head
    write_skill(folder, body="Another text.")
    async with SQLiteStore(tmp_path / "chats.sqlite") as store, AsyncSwarm(model.client(), middleware=[spill]) as swarm:
        second = await store.conversation("ben", swarm, agent=skills(folder).add_to(Agent())).run("Go on")
    assert f"{lines[149]} {lines[150]} {lines[151]}" in contents(second.messages, "tool")[0]


async def test_a_script_of_a_skill_runs_in_code_mode(read: Skills) -> None:
    """The program decides what runs a script: here the sandbox, whose calls are calls of the run, with their approvals."""
    from aswarm.code import code_tool

    asked: list[str] = []

    @tool(approve=lambda arguments, _: arguments["item"] == "jam" and "jam is dear")
    async def price(item: str) -> int:
        """Return the price of an item."""
        asked.append(item)
        return len(item)

    model = ScriptedModel(
        [
            call("read_skill_file", name="bill", path="scripts/total.py"),
            call("run_code", call_id="run", code=SCRIPT),
            "6 euros.",
        ]
    )
    agent = read.add_to(Agent(functions=[code_tool(price)]))
    async with AsyncSwarm(model.client()) as swarm:
        waiting = await swarm.run(agent, "Go")
        assert (asked, waiting.waiting[0].reason) == (["tea"], "price jam is dear")
        (inside,) = waiting.waiting[0].data["waiting"]
        history = [user("Go"), *waiting.messages]
        done = await swarm.run(agent, history, resume={"run": Reply({inside["id"]: True})})
    assert asked == ["tea", "jam"]
    assert contents(done.messages, "tool") == ["6"]


async def test_a_function_of_the_program_gets_the_text_of_a_script(read: Skills, tmp_path: Path) -> None:
    """`Skills.read` is for a runner of scripts: its arguments may come from a model."""

    @tool(approve=True)
    async def run_script(skill: str, path: str) -> str:
        """Run a script of a skill."""
        return f"ran {len(read.read(skill, path))} characters"

    made = [
        call("run_script", call_id=path, skill="bill", path=path) for path in ("scripts/total.py", "../zip/SKILL.md")
    ]
    model = ScriptedModel([made, "Done."])
    agent = read.add_to(Agent(functions=[run_script]))
    async with AsyncSwarm(model.client()) as swarm:
        waiting = await swarm.run(agent, "Go")
        done = await swarm.run(
            agent, [user("Go"), *waiting.messages], resume=dict.fromkeys([each.id for each in made], True)
        )
    ran, refused = contents(done.messages, "tool")
    assert ran == f"ran {len(SCRIPT)} characters"
    assert refused.startswith("The skill 'bill' has no file '../zip/SKILL.md'.")


def test_a_blocking_swarm_has_skills_too(read: Skills) -> None:
    """`Swarm` calls the functions on its event loop."""
    model = ScriptedModel([call("load_skill", name="zip"), "Done."])
    with Swarm(model.client()) as swarm:
        response = swarm.run(read.add_to(Agent(instructions=plain)), "Go", {"name": "Ann"})
    assert contents(response.messages, "tool") == ["Do it."]
