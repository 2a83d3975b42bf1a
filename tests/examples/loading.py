"""Imports modules of an example as its own scripts do: by their plain names, from its folder."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from aswarm import Agent, AsyncSwarm
from aswarm.testing import ScriptedModel
from tests.examples.transcripts import EXAMPLES


def load(example: str, name: str) -> ModuleType:
    """Return a new module of the example. Afterwards other examples can load modules with the same names."""
    folder = EXAMPLES / example
    neighbours = {path.stem for path in folder.glob("*.py")}
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(folder))
        for neighbour in neighbours:
            sys.modules.pop(neighbour, None)


async def offered(agent: Agent) -> list[str]:
    """Return the names of the functions that the agent offers to a model."""
    model = ScriptedModel(["Hi"])
    await AsyncSwarm(model.client()).run(agent, "Hi")
    return [each["function"]["name"] for each in model.requests[0].body["tools"]]
