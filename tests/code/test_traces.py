"""Traces of code: the span of each call is inside the span of `run_code`."""

from __future__ import annotations

import pytest

from aswarm.otel import otel
from tests.support.code.coded import agent_of, swarm_of

pytest.importorskip("opentelemetry.sdk")
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


async def test_each_call_in_code_has_a_span_inside_the_span_of_the_code() -> None:
    """Also the calls of a gather, which run in tasks of their own."""

    async def look(number: int) -> int:
        return number

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    swarm = swarm_of(
        "await asyncio.gather(look(1), look(2))\nawait look(3)", middleware=[otel(tracer_provider=provider)]
    )
    await swarm.run(agent_of(look), "Go")
    spans = exporter.get_finished_spans()
    (code,) = (span for span in spans if span.name == "execute_tool run_code")
    inside = [span for span in spans if span.name == "execute_tool look"]
    assert len(inside) == 3
    assert all(span.parent is not None and span.parent.span_id == code.context.span_id for span in inside)
