"""`--mcp` of `run`, `chat` and `serve`, and `aswarm mcp`: servers of tools, and agents as one."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from aswarm.testing import ScriptedAnswer, call
from tests.support.cli.cli_runs import AGENTS, environment, invoke, model

pytest.importorskip("mcp")  # it does not run on the oldest versions that aswarm promises

from mcp import Client, StdioServerParameters

from tests.support.mcp.mcp_servers import stdio


@pytest.fixture(autouse=True)
def project(folder: Path) -> None:
    """A module `agents` in the current directory."""
    (folder / "agents.py").write_text(AGENTS, encoding="utf-8")


@pytest.fixture
def tools(folder: Path) -> str:
    """A command that starts a server of tools."""
    (folder / "calls.txt").touch()
    started = stdio(folder / "calls.txt")
    return shlex.join([started.command, *started.args])


@pytest.mark.processes
def test_run_gives_the_agent_the_tools_of_a_server(tools: str) -> None:
    """They are offered beside its own functions, called, and gone after the command."""
    for _ in range(2):  # tools that were left would clash with those of the second run
        with model(call("echo", text="from afar"), "Done.") as server:
            result = invoke("run", "agents:triage", "Go", "--mcp", tools, server=server)
        assert (result.exit_code, result.stdout) == (0, "Done.\n"), result.stderr
        told = [message["content"] for message in server.requests[1]["messages"] if message["role"] == "tool"]
        assert told == ["from afar"]


@pytest.mark.processes
@pytest.mark.parametrize("kept", [(), ("--store", "chats.sqlite", "--conversation", "ann")], ids=["memory", "a store"])
def test_chat_gives_the_agent_the_tools_of_a_server(tools: str, kept: tuple[str, ...]) -> None:
    """For the whole conversation."""
    with model(call("echo", text="from afar"), "Done.") as server:
        result = invoke("chat", "agents:triage", "--mcp", tools, *kept, server=server, stdin="Go\n")
    assert result.exit_code == 0
    assert "from afar" in str(server.requests[1]["messages"])


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
    """One line, and exit code 2; no question is asked."""
    with model() as server:
        result = invoke("run", "agents:triage", "Go", "--mcp", given, server=server)
    assert result.exit_code == 2
    assert text in result.stderr


@pytest.mark.parametrize("arguments", [("run", "agents:triage", "Go", "--mcp", "x"), ("mcp", "agents:triage")])
def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]) -> None:
    """Without the SDK, the error says what to install."""
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
    """A client of the SDK starts the command; what functions print does not disturb it."""

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


@pytest.mark.processes
@pytest.mark.heavy
def test_mcp_over_stdio_ends_with_ctrl_c(folder: Path) -> None:
    """Also while it waits for its client: a thread that reads stdin does not keep the process."""
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    with model() as server:
        variables = {**os.environ, **environment(server)}
        command = [sys.executable, "-m", "aswarm", "mcp", "agents:triage"]
        with subprocess.Popen(command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{json.dumps(ping)}\n".encode())
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["id"] == 1
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == -signal.SIGINT


def test_mcp_over_stdio_ends_with_its_client() -> None:
    """At the end of stdin the command has done its work."""
    with model() as server:
        result = invoke("mcp", "agents:triage", server=server, stdin=b"")
    assert (result.exit_code, result.stdout) == (0, "")


def test_mcp_serves_agents_over_http_until_ctrl_c() -> None:
    """With --port, at a URL that it prints."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    answers: list[str] = []

    async def ask() -> None:
        async with Client(f"http://127.0.0.1:{port}/mcp") as client:
            answers.append(str((await client.call_tool("triage", {"request": "Hello"})).content))

    thread = threading.Thread(target=_when_it_serves, args=(port, ask))
    with model("Good evening.") as server:
        thread.start()
        result = invoke("mcp", "agents:triage", "--port", str(port), server=server)
        thread.join()
    assert result.exit_code == 130
    assert f"http://127.0.0.1:{port}/mcp" in result.stderr
    assert "Good evening." in answers[0]


@pytest.mark.processes
def test_serve_gives_its_first_agent_the_tools_of_a_server(tools: str) -> None:
    """They are open as long as the service."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    shown: list[str] = []

    async def ask() -> None:
        body = {"model": "Triage", "messages": [{"role": "user", "content": "Go"}]}
        async with httpx.AsyncClient() as client:
            reply = await client.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body, timeout=30)
            shown.append(reply.text)

    thread = threading.Thread(target=_when_it_serves, args=(port, ask))
    with model(call("echo", text="from afar"), "Done.") as server:
        thread.start()
        result = invoke("serve", "agents:triage", "--port", str(port), "--mcp", tools, server=server)
        thread.join()
    assert "from afar" in str(server.requests[1:]), (result.output, shown)


def _when_it_serves(port: int, ask: Any) -> None:
    """Ask, and then press Ctrl-C."""
    try:
        for _ in range(600):
            try:
                httpx.get(f"http://127.0.0.1:{port}/")
            except httpx.TransportError:
                time.sleep(0.1)
            else:
                break
        anyio.run(ask)
    finally:
        os.kill(os.getpid(), signal.SIGINT)
