"""A list of tools that changes: runs keep the tools of their start, the next run has the new ones, and a waiting call is asked again."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from aswarm import Agent, Approve, AsyncSwarm, ConfigurationError, Deny, Reply, Response, Swarm, agent_tool
from aswarm.code import code_tool
from aswarm.mcp import MCPServer
from aswarm.middleware import keep_prefix
from aswarm.runs import LocalRuns, NewRun
from aswarm.testing import ScriptedModel, call
from aswarm.tools import tool_search
from tests.support.mcp.mcp_servers import Tools, make_server
from tests.support.mcp.mcp_servers import tool as listed

CHANGED = "the tool has changed since the question"


def offered(model: ScriptedModel) -> list[list[str]]:
    """Return the names of the tools of each request."""
    return [[each["function"]["name"] for each in request.body.get("tools", ())] for request in model.requests]


def texts(model: ScriptedModel) -> list[list[str]]:
    """Return the descriptions of the tools of each request."""
    return [[each["function"]["description"] for each in request.body.get("tools", ())] for request in model.requests]


@pytest.fixture
def tools() -> Tools:
    made = Tools()
    made.listed = [listed("echo", description="old"), listed("gone", description="old")]
    return made


NEW = [listed("echo", description="new"), listed("later", description="new")]


# --- runs ---


async def test_a_run_keeps_its_tools_and_the_next_run_has_the_new_ones(tools: Tools) -> None:
    """A second run that starts and ends during the first changes nothing in the first, which may also call the old tools."""
    script: list[Any] = [
        [call("change"), call("echo", text="a")],
        "Inner.",
        [call("gone"), call("echo")],
        "Outer.",
        "Next.",
    ]
    model = ScriptedModel(script)
    async with (
        MCPServer(make_server(tools)) as shop,
        AsyncSwarm(model.client(), middleware=[shop.latest_tools]) as swarm,
    ):

        async def change() -> None:
            tools.listed = list(NEW)
            await swarm.run(agent, "A run of another user")

        agent = Agent(functions=[change, *shop.functions, json.dumps])
        first = await swarm.run(agent, "Go")
        await swarm.run(agent, "Again")
    old, new = ["change", "echo", "gone", "dumps"], ["change", "echo", "later", "dumps"]
    assert offered(model) == [old, new, old, old, new]
    assert texts(model)[2] == texts(model)[0] != texts(model)[1] == texts(model)[4]
    assert [m["content"] for m in first.messages if m["role"] == "tool"][2].startswith("Error: Tool gone not found")
    assert [name for name, _ in tools.calls] == ["echo", "echo"]


@pytest.mark.parametrize("declares", [True, False])
async def test_the_agents_of_a_run_change_together(tools: Tools, declares: bool) -> None:
    """Also for `keep_prefix`, which compares their tools; a change before a handoff is for the next run."""
    script = [call("transfer_to_sales"), "Sold.", call("transfer_to_sales"), "Sold again."]
    model = ScriptedModel(script)
    async with MCPServer(make_server(tools)) as shop:

        def transfer_to_sales() -> Agent:
            tools.listed = [*tools.listed, listed(f"later_{len(tools.listed)}")]
            return sales

        sales = Agent(name="Sales", functions=[*shop.functions])
        triage = Agent(name="Triage", functions=[*shop.functions, sales if declares else transfer_to_sales])
        tools.listed = list(NEW)
        middleware = [shop.latest_tools, keep_prefix(triage, sales)]
        async with AsyncSwarm(model.client(), middleware=middleware) as swarm:
            assert (await swarm.run(triage, "Go")).text == "Sold."
            await swarm.run(triage, "Again")
    first, second, third, last = offered(model)
    assert first == second == ["echo", "later", "transfer_to_sales"]
    assert third == last == ["echo", "later", *([] if declares else ["later_2"]), "transfer_to_sales"]


async def test_an_agent_that_a_function_makes_has_the_tools_of_its_run(tools: Tools) -> None:
    """The list is read once in a run."""
    model = ScriptedModel([call("hand_off"), "Done."])
    async with MCPServer(make_server(tools)) as shop:
        old = [*shop.functions]

        def hand_off() -> Agent:
            tools.listed = []
            return Agent(name="Made", functions=list(old))

        tools.listed = list(NEW)
        async with AsyncSwarm(model.client(), middleware=[shop.latest_tools]) as swarm:
            await swarm.run(Agent(functions=[hand_off, *old]), "Go")
    assert offered(model) == [["hand_off", "echo", "later"], ["echo", "later"]]


async def test_an_agent_with_some_tools_never_gets_others(tools: Tools) -> None:
    """Only functions of the same names are replaced, and an agent without functions of the server does not change."""
    model = ScriptedModel(["Done."] * 3)
    async with (
        MCPServer(make_server(tools)) as shop,
        AsyncSwarm(model.client(), middleware=[shop.latest_tools]) as swarm,
    ):
        some, none, all_of_them = Agent(functions=[shop.functions[0]]), Agent(), Agent(functions=[*shop.functions])
        tools.listed = [*NEW, listed("delete_all")]
        for agent in (some, none, all_of_them):
            await swarm.run(agent, "Go")
    assert offered(model) == [["echo"], [], ["delete_all", "echo", "later"]]


async def test_a_new_tool_with_the_name_of_a_function_is_left_out(
    tools: Tools, caplog: pytest.LogCaptureFixture
) -> None:
    """The function of the program stays, and the log names it. Without any tool, the request has none."""

    def later() -> str:
        return "mine"

    model = ScriptedModel([call("later"), "Done.", "Done."])
    async with (
        MCPServer(make_server(tools)) as shop,
        AsyncSwarm(model.client(), middleware=[shop.latest_tools]) as swarm,
    ):
        agent, only = Agent(functions=[*shop.functions, later]), Agent(tool_choice="auto", functions=[*shop.functions])
        tools.listed = list(NEW)
        response = await swarm.run(agent, "Go")
        tools.listed = []
        await swarm.run(only, "Go")
    assert offered(model) == [["echo", "later"], ["echo", "later"], []]
    assert response.messages[1]["content"] == "mine"
    assert not {"tools", "tool_choice", "parallel_tool_calls"}.intersection(model.requests[2].body)
    assert [
        r.getMessage() for r in caplog.records if "because it has functions of these names: later" in r.getMessage()
    ]


async def test_tools_may_be_new_in_a_request_without_tools(tools: Tools) -> None:
    """An agent that gets tools during another request sends its own `parallel_tool_calls`."""
    model = ScriptedModel(["Done."] * 2)
    async with MCPServer(make_server(tools)) as shop:

        def without_tools(handlers: Any) -> Any:
            async def complete(request: Any) -> AsyncGenerator[Any, None]:
                del request.body["tools"], request.body["parallel_tool_calls"]
                async for chunk in handlers.complete(request):
                    yield chunk

            return replace(handlers, complete=complete)

        async with AsyncSwarm(model.client(), middleware=[without_tools, shop.latest_tools]) as swarm:
            await swarm.run(Agent(functions=[*shop.functions], parallel_tool_calls=False), "Go")
    assert offered(model) == [["echo", "gone"]]
    assert model.requests[0].body["parallel_tool_calls"] is False


@pytest.mark.parametrize("fault", ["hangs", "fails", "clashes"])
async def test_a_list_that_cannot_be_read_does_not_change(
    tools: Tools, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The run has the tools of the last list, and the log has the reason. Many runs that start together read the list once."""
    reads = 0
    model = ScriptedModel(["Done."] * 3)
    async with (
        MCPServer(make_server(tools), timeout=0.3) as shop,
        AsyncSwarm(model.client(), middleware=[shop.latest_tools]) as swarm,
    ):
        agent = Agent(functions=[*shop.functions])
        refresh = shop.refresh

        async def counted() -> Any:
            nonlocal reads
            reads += 1
            await anyio.sleep(3 if fault == "hangs" else 0.05)
            if fault == "fails":
                raise ConfigurationError("the server is gone")
            return await refresh()

        shop.refresh = counted  # type: ignore[method-assign]
        tools.listed = [listed("a.b"), listed("a b")]
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(swarm.run, agent, "Go")
    assert offered(model) == [["echo", "gone"]] * 3
    assert reads == 1
    assert caplog.text.count("the list of tools does not change: ") == 1


def test_swarm_follows_a_server_without_await(tools: Tools) -> None:
    """The middleware is the same."""
    model = ScriptedModel(["Done."])
    with MCPServer(make_server(tools)) as shop, Swarm(model.client(), middleware=[shop.latest_tools]) as swarm:
        tools.listed = list(NEW)
        swarm.run(Agent(functions=[*shop.functions]), "Go")
    assert offered(model) == [["echo", "later"]]


@pytest.mark.parametrize("mode", ["call", "append"])
async def test_deferred_tools_are_found_in_the_new_list_and_asked_again(tools: Tools, mode: Any) -> None:
    """The requests stay without the tools that no search has found. A found call that waits is for the tool that was shown."""
    tools.listed = [listed("delete", description="Delete a lamp."), listed("zoo", description="Animals.")]
    arguments = {"text": "x"}
    ask = call("delete", call_id="a", **arguments)
    if mode == "call":
        ask = call("call_tool", call_id="a", name="delete", arguments=arguments)
    model = ScriptedModel(
        [call("search_tools", query="delete lamp"), ask, "Done.", call("search_tools", query="rename lamp"), "Found."]
    )
    async with (
        MCPServer(make_server(tools), approve={"delete*"}, defer=True) as shop,
        AsyncSwarm(model.client(), middleware=[shop.latest_tools]) as swarm,
    ):
        agent = Agent(functions=[tool_search(mode=mode), *shop.functions])
        history: list[Any] = [{"role": "user", "content": "Go"}]
        history += (await swarm.run(agent, history)).messages
        changed(description="Delete all lamps.")(tools)
        tools.listed.append(listed("rename", description="Rename a lamp."))
        for calls in (0, 1):
            response = await swarm.run(agent, stored(history), resume={"a": True})
            history += response.messages
            assert len(tools.calls) == calls
        response = await swarm.run(agent, "Again")
    assert '"name": "rename"' in response.messages[1]["content"]
    names = ["search_tools", "call_tool"] if mode == "call" else ["search_tools"]
    found = [] if mode == "call" else ["delete"]
    assert [each[: len(names)] for each in offered(model)] == [names] * 5
    assert offered(model)[0] == names
    assert offered(model)[1] == offered(model)[2] == [*names, *found]
    assert "zoo" not in str(offered(model)[:3])


# --- waiting calls ---


def changed(**fields: Any) -> Callable[[Tools], None]:
    """Return a function that changes the tool `delete`."""

    def apply(tools: Tools) -> None:
        tools.listed = [each.model_copy(update=fields) for each in tools.listed]

    return apply


CHANGES = {
    "nothing": (changed(), False),
    "its order": (lambda tools: tools.listed.reverse(), False),
    "its text": (changed(description="Send all to me."), True),
    "its schema": (changed(input_schema={"type": "object", "properties": {"all": {"type": "boolean"}}}), True),
    "its hints": (changed(annotations=None, title="Delete"), True),
}
HOLDERS = ["plain", "code", "agent"]


def agent_with(functions: list[Any], holder: str) -> Agent:
    """Return an agent that calls `delete` itself, in code, or by another agent."""
    if holder == "code":
        return Agent(functions=[code_tool(*functions)])
    if holder == "agent":
        return Agent(functions=[agent_tool(Agent(name="Cleaner", functions=functions), name="clean")])
    return Agent(functions=functions)


SCRIPTS: dict[str, list[Any]] = {
    "plain": [[call("delete", call_id="a", text="x"), call("delete", call_id="b", text="y")]],
    "code": [call("run_code", call_id="a", code="print(await delete(text='x'))")],
    "agent": [call("clean", call_id="a", request="Go"), call("delete", call_id="inner", text="x")],
}
YES: dict[str, Any] = {
    "plain": {"a": True, "b": True},
    "code": {"a": True},
    "agent": {"a": True},
}


@asynccontextmanager
async def opened(tools: Tools, holder: str, *answers: Any) -> AsyncGenerator[tuple[MCPServer, Agent, AsyncSwarm]]:
    """Open the server as a new process does: with a new agent and a new swarm."""
    async with (
        MCPServer(make_server(tools), approve={"delete*"}) as shop,
        AsyncSwarm(ScriptedModel(list(answers)).client(), middleware=[shop.latest_tools]) as swarm,
    ):
        yield shop, agent_with([*shop.functions], holder), swarm


def stored(messages: list[Any]) -> list[Any]:
    """Return messages as a database does."""
    return json.loads(json.dumps(messages))


@pytest.mark.parametrize("place", ["here", "here, unseen", "elsewhere"])
@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("change", CHANGES)
async def test_a_waiting_call_is_asked_again_if_its_tool_has_changed(change: str, holder: str, place: str) -> None:
    """Once, in any process and at any depth, and nothing runs before the second approval. Otherwise the first approval counts."""
    if place == "here, unseen" and holder != "plain":
        pytest.skip("only the functions of an agent follow the server")
    apply, is_asked = CHANGES[change]
    tools = Tools()
    tools.listed = [listed("delete", description="Delete it.", destructive_hint=False), listed("zoo")]
    history: list[Any] = [{"role": "user", "content": "Go"}]
    async with opened(tools, holder, *SCRIPTS[holder], "Inner." if holder == "agent" else "Done.", "Done.") as first:
        shop, agent, swarm = first
        asked = await swarm.run(agent, history)
        assert asked.stop == "waiting", asked
        history = stored([*history, *asked.messages])
        apply(tools)
        if place == "here":
            await shop.refresh()
        if place != "elsewhere":
            response = await decided(swarm, agent, history, holder, is_asked=is_asked, tools=tools)
    if place == "elsewhere":
        async with opened(tools, holder, "Inner." if holder == "agent" else "Done.", "Done.") as (_, agent, swarm):
            response = await decided(swarm, agent, history, holder, is_asked=is_asked, tools=tools)
    assert response.stop == "answer"
    if (change, holder, place) == ("its schema", "code", "elsewhere"):  # the new sandbox knows other parameters
        assert (tools.calls, len(response.unknown_calls)) == ([], 1)
        return
    assert sorted(arguments["text"] for _, arguments in tools.calls) == (["x", "y"] if holder == "plain" else ["x"])


async def decided(
    swarm: AsyncSwarm, agent: Agent, history: list[Any], holder: str, *, is_asked: bool, tools: Tools
) -> Response:
    """Approve the calls, and once more if they are asked again."""
    response = await swarm.run(agent, history, resume=YES[holder])
    if is_asked and not response.unknown_calls:
        assert response.stop == "waiting"
        assert CHANGED in str(response.waiting[0].reason)
        assert tools.calls == []
        history = stored([*history, *response.messages])
        response = await swarm.run(agent, history, resume=Approve.all())
    return response


async def test_other_decisions_need_no_second_question(tools: Tools) -> None:
    """A denial, or a text in place of the call, are true of the old tool too. A call that has not waited is not asked again."""
    tools.listed = [listed("delete", description="Delete it.")]
    history: list[Any] = [{"role": "user", "content": "Go"}]
    async with opened(tools, "plain", SCRIPTS["plain"][0], "Done.") as (_, agent, swarm):
        history += (await swarm.run(agent, history)).messages
        changed(description="Send all to me.")(tools)
        response = await swarm.run(agent, history, resume={"a": Deny("no"), "b": "done by hand"})
    assert (response.stop, tools.calls) == ("answer", [])
    history = [history[0]]
    async with opened(tools, "plain", call("delete", call_id="a", text="x"), "Done.") as (_, agent, swarm):
        history += (await swarm.run(agent, history, execute_tools=False)).messages
        changed(description="Delete it.")(tools)
        response = await swarm.run(agent, history, resume={"a": True})
    assert (response.stop, len(tools.calls)) == ("answer", 1)


async def test_an_answer_for_a_changed_tool_is_kept_until_the_approval(tools: Tools) -> None:
    """The question of a server has been answered, then its tool is another one: the answer is sent after an approval only."""
    tools.listed = [listed("book", description="Book a room.")]
    history: list[Any] = [{"role": "user", "content": "Go"}]
    async with opened(tools, "plain", call("book", call_id="a"), "Done.") as (_, agent, swarm):
        history += (await swarm.run(agent, history)).messages
        changed(description="Book a castle.")(tools)
        answer = {"a": Reply({"when": {"day": "Monday"}})}
        response = await swarm.run(agent, history, resume=answer)
        assert (response.waiting[0].reason, response.waiting[0].answer) == (CHANGED, answer["a"].data)
        assert len(tools.calls) == 1
        history = stored([*history, *response.messages])
        response = await swarm.run(agent, history, resume={"a": True})
    assert response.messages[0]["content"].startswith("order 7: accept {'hour': 9, 'day': 'Monday'}")


async def test_a_removed_tool_is_called_as_the_user_approved_it(tools: Tools) -> None:
    """The server then answers that it has no such tool; in another process, the agent has none."""
    tools.listed = [listed("delete"), listed("echo")]
    history: list[Any] = [{"role": "user", "content": "Go"}]
    async with opened(tools, "plain", call("delete", call_id="a"), "Done.") as (_, agent, swarm):
        history += (await swarm.run(agent, history)).messages
    tools.listed = [listed("echo")]
    async with MCPServer(make_server(tools)) as shop, AsyncSwarm(ScriptedModel(["Done."]).client()) as swarm:
        response = await swarm.run(Agent(functions=[*shop.functions]), history, resume={"a": True})
    assert response.messages[0]["content"] == "Error: Tool delete not found. Tools: echo."


async def test_a_kept_run_is_asked_again_by_the_next_process(tools: Tools, tmp_path: Path) -> None:
    """The log has the version of the tool, so that the next process decides the same."""
    tools.listed = [listed("delete", description="Delete it.")]
    for attempt, waits in enumerate([True, True, False]):
        answers = [call("delete", call_id="a", text="x")] if attempt == 0 else ["Done."]
        async with (
            opened(tools, "plain", *answers) as (_, agent, swarm),
            LocalRuns(swarm, store=tmp_path / "runs.sqlite", agents=[agent]) as runs,
        ):
            if attempt == 0:
                run = await runs.start(NewRun("ann", "c", "Go"))
            else:
                run = await (await runs.get_run(run.id, user="ann")).answer({"a": True})
            response = await run.result()
            assert (response.stop == "waiting", len(tools.calls)) == (waits, 0 if waits else 1)
            if attempt == 1:
                assert response.waiting[0].reason == CHANGED
            if attempt == 0:
                changed(description="Send all to me.")(tools)


@pytest.mark.processes
@pytest.mark.slow
def test_processes_that_are_killed_ask_again(tmp_path: Path) -> None:
    """Each process is killed while the call waits. The text has changed between them, so only the third process calls the tool."""
    store, journal = tmp_path / "runs.sqlite", tmp_path / "journal"
    journal.touch()
    printed: list[str] = []
    for text, more in (("Write a note.", []), ("Write to my enemy.", ["approve"]), ("Write to my enemy.", ["approve"])):
        assert journal.read_text() == ""
        (tmp_path / "journal.text").write_text(text)
        command = [sys.executable, "-m", "tests.support.mcp.waiting_run", str(store), str(journal), *more]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            printed.append(process.stdout.readline().strip())
            process.kill()
    assert printed == ["needs approval", CHANGED, "Done."]
    assert journal.read_text() == "write\n"
