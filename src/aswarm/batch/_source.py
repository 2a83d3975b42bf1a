"""Where the items come from: any iterable, plain or async, read one at a time and closed at the end.

Decides nothing about when the next one is read.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Generator, Iterable, Mapping
from typing import Any, TypeAlias

import anyio

from aswarm._errors import ConfigurationError

# A source that hangs while it is closed must not hold whoever leaves for ever.
CLOSE_SECONDS = 10.0

Items: TypeAlias = Iterable[Any] | AsyncIterable[Any]


def check_items(items: object) -> None:
    """Raise ConfigurationError for what is no iterable of items, though it may look like one."""
    if isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable | AsyncIterable):
        hint = "; pass `.items()` for pairs of id and messages" if isinstance(items, Mapping) else ""
        raise ConfigurationError(
            f"items must be an iterable or async iterable of conversations, not {type(items).__name__}{hint}"  # pyright: ignore[reportUnknownArgumentType]
        )


async def pulled(items: Items, closing: anyio.CancelScope) -> AsyncGenerator[Any, None]:
    """The items, one for each step. An async iterator that can be closed, and a plain generator, are closed at the end.

    To be read in one task, inside the scope `closing`: an async generator of a caller may have scopes open while it
    yields, which are left when it is closed. One that is opened for that would stand inside them.
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
        except* GeneratorExit:  # what a task group in the generator makes of being closed
            pass
