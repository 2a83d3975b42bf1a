"""Completion sources of clients, for requests that do not go to the client of the swarm."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any

from aswarm._providers import openai
from aswarm._providers.http import HTTPSource
from aswarm._wire.request import CompletionRequest, CompletionSource

from .handlers import isolated


class _IsolatedSource:
    """A source of a user, which gets a copy of each request."""

    def __init__(self, source: CompletionSource) -> None:
        self.max_retries: int = getattr(source, "max_retries", 0)
        self._complete = isolated(source.complete)

    def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yield the chunks of one completion; see `CompletionSource`."""
        return self._complete(request)


def source_for(client: Any) -> CompletionSource:
    """Return the `CompletionSource` of a client, for requests to another client than that of the swarm.

    `client`: an `AsyncOpenAI`, an object with `chat.completions.create`, or a `CompletionSource`. It may change the requests,
    so a source that is not aswarm's gets copies. Raises ConfigurationError for any other value, and for a blocking `OpenAI`.
    """
    source = openai.source_for(client)
    return source if isinstance(source, openai.OpenAISource | HTTPSource) else _IsolatedSource(source)
