"""Cache of completions, as middleware.

Security: A cache separates requests with different headers or query parameters, and a shared file contains no header.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, MutableMapping
from contextlib import aclosing, closing
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from operator import setitem
from os import PathLike
from typing import Any, TypeVar, cast

from pydantic_core import to_jsonable_python

from aswarm._runtime import seams
from aswarm._runtime.files import create_for_owner
from aswarm._values.errors import ConfigurationError
from aswarm.extensions import CompletionRequest, Handlers, Middleware, RunInfo

from ._recording import as_one_chunk, question_of, whole_message

T = TypeVar("T")
logger = logging.getLogger("aswarm")

_CUT = ("length", "content_filter")


def cache(store: MutableMapping[str, str] | str | PathLike[str] | None = None) -> Middleware:
    """Return middleware that answers a repeated request with its earlier completion.

    `store`: the place for the completions. None: in memory, without a limit, as long as the middleware exists. A dict or
    another mapping from texts to texts: it is used on the event loop and must not block. A path: a SQLite file, which several
    processes may share.

    Requests are equal if they have the same model name, messages, tools and settings, including `extra_headers` and
    `extra_query`. The provider is not part of the key: use one file for each provider. A completion from the cache is
    streamed in one piece. It has no usage, because it cost no tokens; `usage.requests` counts it.

    Incomplete completions are not saved: interrupted streams, and the finish reasons "length" (`max_tokens`) and
    "content_filter". If an outer `fallback` uses another client, its completions are not saved either. If the store fails or
    contains an invalid value, the middleware logs a warning, and the request is sent to the model.

    Raises ConfigurationError for a file that cannot be opened, and for ":memory:", which is no file.
    """
    if store == ":memory:":
        raise ConfigurationError('":memory:" is no file; pass None to keep completions in memory')
    kept: MutableMapping[str, str] | _File = {}
    if store is not None:
        kept = _File(store) if isinstance(store, str | PathLike) else store

    def wrap(handlers: Handlers) -> Handlers:
        def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            # The key does not contain the provider, so a completion of another client in a `fallback` is not saved.
            return cached(request) if request.source is None else handlers.complete(request)

        async def cached(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            key = _key(request.body)
            if (saved := await _tried(handlers.run, kept, _completion, key)) is not None:
                yield saved
                return
            received: list[Mapping[str, Any]] = []
            async with aclosing(handlers.complete(request)) as chunks:
                async for chunk in chunks:
                    received.append(chunk)
                    yield chunk
            completion = as_one_chunk(received)
            if completion["choices"][0].get("finish_reason") not in _CUT:
                # Without the usage, because a completion from the cache costs no tokens.
                value = json.dumps({**completion, "usage": None}, default=to_jsonable_python)
                await _tried(handlers.run, kept, setitem, key, value)

        return replace(handlers, complete=complete)

    return wrap


def _key(body: Mapping[str, Any]) -> str:
    # Two tenants may send the same body, and differ only by a header or a query parameter, so the key includes these. The key
    # is a hash, so it does not show a secret in a header.
    sent_with = {key: body[key] for key in ("extra_headers", "extra_query") if body.get(key)}
    parts = [question_of(body), to_jsonable_python(sent_with, fallback=repr)]
    return blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=16).hexdigest()


def _completion(kept: MutableMapping[str, str] | _File, key: str) -> Mapping[str, Any] | None:
    if (value := kept.get(key)) is None:
        return None
    completion = json.loads(value)
    if whole_message(completion) is None:
        raise ValueError(f"the value of the key {key} is not a completion")
    return cast("Mapping[str, Any]", completion)


async def _tried(
    run: RunInfo, kept: MutableMapping[str, str] | _File, access: Callable[..., T], *values: str
) -> T | None:
    """Call `access`; if the store is a file, call it in a thread.

    If the store fails, return None, because a run can continue without its cache.
    """
    try:
        if isinstance(kept, _File):
            return await seams.run_sync(access, kept, *values)
        return access(kept, *values)
    except Exception as error:  # noqa: BLE001 - a store of the user may raise anything
        logger.warning("the cache failed: %s: %s", type(error).__name__, error, extra=run.log_fields)
        return None


class _File:
    """A SQLite file with a connection for each access, so that threads share nothing and a fork is safe."""

    def __init__(self, path: str | PathLike[str]) -> None:
        import sqlite3  # noqa: PLC0415 - aswarm itself imports this package, and most programs have no cache

        self._connect = partial(sqlite3.connect, path)
        try:
            # The file has the texts of users. Without this mode, the umask would decide who can read a new file.
            create_for_owner(path)
            self._execute("CREATE TABLE IF NOT EXISTS completion (key TEXT PRIMARY KEY, value TEXT NOT NULL)")
        except (OSError, sqlite3.Error) as error:
            raise ConfigurationError(f"the cache {path} cannot be opened: {error}") from error

    def get(self, key: str) -> str | None:
        rows = self._execute("SELECT value FROM completion WHERE key = ?", key)
        return rows[0][0] if rows else None

    def __setitem__(self, key: str, value: str) -> None:
        self._execute("INSERT OR REPLACE INTO completion VALUES (?, ?)", key, value)

    def _execute(self, statement: str, *values: str) -> list[tuple[str]]:
        # As a context manager, a connection of sqlite3 only commits. `closing` closes it.
        with closing(self._connect()) as connection, connection:
            return connection.execute(statement, values).fetchall()
