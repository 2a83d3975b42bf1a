"""The middleware `otel`, and the spans of one run.

The parent of a run's span is the current span of the caller. For a run that a tool starts, this is the span of the tool call. The
run's span is the parent of the spans of its completions and tool calls.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from opentelemetry.context import create_key, get_current, get_value, set_value
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import TracerProvider

from aswarm._values.agent import Agent, Response
from aswarm._values.errors import AswarmError, ConfigurationError, Hold
from aswarm._values.json import is_object
from aswarm._values.text import sendable
from aswarm._values.usage import load_prices
from aswarm.extensions import (
    Accumulator,
    CompletionRequest,
    Handlers,
    Middleware,
    RunInfo,
    Started,
    ToolCall,
    ToolOutcome,
)

from . import _conventions as names
from ._attributes import (
    content_of_answer,
    content_of_call,
    content_of_outcome,
    content_of_request,
    cost_of,
    miss_of,
    model_of,
    settings_of,
    token_counts,
)
from ._telemetry import Attributes, Operation, Telemetry


class TracedCompletion:
    """Reads the chunks of a completion without changing them, and ends its span.

    `outcome`: the attributes of a finished completion. The span of the run gets the outcome of its last completion.
    """

    def __init__(self, operation: Operation, request: CompletionRequest, run: RunInfo) -> None:
        self.outcome: Attributes = {}
        self._request = request
        self._run = run
        self._operation = operation
        self._accumulator = Accumulator()
        self._error: AswarmError | None = None
        self._source: dict[str, str] = {}  # the id and the model of the response
        self._first_chunk: float | None = None

    def read(self, chunk: Mapping[str, Any]) -> None:
        """Read one chunk. Never raises, because the run itself reports a malformed chunk."""
        if self._first_chunk is None:
            self._first_chunk = self._operation.seconds
        try:
            self._accumulator.feed(chunk)
            if not self._source and is_object(chunk):
                source = {names.RESPONSE_ID: chunk.get("id"), names.RESPONSE_MODEL: chunk.get("model")}
                self._source = {key: sendable(text) for key, text in source.items() if text and isinstance(text, str)}
        except AswarmError as error:
            self._error = self._error or error

    def end(self, error: BaseException | None = None) -> None:
        """End the span. `error`: the exception of the handler, or None."""
        operation, attributes = self._operation, Attributes(self._source)
        if names.RESPONSE_MODEL in attributes:
            operation.measured[names.RESPONSE_MODEL] = attributes[names.RESPONSE_MODEL]
        if self._request.stream and self._first_chunk is not None:
            attributes[names.RESPONSE_TIME_TO_FIRST_CHUNK] = self._first_chunk
            operation.telemetry.first_chunk.record(self._first_chunk, operation.measured, operation.context)
        if error is None:
            error = self._finish(attributes)
        elif not isinstance(error, Exception):
            error = self._error or error  # the run may have closed the completion because a chunk reported an error
        operation.end(attributes, error)

    def _finish(self, attributes: Attributes) -> AswarmError | None:
        """Add the attributes of a finished completion. Return the error that the run will raise, or None."""
        if self._error is not None:
            return self._error
        try:
            completion = self._accumulator.finish()
        except AswarmError as error:
            return error
        operation, run, request, usage = self._operation, self._run, self._request, completion.usage
        counts = token_counts(usage)
        cost = cost_of(run.priced(request, usage)) if operation.telemetry.cost else {}
        reason = "stop" if completion.finish_reason is None else sendable(str(completion.finish_reason))
        content = operation.content(content_of_answer, completion.message, reason)
        self.outcome = {names.RESPONSE_FINISH_REASONS: [reason], **content}
        attributes.update(self.outcome, **counts, **cost, **miss_of(run.cache_miss(request, usage)))
        for kind, name in (("input", names.USAGE_INPUT_TOKENS), ("output", names.USAGE_OUTPUT_TOKENS)):
            if name in counts:
                measured = {**operation.measured, names.TOKEN_TYPE: kind}
                operation.telemetry.tokens.record(counts[name], measured, operation.context)
        return None


ConversationId: TypeAlias = str | Callable[[RunInfo], object]
_CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_CAPTURING = frozenset({"true", "1", "span_only", "span_and_event"})
_CONVERSATION = create_key("aswarm-conversation")
_END: Any = object()


def otel(
    *,
    content: bool | None = None,
    cost: bool = False,
    conversation: str | Callable[[RunInfo], object] = "conversation_id",
    provider: str = "openai",
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
) -> Middleware:
    """Return middleware that creates spans and metrics of runs, by OpenTelemetry's conventions for generative AI.

    A run has a span `invoke_agent`. Its children are a span `chat` for each completion, and a span `execute_tool` for each
    tool call. If a function of a tool starts a run, the span of this run is a child of the span of the call. A handoff is an
    event of the run's span. Each span has the id of the run as `aswarm.run.id`. The span of a run has the reason for its end
    as `aswarm.stop`. A run that was closed early is not an error. The metrics are the seconds of runs, completions and calls,
    the seconds to the first chunk of a stream, and tokens. A completion that missed the prompt cache has `aswarm.cache_miss.kind`,
    `.where`, `.kept_tokens` and `.lost_tokens`; see `CacheMiss`.

    Put `otel()` first in the list. The spans include the middleware after it, such as `retry`, but not the middleware before
    it.

    Args:
        content: Whether to add messages, arguments, results and error texts to spans; by default only if the environment
            variable OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT enables it.
        cost: Whether to add the cost of a completion and of a run as `aswarm.cost`, in US dollars; see `Usage.cost`.
        conversation: The context variable with the id of the conversation, or a function that gets the `RunInfo` and returns
            the id or None. A run inside a tool gets the id of the outer run if it has no id of its own.
        provider: The value of `gen_ai.provider.name`.
        tracer_provider: Receives the spans; by default the global provider.
        meter_provider: Receives the metrics; by default the global provider.

    Raises:
        ConfigurationError: `conversation` is neither a text nor a function, or `cost` needs the extra `prices`.
    """
    if not (isinstance(conversation, str) or callable(conversation)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(
            "conversation must be the name of a context variable, or a function that gets a RunInfo and returns the id of the "
            f"conversation, not {type(conversation).__name__}"
        )
    if content is None:
        content = os.environ.get(_CAPTURE, "").strip().lower() in _CAPTURING
    if cost:
        load_prices()  # now, because the import takes a second
    telemetry = Telemetry(tracer_provider, meter_provider, content=content, cost=cost)

    def wrap(handlers: Handlers) -> Handlers:
        traced = _TracedRun(telemetry, handlers, provider, conversation)
        handlers.run.on_end(traced.end)
        return replace(handlers, complete=traced.complete, call_tool=traced.call_tool)

    return wrap


class _TracedRun:
    """The spans of one run."""

    def __init__(self, telemetry: Telemetry, handlers: Handlers, provider: str, conversation: ConversationId) -> None:
        run = handlers.run
        own_id = run.context_variables.get(conversation) if isinstance(conversation, str) else conversation(run)
        any_id = get_value(_CONVERSATION) if own_id is None else own_id
        self._telemetry = telemetry
        self._handlers = handlers
        self._provider: Attributes = {names.PROVIDER_NAME: provider}
        self._common: Attributes = {names.RUN_ID: sendable(run.run_id)}
        parent = get_current()
        if any_id is not None:
            self._common[names.CONVERSATION_ID] = conversation_id = sendable(str(any_id))
            parent = set_value(_CONVERSATION, conversation_id, parent)
        self._agent = run.agent
        name = sendable(run.agent.name)
        measured = {**self._provider, names.AGENT_NAME: name}
        attributes = {**measured, **self._common}
        self._operation = Operation(telemetry, (names.INVOKE_AGENT, name), parent, measured, attributes)
        self._completion: TracedCompletion | None = None

    # --- completions ---

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yield the chunks unchanged, in a span of the completion."""
        operation = self._start_chat(request)
        self._completion = completion = TracedCompletion(operation, request, self._handlers.run)
        try:
            chunks = self._handlers.complete(request)
            try:
                while (chunk := await operation.run(anext(chunks, _END))) is not _END:
                    completion.read(chunk)
                    yield chunk
            finally:  # run in the same context, because an inner generator may end its own spans here
                await operation.run(chunks.aclose())
        except BaseException as error:
            completion.end(error)
            raise
        completion.end()

    def _start_chat(self, request: CompletionRequest) -> Operation:
        self._follow(request.agent)
        model = model_of(request)
        measured = {**self._provider, **({names.REQUEST_MODEL: model} if model else {})}
        active_agent = {names.AGENT_NAME: sendable(request.agent.name)}
        attributes = {**measured, **self._common, **active_agent, **settings_of(request)}
        operation = Operation(self._telemetry, (names.CHAT, model), self._operation.context, measured, attributes)
        content = operation.content(content_of_request, request)
        operation.span.set_attributes(content)
        if self._completion is None:  # the first request of the run: its content is also the input of the run
            self._operation.span.set_attributes({**measured, **content})
        return operation

    def _follow(self, agent: Agent) -> None:
        """Add a handoff event if the active agent has changed."""
        if agent is not self._agent:
            source, target = sendable(self._agent.name), sendable(agent.name)
            self._operation.span.add_event(names.HANDOFF, {names.HANDOFF_SOURCE: source, names.HANDOFF_TARGET: target})
            self._agent = agent

    # --- tool calls ---

    async def call_tool(self, call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
        """Return the outcome unchanged, in a span of the call."""
        operation = self._start_call(call)
        try:
            outcome = await operation.run(self._handlers.call_tool(call, context, started))
        except Hold:
            operation.end({names.STOP: "waiting"})
            raise
        except BaseException as error:
            operation.end({}, error)
            raise
        # A middleware may return a value of a wrong type. The run reports it later.
        failure = outcome.error if isinstance(outcome, ToolOutcome) else None  # pyright: ignore[reportUnnecessaryIsInstance]
        operation.end(operation.content(content_of_outcome, outcome), failure)
        return outcome

    def _start_call(self, call: ToolCall) -> Operation:
        name = sendable(call.name)
        attributes: Attributes = {
            **self._common,
            names.AGENT_NAME: sendable(call.agent.name),
            names.TOOL_NAME: name,
            names.TOOL_TYPE: "function",
            names.TOOL_CALL_ID: sendable(call.id),
        }
        # The model may invent names. Metrics have only names of existing functions, because each name is a new time series.
        measured = {**self._provider, **({} if call.tool is None else {names.TOOL_NAME: name})}
        # The span of the call that makes this call is current here.
        parent = self._operation.context if call.parent is None else get_current()
        operation = Operation(self._telemetry, (names.EXECUTE_TOOL, name), parent, measured, attributes)
        operation.span.set_attributes(operation.content(content_of_call, call))
        return operation

    # --- the end ---

    def end(self, response: Response, error: AswarmError | None) -> None:
        """End the span of the run; see `RunInfo.on_end`."""
        self._follow(response.agent)
        outcome = self._completion.outcome if self._completion else {}
        cost = cost_of(response.usage) if self._telemetry.cost else {}
        self._operation.end({names.STOP: response.stop, **outcome, **cost}, error)
