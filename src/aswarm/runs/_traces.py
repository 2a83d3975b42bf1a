"""The trace of a request, as headers of W3C Trace Context."""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager


def trace_headers() -> dict[str, str]:
    """Return the headers of the current span, or an empty dict if there is no span."""
    headers: dict[str, str] = {}
    if "opentelemetry.trace" in sys.modules:  # a program without this module makes no spans
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

        TraceContextTextMapPropagator().inject(headers)
    return headers


@contextmanager
def in_trace(headers: Mapping[str, str]) -> Generator[None]:
    """Make the span of the headers the parent of the spans that start in the block.

    A task inherits the trace of the task that started it. Only a queued run and a run in another process need these headers.
    """
    if not headers or "opentelemetry.trace" not in sys.modules:
        yield
        return
    from opentelemetry.context import attach, detach  # noqa: PLC0415
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

    token = attach(TraceContextTextMapPropagator().extract(headers))
    try:
        yield
    finally:
        detach(token)
