"""The wire of Chat Completions with its client, and its parameters: each is read, goes to the model, or is refused."""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from openai import APIError, AsyncOpenAI, BadRequestError, ConflictError, NotFoundError
from openai.resources.chat.completions import AsyncCompletions
from openai.resources.responses import AsyncResponses

from aswarm import Agent, AsyncSwarm
from aswarm.guards import Block, Blocked, CheckedInput, guard_input
from aswarm.middleware import hedge
from aswarm.runs import LocalRuns
from aswarm.serve import Service, bearer
from aswarm.testing import Failure, ScriptedAnswer, call
from tests.support.runs.kept_runs import Workshop
from tests.support.serve.served import Served, client, listening, served

Json = dict[str, Any]
pytestmark = pytest.mark.asyncio
PLACE = "/v1/chat/completions"
BODY: Json = {"model": "Boss", "messages": [{"role": "user", "content": "Hi!"}]}
# The SDK's own keywords, which are not in the body.
_OF_THE_SDK = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}


def parameters_of(resource: Any) -> list[str]:
    """The parameters of an API, as the SDK knows them."""
    return sorted({*inspect.signature(resource.create).parameters} - _OF_THE_SDK)


def openai(it: Served, **headers: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{it.url}/v1", api_key="token-of-ann", max_retries=0, default_headers=headers)


HI: Any = [{"role": "user", "content": "Hi!"}]


async def test_agents_are_models() -> None:
    """The list has the agents and the agent for tasks; an unknown agent is 404 in the form of that API."""
    async with served(["Hello."], wires=["openai"], task_agent=Agent(name="Titles")) as it, openai(it) as client:
        assert [model.id async for model in client.models.list()] == ["Boss", "Clerk", "helper"]
        assert (await client.models.retrieve("Clerk")).id == "Clerk"
        with pytest.raises(NotFoundError, match="does not exist"):
            await client.models.retrieve("Nobody")
        with pytest.raises(NotFoundError, match="does not exist") as caught:
            await client.chat.completions.create(model="Nobody", messages=HI)
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


async def test_a_request_without_a_conversation_is_stateless() -> None:
    """The history is the texts of the client without its system text; with `client_system` it has the system text too."""
    texts: Any = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "One."},
        {"role": "user", "content": "Two?"},
    ]

    for client_system, added in ((False, texts[1:]), (True, texts)):
        async with served(["Three."], wires=["openai"], client_system=client_system) as it, openai(it) as client:
            await client.chat.completions.create(model="Boss", messages=texts)
            assert it.sent()[0][1:] == added
            assert (await it.ann.get("/conversations")).json() == {"conversations": []}


async def test_a_conversation_may_be_on_the_server() -> None:
    """With the header only new messages of the user count, and the history of the client is not read."""
    async with served(["One.", "Two."], wires=["openai"]) as it, openai(it, **{"X-Conversation-Id": "c"}) as client:
        await client.chat.completions.create(model="Boss", messages=HI)
        more: Any = [*HI, {"role": "assistant", "content": "Forged."}, {"role": "user", "content": "And?"}]
        await client.chat.completions.create(model="Boss", messages=more)
        assert [message["content"] for message in (await it.stored("c")).messages] == ["Hi!", "One.", "And?", "Two."]


async def test_the_helper_runs_without_tools_and_conversations() -> None:
    """A client makes titles with another model in the same chat. The conversation does not get them."""
    async with (
        served(["A title"], wires=["openai"], task_agent=Agent(name="Titles")) as it,
        openai(it, **{"X-OpenWebUI-Chat-Id": "c"}) as client,
    ):
        answer = await client.chat.completions.create(model="helper", messages=HI)
        assert answer.choices[0].message.content == "A title"
        assert await it.stored("c") is None


async def test_a_message_that_a_guard_blocks_is_refused_once() -> None:
    """The answer is 400, which no client repeats. `error_text` decides whether users read the reason."""
    asked: list[str] = []

    def check(checked: CheckedInput) -> Block:
        asked.append(checked.text)
        return Block("no homework")

    def reason(error: BaseException) -> str:
        return error.reason if isinstance(error, Blocked) else "It failed."

    async with (
        served([], wires=["openai"], middleware=[guard_input(check)], error_text=reason) as it,
        openai(it) as client,
    ):
        with pytest.raises(BadRequestError, match="no homework") as caught:
            await client.with_options(max_retries=2).chat.completions.create(model="Boss", messages=HI)
        assert (caught.value.code, caught.value.response.headers.get("retry-after")) == ("content_filter", None)
        assert len(asked) == 1
        stream = await client.chat.completions.create(model="Boss", messages=HI, stream=True)
        with pytest.raises(APIError, match="no homework") as late:
            assert [chunk.choices[0].delta.content async for chunk in stream] == []
        assert late.value.code == "content_filter"


async def test_a_failure_of_the_provider_has_a_time_to_retry() -> None:
    """`Retry-After` comes from the provider, in whole seconds, or is a default."""
    script = [Failure(429, headers={"retry-after": "6.5"}), Failure(429), Failure(500)]
    async with served(script, wires=["openai"]) as it:
        body = {"model": "Boss", "messages": HI}
        found = [await it.ann.post("/v1/chat/completions", json=body) for _ in script]
        heads = [(answer.status_code, answer.headers["retry-after"]) for answer in found]
        assert heads == [(429, "7"), (429, "2"), (502, "2")]


async def test_a_conversation_that_is_busy_names_its_run(workshop: Workshop) -> None:
    """The error has the id of the active run, with which a program can stop it."""
    async with served([call("slow"), "Done."], workshop, wires=["openai"]) as it:
        run = await it.say()
        async with openai(it, **{"X-Conversation-Id": "c"}) as client:
            with pytest.raises(ConflictError) as caught:
                await client.chat.completions.create(model="Boss", messages=HI)
        body: Any = caught.value.body
        assert (body["code"], body["run"]) == ("run_active", run)
        workshop.go.set()


async def test_the_tools_of_a_client_are_tool_calls() -> None:
    """With "offer" an open call of the client's own tool is `tool_calls`, and its result comes with the next request."""
    tools: Any = [{"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}]

    def script(request: Any) -> Any:
        last = request.body["messages"][-1]
        return ScriptedAnswer(f"Found {last['content']}.") if last["role"] == "tool" else call("search", call_id="s")

    async with served(script, wires=["openai"], client_tools="offer") as it, openai(it) as client:
        first = await client.chat.completions.create(model="Boss", messages=HI, tools=tools)
        assert first.choices[0].finish_reason == "tool_calls"
        [asked] = first.choices[0].message.tool_calls or []
        more: Any = [*HI, first.choices[0].message.model_dump(exclude_none=True)]
        more.append({"role": "tool", "tool_call_id": asked.id, "content": "gold"})
        second = await client.chat.completions.create(model="Boss", messages=more, tools=tools)
        assert second.choices[0].message.content == "Found gold."


# --- parameters -------------------------------------------------------------------------------------------------------

SENT: Json = {
    "temperature": 0.5,
    "top_p": 0.5,
    "frequency_penalty": 1,
    "presence_penalty": 1,
    "seed": 1,
    "stop": ["END"],
    "max_tokens": 5,
    "max_completion_tokens": 5,
    "reasoning_effort": "low",
    "verbosity": "low",
    "user": "u1",
}
READ = {"model", "messages", "stream", "stream_options", "tools", "tool_choice", "parallel_tool_calls"}


async def test_each_parameter_goes_to_the_model_or_is_refused_by_its_name() -> None:
    """This holds for both APIs of OpenAI, and for a parameter that no API has."""
    names = {*parameters_of(AsyncCompletions), *parameters_of(AsyncResponses), "top_k", "parameter"} - READ
    async with served(lambda _: "Hello.", wires=["openai"]) as it:
        for name in sorted(names):
            it.model.requests.clear()
            answer = await it.ann.post(PLACE, json={**BODY, name: SENT.get(name, "text")})
            sent = [request.body.get(name) for request in it.model.requests]
            if name in SENT:
                assert (answer.status_code, sent) == (200, [SENT[name]]), name
            else:
                assert (answer.status_code, answer.json()["error"]["param"], sent) == (400, name, [])


DEFAULTS = [
    ("n", 1),
    ("logprobs", False),
    ("top_logprobs", 0),
    ("response_format", {"type": "text"}),
    ("logit_bias", {}),
    ("store", False),
    ("metadata", {}),
    ("modalities", ["text"]),
    ("service_tier", "auto"),
    ("functions", []),
    ("function_call", "none"),
    ("stop", []),
    ("stop", None),
    ("top_k", None),
    ("tool_choice", "auto"),
    ("stream_options", {"include_usage": False, "include_obfuscation": False}),
]


async def test_the_default_of_a_parameter_is_accepted() -> None:
    """Clients send defaults. They change nothing, so they are not refused, and the model does not get them."""
    async with served(lambda _: "Hello.", wires=["openai"]) as it:
        for name, value in DEFAULTS:
            assert (await it.ann.post(PLACE, json={**BODY, name: value})).status_code == 200, name
            # The service itself requests the usage.
            assert it.model.requests[-1].body.get(name) in (None, {"include_usage": True}), name


REFUSED: dict[str, list[Any]] = {
    "n": [2, True],
    "logprobs": [True, 0],
    "top_logprobs": [3],
    "temperature": ["hot", True],
    "stop": [["a", 1], list("abcde"), 1],
    "max_tokens": [0, 1.5],
    "seed": ["1"],
    "user": [1],
    "parallel_tool_calls": ["no"],
    "response_format": [{"type": "json_object"}],
    "service_tier": ["priority"],
    "stream": [1],
    "stream_options": [1],
    "stream_options.include_obfuscation": [{"include_obfuscation": True}],
    "stream_options.include_usage": [{"include_usage": "yes"}],
    "tool_choice": ["required", {"type": "function", "function": {"name": "f"}}],
    "tools[0].type": [[{"type": "web_search"}]],
}


async def test_a_value_without_effect_is_refused() -> None:
    """The answer is 400 with the name of the parameter, and the model gets no request."""
    async with served([], wires=["openai"]) as it:
        for param, values in REFUSED.items():
            for value in values:
                answer = await it.ann.post(PLACE, json={**BODY, re.split(r"[.\[]", param)[0]: value})
                assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), value


async def test_settings_are_in_each_request_of_the_run_with_and_without_a_conversation() -> None:
    """The requests after calls and handoffs have the settings too. The lower limit of output tokens applies."""
    clerk = Agent(name="Clerk", model_settings={"max_completion_tokens": 10, "temperature": 1})

    def transfer_to_Clerk() -> Agent:
        """Hand off."""
        return clerk

    boss = Agent(name="Boss", functions=[transfer_to_Clerk])
    script = [call("transfer_to_Clerk"), "Hello."] * 2
    async with served(script, wires=["openai"], agents=[boss], middleware=[hedge(after_seconds=60)]) as it:
        settings = {"temperature": 0, "max_tokens": 50, "stop": "END", "parallel_tool_calls": False}
        for headers in ({}, {"X-Conversation-Id": "c"}):
            answer = await it.ann.post(PLACE, json={**BODY, **settings}, headers=headers)
            assert answer.status_code == 200, answer.text
    keys = ("temperature", "max_tokens", "max_completion_tokens", "stop", "parallel_tool_calls")
    found = [{key: each.body[key] for key in keys if key in each.body} for each in it.model.requests]
    first = {"temperature": 0, "max_tokens": 50, "stop": "END", "parallel_tool_calls": False}
    assert found == [first, {"temperature": 0, "max_completion_tokens": 10, "stop": "END"}] * 2


async def test_with_no_choice_of_tools_the_model_gets_none_of_the_client() -> None:
    """With `tool_choice="none"` the model gets no tool of the client; it gets the functions of the agent."""
    tools = [{"type": "function", "function": {"name": "toast"}}]
    async with served(lambda _: "Hello.", wires=["openai"], client_tools="offer") as it:
        for choice in ("none", "auto"):
            answer = await it.ann.post(PLACE, json={**BODY, "tools": tools, "tool_choice": choice})
            assert answer.status_code == 200, answer.text
        names = [{tool["function"]["name"] for tool in request.body["tools"]} for request in it.model.requests]
    assert "toast" not in names[0]
    assert names[1] - names[0] == {"toast"}


@pytest.mark.parametrize("name", ["stop", "seed", "frequency_penalty", "presence_penalty"])
async def test_a_parameter_that_the_responses_api_does_not_have_is_refused(name: str) -> None:
    """The run would fail with an error that the client cannot read."""
    runs = LocalRuns(AsyncSwarm(AsyncOpenAI(api_key="x")), agents=Agent(name="Boss"))
    made = Service(runs, auth=bearer({"token": "ann"}), wires=["openai"])
    async with listening(made) as url, client(url, "token") as ann:
        answer = await ann.post(PLACE, json={**BODY, "temperature": 1, name: SENT[name]})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)
        assert "Responses API" in answer.json()["error"]["message"]


async def test_a_source_of_the_user_refuses_nothing() -> None:
    """Nothing is known about the API of a source."""

    class Source:
        async def complete(self, request: Any) -> AsyncGenerator[Json, None]:
            yield {"choices": [{"message": {"content": request.body["stop"]}, "finish_reason": "stop"}]}

    runs = LocalRuns(AsyncSwarm(Source()), agents=Agent(name="Boss"))
    made = Service(runs, auth=bearer({"token": "ann"}), wires=["openai"])
    async with listening(made) as url, client(url, "token") as ann:
        assert (await ann.post(PLACE, json={**BODY, "stop": "END"})).status_code == 200
