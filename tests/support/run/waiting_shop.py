"""An agent with functions that wait for decisions, and a scripted model."""

from __future__ import annotations

import json
from typing import Any

from aswarm import Agent, AsyncSwarm, Hold, Response, current_call, external_tool, tool
from aswarm.testing import ScriptedModel

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}


class Shop:
    """An agent with functions of every kind. `ran`: the calls that ran."""

    def __init__(self, *steps: Any) -> None:
        self.ran: list[Any] = []
        self.other = Agent(name="Other")
        self.model = ScriptedModel(steps)
        self.swarm = AsyncSwarm(self.model.client())

        @tool(approve=True)
        async def refund(order: int) -> str:
            self.ran.append(("refund", order))
            return f"refunded {order}"

        @tool(approve=lambda arguments, context: "large" if arguments["amount"] > context["limit"] else False)
        async def pay(amount: int) -> str:
            self.ran.append(("pay", amount))
            return f"paid {amount}"

        @tool(may_wait=True)
        async def ask(what: str) -> str:
            if current_call().answer is None:
                raise Hold(f"Which {what}?", data={"of": what})
            self.ran.append(("ask", current_call().answer, current_call().data))
            return f"took {current_call().answer}"

        async def look(at: str = "") -> str:
            self.ran.append(("look", at))
            return "seen"

        def note(text: str) -> str:
            self.ran.append(("note", text))
            return "noted"

        def leave() -> Agent:
            self.ran.append("leave")
            return self.other

        browser = external_tool(name="browser", description="Opens a page.", parameters=PARAMETERS)
        self.agent = Agent(name="A", functions=[refund, pay, ask, look, note, leave, browser, self.other])

    async def run(self, messages: Any = "Go", **options: Any) -> Response:
        """Run with the limit of 10."""
        return await self.swarm.run(self.agent, messages, {"limit": 10}, **options)


def stored(response: Response, before: Any = ({"role": "user", "content": "Go"},)) -> list[Any]:
    """Return the history as a storage gives it back."""
    history: list[Any] = json.loads(json.dumps([*before, *response.messages]))
    return history
