"""Retries of completions, and the fallback to another model or provider, as middleware.

`retry` decides the number of attempts and the wait before each attempt. A retry repeats only one completion: the history, the
context variables and the finished calls of the run stay. A restart of the whole run would run its tools again, and would apply
a forced `tool_choice` a second time.

A retry library would replace only a formula and a sleep, and none can wrap an async generator.
"""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import anyio

from aswarm._values.errors import (
    ATTEMPT_BACKOFF,
    CompletionError,
    ConfigurationError,
    check_count,
    classify,
    give_up,
    is_given_up,
    requested_wait,
)
from aswarm._values.json import shown
from aswarm._values.wire_messages import OUTPUT_ITEMS, chunk_without_items, without_items
from aswarm.extensions import (
    Accumulator,
    CompletionHandler,
    CompletionRequest,
    CompletionSource,
    Handlers,
    Middleware,
    source_for,
)

from ._recording import as_one_chunk

logger = logging.getLogger("aswarm")


def retry(attempts: int = 3) -> Middleware:
    """Return middleware that retries a completion after a temporary failure (`CompletionError.retryable`).

    `attempts`: the maximum number of requests for one completion. The client's own retries are turned off.

    Waits are about 1, 2, 4... up to 60 seconds, and at least as long as a `Retry-After`. A streamed completion is retried
    only if no content was shown yet; a role is not content. A completion without streaming is also retried if it was
    incomplete.

    Retries do not multiply. With limits, or in a batch, the swarm itself waits after a 429. When the swarm gives up, `retry`
    gives up too. In the same way, an outer `retry`, such as the `attempts` of a batch, does not retry after an inner `retry`
    has given up.

    Raises ConfigurationError if `attempts` is not a whole number from 1.
    """
    check_count("attempts", attempts)

    def wrap(handlers: Handlers) -> Handlers:
        def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            return handlers.complete(request.copy())  # for each attempt, because inner middleware may change it

        return Retries(attempts).middleware(replace(handlers, complete=complete))

    return wrap


class Retries:
    """Retries of one run: at most `attempts` requests for one completion.

    `attempts_made`: 0 before the run, then 1 plus the number of retries. `label`: the prefix of each log message.
    """

    __slots__ = ("_attempts", "_label", "attempts_made")

    def __init__(self, attempts: int, label: str = "") -> None:
        self._attempts = attempts
        self._label = label
        self.attempts_made = 0

    def middleware(self, handlers: Handlers) -> Handlers:
        """Return the handlers with a completion handler that retries."""
        self.attempts_made = 1

        async def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            without_retries = replace(request, max_retries=0)  # no retries of the client, because they would multiply
            attempt = 1
            while True:
                has_started = False
                chunks = handlers.complete(without_retries)
                try:
                    async with aclosing(checked(chunks, stream=request.stream)) as passed_on:
                        async for chunk in passed_on:
                            has_started = True
                            yield chunk
                except CompletionError as error:
                    if has_started or not self._should_retry(attempt, error, handlers.run.run_id):
                        raise
                    own_wait = ATTEMPT_BACKOFF.seconds(attempt, random.random())  # noqa: S311 - not used for security
                    seconds = max(own_wait, requested_wait(error.retry_after))
                    fields = handlers.run.log_fields
                    logger.info("%sretrying in %.1f s after: %s", self._label, seconds, error, extra=fields)
                else:
                    return
                await anyio.sleep(seconds)
                attempt += 1
                self.attempts_made += 1

        return replace(handlers, complete=complete)

    def _should_retry(self, attempt: int, error: CompletionError, run_id: str) -> bool:
        """Return whether to retry. After the last attempt, mark the error, so that no outer `retry` retries it."""
        may_pass = classify(error) != "permanent" and not is_given_up(error, run_id)
        if may_pass and attempt == self._attempts:
            give_up(error, run_id)
        return may_pass and attempt < self._attempts


async def checked(
    chunks: AsyncGenerator[Mapping[str, Any], None], *, stream: bool
) -> AsyncGenerator[Mapping[str, Any], None]:
    """Yield the same chunks. Before the first chunk, raise the CompletionError that the run would raise.

    The chunks of a stream are delayed until one has content; a role is not content. A completion that is not a stream is read
    completely first.
    """
    async with aclosing(chunks):
        if not stream:
            received = [chunk async for chunk in chunks]
            as_one_chunk(received)  # raises if the chunks are not a completion
            for chunk in received:
                yield chunk
            return
        delayed: list[Mapping[str, Any]] = []
        accumulator = Accumulator()
        async for chunk in chunks:
            delayed.append(chunk)
            delta = accumulator.feed(chunk) or {}
            if any(value for key, value in delta.items() if key != "role"):
                break
        else:
            accumulator.finish()
        for chunk in delayed:
            yield chunk
        async for chunk in chunks:
            yield chunk


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
