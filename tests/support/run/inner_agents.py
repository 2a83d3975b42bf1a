"""An agent as a tool of an editor, and a model with a script for each agent."""

from __future__ import annotations

from typing import Any

from aswarm import Agent, agent_tool
from aswarm.testing import Request, ScriptedModel, call


def model_of(**scripts: list[Any]) -> ScriptedModel:
    """Return a model that answers each agent from its own script; the instructions of an agent are its key."""

    def script(request: Request) -> Any:
        return scripts[request.messages[0]["content"]].pop(0)

    return ScriptedModel(script)


def researcher(*functions: Any, **options: Any) -> Any:
    return agent_tool(Agent(name="Researcher", instructions="inner", functions=list(functions)), **options)


def editor(*functions: Any) -> Agent:
    return Agent(name="Editor", instructions="outer", functions=list(functions))


def ask(request: str = "Look", call_id: str = "outer_1") -> Any:
    return call("researcher", call_id=call_id, request=request)
