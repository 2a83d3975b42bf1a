"""A client that disconnects and returns: a disconnect of the client ends the run."""

from __future__ import annotations

from stage import main, not_offered


async def serve() -> None:
    """Say that there is no way."""
    not_offered("https://ai.pydantic.dev/ui/vercel-ai/ (client disconnects are external cancellation)")


if __name__ == "__main__":
    main(serve)
