"""`Recorder`: records a run in a sink while it runs.

It wraps the handlers of every run that is kept. A sink is the log of a run, or a conversation in a `Store`. The
sink decides the content of a write. The recorder decides when the run waits for a write:

| the run waits for a commit | log | conversation |
|---|---|---|
| before a request to the model | no | yes |
| before a function runs, and before its call is announced; not for a handoff, which has no effect | yes | yes |
| after a function has finished, or waits | no | yes |

If the commit of a start fails or is cancelled, the call is not announced, and its function does not run.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from aswarm._run.call import Call, ToolCall
from aswarm._run.handlers import Handlers, Started
from aswarm._run.outcome import ToolOutcome
from aswarm._run.state import RunState
from aswarm._values.agent import Response
from aswarm._values.errors import Hold
from aswarm._wire.request import CompletionRequest

from .entries import Entry


class Sink(Protocol):
    """Protocol of the place where one run is recorded.

    `awaits_results`: whether the run also waits for the write of a completion and of a result.
    """

    awaits_results: bool

    def add(self, entry: Entry, /) -> None:
        """Add an entry. It is written after a moment, or by `commit` if this is called before."""
        ...

    async def commit(self) -> None:
        """Wait until the run so far is written. Raises StoreError, or a cancellation if another attempt has started."""
        ...

    async def finish(self, response: Response | None, error: Exception | None) -> None:
        """Write the end of the run. The owner of the run calls this after the last event.

        `response`: the response of the run, None if it has none. `error`: the error of a failed run.
        """
        ...


class Recorder:
    """Records one run in a sink. This class makes no entries; `EntryRecorder` does.

    `enter_call`: called in the task of each call.
    """

    state: RunState

    def __init__(self, sink: Sink, enter_call: Callable[[], None] | None = None) -> None:
        self._sink = sink
        self._enter_call = enter_call

    def use(self, state: RunState) -> None:
        """Record the run with this state. Call it before the first event."""
        self.state = state

    def wrap(self, handlers: Handlers) -> Handlers:
        """Return handlers that call `handlers` and record the run."""
        complete, call_tool = partial(self._complete, handlers), partial(self._call_tool, handlers)
        return replace(handlers, complete=complete, call_tool=call_tool)

    async def _complete(
        self, handlers: Handlers, request: CompletionRequest
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        await self._sink.commit()
        async with aclosing(handlers.complete(request)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _call_tool(
        self, handlers: Handlers, call: ToolCall, context: dict[str, Any], started: Started
    ) -> ToolOutcome:
        if self._enter_call is not None:
            self._enter_call()
        call, awaits_result = Call.of(call), False
        if call.tool is not None and call.tool.is_handoff:
            return await handlers.call_tool(call, context, started)

        async def record_start() -> None:
            nonlocal awaits_result
            awaits_result = self._sink.awaits_results
            self._record_start(call)
            # Even a repeatable call waits for the commit, because the commit includes the completion with the call. Without
            # this completion, the next attempt would send the request again, and the model may choose other arguments.
            try:
                await self._sink.commit()  # the function may run only if this succeeds
            except BaseException:
                call.withdraw()
                raise
            await started()

        try:
            outcome = await handlers.call_tool(call, context, record_start)
        except BaseException as error:
            self._record_exit(call, context, error)
            if awaits_result and isinstance(error, Hold) and not call.has_started:
                call.wait(error)
                await self._sink.commit()
            raise
        outcome = self._record_outcome(call, outcome, context)
        if awaits_result:
            await self._sink.commit()
        return outcome

    def _record_start(self, call: Call) -> None:
        """Record that a function is about to run. The commit follows."""
        call.start()

    def _record_outcome(self, call: Call, outcome: ToolOutcome, context: dict[str, Any]) -> ToolOutcome:  # noqa: ARG002 - for `EntryRecorder`
        """Record the outcome of a call, and return it."""
        call.finish(outcome)
        return outcome

    def _record_exit(self, call: Call, context: dict[str, Any], error: BaseException) -> None:
        """Record the end of a call that raised an exception."""
