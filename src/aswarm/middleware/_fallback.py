"""Fallback to another model or provider, as middleware."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from aswarm._values.errors import CompletionError, ConfigurationError
from aswarm._values.json import shown
from aswarm._values.wire_messages import OUTPUT_ITEMS, chunk_without_items, without_items
from aswarm.extensions import CompletionHandler, CompletionRequest, CompletionSource, Handlers, Middleware, source_for

from ._retry import checked

logger = logging.getLogger("aswarm")

_GONE = (404, 410)
_OF_THE_PROVIDER = ("context_management", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention")
_GONE_CODES = ("model_not_found", "model_decommissioned")  # some servers send them with status 400
_SHOWN = 80


def fallback(*alternatives: Any) -> Middleware:
    """Return middleware that uses another model or provider after a retryable failure, or if a model does not exist.

        fallback("gpt-6-luna", (AsyncOpenAI(base_url=...), "llama"))

    Each alternative is one of these:

    - a str: the name of another model of the same client;
    - a client or `CompletionSource`, which gets the model name of the agent;
    - a pair of such a client and a model name.

    The alternatives are tried in order. The next completion starts with the first model again. The caller closes the clients.
    An `AsyncOpenAI` works in a `Swarm` too. If all alternatives fail, the error has the earlier errors as notes (`__notes__`),
    which a traceback shows.

    If a stream fails after its first shown chunk, no alternative is tried. Middleware after `fallback` in the list, such as
    `redact`, gets the requests to all alternatives; middleware before `fallback` gets each request once. The rate limits of the
    swarm do not apply to another client. Only the provider that sent reasoning can read it. So reasoning is not sent to another
    client, and output items of the Responses API from another client are not in the history.

    Raises ConfigurationError for no alternatives, for a value of another kind, and for a blocking `OpenAI`.
    """
    if not alternatives:
        raise ConfigurationError("fallback needs another model or client; for example fallback('gpt-6-luna')")
    others = [_checked(each) for each in alternatives]

    def wrap(handlers: Handlers) -> Handlers:
        candidates = [handlers.complete, *(_asking(handlers.complete, source, model) for source, model in others)]

        async def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            failed: list[str] = []
            remaining = [*candidates]
            while True:
                ask = remaining.pop(0)
                has_started = False
                try:
                    async with aclosing(checked(ask(request.copy()), stream=request.stream)) as chunks:
                        async for chunk in chunks:
                            has_started = True
                            yield chunk
                        return
                except CompletionError as error:
                    is_gone = error.status_code in _GONE or any(code in str(error) for code in _GONE_CODES)
                    if has_started or not remaining or not (error.retryable or is_gone):
                        _add_notes(error, failed)
                        raise
                    failed.append(f"failed before: {error}")
                    logger.warning("trying another model after: %s", error, extra=handlers.run.log_fields)

        return replace(handlers, complete=complete)

    return wrap


def _add_notes(error: CompletionError, notes: list[str]) -> None:
    for note in notes:
        if note not in getattr(error, "__notes__", ()):  # a source may raise the same error object in many runs
            error.add_note(note)


def _checked(alternative: Any) -> tuple[CompletionSource | None, str | None]:
    """Return the source of another client and the name of another model. None means the same client, or the same model."""
    match alternative:
        case str(model) if model:
            return None, model
        case (client, str(model)) if model and isinstance(alternative, tuple):
            return source_for(client), model
        case _ if not isinstance(alternative, str | tuple | list):
            return source_for(alternative), None
        case _:
            raise ConfigurationError(
                "an alternative of fallback must be the name of a model, a client, or a pair of a client and the name of its "
                f"model, not {shown(alternative, _SHOWN)}"
            )


def _asking(first: CompletionHandler, source: CompletionSource | None, model: str | None) -> CompletionHandler:
    """Return a handler that sends requests to a source and a model. None means the first source, or the requested model."""

    def ask(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        if model is not None:
            request.body["model"] = model
        return first(request) if source is None else _without_items(first, replace(request, source=source))

    return ask


async def _without_items(ask: CompletionHandler, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
    # A provider cannot read the reasoning of another provider, now or in the next turn, and may reject its settings of the cache
    # and of compaction. The blocks of Claude stay, because their origin says who can read them.
    request.body["messages"] = without_items(request.body["messages"], frozenset({OUTPUT_ITEMS}))
    for name in _OF_THE_PROVIDER:
        request.body.pop(name, None)
    async with aclosing(ask(request)) as chunks:
        async for chunk in chunks:
            yield chunk_without_items(chunk)
