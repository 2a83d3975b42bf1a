"""aswarm with `aswarm.otel` and the SDK of OpenTelemetry, without an exporter: the cost of spans and metrics themselves."""

from __future__ import annotations

from clients import openai_client
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider

from aswarm import AsyncSwarm
from aswarm.middleware import Middleware
from aswarm.otel import otel

from .aswarm_ import PACKAGES, Aswarm

__all__ = ["IMPORT", "PACKAGES", "open_session"]
IMPORT = "import aswarm.otel"


def traced(*, content: bool = False) -> Middleware:
    """Return the middleware, with its own providers."""
    meters = MeterProvider([InMemoryMetricReader()])
    return otel(content=content, tracer_provider=TracerProvider(), meter_provider=meters)


async def open_session(url: str, connections: int | None = None) -> Aswarm:
    """Make the swarm, on the same client as the reference."""
    return Aswarm(AsyncSwarm(client=openai_client(url, connections), middleware=[traced()]))
