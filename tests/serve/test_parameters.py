"""Parameters of Chat Completions: each is read, goes to the model, or is refused. None is ignored."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from openai import AsyncOpenAI
from openai.resources.chat.completions import AsyncCompletions
from openai.resources.responses import AsyncResponses

from aswarm import Agent, AsyncSwarm
from aswarm.middleware import hedge
from aswarm.runs import LocalRuns
from aswarm.serve import Service, bearer
from aswarm.testing import call
from tests.support.serve.served import client, listening, served

Json = dict[str, Any]
pytestmark = pytest.mark.asyncio
PLACE = "/v1/chat/completions"
BODY: Json = {"model": "Boss", "messages": [{"role": "user", "content": "Hi!"}]}
# The SDK's own keywords, which are not in the body.
_OF_THE_SDK = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}


def parameters_of(resource: Any) -> list[str]:
    """The parameters of an API, as the SDK knows them."""
    return sorted({*inspect.signature(resource.create).parameters} - _OF_THE_SDK)


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


@pytest.mark.parametrize(
    "name", sorted({*parameters_of(AsyncCompletions), *parameters_of(AsyncResponses), "top_k", "parameter"} - READ)
)
async def test_each_parameter_goes_to_the_model_or_is_refused_by_its_name(name: str) -> None:
    """This holds for both APIs of OpenAI, and for a parameter that no API has."""
    asked: list[Json] = []

    def script(request: Any) -> str:
        asked.append(request.body)
        return "Hello."

    async with served(script, wires=["openai"]) as it:
        value = SENT.get(name, "text")
        answer = await it.ann.post(PLACE, json={**BODY, name: value})
        if name in SENT:
            assert answer.status_code == 200, answer.text
            assert asked[0][name] == value
        else:
            assert (answer.status_code, answer.json()["error"]["param"], asked) == (400, name, [])


@pytest.mark.parametrize(
    ("name", "value"),
    [
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
    ],
)
async def test_the_default_of_a_parameter_is_accepted(name: str, value: Any) -> None:
    """Clients send defaults. They change nothing, so they are not refused, and the model does not get them."""
    asked: list[Json] = []

    def script(request: Any) -> str:
        asked.append(request.body)
        return "Hello."

    async with served(script, wires=["openai"]) as it:
        assert (await it.ann.post(PLACE, json={**BODY, name: value})).status_code == 200
    assert asked[0].get(name) in (None, {"include_usage": True})  # the service asks for the usage itself


@pytest.mark.parametrize(
    ("name", "value", "param"),
    [
        ("n", 2, "n"),
        ("n", True, "n"),
        ("logprobs", True, "logprobs"),
        ("logprobs", 0, "logprobs"),
        ("top_logprobs", 3, "top_logprobs"),
        ("temperature", "hot", "temperature"),
        ("temperature", True, "temperature"),
        ("stop", ["a", 1], "stop"),
        ("stop", list("abcde"), "stop"),
        ("stop", 1, "stop"),
        ("max_tokens", 0, "max_tokens"),
        ("max_tokens", 1.5, "max_tokens"),
        ("seed", "1", "seed"),
        ("user", 1, "user"),
        ("parallel_tool_calls", "no", "parallel_tool_calls"),
        ("response_format", {"type": "json_object"}, "response_format"),
        ("service_tier", "priority", "service_tier"),
        ("stream", 1, "stream"),
        ("stream_options", 1, "stream_options"),
        ("stream_options", {"include_obfuscation": True}, "stream_options.include_obfuscation"),
        ("stream_options", {"include_usage": "yes"}, "stream_options.include_usage"),
        ("tool_choice", "required", "tool_choice"),
        ("tool_choice", {"type": "function", "function": {"name": "f"}}, "tool_choice"),
        ("tools", [{"type": "web_search"}], "tools[0].type"),
    ],
)
async def test_a_value_that_cannot_be_honoured_is_refused(name: str, value: Any, param: str) -> None:
    """400 with the name of the parameter, and no model is asked."""
    async with served([], wires=["openai"]) as it:
        answer = await it.ann.post(PLACE, json={**BODY, name: value})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_settings_are_in_each_request_of_the_run_with_and_without_a_conversation() -> None:
    """Also in the requests after calls and handoffs. The lower limit of output tokens applies."""
    asked: list[Json] = []

    def script(request: Any) -> Any:
        asked.append(request.body)
        return call("transfer_to_Clerk") if len(asked) % 2 else "Hello."

    clerk = Agent(name="Clerk", model_settings={"max_completion_tokens": 10, "temperature": 1})

    def transfer_to_Clerk() -> Agent:
        """Hand off."""
        return clerk

    boss = Agent(name="Boss", functions=[transfer_to_Clerk])
    async with served(script, wires=["openai"], agents=[boss], middleware=[hedge(after_seconds=60)]) as it:
        settings = {"temperature": 0, "max_tokens": 50, "stop": "END", "parallel_tool_calls": False}
        for headers in ({}, {"X-Conversation-Id": "c"}):
            answer = await it.ann.post(PLACE, json={**BODY, **settings}, headers=headers)
            assert answer.status_code == 200, answer.text
    keys = ("temperature", "max_tokens", "max_completion_tokens", "stop", "parallel_tool_calls")
    found = [{key: body[key] for key in keys if key in body} for body in asked]
    first = {"temperature": 0, "max_tokens": 50, "stop": "END", "parallel_tool_calls": False}
    assert found == [first, {"temperature": 0, "max_completion_tokens": 10, "stop": "END"}] * 2


async def test_with_no_choice_of_tools_the_model_gets_none_of_the_client() -> None:
    """`tool_choice="none"` is about the tools of the client: the functions of the agent stay."""
    asked: list[Json] = []

    def script(request: Any) -> str:
        asked.append(request.body)
        return "Hello."

    tools = [{"type": "function", "function": {"name": "toast"}}]
    async with served(script, wires=["openai"], client_tools="offer") as it:
        for choice in ("none", "auto"):
            answer = await it.ann.post(PLACE, json={**BODY, "tools": tools, "tool_choice": choice})
            assert answer.status_code == 200, answer.text
    names = [{tool["function"]["name"] for tool in body["tools"]} for body in asked]
    assert "toast" not in names[0]
    assert names[1] - names[0] == {"toast"}


@pytest.mark.parametrize("name", ["stop", "seed", "frequency_penalty", "presence_penalty"])
async def test_a_parameter_that_the_responses_api_does_not_have_is_refused(name: str) -> None:
    """The run would fail with an error that the client cannot read."""
    runs = LocalRuns(AsyncSwarm(AsyncOpenAI(api_key="x")), agents=Agent(name="Boss"))
    made = Service(runs, auth=bearer({"token": "ann"}), wires=["openai"])
    async with listening(made) as url, client(url, "token") as ann:
        answer = await ann.post(PLACE, json={**BODY, name: SENT[name]})
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
