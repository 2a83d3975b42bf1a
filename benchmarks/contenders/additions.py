"""aswarm with middleware, guards and traces, on the same client as the reference."""

from __future__ import annotations

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider

from aswarm.guards import Block, CheckedAnswer, CheckedCall, CheckedInput, CheckedResult
from aswarm.guards import guard_answer as answer_guard
from aswarm.guards import guard_input as input_guard
from aswarm.guards import guard_tool as tool_guard
from aswarm.middleware import Handlers, Middleware
from aswarm.otel import otel as tracing

from .aswarm_ import Aswarm, on_openai


async def check_text(checked: CheckedInput | CheckedAnswer | CheckedResult) -> Block | None:
    """Accept the texts of the benchmark."""
    return Block("no text") if not checked.text else None


async def check_call(checked: CheckedCall) -> Block | None:
    """Accept the calls of the benchmark."""
    return Block("no such city") if checked.arguments.get("city") == "Nowhere" else None


def nothing(handlers: Handlers) -> Handlers:
    """Change nothing."""
    return handlers


def traced(*, content: bool) -> Middleware:
    """Return the middleware, with its own providers."""
    meters = MeterProvider([InMemoryMetricReader()])
    return tracing(content=content, tracer_provider=TracerProvider(), meter_provider=meters)


async def middleware(url: str, connections: int | None = None) -> Aswarm:
    """Add a middleware that does nothing."""
    return Aswarm(*on_openai(url, connections, middleware=[nothing]))


async def guard_input(url: str, connections: int | None = None) -> Aswarm:
    """Add an async guard of the input, which runs beside the completion."""
    return Aswarm(*on_openai(url, connections, middleware=[input_guard(check_text)]))


async def guard_tool(url: str, connections: int | None = None) -> Aswarm:
    """Add guards of every call and every result."""
    return Aswarm(*on_openai(url, connections, middleware=[tool_guard(check_call, check_text)]))


async def guard_answer(url: str, connections: int | None = None) -> Aswarm:
    """Add a guard that checks each answer before it is released."""
    return Aswarm(*on_openai(url, connections, middleware=[answer_guard(check_text)]))


async def otel(url: str, connections: int | None = None) -> Aswarm:
    """Add traces."""
    return Aswarm(*on_openai(url, connections, middleware=[traced(content=False)]))


async def otel_content(url: str, connections: int | None = None) -> Aswarm:
    """Add traces with the texts of the messages."""
    return Aswarm(*on_openai(url, connections, middleware=[traced(content=True)]))
