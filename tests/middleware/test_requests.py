"""The request belongs to whoever gets it: what is done to it harms no other turn, no other run and no caller."""

from __future__ import annotations

import copy
import math
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import anyio
import openai
import pytest
from pydantic import BaseModel

from aswarm import Agent, AsyncSwarm, ConfigurationError, function_to_json
from aswarm.middleware import CompletionHandler, CompletionRequest, Handlers
from aswarm.testing import ScriptedAnswer, ScriptedModel, call
from tests.support.leaving.run_scenes import client_of as client_at
from tests.support.middleware.middlewares import Chunks, around_completions, asking_first
from tests.support.providers.loopback import serve, sse, whole
from tests.support.providers.sources import KINDS, ForeignSource, Json, MockClient, Script, client_of, script_of

pytestmark = pytest.mark.anyio


async def look(city: str = "Oslo") -> str:
    """Look at the sky of a city."""
    return f"{city} is sunny"


STEPS = [call("look", city="Bergen", call_id="c1"), "Sunny."]
# What a message of a caller may hold: parts in lists and tuples, calls, keys of the provider.
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
    settings = {"metadata": {"tags": ["a"]}, "stop": ["x"]}
    return Agent(functions=[look], model_settings=settings)


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


async def bodies_of(client_for: Callable[[Script], Any], agent: Agent, messages: Any, *, stream: bool) -> list[Json]:
    """The requests of one conversation, as the client got them."""
    script = script_of(STEPS)
    async with AsyncSwarm(client_for(script)).stream(agent, messages, deltas=stream) as run:
        async for _ in run:
            pass
    assert run.response.text == "Sunny."
    return script.bodies


HARMFUL: dict[str, Callable[[Script], Any]] = {
    "source": lambda script: ForeignSource(script, harm),
    "mock": lambda script: MockClient(script, harm),
}


@pytest.mark.parametrize("kind", list(HARMFUL))
@pytest.mark.parametrize("stream", [False, True])
async def test_what_a_source_does_to_a_request_stays_there(kind: str, stream: bool) -> None:
    """A source and a client with `create` may change all of it: later turns, runs and the caller see nothing."""
    agent, messages = agent_of(), copy.deepcopy(MESSAGES)
    clean: Callable[[Script], Any] = ForeignSource if kind == "source" else MockClient
    reference = await bodies_of(clean, agent, messages, stream=stream)
    schema = copy.deepcopy(function_to_json(look))
    for _ in range(2):
        assert await bodies_of(HARMFUL[kind], agent, messages, stream=stream) == reference
    assert await bodies_of(clean, agent, messages, stream=stream) == reference
    assert messages == MESSAGES
    assert agent == agent_of()
    assert function_to_json(look) == schema


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stream", [False, True])
async def test_what_a_middleware_does_to_a_request_is_sent_and_no_more(kind: str, stream: bool) -> None:
    """The changed request is what the client gets; the next turn begins with an unchanged one."""
    agent, messages = agent_of(), copy.deepcopy(MESSAGES)
    reference = await bodies_of(lambda script: client_of(kind, script), agent, messages, stream=stream)
    script = script_of(STEPS * 2)
    swarm = AsyncSwarm(client_of(kind, script), middleware=[harming])
    for _ in range(2):
        async with swarm.stream(agent, messages, deltas=stream) as run:
            async for _ in run:
                pass
    assert script.bodies == [harmed(body) for body in reference] * 2
    assert messages == MESSAGES
    assert agent == agent_of()
    assert await bodies_of(lambda script: client_of(kind, script), agent, messages, stream=stream) == reference


@pytest.mark.parametrize("kind", KINDS)
async def test_the_history_does_not_have_what_a_middleware_added(kind: str) -> None:
    """What the run hands out are the messages of the run, whatever was sent in their place."""
    responses = []
    for middleware in ([], [harming]):
        swarm = AsyncSwarm(client_of(kind, script_of(STEPS)), middleware=middleware)
        responses.append(await swarm.run(agent_of(), copy.deepcopy(MESSAGES)))
    assert responses[0] == responses[1]


async def test_concurrent_runs_do_not_share_a_request() -> None:
    """Runs of one agent at the same time: each changes its own request only."""
    script = script_of(lambda request: "Done.")

    def marking(handlers: Handlers) -> Handlers:
        async def complete(request: CompletionRequest) -> Chunks:
            request.body["tools"][0]["function"]["parameters"]["properties"][handlers.run.run_id] = {}
            request.body["metadata"]["tags"].append(handlers.run.run_id)
            await anyio.lowlevel.checkpoint()
            async with aclosing(handlers.complete(request)) as chunks:
                async for chunk in chunks:
                    yield chunk

        return replace(handlers, complete=complete)

    swarm, agent = AsyncSwarm(ForeignSource(script), middleware=[marking]), agent_of()

    async def one(number: int) -> None:
        await swarm.run(agent, "Hi", run_id=str(number))

    async with anyio.create_task_group() as group:
        for number in range(50):
            group.start_soon(one, number)
    tags = [body["metadata"]["tags"] for body in script.bodies]
    assert sorted(tags) == sorted(["a", str(number)] for number in range(50))
    for body, (_, mine) in zip(script.bodies, tags, strict=True):
        assert list(body["tools"][0]["function"]["parameters"]["properties"]) == ["city", mine]


@pytest.mark.parametrize("kind", KINDS)
async def test_another_request_may_be_passed_on(kind: str) -> None:
    """`replace(request, body=...)` and a new `CompletionRequest` are sent as they are."""

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
    async with swarm.stream(Agent(functions=[look]), "Hi", deltas=stream) as run:
        async for _ in run:
            pass
    assert run.response.text == "Sunny."
    assert [body["stream"] for body in script.bodies] == [not stream] * 2


@pytest.mark.parametrize("kind", ["openai", "source"])
async def test_a_request_without_the_key_stream_is_for_a_whole_answer(kind: str) -> None:
    """A body that a middleware made itself need not have `stream`, as with `create`."""

    def made(inner: CompletionHandler, request: CompletionRequest) -> Chunks:
        return inner(replace(request, body={"model": "m", "messages": request.body["messages"]}))

    script = script_of(["Hi"])
    response = await AsyncSwarm(client_of(kind, script), middleware=[around_completions(made)]).run(Agent(), "Hello")
    assert response.text == "Hi"


# --- over a socket ----------------------------------------------------------------------------------------------------


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
    """`extra_body`, and values that JSON has not, are sent by the real client as if the agent had set them."""
    answer = ScriptedAnswer("Hi")
    async with serve(lambda body: sse(answer) if stream else whole(answer)) as server, client_at(server) as client:
        swarm = AsyncSwarm(client, middleware=[asking_first(lambda body: body.update(settings))])
        async with swarm.stream(Agent(), "Hello", deltas=stream) as run:
            async for _ in run:
                pass
        plain = AsyncSwarm(client)
        async with plain.stream(Agent(model_settings=settings), "Hello", deltas=stream) as same:
            async for _ in same:
                pass
    first, second = server.requests
    assert first == second
    assert {key: first[key] for key in sent} == sent
    assert run.response.text == "Hi"


async def test_headers_of_a_middleware_are_sent() -> None:
    """`extra_headers` that a middleware sets are headers of the request, and no part of the body."""
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
    """What the SDK refuses to write is a ConfigurationError with the partial response, and nothing is sent."""
    script = script_of([])
    with pytest.raises(ConfigurationError, match="the request cannot be built") as caught:
        await AsyncSwarm(script.client(), middleware=[asking_first(lambda body: body.update(temperature=value))]).run(
            Agent(), "Hello"
        )
    assert caught.value.response is not None
    assert script.bodies == []


@pytest.mark.anyio
async def test_a_middleware_that_asks_twice_sends_the_same_request_twice() -> None:
    """With `request.copy()`, what a middleware further in makes of its request is not in the second one."""

    def asking_twice(handlers: Handlers) -> Handlers:
        async def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            async with aclosing(handlers.complete(request.copy())) as chunks:
                async for _ in chunks:
                    pass
            async with aclosing(handlers.complete(request)) as chunks:
                async for chunk in chunks:
                    yield chunk

        return replace(handlers, complete=complete)

    def adding_a_message(handlers: Handlers) -> Handlers:
        def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            request.body["messages"].append({"role": "user", "content": "Be brief."})
            return handlers.complete(request)

        return replace(handlers, complete=complete)

    model = ScriptedModel(["one", "two"])
    swarm = AsyncSwarm(model.client(), middleware=[asking_twice, adding_a_message])
    assert (await swarm.run(Agent(), "Hi")).text == "two"
    assert model.requests[0].messages == model.requests[1].messages
