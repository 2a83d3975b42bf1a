"""A client that disconnects and returns: openai-agents has no service and no log of a run that a reader can return to."""

from __future__ import annotations

from stage import main, not_offered


async def serve() -> None:
    """Say that there is no way."""
    not_offered("https://openai.github.io/openai-agents-python/streaming/")


if __name__ == "__main__":
    main(serve)
