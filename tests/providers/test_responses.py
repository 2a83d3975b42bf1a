"""Runs over the Responses API, behind real clients of openai's: the same as over Chat Completions."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from aswarm import Agent, AsyncSwarm, CompletionError, ConfigurationError, Result, Swarm, TextDelta
from aswarm.events import ReasoningDelta
from aswarm.middleware import CompletionRequest
from aswarm.sources import ResponsesSource
from aswarm.testing import Failure, RawAnswer, ScriptedAnswer, ScriptedModel, Step, call
from tests.support.providers.faces import respond
from tests.support.providers.loopback import whole_response
from tests.support.run.ways_to_run import FACES
from tests.support.wire.response_bodies import check_body

WAYS = pytest.mark.parametrize("way", FACES)
APIS = ["chat", "responses"]


def agents() -> Agent:
    """Two agents, with functions that read and write the context."""

    async def look_up(city: str) -> str:
        """Look a city up."""
        return f"sunny in {city}"

    def remember(context_variables: dict[str, Any], city: str) -> Result:
        """Remember a city."""
        return Result(value="ok", context_variables={"city": city})

    def hand_over() -> Agent:
        """Hand over."""
        return second

    second = Agent(name="Second", model="gpt-6-luna", instructions="You are the second.", functions=[look_up])
    return Agent(name="First", model="gpt-6-luna", functions=[look_up, remember, hand_over], tool_choice="required")


def conversation() -> list[Step]:
    """Parallel calls with reasoning, a wrong call, a handoff, and an answer."""
    return [
        ScriptedAnswer(
            "Let me see.",
            calls=[call("look_up", city="Paris", call_id="c1"), call("remember", city="Rome", call_id="c2")],
            extra={"reasoning_content": "Two things."},
        ),
        [call("nothing", call_id="c3"), call("look_up", "{", call_id="c4")],
        [call("hand_over", call_id="c5")],
        ScriptedAnswer("All done.", extra={"reasoning_content": "Easy."}),
    ]


def plain(messages: list[Any]) -> list[Any]:
    """Return the messages without the items of the Responses API."""
    return [{key: value for key, value in message.items() if key != "responses_output"} for message in messages]


# --- the same over both ---


@WAYS
async def test_what_the_model_is_sent_is_the_same(way: str) -> None:
    """Instructions, messages and tools of each turn, and the tool choice that relaxes."""
    sent = {}
    for api in APIS:
        model = ScriptedModel(conversation(), api=api)  # type: ignore[arg-type]
        await respond(AsyncSwarm(model.client()), way, agents())
        sent[api] = [
            (request.messages, request.tool_names, request.body.get("tool_choice")) for request in model.requests
        ]
    for (chat, *chat_rest), (responses, *rest) in zip(sent["chat"], sent["responses"], strict=True):
        assert [{**message, "reasoning_content": None} for message in responses] == [
            {**message, "reasoning_content": None} for message in chat
        ]
        assert rest == chat_rest


async def test_typed_and_classic_events() -> None:
    """Text and reasoning in pieces; items of the API are never shown."""
    model = ScriptedModel(conversation() * 2, cut=4, api="responses")
    swarm = AsyncSwarm(model.client())
    async with swarm.stream(agents(), "Hi") as events:
        seen = [event async for event in events]
    assert "".join(event.text for event in seen if isinstance(event, TextDelta)) == "Let me see.All done."
    assert "".join(event.text for event in seen if isinstance(event, ReasoningDelta)) == "Two things.Easy."
    async for event in swarm.run(agents(), "Hi", stream=True):
        assert "responses_output" not in event
        if "content" in event:
            assert set(event) >= {"role", "content", "tool_calls"}


async def test_items_are_sent_back_as_they_came() -> None:
    """Reasoning goes back with the items after it, in this run and in the next."""
    model = ScriptedModel(conversation(), api="responses")
    response = await AsyncSwarm(model.client()).run(agents(), "Hi")
    items = response.messages[0]["responses_output"]
    assert [item["type"] for item in items] == ["reasoning", "message", "function_call", "function_call"]
    for request in model.requests[1:]:
        assert request.body["input"][1:5] == items
    again = ScriptedModel(["Yes"], api="responses")
    history = json.loads(json.dumps([{"role": "user", "content": "Hi"}, *response.messages]))
    await AsyncSwarm(again.client()).run(agents(), [*history, {"role": "user", "content": "And?"}])
    assert again.requests[0].body["input"][1:5] == items


@pytest.mark.parametrize("first", APIS)
async def test_a_history_goes_on_over_the_other_api(first: Any) -> None:
    """Chat Completions gets none of the keys of the other; the Responses API gets plain items."""
    second = APIS[first == "chat"]
    begun = ScriptedModel(conversation(), api=first)
    response = await AsyncSwarm(begun.client()).run(agents(), "Hi")
    model = ScriptedModel(["Yes"], api=second)  # type: ignore[arg-type]
    history = [{"role": "user", "content": "Hi"}, *response.messages, {"role": "user", "content": "And?"}]
    assert (await AsyncSwarm(model.client()).run(agents(), history)).text == "Yes"
    if second == "responses":
        check_body(model.requests[0].body)
        assert not any(item.get("type") == "reasoning" for item in model.requests[0].body["input"])
    else:
        assert not any(
            {"responses_output", "reasoning_content"} & message.keys() for message in model.requests[0].messages
        )


async def test_an_answer_of_hosted_tools_alone_is_kept() -> None:
    """An image that the provider made goes back to it, and not to a server of Chat Completions."""
    image = {"id": "ig_1", "type": "image_generation_call", "status": "completed", "result": "AA=="}
    body = {"object": "response", "status": "completed", "output": [image]}
    model = ScriptedModel([RawAnswer([json.dumps(body).encode()], "application/json"), "Hello"], api="responses")
    swarm = AsyncSwarm(model.client())
    first = await swarm.run(Agent(model="gpt-6-luna"), "Draw.")
    history = [{"role": "user", "content": "Draw."}, *first.messages, {"role": "user", "content": "Nice."}]
    await swarm.run(Agent(model="gpt-6-luna"), history)
    assert model.requests[1].body["input"][1] == image
    chat = ScriptedModel(["Hello"])
    await AsyncSwarm(chat.client()).run(Agent(), history)
    assert [message["role"] for message in chat.requests[0].messages] == ["system", "user", "user"]


@WAYS
async def test_a_call_that_waits_for_this_program_ends_the_run(way: str) -> None:
    """Shell commands of the model wait for this program: the error names them, and the earlier messages are there."""
    item = {"id": "sh_1", "type": "local_shell_call", "call_id": "c9", "status": "completed", "action": {"command": []}}
    body = {"object": "response", "status": "completed", "output": [item]}
    sent = json.dumps(body) if way == "run" else f"data: {json.dumps({'type': 'response.completed', 'response': body})}"
    kind = "application/json" if way == "run" else "text/event-stream"
    model = ScriptedModel(
        [call("look_up", city="Oslo", call_id="c1"), RawAnswer([f"{sent}\n\n".encode()], kind)], api="responses"
    )
    swarm = AsyncSwarm(model.client(max_retries=2))
    with pytest.raises(ConfigurationError, match="'local_shell_call', which needs a result") as raised:
        await respond(swarm, way, agents())
    assert raised.value.response is not None
    assert [message["role"] for message in raised.value.response.messages] == ["assistant", "tool"]
    assert (len(model.requests), model.open_streams) == (2, 0)


# --- trouble ---


async def test_an_item_of_a_batch_continues_in_its_middle(tmp_path: Path) -> None:
    """The recorded turns are not asked again, and their reasoning is sent back with the next request."""
    steps = conversation()
    first = ScriptedModel([*steps[:2], Failure(400, "bad")], api="responses")
    second = ScriptedModel(steps[2:], api="responses")
    for model in (first, second):
        async with AsyncSwarm(model.client()).batch(agents(), [("a", "Hi")], journal=tmp_path / "j.sqlite") as outcomes:
            (outcome,) = [outcome async for outcome in outcomes]
    assert outcome.error is None
    assert outcome.response.text == "All done."
    assert second.requests[0].body["input"] == first.requests[2].body["input"]
    assert second.requests[0].body["input"][1]["encrypted_content"] == "encrypted Two things."


# --- which API ---


class Recorder:
    """The paths that were asked."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.paths.append(request.url.path)
        return httpx.Response(400, json={"error": {"message": "enough"}})


@pytest.mark.parametrize(
    ("base_url", "api", "expected"),
    [
        ("https://api.openai.com/v1", "auto", "responses"),
        ("https://eu.api.openai.com/v1", "auto", "responses"),
        ("https://mine.openai.azure.com/openai/v1/", "auto", "responses"),
        ("https://mine.services.ai.azure.com/openai/v1", "auto", "responses"),
        ("https://mine.openai.azure.com/openai", "auto", "chat/completions"),
        ("https://api.openai.com.evil.test/v1", "auto", "chat/completions"),
        ("https://notapi.openai.com/v1", "auto", "chat/completions"),
        ("http://127.0.0.1:8080/v1", "auto", "chat/completions"),
        ("https://api.openai.com/v1", "chat", "chat/completions"),
        ("http://127.0.0.1:8080/v1", "responses", "responses"),
    ],
)
@pytest.mark.parametrize("kind", ["AsyncSwarm", "Swarm"])
def test_the_api_is_chosen_by_the_host(base_url: str, api: Any, expected: str, kind: str) -> None:
    """OpenAI's own hosts and Azure's v1 have the Responses API; nobody else is asked for it without `api`."""
    seen = Recorder()
    options: dict[str, Any] = {"api_key": "x", "base_url": base_url, "max_retries": 0}
    ask = _ask_blocking if kind == "Swarm" else _ask_async
    with pytest.raises(CompletionError):
        ask(seen, options, api)
    assert seen.paths[0].endswith(f"/{expected}")


def _ask_blocking(seen: Recorder, options: dict[str, Any], api: Any) -> None:
    http: Any = httpx.Client(transport=httpx.MockTransport(seen))
    Swarm(openai.OpenAI(http_client=http, **options), api=api).run(Agent(), "Hi")


def _ask_async(seen: Recorder, options: dict[str, Any], api: Any) -> None:
    async def main() -> None:
        http: Any = httpx.AsyncClient(transport=httpx.MockTransport(seen))
        await AsyncSwarm(openai.AsyncOpenAI(http_client=http, **options), api=api).run(Agent(), "Hi")

    asyncio.run(main())


@pytest.mark.parametrize("patched", ["chat.completions", "responses"])
async def test_a_patched_client_of_openai_itself_is_asked_over_chat(patched: str) -> None:
    """A hook sees the form that it expects, and is not bypassed."""
    model = ScriptedModel(["Hello"], api="responses")
    client = model.client()
    resource: Any = client.chat.completions if patched == "chat.completions" else client.responses
    create = resource.create
    resource.create = lambda **arguments: create(**arguments)
    assert (await AsyncSwarm(client).run(Agent(), "Hi")).text == "Hello"
    assert model.requests[0].path == "/v1/chat/completions"


@WAYS
async def test_a_patched_client_is_asked_over_responses_if_told(way: str) -> None:
    """Through its own `responses.create`, so that the hook sees the request."""
    model = ScriptedModel(conversation(), cut=3, api="responses")
    client = model.client()
    create, seen = client.responses.create, []

    async def hooked(**arguments: Any) -> Any:
        seen.append(arguments["model"])
        return await create(**arguments)

    client.responses.create = hooked  # type: ignore[method-assign]
    response = await respond(AsyncSwarm(client, api="responses"), way, agents())
    assert response.text == "All done."
    assert len(seen) == len(model.requests) == 4
    assert [item["type"] for item in response.messages[0]["responses_output"]][:2] == ["reasoning", "message"]


@WAYS
async def test_a_source_by_itself(way: str) -> None:
    """For any server that has the API, and where one swarm has several sources."""
    model = ScriptedModel(conversation(), cut=3)
    response = await respond(AsyncSwarm(ResponsesSource(model.client())), way, agents())
    assert response.text == "All done."
    assert model.requests[0].is_responses


async def test_a_source_inside_another_source() -> None:
    model = ScriptedModel([ScriptedAnswer("Hello", usage=None)])
    inner = ResponsesSource(model.client(max_retries=7))

    class Logging:
        max_retries = inner.max_retries

        def complete(self, request: CompletionRequest) -> Any:
            return inner.complete(request)

    response = await AsyncSwarm(Logging()).run(Agent(), "Hi")
    assert (response.text, Logging.max_retries) == ("Hello", 7)


@WAYS
async def test_a_refusal(way: str) -> None:
    """It is on the message, and goes back with its item."""
    model = ScriptedModel([ScriptedAnswer(extra={"refusal": "No."}), "Hello"], cut=1, api="responses")
    swarm = AsyncSwarm(model.client())
    first = await respond(swarm, way, Agent(model="gpt-6-luna"))
    assert (first.messages[0]["refusal"], first.messages[0]["content"]) == ("No.", None)
    await respond(swarm, way, Agent(model="gpt-6-luna"), [*first.messages, {"role": "user", "content": "Why?"}])
    assert model.requests[1].body["input"][0] == first.messages[0]["responses_output"][0]


def test_a_blocking_client_in_a_source() -> None:
    """`Swarm` calls it in the caller's thread; `AsyncSwarm` refuses it."""
    model = ScriptedModel(["Hello"])

    def answer(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/v1/responses"
        return httpx.Response(200, content=whole_response(ScriptedAnswer("Hello")).pieces[0])

    http: Any = httpx.Client(transport=httpx.MockTransport(answer))
    client = openai.OpenAI(api_key="x", base_url="http://a.test/v1", http_client=http)
    assert Swarm(ResponsesSource(client)).run(Agent(), "Hi").text == "Hello"
    assert not model.requests
    with pytest.raises(ConfigurationError, match="AsyncOpenAI is needed"):
        AsyncSwarm(ResponsesSource(client))


def test_mistakes() -> None:
    """An unknown API, and one for a source that has none."""
    with pytest.raises(ConfigurationError, match="'auto', 'chat', 'responses' or 'anthropic', not 'assistants'"):
        AsyncSwarm(api="assistants")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="is for a client"):
        AsyncSwarm(ResponsesSourceLike(), api="responses")
    with pytest.raises(ConfigurationError, match=r"have responses\.create"):
        ResponsesSource(object())


def test_a_source_and_another_api() -> None:
    """The text names both; the same API twice is no mistake."""
    source = ResponsesSource(ScriptedModel([]).client())
    for kind in (AsyncSwarm, Swarm):
        with pytest.raises(ConfigurationError, match=r"api='chat' and ResponsesSource\(client\) name two APIs"):
            kind(source, api="chat")
        kind(source, api="responses")


class ResponsesSourceLike:
    """A source of somebody else's."""

    def complete(self, request: Any) -> Any:
        """Never called."""
        raise NotImplementedError
