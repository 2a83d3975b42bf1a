"""The engine of `Swarm`. It calls plain functions and blocking clients in the caller's thread.

The engine also has the two steps of Swarm's loop: one completion, and the calls of one message. Users may write their own loops
with these steps. Middleware and limits do not apply to these steps.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable
from typing import Any, cast

from aswarm._providers.compatible import CompatibleClientSource, close_reply
from aswarm._providers.default_client import make_blocking_client
from aswarm._providers.openai import source_for
from aswarm._run.debug import call_text, debug_print
from aswarm._run.execution import ToolCaller, ToolErrorHook, ToolFailure
from aswarm._run.group import run_group
from aswarm._run.options import RunOptions
from aswarm._run.outcome import ToolOutcome
from aswarm._run.state import RunState
from aswarm._runtime.backend import PerProcess
from aswarm._swarm import AsyncSwarm
from aswarm._tools.tool import is_async
from aswarm._values.agent import Agent, Response
from aswarm._values.decisions import Approve
from aswarm._values.errors import ConfigurationError
from aswarm._wire.request import CompletionSource, RequestSettings

from .caller import CallerThreadRunner, in_callers_thread

_NO_ASYNC_STREAM = (
    "get_chat_completion cannot stream from an async client; use a blocking client such as OpenAI(...), or use stream()"
)


class BlockingEngine(AsyncSwarm):
    """The engine of `Swarm`, for blocking callers."""

    _runner_class = CallerThreadRunner
    _closed_text = "this Swarm is closed; run inside its `with` block, or call close() after the last run"

    def __init__(self, client: Any, *, tool_error: ToolErrorHook | None = None, **options: Any) -> None:
        hook = None if tool_error is None else functools.partial(_call_hook, tool_error)
        super().__init__(client, tool_error=hook, **options)
        self._own_clients = self.own_clients = PerProcess(make_blocking_client)
        self.is_closed = False

    def use(self, client: Any) -> None:
        """Use this client from now on. With None, make a new client on first use."""
        if client is not None:
            self._source_of(client)
        self._client = client

    def _is_closed(self) -> bool:
        return self.is_closed

    def _source_of(self, client: Any) -> CompletionSource:
        return source_for(client, in_callers_thread, self._api, include_usage=self._include_usage is True)

    # --- the steps of Swarm's loop ---

    async def complete_once(self, options: RunOptions, stream: bool) -> Any:
        """Ask for one completion, and return the client's reply."""
        client = self._open_client()
        if self._source_of(client) is client:
            raise ConfigurationError(
                "get_chat_completion needs a client with chat.completions.create, not a CompletionSource; use run()"
            )
        # openai wraps its async `create` in a plain function.
        if stream and is_async(inspect.unwrap(client.chat.completions.create)):
            raise ConfigurationError(_NO_ASYNC_STREAM)
        state = RunState(options.agent, options.messages, options.context_variables, empty_content=self._empty_content)
        instructions = await self._instruct(options.agent, state.context)
        request = state.request(
            instructions, RequestSettings(stream, options.model_override, include_usage=False, default_model=self.model)
        )
        if options.debug:
            debug_print("Getting chat completion for...:", request.body["messages"])
        reply = await CompatibleClientSource(client, in_callers_thread).reply(request)
        if hasattr(reply, "__aiter__"):
            await close_reply(reply, in_callers_thread)
            raise ConfigurationError(_NO_ASYNC_STREAM)
        return reply

    async def call_once(
        self, tool_calls: Iterable[Any], functions: Iterable[Any], context_variables: dict[str, Any], debug: bool
    ) -> Response:
        """Execute the calls one after another. Functions write to the dict `context_variables` itself.

        Functions with `approve` run too, because the caller has decided to make these calls. If a call waits for another reason,
        its tool message is an error.
        """
        asked = {"role": "assistant", "content": None, "tool_calls": list(tool_calls)}
        state = RunState(Agent(functions=list(functions)), [asked], {}, resume=Approve.all())
        call_tool = ToolCaller(self._runners.get(), self._tool_error, state.id, resources=self._resources)
        changes: dict[str, Any] = {}
        for call in state.turn.calls:
            if debug:
                debug_print(call_text(call))
            await run_group([call], context_variables, call_tool, lambda _event: None, may_hold=True)
            if call.hold is not None:
                call.finish(ToolOutcome(f"Error: the call waits for a decision: {call.hold.reason}"))
            if call.outcome and call.outcome.result:
                changes.update(call.outcome.result.context_variables)
        handoff = state.end_turn()
        made = state.response
        return Response(
            messages=made.messages,
            agent=cast("Agent", handoff and handoff[1]),  # None without a handoff, as in Swarm
            context_variables=changes,
            unknown_calls=made.unknown_calls,
        )


async def _call_hook(hook: ToolErrorHook, failure: ToolFailure) -> str:
    text = hook(failure) if is_async(hook) else await in_callers_thread(functools.partial(hook, failure), must_run=True)
    return await text if inspect.isawaitable(text) else text
