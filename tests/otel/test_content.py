"""Messages, arguments and results in spans: only with `content=True`, and in any form."""

from __future__ import annotations

import json
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON

from aswarm import Agent, AsyncSwarm, CompletionError, ToolError
from aswarm.otel import otel
from aswarm.testing import Failure, ScriptedAnswer, call
from tests.support.middleware.middlewares import asking_first
from tests.support.otel.traces import Traces
from tests.support.providers.sources import script_of

CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


def read(span: ReadableSpan, name: str) -> Any:
    """Return an attribute that is JSON text."""
    return json.loads(str((span.attributes or {})[name]))


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "content": content}


async def look(city: str) -> str:
    """Look."""
    return "sunny ☀"


async def test_a_completion_has_its_messages(traces: Traces) -> None:
    """It has the instructions, conversation, functions and answer; the run has its first message and its answer."""
    model = script_of([ScriptedAnswer("I look.", calls=[call("look", city="Tromsø")]), "Sunny."])
    swarm = AsyncSwarm(model.client(), middleware=[traces.middleware(content=True)])
    await swarm.run(Agent(instructions="Be brief.", functions=[look]), "Hi")
    first, last = traces.named("chat")
    asked = {"role": "user", "parts": [text("Hi")]}
    call_id = (traces.one("execute_tool").attributes or {})["gen_ai.tool.call.id"]
    made = {"type": "tool_call", "id": call_id, "name": "look", "arguments": {"city": "Tromsø"}}
    answered = {"type": "tool_call_response", "id": call_id, "response": "sunny ☀"}
    said = {"role": "assistant", "parts": [text("I look."), made]}
    assert read(first, "gen_ai.system_instructions") == [text("Be brief.")]
    assert read(first, "gen_ai.input.messages") == [asked]
    assert read(first, "gen_ai.output.messages") == [{**said, "finish_reason": "tool_call"}]
    assert [tool["name"] for tool in read(first, "gen_ai.tool.definitions")] == ["look"]
    assert read(last, "gen_ai.input.messages") == [asked, said, {"role": "tool", "parts": [answered]}]
    answer = [{"role": "assistant", "parts": [text("Sunny.")], "finish_reason": "stop"}]
    assert read(last, "gen_ai.output.messages") == answer
    run = traces.one("invoke_agent")
    assert read(run, "gen_ai.input.messages") == [asked]
    assert read(run, "gen_ai.output.messages") == answer
    called = traces.one("execute_tool").attributes or {}
    assert json.loads(str(called["gen_ai.tool.call.arguments"])) == {"city": "Tromsø"}
    assert called["gen_ai.tool.call.result"] == "sunny ☀"


async def test_texts_of_errors_are_content(traces: Traces) -> None:
    """The status of a span has them."""

    async def refuse() -> str:
        raise ToolError("No \ud83d.")

    swarm = AsyncSwarm(
        script_of([call("refuse"), Failure(400, "too long")]).client(), middleware=[traces.middleware(content=True)]
    )
    with pytest.raises(CompletionError):
        await swarm.run(Agent(functions=[refuse]), "Hi")
    assert traces.one("execute_tool").status.description == "No \ufffd."
    assert "too long" in str(traces.one("invoke_agent").status.description)


@pytest.mark.parametrize(
    ("value", "has_content"),
    [("", False), ("false", False), ("NO_CONTENT", False), ("EVENT_ONLY", False), ("true", True), ("SPAN_ONLY", True)],
)
async def test_the_environment_may_ask_for_content(
    traces: Traces, monkeypatch: pytest.MonkeyPatch, value: str, has_content: bool
) -> None:
    """Instrumentations of OpenTelemetry read the same variable; `content=False` is stronger."""
    monkeypatch.setenv(CAPTURE, value)
    for options in ({}, {"content": False}):
        await AsyncSwarm(script_of(["Hi."]).client(), middleware=[traces.middleware(**options)]).run(Agent(), "Hi")
    first, second = traces.named("chat")
    assert ("gen_ai.input.messages" in (first.attributes or {})) is has_content
    assert "gen_ai.input.messages" not in (second.attributes or {})


@pytest.mark.parametrize("sampler", [ALWAYS_ON, ALWAYS_OFF], ids=["recorded", "left out"])
async def test_a_span_that_is_not_recorded_has_no_content(sampler: Any) -> None:
    """Content costs nothing for runs that the sampler leaves out: their messages are not read."""
    notes: list[str] = []

    class Watched(dict[str, Any]):
        def get(self, key: str, default: Any = None) -> Any:
            notes.append(key)
            return super().get(key, default)

    def watch(body: dict[str, Any]) -> None:
        body["messages"] = [Watched(role="user", content="Hi")]

    def unwatch(body: dict[str, Any]) -> None:
        body["messages"] = [{"role": "user", "content": "Hi"}]

    provider = TracerProvider(sampler=sampler)
    middleware = [asking_first(watch), otel(content=True, tracer_provider=provider), asking_first(unwatch)]
    await AsyncSwarm(script_of(["Hi."]).client(), middleware=middleware).run(Agent(), "Hi")
    assert bool(notes) == (sampler is ALWAYS_ON)


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [{"type": "image_url"}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": "https://host.test/a.png"}]},
        7,
    ],
)
async def test_a_message_of_an_odd_form_does_not_end_the_run(traces: Traces, message: Any) -> None:
    """A middleware may have made it; then the span has no messages."""
    spoil = asking_first(lambda body: body["messages"].append(message))
    mend = asking_first(lambda body: body["messages"].pop())
    middleware = [spoil, traces.middleware(content=True), mend]
    response = await AsyncSwarm(script_of(["Hi."]).client(), middleware=middleware).run(Agent(), "Hi")
    assert response.text == "Hi."
    assert "gen_ai.input.messages" not in (traces.one("chat").attributes or {})


async def parts(traces: Traces, message: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the parts of one message of a request."""

    def swap(body: dict[str, Any]) -> None:
        kept.append(body["messages"])
        body["messages"] = [message] if len(kept) == 1 else kept[0]

    kept: list[Any] = []
    middleware = [asking_first(swap), traces.middleware(content=True), asking_first(swap)]
    await AsyncSwarm(script_of(["Hi."]).client(), middleware=middleware).run(Agent(), "Hi")
    found: list[dict[str, Any]] = read(traces.one("chat"), "gen_ai.input.messages")[0]["parts"]
    return found


async def test_bytes_are_left_out(traces: Traces) -> None:
    """Bytes of images, sounds and files are left out; the address of an image elsewhere stays."""
    near = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    far = {"type": "image_url", "image_url": {"url": "https://host.test/a.png"}}
    sound = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    assert await parts(traces, {"role": "user", "content": [near, far, sound, "odd"]}) == [
        {"type": "blob", "modality": "image", "mime_type": "image/png", "content": ""},
        {"type": "uri", "modality": "image", "uri": "https://host.test/a.png"},
        {"type": "input_audio"},
        {"type": "unknown"},
    ]


async def test_reasoning_a_refusal_and_calls_are_parts(traces: Traces) -> None:
    """Reasoning, a refusal, and arguments that are not JSON are in the message."""
    made = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{"}}
    custom = {"id": "2", "type": "custom", "custom": {"name": "run", "input": "ls"}}
    message = {"role": "assistant", "content": None, "reasoning_content": "Hm.", "refusal": "No."}
    message["tool_calls"] = [made, custom]
    assert await parts(traces, message) == [
        {"type": "reasoning", "content": "Hm."},
        text("No."),
        {"type": "tool_call", "id": "1", "name": "look", "arguments": "{"},
        {"type": "tool_call", "id": "2", "name": "run", "arguments": "ls"},
    ]
