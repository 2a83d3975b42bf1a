"""A run that a middleware, or the function of a call, starts inside its run."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from typing import Any

from aswarm._values.agent import Agent, Response
from aswarm._values.decisions import Resume
from aswarm._values.events import Event, LoopEvent
from aswarm._values.output import as_output
from aswarm._values.run_keywords import Messages

from .call import Call
from .state import RunState
from .streams import to_end, typed


class InnerRun(AsyncIterator[Event]):
    """A run inside a run, see `RunInfo.start`: an async iterator of its events. Reading the events drives the run.

        async with aclosing(current_call().run.start(agent, request)) as run:
            async for event in run:
                progress(event)

    `aclose` ends the run. If the function of a call has started it, the calls of the run whose outcome is unknown are then in
    `Response.unknown_calls` of the outer run.
    """

    def __init__(self, state: RunState, events: AsyncGenerator[LoopEvent, None], caller: Call | None) -> None:
        self._state = state
        self._unread: AsyncGenerator[LoopEvent, None] | None = events
        self._events: AsyncGenerator[Any, None] = events
        self._caller = caller

    @property
    def response(self) -> Response:
        """The results so far, a valid `Response` at any moment."""
        return self._state.response

    @property
    def has_started(self) -> bool:
        """Whether a function has started in the run, or in a run inside it."""
        return self._state.turn.has_started

    def __anext__(self) -> Coroutine[Any, Any, Event]:
        if self._unread is not None:
            self._events, self._unread = typed(self._unread), None
        return self._events.__anext__()

    async def finish(self) -> Response:
        """Read the run to its end, and return its response. Raises the errors of `AsyncSwarm.run`."""
        try:
            return await to_end(self._state, self._events)
        finally:
            self._note_unknown()

    async def aclose(self) -> None:
        """End the run: close the HTTP response, cancel the tools and await their end."""
        try:
            await self._events.aclose()
        finally:
            self._note_unknown()

    def _note_unknown(self) -> None:
        caller, self._caller = self._caller, None
        if caller is not None:
            caller.note_unknown_inside([*caller.unknown_inside, *self.response.unknown_calls])

    @staticmethod
    def check(agent: Agent, messages: Messages, *, resume: Resume = False, output: Any = None) -> None:
        """Raise ConfigurationError if a run cannot start with these arguments. A tool checks with it the decisions on its call."""
        RunState(agent, messages, None, resume=resume, output=as_output(output))
