"""A stop from another process: a `CancellationToken` works in the process of the run."""

from __future__ import annotations

from stage import main, not_offered


async def serve() -> None:
    """Say that there is no way."""
    not_offered("https://ai.pydantic.dev/agent/#cancelling-a-run")


if __name__ == "__main__":
    main(serve)
