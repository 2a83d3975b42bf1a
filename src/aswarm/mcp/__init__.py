"""MCP, the Model Context Protocol: tools of other programs as functions of an agent, and agents as tools of other programs.

    async with MCPServer("https://example.com/mcp", prefix="github_", approve={"delete_*"}) as github:
        agent = Agent(functions=[*github.functions])
        response = await swarm.run(agent, "Which issues are open?")

    async with MCPServer(StdioServerParameters(command="npx", args=["-y", "a-server"])) as files: ...
    with MCPServer(...) as github: Swarm().run(Agent(functions=[*github.functions]), "...")

    serve_agents(swarm, agents=triage).streamable_http_app()   # the other way round: a server of the SDK, one tool for each agent

The package turns the tools of a server into functions, calls them, and returns their results to the model. If a session is
lost, the package opens a new session. If the lost call may have run, the package repeats it only if the server marks the tool
as safe to repeat. For the loop of a run, these functions are tools like all others.

`aswarm.mcp` needs the package `mcp`, which the extra `mcp` installs. It supports stdio and streamable HTTP, with the protocol
of 2026-07-28 and with the earlier versions, which have sessions.
"""

from aswarm._values import public_names as _public
from aswarm._values.errors import ConfigurationError
from aswarm._values.text import how_to_install

try:
    from ._resources import resource_functions
    from ._server import MCPServer
    from ._serving import serve_agents
except ImportError as error:
    raise ConfigurationError(f"aswarm.mcp needs the package mcp: {how_to_install('mcp')} ({error})") from error

__all__ = ["MCPServer", "resource_functions", "serve_agents"]

_public.publish(globals())
