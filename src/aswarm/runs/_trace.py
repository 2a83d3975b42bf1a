"""The trace of the request that starts a run, for the process that executes it: the headers of W3C Trace Context.

A task inherits the trace of the task that started it, but a queued run or another process needs the headers.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager


def trace_headers() -> dict[str, str]:
    """Return the headers of the current span; empty without a span."""
    headers: dict[str, str] = {}
    if "opentelemetry.trace" in sys.modules:  # else the program makes no spans
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

        TraceContextTextMapPropagator().inject(headers)
    return headers


@contextmanager
def in_trace(headers: Mapping[str, str]) -> Generator[None]:
    """Make the span of the headers the parent of the spans that start in the block."""
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
