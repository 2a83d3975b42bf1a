"""One turn of a scripted conversation, for tests that check the results of its calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio

from aswarm import Agent, AsyncSwarm, Response
from aswarm.testing import ScriptedModel, check_history


async def run_turn(functions: Sequence[Any], calls: Sequence[Any], *, seconds: float = 120, **options: Any) -> Response:
    """Run one turn with these calls, and then an answer, within so many seconds."""
    context = options.pop("context_variables", None)
    with anyio.fail_after(seconds):
        swarm = AsyncSwarm(client=ScriptedModel([calls, "Done"]).client(), **options)
        response = await swarm.run(Agent(name="A", functions=list(functions)), "Go", context_variables=context)
    check_history(response.messages)
    return response


def contents(response: Response) -> list[str]:
    """Return the contents of the tool messages, in the order of the history."""
    return [message["content"] for message in response.messages if message["role"] == "tool"]
