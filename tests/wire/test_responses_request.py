"""A request of Chat Completions, in the form of the Responses API."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from aswarm import ConfigurationError, File
from aswarm._values.wire_messages import OUTPUT_ITEMS, to_wire
from aswarm._wire.responses_items import message_of
from aswarm._wire.responses_request import responses_body
from tests.support.values.histories import USER, Message, answer, asking, made_call
from tests.support.wire.response_bodies import check_body, said

SYSTEM: Message = {"role": "system", "content": "Be kind."}
REASONING = {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "x"}
FUNCTION_CALL = {"id": "fc_1", "type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
TEXT = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Hello", "annotations": []}],
}


def body_of(*messages: Message, **settings: Any) -> dict[str, Any]:
    """The body that is sent for these messages; it must fit the SDK's own types, and the given one must stay."""
    asked = {"model": "gpt-6-sol", "messages": list(messages or [USER]), "stream": False, **settings}
    before = copy.deepcopy(asked)
    body = responses_body(asked)
    assert asked == before
    check_body(body)
    return body


def input_of(*messages: Message, **settings: Any) -> list[Any]:
    """The input items that are sent for these messages."""
    return body_of(*messages, **settings)["input"]


# --- settings ---------------------------------------------------------------------------------------------------------


def test_nothing_is_stored_and_reasoning_comes_encrypted() -> None:
    """Each request has the whole history, so the provider need not keep it."""
    assert body_of() == {
        "model": "gpt-6-sol",
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "input": [USER],
        "stream": False,
    }


@pytest.mark.parametrize(
    ("chat", "expected"),
    [
        ({"max_tokens": 20}, {"max_output_tokens": 20}),
        ({"max_completion_tokens": 20}, {"max_output_tokens": 20}),
        ({"reasoning_effort": "low"}, {"reasoning": {"effort": "low"}}),
        (
            {"reasoning_effort": "low", "reasoning": {"summary": "auto"}},
            {"reasoning": {"effort": "low", "summary": "auto"}},
        ),
        ({"verbosity": "low"}, {"text": {"verbosity": "low"}}),
        ({"response_format": {"type": "json_object"}}, {"text": {"format": {"type": "json_object"}}}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}, "strict": True}}},
            {"text": {"format": {"type": "json_schema", "name": "a", "schema": {}, "strict": True}}},
        ),
        ({"logprobs": True}, {"include": ["reasoning.encrypted_content", "message.output_text.logprobs"]}),
        ({"include": []}, {"include": None}),
        (
            {"include": ["web_search_call.action.sources"]},
            {"include": ["web_search_call.action.sources", "reasoning.encrypted_content"]},
        ),
        ({"include": ["reasoning.encrypted_content"]}, {"include": ["reasoning.encrypted_content"]}),
        ({"include": None}, {"include": ["reasoning.encrypted_content"]}),
        (
            {"include": ["web_search_call.action.sources"], "model": "gpt-4o"},
            {"include": ["web_search_call.action.sources"], "model": "gpt-4o"},
        ),
        ({"model": "gpt-4o"}, {"include": None, "model": "gpt-4o"}),
        ({"stream_options": {"include_usage": True}}, {"stream_options": None}),
        ({"stream_options": {"include_obfuscation": False}}, {"stream_options": {"include_obfuscation": False}}),
        ({"tool_choice": "required"}, {"tool_choice": "required"}),
        (
            {"tool_choice": {"type": "function", "function": {"name": "f"}}},
            {"tool_choice": {"type": "function", "name": "f"}},
        ),
        (
            {"tool_choice": {"type": "custom", "custom": {"name": "f"}}},
            {"tool_choice": {"type": "custom", "name": "f"}},
        ),
        ({"tool_choice": {"type": "file_search"}}, {"tool_choice": {"type": "file_search"}}),
        (
            {
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]},
                }
            },
            {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]}},
        ),
        *(
            ({key: value}, {key: value})
            for key, value in {
                "metadata": {"a": "b"},
                "parallel_tool_calls": False,
                "prompt_cache_key": "k",
                "service_tier": "flex",
                "store": True,
                "temperature": 0,
                "truncation": "auto",
                "user": "u",
            }.items()
        ),
        *(({key: value}, {key: None}) for key, value in {"n": 1, "modalities": ["text"], "logit_bias": {}}.items()),
    ],
)
def test_a_setting_keeps_its_meaning(chat: dict[str, Any], expected: dict[str, Any]) -> None:
    """A setting of Chat Completions has the other API's name; None stands for a key that is not sent."""
    body = body_of(**chat)
    assert {key: body.get(key) for key in expected} == expected
    assert not chat.keys() & body.keys() - expected.keys()


@pytest.mark.parametrize(
    "key", ["stop", "seed", "logit_bias", "audio", "prediction", "functions", "web_search_options"]
)
def test_a_setting_that_the_api_lacks_is_named(key: str) -> None:
    """It is refused before the request, with the way out."""
    with pytest.raises(ConfigurationError, match=rf"'{key}', which the Responses API does not have.*api=\"chat\""):
        responses_body({"model": "m", "messages": [USER], key: {"a": 1}})


@pytest.mark.parametrize("other", ["max_completion_tokens", "max_output_tokens"])
def test_one_setting_with_two_names_is_refused(other: str) -> None:
    """Neither of the values would be right; the text names both."""
    with pytest.raises(ConfigurationError, match=f"'{other}' and 'max_tokens', which are one setting; remove all but"):
        responses_body({"model": "m", "messages": [USER], "max_tokens": 20, other: 30})


@pytest.mark.parametrize("key", ["previous_response_id", "conversation", "background"])
def test_state_at_the_provider_is_refused(key: str) -> None:
    """The run has the history."""
    with pytest.raises(ConfigurationError, match=f"'{key}', but aswarm sends the whole history"):
        responses_body({"model": "m", "messages": [USER], key: "x"})


# --- tools ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chat", "expected"),
    [
        (
            {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "description": "d"}},
            {"type": "function", "name": "f", "parameters": {"type": "object"}, "description": "d", "strict": False},
        ),
        (
            {"type": "function", "function": {"name": "f", "strict": True}},
            {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}, "strict": True},
        ),
        (
            {
                "type": "custom",
                "custom": {
                    "name": "f",
                    "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": "x"}},
                },
            },
            {"type": "custom", "name": "f", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}},
        ),
        ({"type": "web_search"}, {"type": "web_search"}),
        (
            {"type": "mcp", "server_label": "l", "server_url": "https://a.example"},
            {"type": "mcp", "server_label": "l", "server_url": "https://a.example"},
        ),
    ],
)
def test_a_tool_is_flat(chat: dict[str, Any], expected: dict[str, Any]) -> None:
    """`strict` is always sent: the API takes a missing one for true. Hosted tools stay as they are."""
    assert body_of(tools=[chat])["tools"] == [expected]


# --- messages ---------------------------------------------------------------------------------------------------------


def test_the_first_system_message_is_the_instructions() -> None:
    """Later ones stay where they are."""
    body = body_of(SYSTEM, USER, SYSTEM)
    assert (body["instructions"], body["input"]) == ("Be kind.", [USER, SYSTEM])


@pytest.mark.parametrize(
    "asked", [{"response_format": {"type": "json_object"}}, {"text": {"format": {"type": "json_object"}}}], ids=str
)
def test_instructions_for_a_json_object_stay_in_the_input(asked: dict[str, Any]) -> None:
    """The API refuses the format unless the input has the word JSON, and does not look for it in the instructions."""
    asking_for_json = {"role": "system", "content": "Answer in JSON."}
    body = body_of(asking_for_json, USER, **asked)
    assert (body.get("instructions"), body["input"]) == (None, [asking_for_json, USER])


def test_a_system_message_alone_is_the_input() -> None:
    """The API refuses an empty one."""
    body = body_of(SYSTEM)
    assert (body.get("instructions"), body["input"]) == (None, [SYSTEM])


def test_parts_of_a_user_message_are_input_parts() -> None:
    """Text, images and files."""
    content = [
        {"type": "text", "text": "Look."},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "low"}},
        {"type": "file", "file": {"file_id": "file-1"}},
        File("https://example.com/a.pdf", name="a.pdf").part,
        {"type": "input_text", "text": "Ready."},
    ]
    assert input_of({"role": "user", "content": content})[0]["content"] == [
        {"type": "input_text", "text": "Look."},
        {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "low"},
        {"type": "input_file", "file_id": "file-1"},
        {"type": "input_file", "file_url": "https://example.com/a.pdf"},
        {"type": "input_text", "text": "Ready."},
    ]


def test_audio_is_refused() -> None:
    """The API takes none; the text names the part."""
    part = {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}
    with pytest.raises(ConfigurationError, match=r"does not have: .*input_audio"):
        responses_body({"model": "m", "messages": [{"role": "user", "content": [part]}]})


def test_function_messages_are_refused() -> None:
    """They belong to the functions of 2023, which the API never had."""
    with pytest.raises(ConfigurationError, match="role 'function'"):
        responses_body({"model": "m", "messages": [{"role": "function", "name": "f", "content": "1"}]})


def test_calls_and_answers_of_another_provider_become_items() -> None:
    """Text first, then the calls, then each answer; a long id is cut on both sides alike."""
    long_id = "x" * 30 + "y" * 60
    custom = {"id": "c2", "type": "custom", "custom": {"name": "g", "input": "raw"}}
    history = [asking(made_call(long_id), custom, content="One moment"), answer(long_id), answer("c2")]
    assert input_of(USER, *history)[1:] == [
        said("One moment"),
        {"type": "function_call", "call_id": long_id[-64:], "name": "f", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "c2", "name": "g", "input": "raw"},
        {"type": "function_call_output", "call_id": long_id[-64:], "output": "done"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "done"},
    ]


def test_a_refusal_is_sent_as_text() -> None:
    """The message of another provider has no item that could hold it. The chat API takes a refusal in parts, too."""
    parts = [{"type": "refusal", "refusal": "No, "}, {"type": "refusal", "refusal": "never."}]
    for message in ({"content": None, "refusal": "No, never."}, {"content": parts}):
        assert input_of(USER, {"role": "assistant", **message})[1:] == [said("No, never.")]


def replayed(**changes: Any) -> list[Any]:
    """What is sent for a message that came as reasoning, text and a call."""
    message = asking(made_call(), content="Hello", **{OUTPUT_ITEMS: [REASONING, TEXT, FUNCTION_CALL]})
    return input_of(USER, {**message, **changes}, answer())[1:-1]


def test_items_are_sent_back_as_they_came() -> None:
    """Reasoning, text and call, in their order."""
    assert replayed() == [REASONING, TEXT, FUNCTION_CALL]


@pytest.mark.parametrize(
    "changes",
    [
        {"content": "Hello!"},
        {"content": None},
        {"refusal": "No."},
        {"tool_calls": [made_call("c1", "g")]},
        {"tool_calls": [made_call("c1", "f", '{"a": 1}')]},
        {"tool_calls": [made_call(), made_call("c2")]},
        {OUTPUT_ITEMS: [REASONING, TEXT]},
        {OUTPUT_ITEMS: [TEXT, FUNCTION_CALL], "reasoning_content": "Hm."},
        {OUTPUT_ITEMS: [TEXT, FUNCTION_CALL, REASONING]},
        {OUTPUT_ITEMS: [REASONING, {**TEXT, "role": "developer"}, FUNCTION_CALL]},
        {OUTPUT_ITEMS: [REASONING, TEXT, FUNCTION_CALL, {"type": "mcp_approval_response", "approve": True}]},
        {OUTPUT_ITEMS: [REASONING, TEXT, FUNCTION_CALL, {"id": "x"}]},
        {OUTPUT_ITEMS: [{**REASONING, "encrypted_content": None}, TEXT, FUNCTION_CALL]},
        {OUTPUT_ITEMS: []},
        {OUTPUT_ITEMS: "odd"},
        {OUTPUT_ITEMS: ["odd"]},
        {OUTPUT_ITEMS: [TEXT, {**FUNCTION_CALL, "type": ["odd"]}]},
    ],
    ids=str,
)
def test_items_that_do_not_match_are_not_sent(changes: dict[str, Any]) -> None:
    """A message that was edited or trimmed, and items that the API would refuse, are sent in the plain form."""
    assert all(item.get("id") is None for item in replayed(**changes))


def test_reasoning_in_several_items_goes_back() -> None:
    """Only reasoning with nothing after it is refused; tools that the provider ran stand between."""
    search = {
        "id": "ws_1",
        "type": "web_search_call",
        "status": "completed",
        "action": {"type": "search", "query": "q"},
    }
    items = [REASONING, {**REASONING, "id": "rs_2"}, search, TEXT, FUNCTION_CALL]
    assert replayed(**{OUTPUT_ITEMS: items}) == items


@pytest.mark.parametrize("arguments", ["", "{cut", "[1]", '{"x": NaN}'])
def test_broken_arguments_take_no_other_item_with_them(arguments: str) -> None:
    """Servers refuse them, so they are sent as `{}`; a compaction and the reasoning go back beside the call."""
    compaction = {"id": "cmp_1", "type": "compaction", "encrypted_content": "x"}
    other = {"id": "fc_2", "type": "function_call", "call_id": "c2", "name": "f", "arguments": '{"x": 1}'}
    items = [compaction, REASONING, TEXT, {**FUNCTION_CALL, "arguments": arguments}, other]
    recorded = message_of(items)
    sent = input_of(*to_wire([USER, recorded, answer(), answer("c2")]))
    assert sent[:-2] == [compaction, REASONING, TEXT, FUNCTION_CALL, other]
    assert recorded[OUTPUT_ITEMS][3]["arguments"] == arguments


@pytest.mark.parametrize("part", ["odd", 7, {"type": "output_text", "text": ["Hello"]}, {"type": "x", "refusal": {}}])
@pytest.mark.parametrize("key", ["content", "summary"])
def test_items_with_parts_that_no_server_takes_are_not_sent(part: Any, key: str) -> None:
    """The message goes in its plain form: a server would refuse the whole history."""
    odd = {**TEXT, "content": [*TEXT["content"], part]} if key == "content" else {**REASONING, "summary": [part]}
    items = [REASONING, odd, FUNCTION_CALL] if key == "content" else [odd, TEXT, FUNCTION_CALL]
    assert all(item.get("id") is None for item in replayed(**{OUTPUT_ITEMS: items}))


@pytest.mark.parametrize("model", ["gpt-4.1", "ft:gpt-4o:acme"])
def test_a_model_that_does_not_reason_gets_no_reasoning(model: str) -> None:
    """After a handoff, or with another model for this run: the API refuses it."""
    message = asking(made_call(), content="Hello", **{OUTPUT_ITEMS: [REASONING, TEXT, FUNCTION_CALL]})
    body = body_of(USER, message, answer(), model=model)
    assert "include" not in body
    assert [item.get("type") for item in body["input"]] == [None, "message", "function_call", "function_call_output"]
    plain = asking(made_call(), content="Hello", **{OUTPUT_ITEMS: [TEXT, FUNCTION_CALL]})
    assert input_of(USER, plain, answer(), model=model)[1:-1] == [TEXT, FUNCTION_CALL]


def test_reasoning_that_a_server_shows_in_full_needs_no_encryption() -> None:
    """Servers of open models send their reasoning as text, and take it back."""
    shown = {"id": "rs_1", "type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
    items = [shown, TEXT, FUNCTION_CALL]
    assert replayed(**{OUTPUT_ITEMS: items}) == items
