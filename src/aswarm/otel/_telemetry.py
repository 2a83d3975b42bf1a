"""The tracer, the instruments, and one operation: a span with its duration as a metric.

Decides what a span says of an error. Without `content`, that is the type of the error and never its text: a provider may quote
the prompt, and a function its arguments.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any, TypeAlias

from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider, get_meter
from opentelemetry.trace import SpanKind, Status, StatusCode, TracerProvider, get_tracer, set_span_in_context

from aswarm._errors import CompletionError, RunError
from aswarm._json import jsonable

from . import _conventions as names

Attributes: TypeAlias = dict[str, str | bool | int | float | list[str]]


class Telemetry:
    """The tracer and the instruments, which all runs of one middleware share.

    `content`: whether spans have messages, arguments, results and texts of errors.
    """

    def __init__(
        self, tracer_provider: TracerProvider | None, meter_provider: MeterProvider | None, *, content: bool
    ) -> None:
        version: str = importlib.import_module(
            "aswarm"
        ).__version__  # by its name: the package imports rooms that are above this one
        self.content = content
        self.tracer = get_tracer("aswarm", version, tracer_provider, names.SCHEMA_URL)
        meter = get_meter("aswarm", version, meter_provider, names.SCHEMA_URL)
        self.duration = meter.create_histogram(
            names.OPERATION_DURATION,
            "s",
            "GenAI operation duration.",
            explicit_bucket_boundaries_advisory=names.SECONDS_BUCKETS,
        )
        self.first_chunk = meter.create_histogram(
            names.TIME_TO_FIRST_CHUNK,
            "s",
            "Time to receive the first chunk of a streamed completion.",
            explicit_bucket_boundaries_advisory=names.SECONDS_BUCKETS,
        )
        self.tokens = meter.create_histogram(
            names.TOKEN_USAGE,
            "{token}",
            "Number of input and output tokens used.",
            explicit_bucket_boundaries_advisory=names.TOKENS_BUCKETS,
        )


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
        self.context = set_span_in_context(self.span, parent)
        self._began = time.perf_counter()

    def content(self, describe: Callable[..., Attributes], *values: Any) -> Attributes:
        """The attributes with messages, arguments or results that `describe` makes; empty unless spans have content."""
        if not (self.telemetry.content and self.span.is_recording()):
            return {}
        try:
            return describe(*values)
        except Exception:  # noqa: BLE001 - middleware may have changed a message to any form, and a trace must not end a run
            return {}

    @property
    def seconds(self) -> float:
        """The seconds since its beginning."""
        return time.perf_counter() - self._began

    def end(self, attributes: Attributes, error: BaseException | None = None) -> None:
        """End the span. An `error` that is not an `Exception`, such as a cancellation, means that the run was left early."""
        if isinstance(error, Exception):
            self._set_error(error)
        elif error is not None:
            attributes = {**attributes, names.STOP: "cancelled"}
        self.span.set_attributes(attributes)
        self.telemetry.duration.record(self.seconds, self.measured, self.context)
        self.span.end()

    def _set_error(self, error: Exception) -> None:
        self.measured[names.ERROR_TYPE] = kind = _error_type(error)
        self.span.set_attribute(names.ERROR_TYPE, kind)
        self.span.set_status(Status(StatusCode.ERROR, str(jsonable(error)) if self.telemetry.content else None))


def _error_type(error: BaseException) -> str:
    """The HTTP status of a provider's error, or the name of the exception's class."""
    if isinstance(error, CompletionError) and error.status_code is not None:
        return str(error.status_code)
    if type(error) is RunError and error.__cause__ is not None:  # it stands for an exception of code outside of aswarm
        return _error_type(error.__cause__)
    return type(error).__qualname__
