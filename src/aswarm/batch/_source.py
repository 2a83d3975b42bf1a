"""Where the items come from: any iterable, plain or async. The items are read one at a time, and closed at the end.

Decides nothing about when the next item is read.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Generator, Iterable, Mapping
from typing import Any, TypeAlias

import anyio

from aswarm._errors import ConfigurationError

# A source that does not end when it is closed must not block the reader that leaves.
CLOSE_SECONDS = 10.0

Items: TypeAlias = Iterable[Any] | AsyncIterable[Any]


def check_items(items: object) -> None:
    """Raise ConfigurationError if `items` is not an iterable of items; a str or a dict only looks like one."""
    if isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable | AsyncIterable):
        hint = "; pass `.items()` for pairs of id and messages" if isinstance(items, Mapping) else ""
        raise ConfigurationError(
            f"items must be an iterable or async iterable of conversations, not {type(items).__name__}{hint}"  # pyright: ignore[reportUnknownArgumentType]
        )


async def read_items(items: Items, closing: anyio.CancelScope) -> AsyncGenerator[Any, None]:
    """Yield the items. At the end a plain generator, and an async iterator that has `aclose`, are closed.

    Read them in one task, inside `closing`. A caller's generator may hold cancel scopes across a yield; scopes must
    close innermost first, so a scope that is opened only for the closing would be nested wrongly.
    """
    if isinstance(items, AsyncIterable):
        iterator = aiter(items)
        try:
            async for item in iterator:
                yield item
        finally:
            await _close(iterator, closing)
        return
    plain = iter(items)
    try:
        for item in plain:
            yield item
    finally:
        if isinstance(plain, Generator):
            plain.close()


async def _close(iterator: AsyncIterator[Any], closing: anyio.CancelScope) -> None:
    close: Any = getattr(iterator, "aclose", None)
    if close is not None:
        closing.deadline = anyio.current_time() + CLOSE_SECONDS
        closing.shield = True
        try:
            await close()
        except* GeneratorExit:  # a task group in the generator raises it in a group
            pass
