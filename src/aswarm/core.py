"""Swarm's import path for `Swarm`. New code imports from `aswarm`."""

from ._blocking.sync_swarm import Swarm
from ._tools.tool import function_to_json
from ._values.agent import Agent, Response, Result

__all__ = ["Agent", "Response", "Result", "Swarm", "function_to_json"]
