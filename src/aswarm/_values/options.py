"""Values of the options of a swarm and of its runs."""

from __future__ import annotations

from typing import Literal, TypeAlias

ApiName: TypeAlias = Literal["auto", "chat", "responses"]
"""The API of a provider. "auto": the Responses API for OpenAI's own hosts, otherwise Chat Completions."""
Transport: TypeAlias = Literal["auto", "httpx", "aiohttp", "direct"]
"""The HTTP library of the default client."""
