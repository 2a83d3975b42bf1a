"""MCP, the Model Context Protocol: tools of other programs as functions of an agent, and agents as tools of other programs.

    async with MCPServer("https://example.com/mcp", prefix="github_", approve={"delete_*"}) as github:
        agent = Agent(functions=[*github.functions])
        response = await swarm.run(agent, "Which issues are open?")

    async with MCPServer(StdioServerParameters(command="npx", args=["-y", "a-server"])) as files: ...
    with MCPServer(...) as github: Swarm().run(Agent(functions=[*github.functions]), "...")

    serve_agents(triage, swarm).streamable_http_app()   # the other way round: a server of the SDK, one tool for each agent

This room decides how a tool of a server becomes a function, what a call sends, what the model is told of a result, when a
lost session is opened again, and when a lost call is made again. It never decides how a run goes: the loop knows tools only.
It never repeats a call that may have run, unless the server says that repeating does no harm.

It needs the package `mcp`, which the extra `mcp` installs. It speaks stdio and streamable HTTP, the protocol of 2026-07-28,
and the sessions before it.
"""

from aswarm import _public
from aswarm._errors import ConfigurationError
from aswarm._text import how_to_install

try:
    from ._server import MCPServer
    from ._serving import serve_agents
except ImportError as error:
    raise ConfigurationError(f"aswarm.mcp needs the package mcp: {how_to_install('mcp')} ({error})") from error

__all__ = ["MCPServer", "serve_agents"]

_public.publish(globals())
