"""Limiters of tools, for several event loops, and the token of one call."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary, ref

import anyio

from aswarm._values.settings import Limiter

from .backend import current_loop

# A limiter in a decorator is one object for all event loops of the program. But anyio's limiters are not thread-safe, and
# work with one backend only. So the first event loop uses the limiter itself, and each other loop uses a new limiter with the
# same number of tokens.


@dataclass(slots=True)
class _Loops:
    first: ref[object]
    others: WeakKeyDictionary[object, Limiter] = field(default_factory=WeakKeyDictionary[object, Limiter])


_loops: WeakKeyDictionary[Limiter, _Loops] = WeakKeyDictionary()
_lock = threading.Lock()


def _limiter_here(limiter: Limiter) -> Limiter:
    """Return the limiter to use on this event loop: the given limiter, or the copy for this loop."""
    if not isinstance(limiter, anyio.CapacityLimiter):
        return limiter  # not from anyio: it must support several event loops itself
    loop = current_loop()
    with _lock:
        loops = _loops.setdefault(limiter, _Loops(ref(loop)))
        if loops.first() is loop:
            return limiter
        if loop not in loops.others:
            loops.others[loop] = anyio.CapacityLimiter(limiter.total_tokens)
        return loops.others[loop]


def hold_token(limiter: Limiter | None) -> AbstractAsyncContextManager[None]:
    """Return a context manager that holds a token of the limiter. Without a limiter, it does nothing."""
    return nullcontext() if limiter is None else _hold(_limiter_here(limiter))


@asynccontextmanager
async def _hold(limiter: Limiter) -> AsyncGenerator[None, None]:
    # The borrower is a new object for each call, not the task. So a tool that calls itself through a nested run can borrow
    # a second token.
    borrower = object()
    await limiter.acquire_on_behalf_of(borrower)
    try:
        yield
    finally:
        limiter.release_on_behalf_of(borrower)
