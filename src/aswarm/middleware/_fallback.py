"""Another model or provider in place of one that fails, as middleware."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from aswarm._errors import CompletionError, ConfigurationError
from aswarm._json import shown
from aswarm._providers.openai import source_for
from aswarm._run.handlers import CompletionHandler, Handlers, Middleware, isolated
from aswarm._wire.chat_request import chunk_without_items, without_items
from aswarm._wire.request import CompletionRequest

from ._answers import checked

logger = logging.getLogger("aswarm")

_GONE = (404, 410)
_GONE_CODES = ("model_not_found", "model_decommissioned")  # some servers answer them with 400
_SHOWN = 80


def fallback(*alternatives: Any) -> Middleware:
    """Middleware that asks another model or provider where the first one fails retryably, or does not have the model.

    Each of the `alternatives` is the name of a model of the same client (a str); a client or `CompletionSource`, which is
    asked for the model of the agent; or a pair of such a client and the name of its model:
    `fallback("gpt-6-luna", (AsyncOpenAI(base_url=...), "llama"))`. They are tried in order, each for one completion, and
    the next completion begins at the first again. The caller closes the clients. An `AsyncOpenAI` works in a `Swarm` too.

    An error after several failures has the earlier ones as notes (`__notes__`), which a traceback shows.

    It changes only before the first chunk: a stream that breaks in the middle fails as without it. Another client is
    outside of the limits of the swarm. Neither of two providers can read the reasoning of the other, so it is not sent there:
    output items of the Responses API that another client answers with are not in the history.

    Raises ConfigurationError for no alternatives, for a value of another kind, and for a blocking `OpenAI`.
    """
    if not alternatives:
        raise ConfigurationError("fallback needs another model or client; for example fallback('gpt-6-luna')")
    others = [_checked(each) for each in alternatives]

    def wrap(handlers: Handlers) -> Handlers:
        asks = [handlers.complete, *(_asking(handlers.complete, source, model) for source, model in others)]

        async def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            failed: list[str] = []
            left = [*asks]
            while True:
                ask = left.pop(0)
                has_begun = False
                try:
                    async with aclosing(checked(ask(request.copy()), stream=request.stream)) as chunks:
                        async for chunk in chunks:
                            has_begun = True
                            yield chunk
                        return
                except CompletionError as error:
                    if has_begun or not left or not (error.retryable or _is_gone(error)):
                        _add_notes(error, failed)
                        raise
                    failed.append(f"asked before: {error}")
                    logger.warning("asking another model after: %s", error, extra=handlers.run.log_fields)

        return replace(handlers, complete=complete)

    return wrap


def _add_notes(error: CompletionError, notes: list[str]) -> None:
    for note in notes:
        if note not in getattr(error, "__notes__", ()):  # a source may raise one error in many runs
            error.add_note(note)


def _is_gone(error: CompletionError) -> bool:
    return error.status_code in _GONE or any(code in str(error) for code in _GONE_CODES)


def _checked(alternative: Any) -> tuple[CompletionHandler | None, str | None]:
    """The handler of another client, and the name of another model; None for what stays the same."""
    match alternative:
        case str(model) if model:
            return None, model
        case (client, str(model)) if model:
            return isolated(source_for(client).complete), model
        case _ if not isinstance(alternative, str | tuple):
            return isolated(source_for(alternative).complete), None
        case _:
            raise ConfigurationError(
                "an alternative of fallback is the name of a model, a client, or a pair of a client and the name of its "
                f"model, not {shown(alternative, _SHOWN)}"
            )


def _asking(first: CompletionHandler, source: CompletionHandler | None, model: str | None) -> CompletionHandler:
    """Asks the source, or the first one if None, for the model, or that of the request if None."""

    def ask(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        if model is not None:
            request.body["model"] = model
        return first(request) if source is None else _without_items(source, request)

    return ask


async def _without_items(
    source: CompletionHandler, request: CompletionRequest
) -> AsyncGenerator[Mapping[str, Any], None]:
    # Neither can the other provider read the reasoning of the first, nor the first that of the other in the next turn.
    request.body["messages"] = without_items(request.body["messages"])
    async with aclosing(source(request)) as chunks:
        async for chunk in chunks:
            yield chunk_without_items(chunk)
