"""The hand-written loop on `AsyncOpenAI`, with the SDK's aiohttp transport for many requests at once."""

from __future__ import annotations

import openai
from clients import SECONDS, limits
from scenario import API_KEY

from .handwritten_openai import IMPORT, Handwritten

__all__ = ["IMPORT", "PACKAGES", "open_session"]
PACKAGES = ("openai", "aiohttp")


async def open_session(url: str, connections: int | None = None) -> Handwritten:
    """Make the client, with room and time for `connections`."""
    room = {} if connections is None else {"limits": limits(connections), "timeout": SECONDS}
    client = openai.DefaultAioHttpClient(**room)
    return Handwritten(openai.AsyncOpenAI(base_url=url, api_key=API_KEY, http_client=client))
