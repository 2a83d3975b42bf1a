"""Swarm's import path for `Swarm`. New code imports from `aswarm`."""

from ._agent import Agent, Response, Result
from ._blocking.sync_swarm import Swarm
from ._tools.tool import function_to_json

__all__ = ["Agent", "Response", "Result", "Swarm", "function_to_json"]
