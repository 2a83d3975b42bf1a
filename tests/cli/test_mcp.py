"""`--mcp` of `run`, `chat` and `serve`, and `aswarm mcp`: servers of tools, and agents as one."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from aswarm.testing import ScriptedAnswer, call
from tests.support.cli.cli_runs import environment, invoke, model
from tests.support.cli.cli_server import served_here

pytest.importorskip("mcp")  # it does not run on the oldest versions that aswarm promises

from mcp import Client, StdioServerParameters

from tests.support.mcp.mcp_servers import stdio


@pytest.fixture
def tools(folder: Path) -> str:
    """A command that starts a server of tools."""
    (folder / "calls.txt").touch()
    started = stdio(folder / "calls.txt")
    return shlex.join([started.command, *started.args])


@pytest.mark.processes
def test_run_gives_the_agent_the_tools_of_a_server(tools: str) -> None:
    """The tools of the server are offered with the functions of the agent, and removed after the command."""
    for _ in range(2):  # remaining tools would have the names of the tools of the second run
        with model(call("echo", text="from afar"), "Done.") as server:
            result = invoke("run", "agents:triage", "Go", "--mcp", tools, server=server)
        assert (result.exit_code, result.stdout) == (0, "Done.\n"), result.stderr
        answers = [message["content"] for message in server.requests[1]["messages"] if message["role"] == "tool"]
        assert answers == ["from afar"]


@pytest.mark.processes
@pytest.mark.parametrize("kept", [(), ("--store", "chats.sqlite", "--conversation", "ann")], ids=["memory", "a store"])
def test_chat_gives_the_agent_the_tools_of_a_server(tools: str, kept: tuple[str, ...]) -> None:
    """The tools of the server are offered in the whole chat."""
    with model(call("echo", text="from afar"), "Done.") as server:
        result = invoke("chat", "agents:triage", "--mcp", tools, *kept, server=server, stdin="Go\n")
    assert result.exit_code == 0
    assert "from afar" in str(server.requests[1]["messages"])


@pytest.mark.processes
@pytest.mark.parametrize("kept", [(), ("--store", "chats.sqlite")], ids=["memory", "a store"])
def test_chat_sends_a_prompt_of_a_server(tools: str, kept: tuple[str, ...]) -> None:
    """The user sees it first; a store keeps it as a message of the user."""
    with model("Hello!") as server:
        result = invoke(
            "chat", "agents:triage", "--mcp", tools, *kept, server=server, stdin="/prompt\n/prompt 1\nyes\n/history\n"
        )
    assert result.exit_code == 0
    assert (result.stdout + result.stderr).index("/prompt 1 Hello") < (result.stdout + result.stderr).index(
        "Send this message?"
    )
    assert [each["messages"][-1]["content"] for each in server.requests] == ["Say hello."]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("given", "text"),
    [
        ('npx "a', "expected a URL that starts with"),
        (" ", "expected a URL that starts with"),
        ("no-such-program-7", "cannot be opened"),
        ("http://127.0.0.1:9/mcp", "cannot be opened"),
    ],
)
def test_a_server_that_cannot_be_opened_is_named(given: str, text: str) -> None:
    """A server that cannot be opened is a usage error before the first request."""
    with model() as server:
        result = invoke("run", "agents:triage", "Go", "--mcp", given, server=server)
    assert result.exit_code == 2
    assert text in result.stderr


@pytest.mark.parametrize("arguments", [("run", "agents:triage", "Go", "--mcp", "x"), ("mcp", "agents:triage")])
def test_the_error_names_the_missing_extra(monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]) -> None:
    """Without the SDK, the error names the package and the extra."""
    for name in [name for name in sys.modules if name.startswith("aswarm.mcp")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mcp", None)
    with model() as server:
        result = invoke(*arguments, server=server)
    assert result.exit_code == 2
    assert 'aswarm.mcp needs the package mcp: install the extra "mcp"' in result.stderr


@pytest.mark.processes
@pytest.mark.slow
def test_mcp_serves_agents_over_stdio() -> None:
    """A client of the SDK can call the agents over stdio."""

    async def ask(started: StdioServerParameters) -> tuple[list[str], Any]:
        async with Client(started) as client:
            names = [tool.name for tool in (await client.list_tools()).tools]
            return names, await client.call_tool("triage", {"request": "Where is order 7?"})

    with model(call("transfer_to_orders"), ScriptedAnswer("It left.")) as server:
        variables = {**environment(server), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        arguments = ["-m", "aswarm", "mcp", "agents:triage", "-m", "big"]
        names, result = anyio.run(ask, StdioServerParameters(command=sys.executable, args=arguments, env=variables))
    assert names == ["triage", "orders"]
    assert (result.is_error, result.content[0].text) == (False, "It left.")
    assert {body["model"] for body in server.requests} == {"big"}


def test_mcp_over_stdio_stops_with_its_client() -> None:
    """The command succeeds at the end of stdin."""
    with model() as server:
        result = invoke("mcp", "agents:triage", server=server, stdin=b"")
    assert (result.exit_code, result.stdout) == (0, "")


def test_mcp_serves_agents_over_http_until_ctrl_c() -> None:
    """With --port the agents are served at a printed URL, until Ctrl-C."""
    answers: list[str] = []

    async def ask(url: str) -> None:
        async with Client(url) as client:
            answers.append(str((await client.call_tool("triage", {"request": "Hello"})).content))

    with model("Good evening.") as server:
        command = ("mcp", "agents:triage")
        result = served_here(*command, ask=lambda page: anyio.run(ask, f"{page.base_url}/mcp"), server=server)
    assert result.exit_code == 130
    assert re.search(r"http://127.0.0.1:\d+/mcp", result.stderr)
    assert "Good evening." in answers[0]


@pytest.mark.processes
def test_serve_gives_its_first_agent_the_tools_of_a_server(tools: str) -> None:
    """The tools of the server are open as long as the service, and the page has its prompts. `--model` is the model of all agents."""
    body = {"model": "Triage", "messages": [{"role": "user", "content": "Go"}]}
    with model(call("echo", text="from afar"), "Done.") as server:
        command = ("serve", "agents:triage", "--mcp", tools, "-m", "another")

        def visit(page: httpx.Client) -> None:
            page.post("v1/chat/completions", json=body)
            assert [each["title"] for each in page.get("prompts").json()["prompts"]] == ["Hello"]

        served_here(*command, ask=visit, server=server)
    assert "from afar" in str(server.requests[1:])
    assert [request["model"] for request in server.requests] == ["another"] * 2
