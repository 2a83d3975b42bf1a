"""The import path that an example of Swarm uses for `create_triage_agent`. New code imports it from `aswarm`."""

from ._tools.triage import create_triage_agent

__all__ = ["create_triage_agent"]
