"""An agent with a few functions and a scripted model, for runs with a budget."""

from __future__ import annotations

from typing import Any

from aswarm import Agent, AsyncSwarm, Budget, Response
from aswarm.testing import ScriptedModel, call, check_history
from tests.support.rate_limits.timed_models import client_of

USER = {"role": "user", "content": "Go"}


class Shop:
    """An agent with functions, and a swarm with these steps. `ran`: the calls that ran."""

    def __init__(self, *steps: Any, **options: Any) -> None:
        self.ran: list[Any] = []
        self.model = ScriptedModel(steps)
        self.swarm = AsyncSwarm(client_of(self.model), **options)

        async def look(at: int = 0) -> str:
            self.ran.append(at)
            return f"seen {at}"

        async def count() -> str:
            self.ran.append("count")
            return str(len(self.ran))

        self.agent = Agent(name="A", functions=[look, count])

    async def run(self, budget: Budget | None = None, messages: Any = "Go", **options: Any) -> Response:
        """Run with this budget, and check the history."""
        response = await self.swarm.run(self.agent, messages, budget=budget, **options)
        before = [USER] if isinstance(messages, str) else messages
        check_history([*before, *response.messages], allow_open=response.stop in ("waiting", "tool_calls"))
        return response


def looks(*places: int) -> list[Any]:
    """Return a turn with calls of `look`."""
    return [call("look", at=place) for place in places]
