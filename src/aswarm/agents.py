"""Where an example of Swarm's looks for `create_triage_agent`. New code imports it from `aswarm`."""

from ._tools.triage import create_triage_agent

__all__ = ["create_triage_agent"]
