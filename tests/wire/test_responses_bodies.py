"""Every body for the Responses API fits the SDK's own types, whatever the history, the tools and the settings."""

from __future__ import annotations

import copy
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from aswarm import Agent, File, Image
from aswarm._tools.toolbox import toolbox
from aswarm._values.wire_messages import OUTPUT_ITEMS, to_wire
from aswarm._wire.request import RequestSettings, build_request
from aswarm._wire.responses_items import message_of
from aswarm._wire.responses_request import responses_body
from aswarm.tools import function_tool
from tests.support.values.histories import Message, answer
from tests.support.wire.response_bodies import TYPES_ARE_COMPLETE, check_body

Json = dict[str, Any]

# --- histories ---

texts = st.text(max_size=8)
images = st.sampled_from([b"\x89PNG", "https://a.example/b.png"])
parts = st.one_of(
    texts.map(lambda text: {"type": "text", "text": text}),
    st.builds(Image, images, detail=st.sampled_from([None, "low", "high"])).map(lambda image: image.part),
    texts.map(lambda name: File(b"%PDF", name=name).part),
    st.just({"type": "file", "file": {"file_id": "file-1"}}),
    st.just({"type": "input_image", "file_id": "file-1", "detail": "auto"}),
)
contents = texts | st.lists(parts, min_size=1, max_size=3)
others = st.builds(
    lambda role, content: [{"role": role, "content": content}],
    st.sampled_from(["user", "system", "developer"]),
    contents,
)

reasoning = st.builds(
    lambda summary, text, encrypted: {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": each} for each in summary],
        **({"content": [{"type": "reasoning_text", "text": text}]} if text else {}),
        **({"encrypted_content": encrypted} if encrypted else {}),
    },
    st.lists(texts, max_size=2),
    texts,
    texts,
)
messages = st.builds(
    lambda text, refusal: {
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [
            {"type": "output_text", "text": text, "annotations": [], "logprobs": []},
            *([{"type": "refusal", "refusal": refusal}] if refusal else []),
        ],
    },
    texts,
    texts,
)
function_calls = st.builds(
    lambda text, caller: {
        "type": "function_call",
        "name": "f",
        "arguments": text,
        "status": "completed",
        **({"caller": {"type": "program", "caller_id": "p"}} if caller else {}),
    },
    st.sampled_from(["{}", "{cut"]),
    st.booleans(),
)
custom_calls = texts.map(lambda text: {"type": "custom_tool_call", "name": "g", "input": text})
hosted = st.sampled_from(
    [
        {"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "q"}},
        {"type": "file_search_call", "status": "completed", "queries": ["q"], "results": None},
        {
            "type": "code_interpreter_call",
            "status": "completed",
            "code": "1",
            "container_id": "c",
            "outputs": [{"type": "logs", "logs": "1"}],
        },
        {"type": "image_generation_call", "status": "completed", "result": "AA=="},
        {"type": "mcp_list_tools", "server_label": "l", "tools": [{"name": "f", "input_schema": {}}]},
        {"type": "mcp_call", "server_label": "l", "name": "f", "arguments": "{}", "output": "1"},
        {"type": "program", "call_id": "p", "code": "f()", "fingerprint": "x"},
    ]
)
outputs = st.lists(reasoning | messages | function_calls | custom_calls | hosted, min_size=1, max_size=5)
ids = count(1)


def with_ids(item: Json) -> Json:
    """The item, with the ids that a provider gives."""
    number = next(ids)
    is_call = item["type"] in ("function_call", "custom_tool_call")
    return {"id": f"i_{number}", **({"call_id": f"c_{number}" * 20} if is_call else {}), **item}


def answered(message: Message, contents: list[Any]) -> list[Message]:
    """The message and an answer to each of its calls."""
    calls: list[Message] = message.get("tool_calls") or []
    return [message, *(answer(call["id"], contents[at % len(contents)]) for at, call in enumerate(calls))]


@st.composite
def answers(draw: st.DrawFn) -> list[Message]:
    """Draw an answer of the model: unchanged, edited, or without the items of the Responses API."""
    message = message_of([with_ids(item) for item in draw(outputs)])
    kept = draw(st.sampled_from(["items", "edited", "plain"]))
    if kept == "plain":
        del message[OUTPUT_ITEMS]
    elif kept == "edited":
        message["content"] = draw(texts) or None
    return answered(message, draw(st.lists(contents, min_size=1, max_size=2)))


spoken = st.just([{"role": "assistant", "content": None, "audio": {"id": "a", "transcript": "Hello."}}])
histories = st.lists(others | answers() | spoken, max_size=5).map(
    lambda blocks: [each for block in blocks for each in block]
)

# --- tools and settings ---


def look_up(city: str, days: int = 1) -> str:
    """Look a city up."""
    return city


GIVEN = function_tool(look_up, name="given", parameters={"type": "object", "properties": {}}, description="As given.")
TOOLS: list[Json] = [
    {"type": "custom", "custom": {"name": "g", "description": "d", "format": {"type": "text"}}},
    {
        "type": "custom",
        "custom": {"name": "h", "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": "x"}}},
    },
    {"type": "function", "name": "flat", "parameters": {"type": "object", "properties": {}}, "strict": True},
    {"type": "web_search"},
    {"type": "file_search", "vector_store_ids": ["v"]},
    {"type": "code_interpreter", "container": {"type": "auto"}},
    {"type": "mcp", "server_label": "l", "server_url": "https://a.example", "require_approval": "never"},
    {"type": "image_generation"},
    {"type": "tool_search"},
]
CHOICES: list[Any] = [
    "auto",
    "required",
    {"type": "function", "function": {"name": "look_up"}},
    {"type": "custom", "custom": {"name": "g"}},
    {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "name": "look_up"}]}},
    {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "look_up"}]},
    {"type": "web_search_preview"},
]
settings = st.fixed_dictionaries(
    {},
    optional={
        "tools": st.lists(st.sampled_from(TOOLS), max_size=3),
        "tool_choice": st.sampled_from(CHOICES),
        "max_completion_tokens": st.just(10),
        "temperature": st.sampled_from([0, 0.5]),
        "top_p": st.just(0.5),
        "reasoning_effort": st.sampled_from(["none", "low"]),
        "reasoning": st.just({"summary": "auto"}),
        "verbosity": st.just("low"),
        "text": st.just({"verbosity": "high"}),
        "response_format": st.sampled_from(
            [
                {"type": "text"},
                {"type": "json_object"},
                {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}, "strict": True}},
            ]
        ),
        "logprobs": st.just(True),
        "top_logprobs": st.just(2),
        "include": st.sampled_from([[], ["web_search_call.action.sources"]]),
        "stream_options": st.just({"include_usage": True, "include_obfuscation": False}),
        "service_tier": st.just("flex"),
        "prompt_cache_key": st.just("k"),
        "safety_identifier": st.just("u"),
        "metadata": st.just({"a": "b"}),
        "truncation": st.just("auto"),
        "n": st.just(1),
        "seed": st.none(),
        "store": st.booleans(),
    },
)
models = st.sampled_from(["gpt-6-luna", "gpt-4.1"])
agents = st.builds(
    lambda model, given, functions: Agent(model=model, functions=functions, model_settings=given),
    models,
    settings,
    st.sampled_from([[], [look_up], [look_up, GIVEN]]),
)


def sent_by(agent: Agent, history: list[Message], instructions: Any, *, stream: bool) -> Json:
    """The body that a run sends for this history."""
    tools = [tool._schema.json for tool in toolbox(agent).tools.values()]
    request = build_request(
        agent, instructions, to_wire(history), tools, agent.tool_choice, RequestSettings(stream=stream)
    )
    return responses_body(request.body)


@given(agents, histories, st.none() | texts, st.booleans())
def test_every_body_fits_the_types_of_the_sdk(
    agent: Agent, history: list[Message], instructions: str | None, stream: bool
) -> None:
    """Settings, tools in all forms, images and files, items that go back and items that are made; nothing is changed."""
    before = copy.deepcopy(history)
    body = sent_by(agent, history, instructions, stream=stream)
    check_body(body)
    assert history == before
    calls = [item["call_id"] for item in body["input"] if item.get("type") in ("function_call", "custom_tool_call")]
    kinds = ("function_call_output", "custom_tool_call_output")
    assert [item["call_id"] for item in body["input"] if item.get("type") in kinds] == calls


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool["type"])
def test_every_form_of_a_tool_fits(tool: Json) -> None:
    """Each of them alone, so that a wrong one is named."""
    check_body(sent_by(Agent(functions=[look_up], model_settings={"tools": [tool]}), [], "Hi", stream=False))


@pytest.mark.skipif(not TYPES_ARE_COMPLETE, reason="nothing is checked with so old a version of the SDK")
@pytest.mark.parametrize(
    "wrong",
    [
        {"tools": [{"type": "function", "name": "f"}]},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"max_tokens": 3},
        {"input": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]},
        {"input": [{"role": "user", "content": "Hi", "name": "Ada"}]},
        {"input": [{"type": "custom_tool_call_output", "call_id": "c", "output": [{"type": "text", "text": "Hi"}]}]},
        {"reasoning": {"effort": 3}},
    ],
    ids=str,
)
def test_the_check_finds_what_does_not_fit(wrong: Json) -> None:
    """Otherwise the tests that use the check would prove nothing."""
    with pytest.raises((ValidationError, AssertionError)):
        check_body({"model": "m", "input": [], **wrong})
