"""`@tool(limiter=...)`: one limiter in a decorator bounds calls on every event loop.

A limiter belongs to the event loop that uses it first. Every other loop gets a limiter of its own with as many tokens,
because anyio's limiters are not thread-safe and work on one backend only.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary, ref

import anyio

from aswarm._runtime.backend import current_loop
from aswarm._tools.tool import Limiter


@dataclass(slots=True)
class _Loops:
    first: ref[object]
    others: WeakKeyDictionary[object, Limiter] = field(default_factory=WeakKeyDictionary[object, Limiter])


_loops: WeakKeyDictionary[Limiter, _Loops] = WeakKeyDictionary()
_lock = threading.Lock()


def _limiter_here(limiter: Limiter) -> Limiter:
    """The limiter itself, or its counterpart for this event loop."""
    if not isinstance(limiter, anyio.CapacityLimiter):
        return limiter  # another class of limiter decides itself where it may be used
    loop = current_loop()
    with _lock:
        loops = _loops.setdefault(limiter, _Loops(ref(loop)))
        if loops.first() is loop:
            return limiter
        if loop not in loops.others:
            loops.others[loop] = anyio.CapacityLimiter(limiter.total_tokens)
        return loops.others[loop]


def hold_token(limiter: Limiter | None) -> AbstractAsyncContextManager[None]:
    """Hold a token of the limiter in the block; without a limiter, do nothing."""
    return nullcontext() if limiter is None else _hold_token(_limiter_here(limiter))


@asynccontextmanager
async def _hold_token(limiter: Limiter) -> AsyncGenerator[None, None]:
    # An object for each call, not the task: a tool that calls itself through a nested run borrows a second token.
    borrower = object()
    await limiter.acquire_on_behalf_of(borrower)
    try:
        yield
    finally:
        limiter.release_on_behalf_of(borrower)
