"""Middleware and clients may change a request: no other turn, run or caller is affected."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from aswarm import Agent, AsyncSwarm, ConfigurationError
from aswarm.middleware import CompletionHandler, CompletionRequest
from aswarm.testing import ScriptedAnswer, ScriptedModel, call
from aswarm.util import function_to_json
from tests.support.leaving.run_scenes import client_of as client_at
from tests.support.middleware.middlewares import Chunks, around_completions, asking_first, passed_on
from tests.support.providers.loopback import serve, sse, whole
from tests.support.providers.sources import KINDS, ForeignSource, Json, MockClient, Script, client_of, script_of


async def look(city: str = "Oslo") -> str:
    """Look at the sky of a city."""
    return f"{city} is sunny"


STEPS = [call("look", city="Bergen", call_id="c1"), "Sunny."]
# Messages of a caller: parts in lists and tuples, calls, keys of the provider.
MESSAGES: list[Json] = [
    {"role": "user", "content": [{"type": "text", "text": "first"}]},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c0", "type": "function", "function": {"name": "look", "arguments": '{"city": "A"}'}}],
        "reasoning_details": [{"type": "reasoning.text", "text": "hm"}],
    },
    {"role": "tool", "tool_call_id": "c0", "content": "seen"},
    {"role": "user", "content": ({"type": "text", "text": "second"},)},
]


def agent_of() -> Agent:
    return Agent(functions=[look], model_settings={"metadata": {"tags": ["a"]}, "stop": ["x"]})


AGENT = agent_of()


def harm(value: Any) -> None:
    """Change everything in a request, at every depth."""
    if isinstance(value, dict):
        for key, item in list(value.items()):
            value[key] = item + "!" if isinstance(item, str) and key in ("text", "description", "content") else item
            harm(item)
        value["harmed"] = True
    elif isinstance(value, list | tuple):
        for item in value:
            harm(item)
        if isinstance(value, list):
            value.append({"role": "user", "content": "harmed"})


def harmed(body: Json) -> Json:
    body = copy.deepcopy(body)
    harm(body)
    return body


harming = asking_first(harm)


async def read(swarm: AsyncSwarm, agent: Agent, messages: Any, *, stream: bool) -> str:
    """Read a run to its end. Return its answer."""
    async with swarm.stream(agent, messages, deltas=stream) as run:
        async for _ in run:
            pass
    return run.response.text


async def bodies_of(client_for: Callable[[Script], Any], messages: Any, *, stream: bool) -> list[Json]:
    """Return the requests of one conversation, as the client got them."""
    script = script_of(STEPS)
    assert await read(AsyncSwarm(client_for(script)), AGENT, messages, stream=stream) == "Sunny."
    return script.bodies


HARMFUL: list[tuple[Any, Callable[[Script], Any]]] = [
    (ForeignSource, lambda script: ForeignSource(script, harm)),
    (MockClient, lambda script: MockClient(script, harm)),
]


@pytest.mark.parametrize(("clean", "harmful"), HARMFUL, ids=["source", "mock"])
@pytest.mark.parametrize("stream", [False, True])
async def test_changes_of_a_client_stay_in_its_request(clean: Any, harmful: Any, stream: bool) -> None:
    """A source and a client with `create` may change all of it: later turns, runs and the caller see nothing."""
    messages, schema = copy.deepcopy(MESSAGES), copy.deepcopy(function_to_json(look))
    reference = await bodies_of(clean, messages, stream=stream)
    for client in (harmful, harmful, clean):
        assert await bodies_of(client, messages, stream=stream) == reference
    assert messages == MESSAGES
    assert agent_of() == AGENT
    assert function_to_json(look) == schema


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stream", [False, True])
async def test_changes_of_a_middleware_are_in_one_request(kind: str, stream: bool) -> None:
    """The client gets the changed request, and the next turn starts with an unchanged request."""
    messages = copy.deepcopy(MESSAGES)
    reference = await bodies_of(lambda script: client_of(kind, script), messages, stream=stream)
    script = script_of(STEPS * 2)
    swarm = AsyncSwarm(client_of(kind, script), middleware=[harming])
    for _ in range(2):
        await read(swarm, AGENT, messages, stream=stream)
    assert script.bodies == [harmed(body) for body in reference] * 2
    assert (messages, AGENT) == (MESSAGES, agent_of())
    assert await bodies_of(lambda script: client_of(kind, script), messages, stream=stream) == reference


@pytest.mark.parametrize("kind", KINDS)
async def test_another_request_may_be_passed_on(kind: str) -> None:
    """`replace(request, body=...)` and a new `CompletionRequest` are sent unchanged."""

    def other(inner: CompletionHandler, request: CompletionRequest) -> Chunks:
        body = {**request.body, "model": "other", "messages": request.body["messages"][-1:]}
        return inner(CompletionRequest(request.agent, replace(request, body=body).body))

    script = script_of(["Hi"])
    await AsyncSwarm(client_of(kind, script), middleware=[around_completions(other)]).run(Agent(model="mine"), "Hello")
    (body,) = script.bodies
    assert body["model"] == "other"
    assert body["messages"] == [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stream", [False, True])
async def test_whether_the_answer_streams_may_be_changed(kind: str, stream: bool) -> None:
    """A middleware may ask for a whole completion in a streamed run, and the other way round."""

    def turn(body: Json) -> None:
        assert body["stream"] == stream
        body["stream"] = not stream
        body.pop("stream_options", None)

    script = script_of(STEPS)
    swarm = AsyncSwarm(client_of(kind, script), middleware=[asking_first(turn)])
    assert await read(swarm, Agent(functions=[look]), "Hi", stream=stream) == "Sunny."
    assert [body["stream"] for body in script.bodies] == [not stream] * 2


@pytest.mark.parametrize("kind", ["openai", "source"])
async def test_a_request_without_the_key_stream_is_for_a_whole_answer(kind: str) -> None:
    """A body of a middleware need not have `stream`, as with `create`."""

    def made(inner: CompletionHandler, request: CompletionRequest) -> Chunks:
        return inner(replace(request, body={"model": "m", "messages": request.body["messages"]}))

    script = script_of(["Hi"])
    response = await AsyncSwarm(client_of(kind, script), middleware=[around_completions(made)]).run(Agent(), "Hello")
    assert response.text == "Hi"


class Form(BaseModel):
    """A setting that is a model object."""

    kind: str


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("settings", "sent"),
    [
        ({"extra_body": {"deep": {"a": 1}, "model": "theirs"}}, {"deep": {"a": 1}, "model": "theirs"}),
        pytest.param(
            {"temperature": 0.5, "response_format": Form(kind="text")},
            {"response_format": {"kind": "text"}},
            marks=pytest.mark.skipif(openai.__version__ < "3", reason="openai 2 cannot write it"),
        ),
        ({"stop": ("a", "b")}, {"stop": ["a", "b"]}),
        ({"user": "Zoë 🙂"}, {"user": "Zoë 🙂"}),
        ({"extra_query": {"version": "1"}, "timeout": 5}, {"model": "gpt-6-luna"}),
    ],
    ids=["extra_body", "a model object", "a tuple", "not ASCII", "a query"],
)
async def test_settings_of_a_middleware_are_sent_as_the_sdk_sends_them(
    stream: bool, settings: Json, sent: Json
) -> None:
    """The real client sends settings of a middleware like settings of an agent, also without a JSON form."""
    answer = ScriptedAnswer("Hi")
    async with serve(lambda body: sse(answer) if stream else whole(answer)) as server, client_at(server) as client:
        swarm = AsyncSwarm(client, middleware=[asking_first(lambda body: body.update(settings))])
        assert await read(swarm, Agent(), "Hello", stream=stream) == "Hi"
        await read(AsyncSwarm(client), Agent(model_settings=settings), "Hello", stream=stream)
    first, second = server.requests
    assert first == second
    assert {key: first[key] for key in sent} == sent


async def test_headers_of_a_middleware_are_sent() -> None:
    """`extra_headers` of a middleware are headers of the request, and no part of the body."""
    script = script_of(["Hi"])
    await AsyncSwarm(
        script.client(), middleware=[asking_first(lambda body: body.update(extra_headers={"x-trace": "7"}))]
    ).run(Agent(), "Hello")
    (request,) = script.requests
    assert request.headers["x-trace"] == "7"
    assert "extra_headers" not in request.body


_ON_OPENAI_3 = pytest.mark.skipif(
    int(openai.__version__.partition(".")[0]) < 3, reason="openai 2.0 on httpx 0.27 sends them"
)


@pytest.mark.parametrize("value", [pytest.param(math.nan, marks=_ON_OPENAI_3), object()], ids=["NaN", "an object"])
async def test_a_value_that_cannot_be_sent_is_the_mistake_of_the_caller(value: object) -> None:
    """A value that the SDK refuses is a ConfigurationError with the partial response, before a request."""
    script = script_of([])
    with pytest.raises(ConfigurationError, match="the request cannot be built") as caught:
        await AsyncSwarm(script.client(), middleware=[asking_first(lambda body: body.update(temperature=value))]).run(
            Agent(), "Hello"
        )
    assert caught.value.response is not None
    assert script.bodies == []


async def test_a_middleware_that_asks_twice_sends_the_same_request_twice() -> None:
    """With `request.copy()`, the second request does not have the changes of a middleware further in."""

    async def asking_twice(inner: CompletionHandler, request: CompletionRequest) -> Chunks:
        async for _ in passed_on(inner, request.copy()):
            pass
        async for chunk in passed_on(inner, request):
            yield chunk

    brief = asking_first(lambda body: body["messages"].append({"role": "user", "content": "Be brief."}))
    model = ScriptedModel(["one", "two"])
    swarm = AsyncSwarm(model.client(), middleware=[around_completions(asking_twice), brief])
    assert (await swarm.run(Agent(), "Hi")).text == "two"
    assert model.requests[0].messages == model.requests[1].messages
