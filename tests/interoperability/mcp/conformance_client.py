"""The program that the conformance suite of the protocol runs as a client: our `MCPServer`, driven by a scripted model.

python conformance_client.py URL        with MCP_CONFORMANCE_SCENARIO in the environment, and MCP_CONFORMANCE_CONTEXT
                                        if the scenario wants certain calls
"""

from __future__ import annotations

import json
import os
import sys

import anyio

from aswarm import Agent, AsyncSwarm
from aswarm.mcp import MCPServer
from aswarm.testing import ScriptedModel, call

ARGUMENTS = {"add_numbers": {"a": 2, "b": 3}}


async def main(url: str) -> None:
    """Open the server, and call each of its tools in a run; the answer to a form is its own values."""
    async with MCPServer(url, on_input=lambda *_: True, timeout=30) as server:
        names = [function.__name__ for function in server.functions]
        print(os.environ.get("MCP_CONFORMANCE_SCENARIO"), names)
        context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
        wanted = [(each["name"], each["arguments"]) for each in context.get("toolCalls", ())]
        calls = wanted or [(name, ARGUMENTS.get(name, {})) for name in names]
        if calls:
            script = [*([call(name, **arguments)] for name, arguments in calls), "Done."]
            async with AsyncSwarm(ScriptedModel(script).client()) as swarm:
                response = await swarm.run(Agent(functions=[*server.functions]), "Go")
            print([message["content"] for message in response.messages if message["role"] == "tool"])


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], backend=os.environ.get("BACKEND", "asyncio"))
