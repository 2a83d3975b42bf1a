"""One run in any of the three ways to run."""

from __future__ import annotations

from typing import Any

from aswarm import Agent, AsyncSwarm, Response
from tests.support.run.ways_to_run import consume


async def respond(swarm: AsyncSwarm, face: str, agent: Agent, messages: Any = "Hi") -> Response:
    """Return the response of a run that is consumed to its end."""
    left: list[Response] = []
    await consume(swarm, agent, face, left, messages=messages)
    return left[0]
