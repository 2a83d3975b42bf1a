"""Completions that were asked for before, as middleware."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import aclosing, closing
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from os import PathLike
from typing import Any, TypeAlias, TypeVar, cast

import anyio.to_thread
from pydantic_core import to_jsonable_python

from aswarm._errors import ConfigurationError
from aswarm._run.handlers import Handlers, Middleware, RunInfo
from aswarm._wire.request import CompletionRequest
from aswarm._wire.whole import as_one_chunk, whole_message

from ._requests import asked_by

T = TypeVar("T")
logger = logging.getLogger("aswarm")

_CUT = ("length", "content_filter")
Store: TypeAlias = "MutableMapping[str, str] | str | PathLike[str] | None"


def cache(store: Store = None) -> Middleware:
    """Middleware that answers a request that was asked before with the completion that it had then.

    `store`: None keeps completions in memory, as long as the middleware lives and without a limit; a dict, or another
    mapping from texts to texts, keeps them there; a path keeps them in a SQLite file, for several processes too. A mapping
    is used on the event loop, so it must not block.

    Requests are equal if they ask the same of a model of the same name: messages, tools and settings. The provider is not
    part of the key: use one file for each provider. A completion from the cache answers a stream in one piece. It has no
    usage, because it cost no tokens; `usage.requests` counts it like any other completion.

    A completion that did not come to its end is not kept: one that broke, or was cut by `max_tokens` or by a content filter
    (the finish reasons "length" and "content_filter"). If the store fails, or has something else than a completion, the log
    says so, and the model is asked.

    Raises ConfigurationError for a file that cannot be opened, and for ":memory:", which is no file.
    """
    if store == ":memory:":
        raise ConfigurationError('":memory:" is no file; pass None to keep completions in memory')
    kept = _File(store) if isinstance(store, str | PathLike) else _Memory({} if store is None else store)

    def wrap(handlers: Handlers) -> Handlers:
        async def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            key = blake2b(json.dumps(asked_by(request.body)).encode(), digest_size=16).hexdigest()
            if (known := await _tried(handlers.run, _completion, kept, key)) is not None:
                yield known
                return
            received: list[Mapping[str, Any]] = []
            async with aclosing(handlers.complete(request)) as chunks:
                async for chunk in chunks:
                    received.append(chunk)
                    yield chunk
            completion = as_one_chunk(received)
            if completion["choices"][0].get("finish_reason") not in _CUT:
                value = json.dumps({**completion, "usage": None}, default=to_jsonable_python)
                await _tried(handlers.run, kept.put, key, value)

        return replace(handlers, complete=complete)

    return wrap


async def _completion(kept: _Memory | _File, key: str) -> Mapping[str, Any] | None:
    if (value := await kept.get(key)) is None:
        return None
    completion = json.loads(value)
    if whole_message(completion) is None:
        raise ValueError(f"the value of the key {key} is not a completion")
    return cast("Mapping[str, Any]", completion)


async def _tried(run: RunInfo, access: Callable[..., Awaitable[T]], *arguments: Any) -> T | None:
    """The value, or None if the store fails: without its cache a run goes on."""
    try:
        return await access(*arguments)
    except Exception as error:  # noqa: BLE001 - of any store
        logger.warning("the cache failed: %s: %s", type(error).__name__, error, extra=run.log_fields)
        return None


class _Memory:
    def __init__(self, values: MutableMapping[str, str]) -> None:
        self._values = values

    async def get(self, key: str) -> str | None:
        return self._values.get(key)

    async def put(self, key: str, value: str) -> None:
        self._values[key] = value


class _File:
    """A SQLite file. A connection for each access: threads share nothing, and a fork harms nothing."""

    def __init__(self, path: str | PathLike[str]) -> None:
        import sqlite3  # noqa: PLC0415 - aswarm itself imports this package, and most programs have no cache

        self._connect = partial(sqlite3.connect, path)
        try:
            self._execute("CREATE TABLE IF NOT EXISTS completion (key TEXT PRIMARY KEY, value TEXT NOT NULL)")
        except sqlite3.Error as error:
            raise ConfigurationError(f"the cache {path} cannot be opened: {error}") from error

    async def get(self, key: str) -> str | None:
        rows = await anyio.to_thread.run_sync(self._execute, "SELECT value FROM completion WHERE key = ?", key)
        return rows[0][0] if rows else None

    async def put(self, key: str, value: str) -> None:
        await anyio.to_thread.run_sync(self._execute, "INSERT OR REPLACE INTO completion VALUES (?, ?)", key, value)

    def _execute(self, statement: str, *values: str) -> list[tuple[str]]:
        with closing(self._connect()) as connection, connection:
            return connection.execute(statement, values).fetchall()
