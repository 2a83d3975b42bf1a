"""Attributes of requests and answers in spans and metrics, without values of which OpenTelemetry would warn."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from aswarm import Agent, AsyncSwarm, ConfigurationError
from aswarm.extensions import CompletionRequest, Handlers
from aswarm.testing import RawAnswer, ScriptedModel, call
from tests.support.middleware.middlewares import asking_first
from tests.support.otel.traces import Traces, attributes
from tests.support.providers.sources import script_of
from tests.support.wire.caching_model import CachingModel


class Source:
    """A source of these chunks."""

    def __init__(self, *chunks: Any) -> None:
        self._chunks = chunks

    async def complete(self, request: object) -> Any:
        for chunk in self._chunks:
            yield chunk


async def settings(traces: Traces, **body: Any) -> dict[str, Any]:
    """Return the attributes of the settings of a request."""
    source = Source({"choices": [{"message": {"content": "Hi."}, "finish_reason": "stop"}]})
    middleware = [asking_first(lambda sent: sent.update(body)), traces.middleware()]
    await AsyncSwarm(source, middleware=middleware).run(Agent(), "Hi")
    found = attributes(traces.named("chat")[-1])
    keys = ("gen_ai.request.", "gen_ai.output.type")
    return {name: value for name, value in found.items() if name.startswith(keys)}


async def test_the_settings_of_a_request_are_attributes(traces: Traces) -> None:
    """They have the names of the conventions, and one choice is left out."""
    body = {"temperature": 1, "max_completion_tokens": 5, "n": 1, "stop": "END", "stream": True, "model": "m"}
    assert await settings(traces, **body) == {
        "gen_ai.request.model": "m",
        "gen_ai.request.temperature": 1.0,
        "gen_ai.request.max_tokens": 5,
        "gen_ai.request.stop_sequences": ("END",),
        "gen_ai.request.stream": True,
    }
    found = await settings(traces, n=2, response_format={"type": "json_schema"}, model="m")
    assert found == {"gen_ai.request.model": "m", "gen_ai.request.choice.count": 2, "gen_ai.output.type": "json"}


async def test_settings_of_other_types_are_left_out(traces: Traces) -> None:
    """OpenTelemetry would log a warning, or an exporter would fail."""
    odd: dict[str, Any] = {"temperature": "hot", "top_p": None, "seed": 2**70, "max_tokens": True, "stop": [7, None]}
    assert await settings(traces, **odd, response_format="json", model=object()) == {}


async def test_an_answer_has_its_model_its_finish_reason_and_its_tokens(traces: Traces) -> None:
    """The parts of the tokens are attributes too, if the provider counts them."""
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 20,
        "prompt_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 10},
        "completion_tokens_details": {"reasoning_tokens": 15},
    }
    choice = {"message": {"role": "assistant", "content": "Hi."}, "finish_reason": "stop"}
    source = Source({"id": "c-1", "model": "m-2026", "choices": [choice], "usage": usage})
    await AsyncSwarm(source, middleware=[traces.middleware(provider="groq")], model="m").run(Agent(), "Hi")
    found = attributes(traces.one("chat"))
    del found["aswarm.run.id"]
    assert found == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "groq",
        "gen_ai.agent.name": "Agent",
        "gen_ai.request.model": "m",
        "gen_ai.response.id": "c-1",
        "gen_ai.response.model": "m-2026",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 20,
        "gen_ai.usage.cache_read.input_tokens": 60,
        "gen_ai.usage.cache_creation.input_tokens": 10,
        "gen_ai.usage.reasoning.output_tokens": 15,
    }
    (sent, received) = sorted(traces.points("gen_ai.client.token.usage"), key=lambda point: -point.sum)
    assert (sent.sum, sent.attributes["gen_ai.token.type"]) == (100, "input")
    assert (received.sum, received.attributes["gen_ai.token.type"]) == (20, "output")


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_over_the_responses_api_has_the_same_attributes(traces: Traces, stream: bool) -> None:
    """It has its id, its model and its tokens."""
    model = ScriptedModel(["Hi."], api="responses")
    swarm = AsyncSwarm(model.client(), api="responses", middleware=[traces.middleware()])
    async with swarm.stream(Agent(), "Hi", deltas=stream) as run:
        async for _ in run:
            pass
    found = attributes(traces.one("chat"))
    assert found["gen_ai.response.id"]
    assert found["gen_ai.response.model"] == "scripted"
    assert (found["gen_ai.usage.input_tokens"], found["gen_ai.usage.output_tokens"]) == (10, 5)


async def test_tokens_that_are_not_counted_are_left_out(traces: Traces) -> None:
    """0 would be wrong. The span of a run has no tokens, because a backend adds up all spans."""
    choice = {"message": {"role": "assistant", "content": "Hi."}}
    await AsyncSwarm(Source({"choices": [choice]}), middleware=[traces.middleware()]).run(Agent(), "Hi")
    assert not [name for span in traces.begun for name in (span.attributes or {}) if "usage" in name]
    assert traces.points("gen_ai.client.token.usage") == []
    assert attributes(traces.one("chat"))["gen_ai.response.finish_reasons"] == ("stop",)


@pytest.mark.parametrize("chunk", [{"id": 7, "model": None, "choices": []}, {"id": "\ud800"}, {}])
async def test_odd_values_of_a_provider_are_left_out_or_written_as_escapes(traces: Traces, chunk: Any) -> None:
    """The run decides whether they are a completion."""
    last = {"choices": [{"delta": {"content": "Hi."}, "finish_reason": "stop"}]}
    await AsyncSwarm(Source(chunk, last), middleware=[traces.middleware()]).run(Agent(), "Hi")
    found = attributes(traces.one("chat")).get("gen_ai.response.id")
    assert found == ("\\ud800" if chunk.get("id") == "\ud800" else None)


async def test_streams_have_a_time_to_the_first_chunk(traces: Traces) -> None:
    """It is on the span and a metric; a whole completion has none."""
    swarm = AsyncSwarm(script_of(["Hi."] * 2).client(), middleware=[traces.middleware()])
    await swarm.run(Agent(), "Hi")
    async for _ in swarm.run(Agent(), "Hi", stream=True):
        pass
    whole, streamed = (dict(span.attributes or {}) for span in traces.named("chat"))
    (point,) = traces.points("gen_ai.client.operation.time_to_first_chunk")
    assert "gen_ai.response.time_to_first_chunk" not in whole
    assert point.sum == streamed["gen_ai.response.time_to_first_chunk"] > 0
    assert point.count == 1


async def test_runs_completions_and_calls_have_a_duration(traces: Traces) -> None:
    """It has the operation, and the agent, model or function; an invented name is no attribute."""

    async def look() -> str:
        return "sunny"

    model = script_of([[call("look"), call("made_up")], "Sunny."])
    await AsyncSwarm(model.client(), middleware=[traces.middleware()], model="m").run(Agent(functions=[look]), "Hi")
    found = {
        (point.attributes["gen_ai.operation.name"], point.attributes.get("gen_ai.tool.name")): point.count
        for point in traces.points("gen_ai.client.operation.duration")
    }
    assert found == {
        ("invoke_agent", None): 1,
        ("chat", None): 2,
        ("execute_tool", "look"): 1,
        ("execute_tool", None): 1,
    }


async def test_an_error_is_in_the_metrics_too(traces: Traces) -> None:
    """The type of the error is an attribute of the duration."""
    swarm = AsyncSwarm(script_of([RawAnswer([b"data: {}\n\n"])]).client(), middleware=[traces.middleware()])
    with pytest.raises(Exception):  # noqa: B017 - the type is that of the run
        async for _ in swarm.run(Agent(), "Hi", stream=True):
            pass
    points = traces.points("gen_ai.client.operation.duration")
    assert {point.attributes["error.type"] for point in points} == {"StreamInterrupted"}


async def test_a_missed_cache_and_the_cost_are_attributes(traces: Traces) -> None:
    """The span of a completion has the miss and the cost, and the span of the run has the sum. A judge of a middleware has no miss."""
    numbers = count()
    agent = Agent(model="gpt-4o", instructions=lambda: f"{next(numbers)} {'Help. ' * 3_000}", functions=[lookup])

    def judge(handlers: Handlers) -> Handlers:
        async def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            async for chunk in handlers.complete(request):
                yield chunk
            async for _ in handlers.complete(
                request.for_agent(Agent(model="gpt-4o"), [{"role": "user", "content": "Good?"}])
            ):
                pass

        return replace(handlers, complete=complete)

    model = CachingModel([[("lookup", {})], "yes", "Done.", "yes"])
    response = await AsyncSwarm(model, middleware=[judge, traces.middleware(cost=True)]).run(agent, "Go")
    spans = [attributes(span) for span in traces.named("chat")]
    misses = [{key: span[key] for key in span if "cache_miss" in key} for span in spans]
    assert misses[0] == misses[1] == misses[3] == {}
    assert misses[2] == {
        "aswarm.cache_miss.kind": "changed",
        "aswarm.cache_miss.where": "the instructions changed at character 0",
        "aswarm.cache_miss.kept_tokens": 46,
        "aswarm.cache_miss.lost_tokens": model.usages[0]["prompt_tokens"] - 46,
    }
    assert attributes(traces.one("invoke_agent"))["aswarm.cost"] == response.cost
    assert spans[0]["aswarm.cost"] + spans[2]["aswarm.cost"] == pytest.approx(response.cost)
    assert spans[1]["aswarm.cost"] < 0.001


async def test_an_unknown_cost_is_no_attribute(traces: Traces, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra, `cost=True` is an error with the remedy."""
    await AsyncSwarm(CachingModel(["Hi."]), middleware=[traces.middleware(cost=True)]).run(
        Agent(model="my-model"), "Hi"
    )
    assert "aswarm.cost" not in attributes(traces.one("chat")) | attributes(traces.one("invoke_agent"))
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    with pytest.raises(ConfigurationError, match="the cost needs genai-prices"):
        traces.middleware(cost=True)


def lookup() -> str:
    return "Sent."
