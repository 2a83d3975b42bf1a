"""The provider's own diagnosis of a missed prompt cache, as middleware."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from aswarm._values.json import is_object
from aswarm.extensions import CompletionRequest, Handlers, Middleware

_OPTIONS = "prompt_cache_options"
_RESPONSE = "resp_"  # the start of the ids of the Responses API


def diagnose_cache() -> Middleware:
    """Return middleware that asks OpenAI why the prompt cache was missed. The answer decides `CompletionFinished.cache_miss`.

        AsyncSwarm(middleware=[diagnose_cache()])

    Each request names the last response of its run (`prompt_cache_options.comparison_response_id`), which costs nothing. Only the
    Responses API of OpenAI has this field, for models from GPT-5.6 on; other models refuse it. Requests without an earlier
    response, and requests of a `fallback` to another client, do not have it.
    """

    def wrap(handlers: Handlers) -> Handlers:
        last = ""

        async def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            nonlocal last
            is_of_run = request.source is None and request.agent is handlers.run.agent
            if is_of_run and last:
                own = request.body.get(_OPTIONS)
                options = {**(own if is_object(own) else {}), "comparison_response_id": last}
                request = replace(request, body={**request.body, _OPTIONS: options})
            async with aclosing(handlers.complete(request)) as chunks:
                async for chunk in chunks:
                    new = chunk.get("id")
                    if is_of_run and isinstance(new, str) and new.startswith(_RESPONSE):
                        last = new
                    yield chunk

        return replace(handlers, complete=complete)

    return wrap
