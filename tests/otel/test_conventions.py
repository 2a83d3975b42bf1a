"""Spans and metrics against the conventions of OpenTelemetry, version 1.41.1.

`support/otel/conventions/gen_ai.json` has the spans, metrics and attributes (`model/gen-ai`) of the project
open-telemetry/semantic-conventions (Apache License 2.0), and its JSON schemas of messages and tools (`docs/gen-ai`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from opentelemetry.semconv.schemas import Schemas

from aswarm import Agent, AsyncSwarm, Image
from aswarm.otel import _conventions as names
from aswarm.testing import Failure, ScriptedAnswer, call
from tests.support.otel.traces import Traces, operation
from tests.support.providers.sources import script_of

CONVENTIONS: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "support/otel/conventions/gen_ai.json").read_text(encoding="utf-8")
)
TYPES = {"string": str, "int": int, "double": float, "boolean": bool, "string[]": tuple, "any": str}
# The agent stands on the spans of its completions and calls too, and the conversation on every span.
EVERYWHERE = {names.AGENT_NAME, names.CONVERSATION_ID}
SECRET = "the prompt of the user"
SETTINGS = {
    "temperature": 1,
    "top_p": 0.5,
    "max_tokens": 100,
    "seed": 7,
    "n": 1,
    "stop": ["END"],
    "frequency_penalty": 0.1,
    "presence_penalty": 0,
    "response_format": {"type": "json_object"},
}


async def look(city: str) -> str:
    """The description of the function."""
    return f"sunny in {city}"


async def draw() -> list[Any]:
    """Draw."""
    return ["a drawing", Image(b"123", media_type="image/png")]


async def fail(city: str) -> str:
    """Fail."""
    raise ValueError(f"nothing in {SECRET}")


async def all_sorts(traces: Traces, **options: Any) -> None:
    """Runs with all kinds of messages, whole and streamed, and with failures."""
    calls = [
        call("look", city=SECRET),
        call("draw"),
        call("fail", city="x"),
        ScriptedAnswer(calls=[call("look", city="y")]).calls[0],
    ]
    steps = [ScriptedAnswer(SECRET, calls=calls), SECRET, call("transfer_to_other"), SECRET, Failure(400, SECRET)]
    swarm = AsyncSwarm(script_of(steps).client(), middleware=[traces.middleware(**options)], model="m")
    agent = Agent(name="Desk", instructions=SECRET, functions=[look, draw, fail, Agent(name="other")])
    agent.model_settings = SETTINGS
    history = [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": SECRET},
                image("https://host.test/a.png"),
                image("data:image/png;base64,AAAA"),
            ],
        },
        {"role": "assistant", "content": SECRET, "reasoning_content": SECRET, "refusal": None},
        {"role": "user", "content": SECRET},
    ]
    await swarm.run(agent, history, {"conversation_id": "c"})
    async with swarm.stream(agent, SECRET, {"conversation_id": "c"}) as run:
        async for _ in run:
            pass
    with pytest.raises(Exception, match=SECRET):
        await swarm.run(agent, SECRET, {"conversation_id": "c"})


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def has_its_type(name: str, value: Any) -> bool:
    """Return whether a value has the type of the conventions."""
    kind = CONVENTIONS["attributes"].get(name, "string")
    if isinstance(kind, dict):  # well-known values; an error has a type of its own
        return isinstance(value, str) and (name == names.ERROR_TYPE or value in kind["enum"])
    return type(value) is TYPES[kind]


def test_the_names_are_those_of_the_conventions() -> None:
    """Every name that is not of aswarm is an attribute, an operation or a metric in this version."""
    known = {*CONVENTIONS["attributes"], *CONVENTIONS["metrics"]}
    operations = set(CONVENTIONS["attributes"][names.OPERATION_NAME]["enum"])
    public = [value for key, value in vars(names).items() if key.isupper()]
    values = {value for value in public if isinstance(value, str)}
    values |= {name for table in public if isinstance(table, dict) for name in table.values()}
    ours = {value for value in values if value.startswith("aswarm.")}
    assert values - ours - {names.SCHEMA_URL} <= known | operations
    assert Schemas.V1_41_1.value == names.SCHEMA_URL


async def test_spans_have_the_attributes_of_the_conventions(traces: Traces) -> None:
    """Required attributes are there, others are names of aswarm, and each value has its type."""
    await all_sorts(traces, content=True)
    assert {operation(span) for span in traces.begun} == set(CONVENTIONS["spans"])
    for span in traces.begun:
        convention = CONVENTIONS["spans"][operation(span)]
        found = dict(span.attributes or {})
        levels = convention["attributes"]
        assert {name for name, level in levels.items() if level == "required"} <= set(found), span.name
        others = {name for name in found if name not in levels and not name.startswith("aswarm.")}
        assert others <= EVERYWHERE, span.name
        assert {name: value for name, value in found.items() if not has_its_type(name, value)} == {}, span.name
        assert span.kind.name.lower() == convention["kind"]
        assert span.instrumentation_scope is not None
        assert span.instrumentation_scope.schema_url == names.SCHEMA_URL
        assert found[names.CONVERSATION_ID] == "c"


async def test_messages_have_the_form_of_the_conventions(traces: Traces) -> None:
    """Each JSON text fits its schema."""
    await all_sorts(traces, content=True)
    for name, schema in CONVENTIONS["json"].items():
        found = [span.attributes[name] for span in traces.begun if name in (span.attributes or {})]  # type: ignore[index]
        assert found, name
        for text in found:
            jsonschema.validate(json.loads(str(text)), schema)


async def test_metrics_have_the_form_of_the_conventions(traces: Traces) -> None:
    """Required attributes of each data point are there, and each value has its type."""
    await all_sorts(traces)
    for name in (names.OPERATION_DURATION, names.TIME_TO_FIRST_CHUNK, names.TOKEN_USAGE):
        points = traces.points(name)
        assert points, name
        levels = CONVENTIONS["metrics"][name]["attributes"]
        for point in points:
            found = dict(point.attributes)
            assert {key for key, level in levels.items() if level == "required"} <= set(found)
            assert set(found) - set(levels) <= {names.AGENT_NAME, names.TOOL_NAME}
            assert all(has_its_type(key, value) for key, value in found.items())


async def test_no_content_is_in_any_span_by_default(traces: Traces) -> None:
    """Prompts, answers, arguments, results, descriptions and texts of errors are in no span, event or status."""
    await all_sorts(traces)
    shown = "\n".join(span.to_json() for span in traces.begun)
    for text in (SECRET, "sunny", "description", "drawing", "Traceback"):
        assert text not in shown
    assert "ValueError" in shown
    for attribute in (*CONVENTIONS["json"], names.TOOL_CALL_ARGUMENTS, names.TOOL_CALL_RESULT):
        assert attribute not in shown
