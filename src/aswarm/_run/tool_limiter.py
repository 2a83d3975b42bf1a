"""`@tool(limiter=...)`: one object in a decorator, that bounds calls on every event loop.

A limiter belongs to the loop that uses it first. Every other loop gets one of its own with as many tokens: anyio's
limiters are neither thread-safe nor fit for two backends.
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
    """The limiter itself, or its twin on this event loop."""
    if not isinstance(limiter, anyio.CapacityLimiter):
        return limiter  # somebody's own: it knows itself where it may be used
    loop = current_loop()
    with _lock:
        loops = _loops.setdefault(limiter, _Loops(ref(loop)))
        if loops.first() is loop:
            return limiter
        if loop not in loops.others:
            loops.others[loop] = anyio.CapacityLimiter(limiter.total_tokens)
        return loops.others[loop]


def admitted(limiter: Limiter | None) -> AbstractAsyncContextManager[None]:
    """Hold a token of the limiter, if there is one."""
    return nullcontext() if limiter is None else _admitted(_limiter_here(limiter))


@asynccontextmanager
async def _admitted(limiter: Limiter) -> AsyncGenerator[None, None]:
    # On behalf of an object of its own: a tool that calls itself through a nested run is another borrower.
    borrower = object()
    await limiter.acquire_on_behalf_of(borrower)
    try:
        yield
    finally:
        limiter.release_on_behalf_of(borrower)
