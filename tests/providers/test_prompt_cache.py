"""The prompt prefix at OpenAI's own servers: which requests have a breakpoint, and what happens if a model refuses a field."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
import httpx
import pytest
from pydantic import BaseModel
from pydantic_core import to_json

from aswarm import Agent, AsyncSwarm, Budget, CompletionError, ConfigurationError, Swarm
from aswarm._providers.apis import OPENAI_CHAT, OPENAI_RESPONSES, api_at
from aswarm._wire.request import body_json
from aswarm._wire.responses_request import KnownHistory
from aswarm.conversations import Conversation, MemoryStore
from aswarm.guards import guard_input
from aswarm.middleware import Handlers, fallback
from aswarm.sources import CompletionRequest, HTTPSource, ResponsesSource, is_openai
from aswarm.testing import Failure, ScriptedAnswer, ScriptedModel, call
from aswarm.testing._scripted_model import response
from aswarm.tools import agent_tool
from tests.support.openai_rules import AZURE, KNOWS_CACHING, OPENAI, PROXY, REFUSING, OpenAIRules
from tests.support.providers.loopback import Reply, serve, spoken

pytestmark = pytest.mark.skipif(not KNOWS_CACHING, reason="the types of this openai have no prompt caching")
APIS = pytest.mark.parametrize("api", ["chat", "responses"])
LONG = "You help the guests of a hotel. " * 140
MODEL = "gpt-6-luna"


class Trip(BaseModel):
    city: str


async def look(city: str) -> str:
    """Look a city up."""
    return f"sunny in {city}"


def agent(**fields: Any) -> Agent:
    return Agent(**{"name": "A", "model": MODEL, "instructions": LONG, "functions": [look], **fields})


def start(body: dict[str, Any]) -> Any:
    """Return the instructions of a request: a text of the setting, or the first message without its role."""
    return body.get("instructions") or (body.get("messages") or body["input"])[0]


def is_shared(body: dict[str, Any]) -> bool:
    return "prompt_cache_breakpoint" in json.dumps(body)


# --- which requests have a breakpoint ---------------------------------------------------------------------------------


@APIS
@pytest.mark.parametrize("stream", [True, False])
async def test_two_chats_share_the_prefix(api: Any, stream: bool) -> None:
    """The instructions are a message of the developer that ends with a breakpoint, and the rest of the request is the same."""
    sent = []
    for shares in (True, False):
        model = OpenAIRules([call("look", city="Rome", call_id="c"), "ok"] * 2)
        swarm = AsyncSwarm(model.client(), api=api, prompt_cache=shares)
        for question in ("Hi!", "Hello!"):
            async with swarm.stream(agent(), question, deltas=stream) as run:
                async for _ in run:
                    pass
        assert model.refused == []
        sent.append(model.bodies)
    kind = "text" if api == "chat" else "input_text"
    part = {"type": kind, "text": LONG, "prompt_cache_breakpoint": {"mode": "explicit"}}
    for body, plain in zip(*sent, strict=True):
        key = "messages" if api == "chat" else "input"
        assert (plain[key].pop(0)["content"] if api == "chat" else plain.pop("instructions")) == LONG
        assert body == {**plain, key: [{"role": "developer", "content": [part]}, *plain[key]]}


TOOLS = [
    {"type": "function", "function": {"name": f"f{at}", "description": "It does one thing. " * 20}} for at in range(12)
]


@APIS
@pytest.mark.parametrize(
    ("fields", "options", "expected"),
    [
        ({"instructions": "Be kind.", "model_settings": {"tools": TOOLS}}, {}, True),
        ({"model": "gpt-6-luna-2026-10-01"}, {}, True),
        ({"instructions": "Be kind."}, {}, False),
        ({"instructions": None}, {}, False),
        ({"instructions": lambda: LONG}, {}, False),
        ({"model": "gpt-5.4"}, {}, False),
        ({"model": "ft:gpt-6-luna:hotel"}, {}, False),
        ({"model_settings": {"prompt_cache_options": {"mode": "explicit"}}}, {}, False),
        ({"model_settings": {"response_format": {"type": "json_object"}}}, {}, False),
        ({}, {"base_url": AZURE}, False),
        ({}, {"base_url": PROXY}, False),
        ({}, {"base_url": "https://eu.api.openai.com/v1"}, True),
    ],
)
async def test_the_requests_with_a_breakpoint(api: Any, fields: Any, options: Any, expected: bool) -> None:
    """Only constant and long instructions, at OpenAI's own servers, for a model that has breakpoints."""
    model = ScriptedModel(["ok"])
    await AsyncSwarm(model.client(**{"base_url": OPENAI, **options}), api=api).run(agent(**fields), "Write JSON.")
    assert is_shared(model.requests[0].body) is expected


def edited(handlers: Handlers) -> Handlers:
    """Add the date to the instructions."""

    def complete(request: CompletionRequest) -> Any:
        messages = request.body["messages"]
        messages[0] = {**messages[0], "content": messages[0]["content"] + " Today is Friday."}
        return handlers.complete(request)

    return replace(handlers, complete=complete)


@APIS
async def test_instructions_that_a_middleware_edits_stay_as_they_are(api: Any) -> None:
    """A text that may change with each request is not worth a write to the cache."""
    model = OpenAIRules(["ok"])
    await AsyncSwarm(model.client(), api=api, middleware=[edited]).run(agent(), "Hi!")
    assert not is_shared(model.bodies[0])
    assert "Today is Friday." in str(start(model.bodies[0]))


@APIS
async def test_a_stored_chat_of_an_older_version_goes_on(api: Any) -> None:
    """A chat that began without a breakpoint, with reasoning, is accepted, and its messages are sent as before."""
    reasoned = ScriptedAnswer(
        None,
        calls=[call("look", city="Rome", call_id="c1")],
        extra={"reasoning_content": "Rome."} if api == "responses" else {},
    )
    model = OpenAIRules([reasoned, "Sunny.", "Yes."])
    old = await AsyncSwarm(model.client(), api=api, prompt_cache=False).run(agent(), "Rome?")
    stored = json.loads(json.dumps([{"role": "user", "content": "Rome?"}, *old.messages]))
    new = AsyncSwarm(model.client(), api=api, middleware=[guard_input(lambda _: None)])
    assert (await new.run(agent(), [*stored, {"role": "user", "content": "Sure?"}])).text == "Yes."
    assert model.refused == []
    _, before, after = model.bodies
    key, start_at = ("messages", 1) if api == "chat" else ("input", 0)
    assert is_shared(after)
    assert after[key][1 : len(before[key]) - start_at + 1] == before[key][start_at:]


# --- a model that refuses a field -------------------------------------------------------------------------------------


@APIS
@pytest.mark.parametrize("kind", ["plain", "patched", "blocking"])
async def test_a_refused_breakpoint_is_sent_once(api: Any, kind: str) -> None:
    """The request is repeated without it, later runs of this client leave it out, and other models keep it."""
    model = OpenAIRules(lambda _: "ok", refusing=["gpt-6-sol"])
    client = model.client()
    if kind == "patched":
        resource = client.chat.completions if api == "chat" else client.responses
        create = resource.create
        resource.create = lambda **body: create(**body)  # type: ignore[method-assign, assignment]
    if kind == "blocking":
        await anyio.to_thread.run_sync(_run_blocking, model, api)
    else:
        for name in ("gpt-6-sol", "gpt-6-sol", MODEL):
            await AsyncSwarm(client, api=api).run(agent(model=name), "Hi!")
    assert [reason for _, reason in model.refused] == ["prompt_cache_breakpoint is not supported on this model"]
    assert list(map(is_shared, model.bodies)) == [False, False, True]


def _run_blocking(model: OpenAIRules, api: Any) -> None:
    from openai import OpenAI

    def handle(request: httpx.Request) -> httpx.Response:
        response = anyio.run(model._handle, request)
        return httpx.Response(response.status_code, headers=response.headers, content=anyio.run(response.aread))

    http_client: Any = httpx.Client(transport=httpx.MockTransport(handle))
    client = OpenAI(api_key="scripted", base_url=OPENAI, max_retries=0, http_client=http_client)
    for name in ("gpt-6-sol", "gpt-6-sol", MODEL):
        Swarm(client, api=api).run(agent(model=name), "Hi!")
    Swarm(client, api=api, prompt_cache=False).run(agent(), "Hi!")
    assert not is_shared(model.bodies.pop())
    model.requests.pop()


@APIS
async def test_http_source_repeats_a_refused_request(api: Any) -> None:
    """`HTTPSource` repeats it too, without counting it as a retry, and remembers it."""
    rules = OpenAIRules([], refusing=[MODEL])

    def reply(body: dict[str, Any]) -> Reply:
        if fault := rules.fault(body):
            error = json.dumps({"error": {"message": fault}}).encode()
            return Reply([error], status="400 Bad Request", content_type="application/json")
        return spoken(ScriptedAnswer("ok"), body)

    async with serve(reply) as server, HTTPSource(server.base_url, "none", max_retries=0) as source:
        source._api = api_at(OPENAI, api)
        for _ in range(2):
            assert (await AsyncSwarm(source).run(agent(), "Hi!")).text == "ok"
    assert list(map(is_shared, server.requests)) == [True, False, False]


@dataclass
class OwnClient:
    """A client of another package, which has no hash, and sends to OpenAI's address."""

    rules: OpenAIRules
    base_url: httpx.URL = field(default_factory=lambda: httpx.URL(OPENAI))

    @property
    def responses(self) -> OwnClient:
        return self

    async def create(self, **body: Any) -> Any:
        if fault := self.rules.fault(body):
            raise Refused(fault)
        return response(ScriptedAnswer("ok"))


class Refused(Exception):
    status_code = 400


async def test_a_client_without_a_hash_repeats_each_refused_request() -> None:
    """The refusal cannot be remembered for it."""
    client = OwnClient(OpenAIRules([], refusing=[MODEL]))
    for _ in range(2):
        assert (await AsyncSwarm(client, api="responses").run(agent(), "Hi!")).text == "ok"


@pytest.mark.parametrize("status", [400, 500])
async def test_another_failure_is_not_repeated(status: int) -> None:
    """An error that names no field, and an error of another status, ends the run after one request."""
    text = "prompt_cache_breakpoint" if status != 400 else "the context is too long"
    model = OpenAIRules([Failure(status, text)])
    with pytest.raises(CompletionError):
        await AsyncSwarm(model.client()).run(agent(), "Hi!")
    assert len(model.requests) == 1


async def test_a_breakpoint_of_the_user_is_left_out_after_a_refusal() -> None:
    """The chat goes on without it, because a breakpoint changes only the price."""
    (refusing,) = REFUSING
    part = {"type": "text", "text": "Hi!", "prompt_cache_breakpoint": {"mode": "explicit"}}
    model = OpenAIRules(["ok"])
    await AsyncSwarm(model.client()).run(agent(model=refusing), [{"role": "user", "content": [part]}])
    assert (list(map(is_shared, model.bodies)), len(model.refused)) == ([False], 1)


# --- a forced answer --------------------------------------------------------------------------------------------------


@APIS
@pytest.mark.parametrize("allowed", [True, False])
async def test_a_forced_answer_keeps_the_tools(api: Any, allowed: bool) -> None:
    """All functions are sent, and only `final_answer` is allowed. A model without "allowed_tools" gets only `final_answer`."""
    model = OpenAIRules(
        [call("look", city="Rome"), call("final_answer", city="Rome")] * 2, allowed_tools=allowed, refusing=[MODEL]
    )
    client = model.client()
    for _ in range(2):
        ended = await AsyncSwarm(client, api=api).run(
            agent(), "Hi!", output=Trip, budget=Budget(turns=1, then="answer")
        )
        assert ended.output == Trip(city="Rome")
    assert [request.tool_names for request in model.requests][1::2] == [
        ["look", "final_answer"] if allowed else ["final_answer"]
    ] * 2
    # The breakpoint is refused once, and "allowed_tools" once.
    assert len(model.refused) == (1 if allowed else 2)


async def test_the_alternative_of_fallback_gets_what_any_server_knows() -> None:
    """After OpenAI's failure, another server gets the instructions as a system message, and only the forced function."""
    first = OpenAIRules([call("look", city="Rome"), Failure(500, "down")])
    other = ScriptedModel([call("final_answer", city="Rome")])
    swarm = AsyncSwarm(first.client(), middleware=[guard_input(lambda _: None), fallback((other.client(), "qwen"))])
    response = await swarm.run(agent(), "Hi!", output=Trip, budget=Budget(turns=1, then="answer"))
    assert response.output == Trip(city="Rome")
    assert list(map(is_shared, first.bodies)) == [True, True]
    (request,) = other.requests
    assert (request.tool_names, request.body["tool_choice"]) == (["final_answer"], "required")
    assert request.messages[0] == {"role": "system", "content": LONG}


def hidden(handlers: Handlers) -> Handlers:
    """Hide a function, and let the model choose."""

    def complete(request: CompletionRequest) -> Any:
        request.body["tools"] = [tool for tool in request.body["tools"] if tool["function"]["name"] != "look"]
        request.body["tool_choice"] = "auto"
        return handlers.complete(request)

    return replace(handlers, complete=complete)


@APIS
async def test_a_middleware_may_replace_the_choice(api: Any) -> None:
    """The functions and the choice of a middleware are sent as they are, also in place of a forced answer."""
    model = OpenAIRules([call("look", city="Rome"), call("final_answer", city="Rome")])
    swarm = AsyncSwarm(model.client(), api=api, middleware=[hidden])
    await swarm.run(agent(), "Hi!", output=Trip, budget=Budget(turns=1, then="answer"))
    assert (model.requests[1].tool_names, model.bodies[1]["tool_choice"]) == (["final_answer"], "auto")


# --- the JSON of a request --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", [OPENAI_CHAT, OPENAI_RESPONSES])
def test_the_json_of_earlier_messages_is_copied(api: Any) -> None:
    """A message of the developer before the messages does not change the join of the earlier JSON with the new messages."""
    known = KnownHistory(is_chat=True)
    messages = [{"role": "user", "content": "Hi!"}, {"role": "assistant", "content": "Hello!"}]
    system = {"role": "system", "content": LONG}
    request = CompletionRequest(
        agent(), {"model": MODEL, "messages": [system, *messages]}, _known=known, _may_share_prefix=True
    )
    first = api.body(request)
    assert json.loads(body_json(first, known)) == first
    messages[0]["content"] = "Changed"  # not encoded again, so not seen
    messages.append({"role": "user", "content": "And now?"})
    body = api.body(replace(request, body={"model": MODEL, "messages": [system, *messages]}))
    assert json.loads(body_json(body, known)) == json.loads(to_json(body).replace(b"Changed", b"Hi!"))
    assert is_shared(body)


# --- the settings of a run --------------------------------------------------------------------------------------------


@APIS
async def test_a_run_has_its_own_settings_of_the_cache(api: Any) -> None:
    """They override the settings of the agents, also after a handoff. The next run and another client do not get them."""
    other = agent(name="B", model_settings={"prompt_cache_key": "b"})
    model = OpenAIRules([call("transfer_to_b"), call("look", city="Rome"), Failure(500, "down"), "again"])
    alternative = ScriptedModel(["ok"])
    swarm = AsyncSwarm(model.client(), api=api, middleware=[fallback((alternative.client(), "qwen"))])
    options: dict[str, Any] = {"prompt_cache_key": "tenant-7", "prompt_cache_options": {"ttl": "30m"}}
    conversation = Conversation(MemoryStore(), "c", swarm, agent=agent(functions=[other]))
    assert (await conversation.run("Hi!", **options)).text == "ok"
    await conversation.run("And?")
    named = [{name: body.get(name) for name in options} for body in model.bodies]
    assert named == [options] * 3 + [{"prompt_cache_key": "b", "prompt_cache_options": None}]
    assert options.keys().isdisjoint(alternative.requests[0].body)


async def test_a_key_that_is_no_text_is_refused() -> None:
    """A number, such as the id of a user, would be refused by the provider."""
    with pytest.raises(ConfigurationError, match="prompt_cache_key must be a str, not 7"):
        await AsyncSwarm(ScriptedModel([])).run(agent(), "Hi!", prompt_cache_key=7)  # type: ignore[call-overload]


async def test_runs_inside_a_run_have_its_key() -> None:
    """An agent as a tool reads the data of the same tenant."""
    model = OpenAIRules([call("a", request="x"), "inside", "ok"])
    top = agent(name="Top", functions=[agent_tool(agent())])
    await AsyncSwarm(model.client()).run(top, "Hi!", prompt_cache_key="tenant-7")
    assert [body.get("prompt_cache_key") for body in model.bodies] == ["tenant-7"] * 3


async def test_options_that_are_no_dict_are_refused() -> None:
    """As a run does it with all its arguments, before a request."""
    with pytest.raises(ConfigurationError, match="prompt_cache_options must be a dict, not '30m'"):
        await AsyncSwarm(ScriptedModel([])).run(agent(), "Hi!", prompt_cache_options="30m")  # type: ignore[call-overload]


def test_a_source_of_the_responses_api_is_known_by_its_client() -> None:
    model = ScriptedModel([])
    hosts = {url: is_openai(ResponsesSource(model.client(base_url=url))) for url in (OPENAI, AZURE, PROXY)}
    assert hosts == {OPENAI: True, AZURE: False, PROXY: False}
