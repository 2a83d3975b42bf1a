"""The tracer, the instruments, and one operation: a span with its duration as a metric.

Without `content`, a span has the type of an error, but never its text. The text could contain the prompt, or arguments of a
function.

Security: A span contains no messages, arguments, results or texts of errors without `content=True`.
"""

from __future__ import annotations

import importlib
import types
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, TypeAlias, TypeVar

from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.metrics import Histogram, MeterProvider, get_meter
from opentelemetry.trace import SpanKind, Status, StatusCode, TracerProvider, get_tracer, set_span_in_context

from aswarm._runtime import clocks
from aswarm._values.errors import CompletionError, RunError
from aswarm._values.json import jsonable

from . import _conventions as names

T = TypeVar("T")
Attributes: TypeAlias = dict[str, str | bool | int | float | list[str]]


class Telemetry:
    """The tracer and the instruments, shared by all runs of one middleware.

    `content`: whether spans have messages, arguments, results and error texts. `cost`: whether they have the cost.
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None,
        meter_provider: MeterProvider | None,
        *,
        content: bool,
        cost: bool = False,
    ) -> None:
        # Import by name, because an import of `aswarm` at the top of this module would be a cycle.
        version: str = importlib.import_module("aswarm").__version__
        self.content = content
        self.cost = cost
        self.tracer = get_tracer("aswarm", version, tracer_provider, names.SCHEMA_URL)
        meter = get_meter("aswarm", version, meter_provider, names.SCHEMA_URL)

        def histogram(name: str, description: str, buckets: Sequence[float], unit: str = "s") -> Histogram:
            return meter.create_histogram(name, unit, description, explicit_bucket_boundaries_advisory=buckets)

        first_chunk = "Time to receive the first chunk of a streamed completion."
        tokens = "Number of input and output tokens used."
        self.duration = histogram(names.OPERATION_DURATION, "GenAI operation duration.", names.SECONDS_BUCKETS)
        self.first_chunk = histogram(names.TIME_TO_FIRST_CHUNK, first_chunk, names.SECONDS_BUCKETS)
        self.tokens = histogram(names.TOKEN_USAGE, tokens, names.TOKENS_BUCKETS, "{token}")


class Operation:
    """One span and its metrics.

    `context`: the context of OpenTelemetry in which the span is current. `measured`: the attributes of the metrics.
    """

    def __init__(
        self,
        telemetry: Telemetry,
        name: tuple[str, str],
        parent: Context,
        measured: Attributes,
        attributes: Attributes,
    ) -> None:
        operation, subject = name
        self.telemetry = telemetry
        self.measured: Attributes = {names.OPERATION_NAME: operation, **measured}
        self.span = telemetry.tracer.start_span(
            f"{operation} {subject}".rstrip(),
            parent,
            kind=SpanKind.CLIENT if operation == names.CHAT else SpanKind.INTERNAL,
            attributes={names.OPERATION_NAME: operation, **attributes},
        )
        self.context = self._current = set_span_in_context(self.span, parent)
        self._started = clocks.monotonic()

    @types.coroutine
    def run(self, step: Awaitable[T]) -> Generator[Any, Any, T]:
        """Await a step of the operation, with the span as the current span.

        A generator must not make its span current across a `yield`. Otherwise the span is current in the code of the consumer
        too, and OpenTelemetry logs an error when another task closes the generator. So this method attaches the context before
        each part of the step, and detaches it when the step suspends. If a step makes another span current, that span stays
        current in the next steps. See https://github.com/open-telemetry/opentelemetry-python/issues/2606
        """
        inner: Any = step.__await__()
        resume, value = inner.send, None
        while True:
            token = attach(self._current)
            try:
                waits_for = resume(value)
            except StopIteration as done:
                result: T = done.value
                return result
            finally:
                self._current = get_current()
                detach(token)
            try:
                resume, value = inner.send, (yield waits_for)
            except BaseException as error:  # noqa: BLE001 - thrown into the step, which handles or raises it
                resume, value = inner.throw, error

    def content(self, describe: Callable[..., Attributes], *values: Any) -> Attributes:
        """Return the attributes with content, from `describe(*values)`. Return no attributes if spans have no content."""
        if not (self.telemetry.content and self.span.is_recording()):
            return {}
        try:
            return describe(*values)
        except Exception:  # noqa: BLE001 - a middleware may have made a message invalid, but a trace must not end a run
            return {}

    @property
    def seconds(self) -> float:
        return clocks.monotonic() - self._started

    def end(self, attributes: Attributes, error: BaseException | None = None) -> None:
        """End the span. If `error` is not an `Exception`, but a cancellation or the like, the run was closed early."""
        if isinstance(error, Exception):
            self.measured[names.ERROR_TYPE] = kind = _error_type(error)
            self.span.set_attribute(names.ERROR_TYPE, kind)
            self.span.set_status(Status(StatusCode.ERROR, str(jsonable(error)) if self.telemetry.content else None))
        elif error is not None:
            attributes = {**attributes, names.STOP: "cancelled"}
        self.span.set_attributes(attributes)
        self.telemetry.duration.record(self.seconds, self.measured, self.context)
        self.span.end()


def _error_type(error: BaseException) -> str:
    """Return the HTTP status of a provider's error, or the name of the exception's class."""
    if isinstance(error, CompletionError) and error.status_code is not None:
        return str(error.status_code)
    if type(error) is RunError and error.__cause__ is not None:  # wraps an exception from code outside of aswarm
        return _error_type(error.__cause__)
    return type(error).__qualname__
