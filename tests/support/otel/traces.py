"""Spans and metrics in memory, and the rules for every trace, at any end of its runs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.trace import StatusCode

from aswarm.middleware import Middleware
from aswarm.otel import otel

# The parent operation of each operation. A run has a call or a span of the program as its parent, or none.
PARENT = {"chat": "invoke_agent", "execute_tool": "invoke_agent"}


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


class Traces(SpanProcessor):
    """All spans and metrics of a middleware. `begun` has the spans in the order of their starts."""

    def __init__(self) -> None:
        self.begun: list[ReadableSpan] = []
        self.ended: list[ReadableSpan] = []
        self.logged: list[logging.LogRecord] = []
        self.provider = TracerProvider()
        self.provider.add_span_processor(self)
        self._reader = InMemoryMetricReader()
        self.meters = MeterProvider([self._reader])

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        self.begun.append(span)

    def on_end(self, span: ReadableSpan) -> None:
        self.ended.append(span)

    def middleware(self, **options: Any) -> Middleware:
        """Return `otel` with these providers."""
        return otel(tracer_provider=self.provider, meter_provider=self.meters, **options)

    @property
    def tracer(self) -> trace.Tracer:
        """Return a tracer for spans of the program."""
        return self.provider.get_tracer("program")

    # --- recorded ---

    def named(self, name: str) -> list[ReadableSpan]:
        """Return the spans with this name, or of this operation."""
        return [span for span in self.begun if span.name == name or operation(span) == name]

    def one(self, name: str) -> ReadableSpan:
        """Return the only span with this name, or of this operation."""
        (span,) = self.named(name)
        return span

    def parent(self, span: ReadableSpan) -> ReadableSpan | None:
        """Return the parent span."""
        if span.parent is None:
            return None
        (parent,) = [each for each in self.begun if each.context.span_id == span.parent.span_id]
        return parent

    def parent_name(self, span: ReadableSpan) -> str | None:
        """Return the name of the parent span."""
        parent = self.parent(span)
        return None if parent is None else parent.name

    def points(self, metric: str) -> list[Any]:
        """Return the data points of a metric."""
        data = self._reader.get_metrics_data()
        found = [] if data is None else [m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics]
        return [point for each in found if each.name == metric for point in each.data.data_points]

    # --- the rules ---

    def check(self) -> None:
        """Check that every span ended once, inside its parent; that no span is current; that OpenTelemetry logged nothing."""
        names = [span.name for span in self.begun]
        assert sorted(map(_id, self.begun)) == sorted(map(_id, self.ended)), f"not ended, or twice: {names}"
        for span in self.begun:
            self._check_parent(span)
        assert trace.get_current_span() is trace.INVALID_SPAN, "a span is still current"
        assert [record.getMessage() for record in self.logged] == []

    def _check_parent(self, span: ReadableSpan) -> None:
        parent, attributes = self.parent(span), span.attributes or {}
        if operation(span) == "":  # of the program
            return
        assert "aswarm.run.id" in attributes
        if (expected := PARENT.get(operation(span))) is not None:
            assert parent is not None, span.name
            assert operation(parent) == expected, f"{span.name} is below {parent.name}"
            assert (parent.attributes or {})["aswarm.run.id"] == attributes["aswarm.run.id"]
        elif parent is not None:
            assert operation(parent) in ("", "execute_tool"), f"{span.name} is below {parent.name}"
        if parent is not None:
            assert parent.start_time <= span.start_time <= span.end_time <= parent.end_time  # type: ignore[operator]


def _id(span: ReadableSpan) -> int:
    return span.context.span_id


def operation(span: ReadableSpan) -> str:
    """Return the operation of a span of aswarm; empty for other spans."""
    return str((span.attributes or {}).get("gen_ai.operation.name", ""))


def has_failed(span: ReadableSpan) -> bool:
    """Return whether its status is an error."""
    return span.status.status_code is StatusCode.ERROR


@contextmanager
def traced() -> Iterator[Traces]:
    """Yield traces that are checked at the end of the block."""
    traces = Traces()
    handler = logging.Handler()
    handler.emit = traces.logged.append  # type: ignore[method-assign]
    logger = logging.getLogger("opentelemetry")
    logger.addHandler(handler)
    try:
        yield traces
        traces.check()
    finally:
        logger.removeHandler(handler)
