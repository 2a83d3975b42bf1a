"""The program that the conformance suite tests as a server: two agents with a scripted model, over HTTP.

python conformance_server.py PORT
"""

from __future__ import annotations

import sys

import uvicorn

from aswarm import Agent, AsyncSwarm
from aswarm.mcp import serve_agents
from aswarm.testing import ScriptedModel

orders = Agent(name="Orders")
triage = Agent(name="Triage", functions=[orders])

if __name__ == "__main__":
    swarm = AsyncSwarm(ScriptedModel(lambda _: "It has left.").client())
    uvicorn.run(serve_agents(swarm, agents=triage).streamable_http_app(), port=int(sys.argv[1]), log_level="warning")
