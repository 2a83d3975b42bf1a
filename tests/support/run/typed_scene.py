"""A scripted run with an output type."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from aswarm import Agent, AsyncSwarm, Response
from aswarm.testing import ScriptedModel, call, check_history

ROME = '{"city": "Rome"}'


class Trip(BaseModel):
    """A trip to a city."""

    city: str
    days: int = 1


class Hotel(BaseModel):
    name: str


async def look(at: str = "") -> str:
    return "seen"


def final(**fields: Any) -> Any:
    return call("final_answer", **fields)


class Scene:
    """A scripted run with a type."""

    def __init__(self, *steps: Any, functions: Any = (look,), api: Any = "chat", **fields: Any) -> None:
        self.model = ScriptedModel(steps, api=api)
        self.swarm = AsyncSwarm(self.model.client())
        self.agent = Agent(name="A", functions=list(functions), **fields)

    async def run(self, **options: Any) -> Response:
        response = await self.swarm.run(self.agent, "Go", **options)
        check_history(response.messages, allow_open=response.stop != "answer")
        return response

    @property
    def bodies(self) -> list[dict[str, Any]]:
        for request in self.model.requests:
            form = request.body.get("response_format") or (request.body.get("text") or {}).get("format")
            assert not (request.tool_names and form), "both in one request"
        return [request.body for request in self.model.requests]


def told(response: Response) -> list[str]:
    return [each["content"] for each in response.messages if each["role"] in ("tool", "user")]
