"""A call of a sub-agent waits: `Agent.as_tool()` does not pass the approvals of a child to the agent that calls it."""

from __future__ import annotations

from stage import main, not_offered


async def ask() -> None:
    """Say that there is no way."""
    not_offered(
        "https://github.com/microsoft/agent-framework/blob/main/python/packages/core/agent_framework/_agents.py "
        '(as_tool: "Child function approvals are not propagated into the calling agent")'
    )


if __name__ == "__main__":
    main(ask)
