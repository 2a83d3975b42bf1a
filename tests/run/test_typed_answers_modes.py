"""Modes of structured output, the outputs that are errors, and partial values of an answer."""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import Any

import pytest

from aswarm import Agent, AsyncSwarm, ConfigurationError, Output, OutputError, Swarm, tool
from aswarm.middleware import fallback
from aswarm.testing import Failure, ScriptedAnswer, ScriptedModel, call
from tests.support.run.typed_scene import ROME, Hotel, Scene, Trip, final, look, told

# --- the other modes --------------------------------------------------------------------------------------------------


async def test_the_prompt_mode() -> None:
    """The schema is in the instructions; `json_object` is sent only without functions."""
    scene = Scene(ROME, functions=())
    assert (await scene.run(output=Output(Trip, mode="prompt"))).output == Trip(city="Rome")
    (body,) = scene.bodies
    assert body["response_format"] == {"type": "json_object"}
    assert body["messages"][0]["content"].startswith("You are a helpful agent.\n\nWrite your final answer as JSON")
    scene = Scene(call("look"), ROME, instructions=None)
    await scene.run(output=Output(Trip, mode="prompt"))
    assert [body["messages"][0]["role"] for body in scene.bodies] == ["system", "system"]
    scene = Scene("Hm", functions=(), instructions=lambda: [{"type": "text", "text": "Be kind."}])
    assert (await scene.run(output=Output(Trip | str, mode="prompt"))).output == "Hm"
    (body,) = scene.bodies
    assert [part["text"][:8] for part in body["messages"][0]["content"]] == ["Be kind.", "Write yo"]
    assert "response_format" not in body


async def test_the_strict_schema() -> None:
    """All properties are required, in both modes; null is then the default of a property that has one."""
    scene = Scene('{"city": "Rome", "days": null}', functions=())
    assert (await scene.run(output=Output(Trip, strict=True))).output == Trip(city="Rome")
    form = scene.bodies[0]["response_format"]["json_schema"]
    assert (form["strict"], form["schema"]["required"], form["schema"]["additionalProperties"]) == (
        True, ["city", "days"], False)  # fmt: skip
    scene = Scene(final(city="Rome", days=None))
    assert (await scene.run(output=Output(Trip, strict=True))).output == Trip(city="Rome")
    assert scene.bodies[0]["tools"][-1]["function"]["strict"] is True


# --- errors ----------------------------------------------------------------------------------------------------------


class Odd:
    pass


@tool(name="final_answer")
async def mine() -> str:
    return ""


@pytest.mark.parametrize(
    ("output", "fields", "text"),
    [
        (Odd, {}, "cannot be described"),
        (7, {}, "must be a type"),
        ("Trip", {}, "must be a type"),
        (look, {}, "must be a type"),
        (Output(dict[str, int], strict=True), {}, "cannot be used with strict=True"),
        (Output(Any, strict=True), {"functions": [look]}, "cannot be used with strict=True"),
        (Trip, {"functions": [mine]}, "has a function named 'final_answer'"),
        (
            Trip,
            {"model_settings": {"tools": [{"type": "function", "function": {"name": "final_answer"}}]}},
            "has a function named",
        ),
        (Trip, {"model_settings": {"response_format": {"type": "json_object"}}}, "remove one of the two"),
        (Trip, {"model_settings": {"text": {"format": {"type": "text"}}}}, "remove one of the two"),
        (Output(Trip, mode="schema"), {"functions": [look]}, "which has functions"),
        (Output(Trip, mode="schema"), {"model_settings": {"tools": [{"type": "web_search"}]}}, "which has functions"),
        (Output(Trip | str, mode="schema"), {}, "allows no plain text"),
    ],
)
@pytest.mark.parametrize("place", ["run", "agent"])
async def test_an_unusable_output_is_an_error_before_any_request(
    output: Any, fields: Any, text: str, place: str
) -> None:
    model = ScriptedModel(["Hi"])
    agent = Agent(**fields, output=output if place == "agent" else None)
    with pytest.raises(ConfigurationError, match=text):
        await AsyncSwarm(model.client()).run(agent, "Go", output=output if place == "run" else None)
    assert not model.requests


@pytest.mark.parametrize("options", [{"mode": "json"}, {"retries": -1}, {"retries": True}, {"check": 7}])
def test_an_output_with_a_wrong_option(options: Any) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        Output(Trip, **options)


SCHEMA = Output(Trip, mode="schema")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("url", ["https://api.openai.com/v1", "https://eu.api.openai.com/v1"], ids=["one", "region"])
async def test_openai_takes_the_schema_beside_functions(url: str, stream: bool) -> None:
    """Over OpenAI's Responses API, the functions run, and the text of the answer follows the schema."""
    model = ScriptedModel([call("look"), "Rome", ROME], api="responses")
    swarm, agent = AsyncSwarm(model.client(base_url=url)), Agent(functions=[look])
    if stream:
        async with swarm.stream(agent, "Go", output=SCHEMA) as run:
            _ = [event async for event in run]
        response = run.response
    else:
        response = await swarm.run(agent, "Go", output=SCHEMA)
    assert response.output == Trip(city="Rome")
    for request in model.requests:
        assert (request.tool_names, request.body["text"]["format"]["name"]) == (["look"], "Trip")
    assert told(response)[0] == "seen"
    assert "Answer again." in told(response)[1]


@pytest.mark.parametrize(
    ("url", "api"),
    [
        ("https://api.openai.com/v1", "chat"),
        ("https://mine.openai.azure.com/openai/v1", "auto"),
        ("http://127.0.0.1:8080/v1", "responses"),
        ("http://127.0.0.1:8080/v1", "auto"),
        ("https://api.openai.com.evil.test/v1", "responses"),
    ],
    ids=["Chat Completions", "Azure", "another host", "another server", "a similar host"],
)
async def test_no_other_server_gets_a_schema_beside_functions(url: str, api: Any) -> None:
    """The run ends with a ConfigurationError before any request."""
    model = ScriptedModel([])
    with pytest.raises(ConfigurationError, match="which has functions"):
        await AsyncSwarm(model.client(base_url=url), api=api).run(Agent(functions=[look]), "Go", output=SCHEMA)
    assert not model.requests


async def test_an_alternative_on_another_host_gets_no_schema_beside_functions() -> None:
    """A fallback to another host is an error, because the other server would suppress the calls."""
    first, other = ScriptedModel([Failure(503)], api="responses"), ScriptedModel([])
    swarm = AsyncSwarm(first.client(), middleware=[fallback(other.client())])
    with pytest.raises(ConfigurationError, match="which has functions"):
        await swarm.run(Agent(functions=[look]), "Go", output=SCHEMA)
    assert (len(first.requests), len(other.requests)) == (1, 0)


# --- while it is written ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "kind", "seen"),
    [
        (ROME, Trip, [{}, {"city": ""}, {"city": "Ro"}, {"city": "Rome"}]),
        (final(city="Rome"), Trip | str, [{}, {"city": "Rome"}]),
        ('{"value": [1, 2]}', list[int], [[1], [1, 2]]),
        ("Hello", str, ["Hell", "Hello"]),
        ("Hello", Trip | str, ["Hell", "Hello"]),
        ("Hello", Trip, [None]),
        ('{"city": "Rome 66", "days": 12}', Trip, [{"city": "Rome 66"}, {"city": "Rome 66", "days": 12}]),
        ('{"value": 12}', int, [None, 12]),
        ("12", int, [None, 12]),
        ("3 days in Rome", Trip | str, ["3 da", "3 days in Rome"]),
    ],
    ids=str,
)
async def test_the_answer_while_it_is_written(step: Any, kind: Any, seen: list[Any]) -> None:
    """`partial_output` is plain data; it is None before a completion, and stays after one."""
    model = ScriptedModel([step], cut=2)
    found: list[Any] = []
    async with AsyncSwarm(model.client()).stream(Agent(), "Go", output=Output(kind, retries=0)) as run:
        assert run.partial_output is None
        with suppress(OutputError):
            async for _ in run:
                found += [copy.deepcopy(run.partial_output)]
    assert all(value in found for value in seen), found
    assert run.partial_output == seen[-1]
    async with AsyncSwarm(ScriptedModel(["Hi"]).client()).stream(Agent(), "Go") as run:
        assert {run.partial_output async for _ in run} == {None}


async def test_a_partial_output_stays_until_the_next_completion_starts() -> None:
    """`partial_output` stays after a handoff, also if the next agent answers with another type or with none."""
    hotel = Agent(name="Hotel", output=Hotel)
    model = ScriptedModel([ScriptedAnswer(ROME, [call("transfer_to_hotel")]), '{"name": "Astoria"}'], cut=2)
    trip = Agent(name="Trip", output=Output(Trip, mode="prompt"), functions=[hotel])
    found: list[Any] = []
    async with AsyncSwarm(model.client()).stream(trip, "Go") as run:
        found += [(type(event).__name__, copy.deepcopy(run.partial_output)) async for event in run]
    assert ("CompletionFinished", {"city": "Rome"}) in found
    after = found.index(("HandedOff", {"city": "Rome"}))
    assert found[after + 1] == ("TurnStarted", {"city": "Rome"})
    assert {"city": "Rome"} not in [shown for _, shown in found[after + 2 :]]
    assert found[-1] == ("RunFinished", {"name": "Astoria"})


async def test_a_run_without_a_type_has_no_values_and_reading_may_stop() -> None:
    """The loop over the values ends with the run, and after a `break` the rest of the events can be read."""
    async with AsyncSwarm(ScriptedModel(["Hi"]).client()).stream(Agent(), "Go") as run:
        assert [value async for value in run.partial_outputs()] == []
    async with AsyncSwarm(ScriptedModel([ROME], cut=2).client()).stream(Agent(), "Go", output=Trip) as run:
        async for value in run.partial_outputs():
            assert value == {}
            break
        assert type([event async for event in run][-1]).__name__ == "RunFinished"
    with pytest.raises(RuntimeError, match="async with"):
        await anext(AsyncSwarm(ScriptedModel([]).client()).stream(Agent(), "Go", output=Trip).partial_outputs())


def test_swarm_has_types_too() -> None:
    """`Swarm.run` and both of its streams take `output=`, and its event stream has `partial_output`."""
    model = ScriptedModel([ROME] * 3)
    with Swarm(model.client()) as swarm:
        assert swarm.run(Agent(), "Go", output=Trip).output == Trip(city="Rome")
        classic = swarm.run(Agent(), "Go", stream=True, output=Trip)
        assert [event["response"].output for event in classic if "response" in event] == [Trip(city="Rome")]
        with swarm.stream(Agent(), "Go", output=Trip) as run:
            assert {"city": "Rome"} in [run.partial_output for _ in run]
        assert run.response.output == Trip(city="Rome")
    with Swarm(ScriptedModel([final(city="Rome")]).client()) as swarm:
        with swarm.stream(Agent(), "Go", output=Output(Trip, mode="tool")) as run:
            assert [*run.partial_outputs()][-1] == {"city": "Rome"}
        assert run.response.output == Trip(city="Rome")
