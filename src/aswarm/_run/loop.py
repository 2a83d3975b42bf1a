"""The run loop: completion, tool calls and handoffs, until the model answers.

`RunState` decides the next step, `plan` groups the calls that run together, and the accumulator reads the chunks. The
handlers send the requests and execute the tool calls. The loop is the same with and without streaming. While the consumer
handles an event, the loop has no open cancel scope and no open task group (PEP 789).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import anyio

from aswarm._runtime.backend import raise_if_own
from aswarm._values.agent import Agent
from aswarm._values.budget import UNWATCHED
from aswarm._values.errors import AswarmError, RunError, error_of_run
from aswarm._values.events import (
    CompletionDelta,
    CompletionFinished,
    Emit,
    HandedOff,
    LoopEvent,
    RunFinished,
    TurnStarted,
)
from aswarm._wire.accumulator import Accumulator
from aswarm._wire.failures import hide_header_values
from aswarm._wire.request import RequestSettings

from .group import run_group
from .handlers import Handlers
from .options import RunOptions
from .state import RunState
from .streams import EventDelivery
from .turn import plan

logger = logging.getLogger("aswarm")


@dataclass(frozen=True, slots=True)
class Loop:
    """The loop of one run. Reading `events` drives the run, and `state` contains the result so far.

    `make_handlers`: called once, in the event loop of the run, because a client may belong to one event loop. It also returns a
    function that stops and awaits background work of the handlers at the end of the run, or None without such work.
    `instruct`: returns the instructions of an agent that has a function for them.
    `deliver`: runs the tools of a turn and yields their events.
    """

    state: RunState
    options: RunOptions
    request_settings: RequestSettings
    make_handlers: Callable[[], tuple[Handlers, Callable[[], Awaitable[None]] | None]]
    instruct: Callable[[Agent, dict[str, Any]], Awaitable[Any]]
    deliver: EventDelivery

    async def events(self) -> AsyncGenerator[LoopEvent, None]:
        """Run until the model answers. Raises RunError or ConfigurationError, with the results so far in `.response`."""
        state, turn, options = self.state, self.state.turn, self.options
        try:
            handlers, close_handlers = self.make_handlers()
            try:
                while (stop := state.start_step(options.max_turns, execute_tools=options.execute_tools)) is None:
                    if (check := state.pending_check) is not None:
                        state.end_check(await _await_check(check))
                        continue
                    step = self._run_tools(handlers) if turn.calls else self._complete(handlers)
                    try:
                        async for event in step:
                            yield event
                    finally:
                        await step.aclose()
            finally:
                if close_handlers is not None:
                    await close_handlers()
            yield RunFinished(state.finish(stop))
        except Exception as error:
            if isinstance(error, AswarmError) and error.response is None:
                state.finish("error", error)
                raise
            # Here the error comes from other code, or from an inner run. The error of an inner run keeps its own response,
            # so a new error gets the response of this run.
            hide_header_values(error)
            wrapped = error_of_run(error)
            state.finish("error", wrapped)
            raise wrapped from wrapped.__cause__
        finally:
            if state.ending.callbacks:  # the run was closed or cancelled
                state.report_end()

    async def _complete(self, handlers: Handlers) -> AsyncGenerator[LoopEvent, None]:
        state, agent = self.state, self.state.agent
        if state.turns == UNWATCHED and self.options.max_turns is None:
            logger.warning(
                "the run has made %d completions and has no max_turns; pass max_turns=... to end a run that finds no answer",
                UNWATCHED,
                extra=state.log_fields,
            )
        instructions: Any = agent.instructions
        if callable(instructions):
            _ = state.tools  # raises for a function that cannot be a tool, before the function of the instructions runs
            instructions = await self.instruct(agent, state.context)
        state.prompts.asked = request = state.request(instructions, self.request_settings)
        chunks = handlers.complete(request)
        try:
            state.turns += 1
            yield TurnStarted(agent, state.turns)
            state.accumulator = accumulator = Accumulator()
            async for chunk in chunks:
                if (delta := accumulator.feed(chunk)) is not None:
                    yield CompletionDelta(delta if delta["role"] is None else {**delta, "sender": agent.name})
        finally:
            await chunks.aclose()
        if state.budget is not None and state.budget.is_cut:
            return
        completion = accumulator.finish()
        cache_miss = state.prompts.answered(completion.usage)
        message = state.record_completion(completion)
        yield CompletionFinished(message, completion.finish_reason, completion.usage, cache_miss)

    async def _run_tools(self, handlers: Handlers) -> AsyncGenerator[LoopEvent, None]:
        state, concurrent = self.state, self.state.concurrent_tools
        may_hold = (
            handlers.may_hold or not concurrent
        )  # without concurrent calls, none can see what a waiting call would change

        async def run_groups(emit: Emit) -> None:
            for group in plan(state.turn.calls, concurrent=concurrent, may_hold=may_hold):
                await run_group(group, state.context, handlers.call_tool, emit, may_hold=may_hold)
                if not state.end_group(group):
                    break

        events = self.deliver(run_groups)
        try:
            async for event in events:
                yield event
        finally:
            await events.aclose()
        if (handoff := state.end_turn()) is not None:
            yield HandedOff(*handoff)


async def _await_check(call: Callable[[], Awaitable[object]]) -> ValueError | None:
    """Call an async check and wait for it. Return its ValueError, or None."""
    try:
        await call()
    except ValueError as error:
        return error
    except anyio.get_cancelled_exc_class() as error:
        await raise_if_own(error)
        raise RunError("the check of the answer was cancelled, but not by its run") from error
    return None
