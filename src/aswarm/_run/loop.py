"""The one loop: completion, tool calls, handoff, until the model answers.

What is next is decided by `RunState`, which calls run together by `plan`, what the chunks mean by the accumulator. What
acts on the world goes through the doors. Whether anybody streams is no concern of the loop. No cancel scope or task
group is open in the consumer's frames while it holds an event.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from aswarm._agent import Agent
from aswarm._errors import AswarmError, RunError
from aswarm._events import CompletionDelta, CompletionFinished, HandedOff, LoopEvent, RunFinished, TurnStarted
from aswarm._wire.accumulator import Accumulator
from aswarm._wire.request import CompletionHandler, RequestSettings

from .execution import Emit, EventDelivery, ToolHandler, run_group
from .plan import plan
from .state import RunState


@dataclass(frozen=True, slots=True)
class Handlers:
    """The two doors: how a run acts on the world. Tracing, recording and caching wrap them; the loop does not know."""

    complete: CompletionHandler
    call_tool: ToolHandler


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What the caller chose for this run. `max_turns` counts completions."""

    request: RequestSettings
    max_turns: float = math.inf
    execute_tools: bool = True
    concurrent_tools: bool = True


@dataclass(frozen=True, slots=True)
class Loop:
    """One run: `events` drives it, `state` records it."""

    state: RunState
    options: RunOptions
    open_doors: Callable[[], Handlers]  # called in the event loop of the run: a client may belong to it
    instruct: Callable[[Agent, dict[str, Any]], Awaitable[Any]]
    execute: EventDelivery

    async def events(self) -> AsyncGenerator[LoopEvent, None]:
        """Run until the model answers. Raises RunError or ConfigurationError, with the partial response."""
        state = self.state
        try:
            doors = self.open_doors()
            while (stop := state.stop_reason(self.options.max_turns, execute_tools=self.options.execute_tools)) is None:
                async with aclosing(self._run_tools(doors) if state.calls else self._complete(doors)) as events:
                    async for event in events:
                        yield event
            yield RunFinished(state.finish(stop))
        except Exception as error:
            if isinstance(error, AswarmError) and error.response is None:
                _hand_over(error, state)
                raise
            # Somebody else's, or that of a run inside this one, which keeps its own response.
            wrapped = RunError(f"{type(error).__name__}: {error}")
            _hand_over(wrapped, state)
            raise wrapped from error

    async def _complete(self, doors: Handlers) -> AsyncGenerator[LoopEvent, None]:
        state, agent = self.state, self.state.agent
        _ = state.tools  # a function that cannot be offered is found before anything is done for the request
        instructions = await self.instruct(agent, state.context)
        async with aclosing(doors.complete(state.request(instructions, self.options.request))) as chunks:
            state.turns += 1
            yield TurnStarted(agent, state.turns)
            state.completing = accumulator = Accumulator()
            async for chunk in chunks:
                if (delta := accumulator.feed(chunk)) is not None:
                    yield CompletionDelta(delta if delta["role"] is None else {**delta, "sender": agent.name})
        completion = accumulator.finish()
        message = state.record_completion(completion)
        yield CompletionFinished(message, completion.finish_reason, completion.usage)

    async def _run_tools(self, doors: Handlers) -> AsyncGenerator[LoopEvent, None]:
        state = self.state

        async def run_groups(emit: Emit) -> None:
            for group in plan(state.calls, concurrent=self.options.concurrent_tools):
                await run_group(group, state.context, doors.call_tool, emit)
                state.merge_context(group)

        async with aclosing(self.execute(run_groups)) as events:
            async for event in events:
                yield event
        if (handoff := state.end_turn()) is not None:
            yield HandedOff(*handoff)


def _hand_over(error: AswarmError, state: RunState) -> None:
    """Give the error what the run has left."""
    if isinstance(error, RunError):
        error.partial = state.partial
    error.response = state.finish("error")
