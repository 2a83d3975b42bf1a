"""A call of a sub-agent waits: the parent of `SubAgents` cannot approve the calls of a child, or resume its run."""

from __future__ import annotations

from stage import main, not_offered


async def ask() -> None:
    """Say that there is no way."""
    not_offered(
        "https://github.com/pydantic/pydantic-ai/blob/main/src/pydantic_ai_harness/pydantic_ai_harness/subagents/README.md"
    )


if __name__ == "__main__":
    main(ask)
