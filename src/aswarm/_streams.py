"""The two ways to watch a run: Swarm's dicts (`ClassicStream`) and typed events (`EventStream`).

Both only translate what the one loop yields. Neither holds a task or a cancel scope of its own.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self

from ._agent import Response
from ._events import CompletionDelta, CompletionFinished, Event, LoopEvent, RunFinished, typed
from ._run_state import RunState

ClassicEvent = dict[str, Any]


async def _classic(events: AsyncGenerator[LoopEvent, None]) -> AsyncGenerator[ClassicEvent, None]:
    has_begun = False
    async with aclosing(events):
        async for event in events:
            if isinstance(event, CompletionDelta | CompletionFinished) and not has_begun:
                has_begun = True
                yield {"delim": "start"}
            if isinstance(event, CompletionDelta):
                yield event.delta
            elif isinstance(event, CompletionFinished):
                has_begun = False
                yield {"delim": "end"}
            elif isinstance(event, RunFinished):
                yield {"response": event.response}


async def _typed(events: AsyncGenerator[LoopEvent, None]) -> AsyncGenerator[Event, None]:
    async with aclosing(events):
        async for event in events:
            if isinstance(event, CompletionDelta):
                for piece in typed(event.delta):
                    yield piece
            else:
                yield event


class ClassicStream(AsyncGenerator[ClassicEvent, None]):
    """What `run(stream=True)` returns: an async generator of Swarm's events, and its own awaitable.

    Per turn `{"delim": "start"}` once the answer begins, the deltas, `{"delim": "end"}` before tools run; last
    `{"response": Response}`. A delta has `role`, `content`, `tool_calls` (None where absent), what else the provider
    sent, and `sender` on the first of a message. A yielded dict is never changed afterwards.
    """

    def __init__(self, state: RunState, events: AsyncGenerator[LoopEvent, None]) -> None:
        self._state = state
        self._events = _classic(events)

    @property
    def response(self) -> Response:
        """What has happened so far; valid at any time, however the run ended."""
        return self._state.response

    @property
    def partial(self) -> str:
        """The text of a completion that has not finished, which is in no message."""
        return self._state.partial

    def __aiter__(self) -> Self:
        return self

    def __await__(self) -> Generator[Any, Any, Self]:
        """So that `async for event in await swarm.run(..., stream=True)` works too."""
        return self
        yield  # makes this a generator that never waits

    async def __anext__(self) -> ClassicEvent:
        return await self._events.__anext__()

    async def asend(self, value: None) -> ClassicEvent:
        """As of any async generator."""
        return await self._events.asend(value)

    async def athrow(self, typ: Any, val: Any = None, tb: Any = None) -> ClassicEvent:
        """As of any async generator."""
        if val is None and tb is None:
            return await self._events.athrow(typ)
        return await self._events.athrow(typ, val, tb)

    async def aclose(self) -> None:
        """End the run: close the response, cancel and await tools. `response` says what had happened."""
        await self._events.aclose()


class EventStream(AsyncIterator[Event]):
    """What `stream()` returns: `async with` it, then iterate over the typed events, which come live.

    Leaving the block, in whatever way, ends the run: the response is closed, async tools are cancelled and awaited.
    """

    def __init__(self, state: RunState, events: AsyncGenerator[LoopEvent, None]) -> None:
        self._state = state
        self._events = _typed(events)
        self._is_open = False

    @property
    def response(self) -> Response:
        """What has happened so far; valid at any time, however the block ended."""
        return self._state.response

    @property
    def partial(self) -> str:
        """The text of a completion that has not finished, which is in no message."""
        return self._state.partial

    async def __aenter__(self) -> Self:
        self._is_open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        if not self._is_open:
            raise RuntimeError("use `async with swarm.stream(...) as run:`, so that leaving the block ends the run")
        return await self._events.__anext__()

    async def aclose(self) -> None:
        """End the run, as leaving the block does."""
        await self._events.aclose()
