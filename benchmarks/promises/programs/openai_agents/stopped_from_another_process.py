"""A stop from another process: `result.cancel()` needs the object of the run, in its process."""

from __future__ import annotations

from stage import main, not_offered


async def serve() -> None:
    """Say that there is no way."""
    not_offered("https://openai.github.io/openai-agents-python/streaming/")


if __name__ == "__main__":
    main(serve)
