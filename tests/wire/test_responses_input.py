"""The history as input items: conversion and encoding once in a run, and messages that are refused."""

from __future__ import annotations

import gc
import json
import weakref
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aswarm import Agent, AsyncSwarm, ConfigurationError
from aswarm._values.wire_messages import OUTPUT_ITEMS
from aswarm._wire.request import body_json
from aswarm._wire.responses_request import KnownHistory, responses_body
from aswarm.sources import CompletionRequest
from aswarm.testing import ScriptedModel, call
from tests.support.values.histories import USER, Message, answer, asking, made_call
from tests.support.wire.response_bodies import check_body, said

SYSTEM: Message = {"role": "system", "content": "Be kind."}
PROGRAM = {"type": "program", "id": "p_1", "call_id": "p1", "code": "f()", "fingerprint": "x"}
CALLER = {"type": "program", "caller_id": "p1"}


def input_of(*messages: Message, known: KnownHistory | None = None, **settings: Any) -> list[Any]:
    """The input items that are sent for these messages; they fit the SDK's own types."""
    body = responses_body({"model": "gpt-6-sol", "messages": list(messages), "stream": False, **settings}, known)
    check_body(body)
    return list(body["input"])


# --- converted once ---


def turns(count: int) -> list[Message]:
    """So many turns with a call and its answer."""
    blocks = [[asking(made_call(f"c{number}")), answer(f"c{number}")] for number in range(count)]
    return [USER, *(message for block in blocks for message in block)]


def test_the_items_of_an_earlier_request_are_used_again() -> None:
    """They are the same objects, in a list of their own, and equal to a fresh conversion."""
    known, history = KnownHistory(is_chat=False), turns(3)
    first = input_of(SYSTEM, *history[:3], known=known)
    second = input_of({**SYSTEM}, *history, known=known)
    assert [id(item) for item in second[:3]] == [id(item) for item in first]
    assert (len(first), second) == (3, input_of(SYSTEM, *history))


def test_an_answer_in_a_later_request_knows_its_call() -> None:
    """The form of an answer follows from its call, also where the call was converted before."""
    known = KnownHistory(is_chat=False)
    asked = asking({"id": "c1", "type": "custom", "custom": {"name": "g", "input": "raw"}})
    input_of(USER, asked, known=known)
    assert input_of(USER, asked, answer("c1"), known=known)[-1]["type"] == "custom_tool_call_output"


def test_other_messages_are_converted_again() -> None:
    """A message that was replaced, an equal copy, a shorter history."""
    known, history = KnownHistory(is_chat=False), turns(2)
    for messages in (history, history[:3], [{**USER, "content": "Ho"}, *history[1:]], turns(2)):
        assert input_of(*messages, known=known) == input_of(*messages)


def test_another_model_reads_other_reasoning() -> None:
    """After a handoff to a model that does not reason, and back."""
    known = KnownHistory(is_chat=False)
    items = [{"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "x"}]
    items.append({"id": "fc_1", "type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"})
    history = [USER, asking(made_call(), **{OUTPUT_ITEMS: items}), answer()]
    for model in ("gpt-6-sol", "gpt-4.1", "gpt-6-sol"):
        assert input_of(*history, known=known, model=model) == input_of(*history, model=model)


def test_a_failure_leaves_what_was_known() -> None:
    """A message that the API does not have ends that request, and the next one is converted as if it had not been."""
    known, history = KnownHistory(is_chat=False), turns(1)
    input_of(*history, known=known)
    before = known.input
    with pytest.raises(ConfigurationError):
        input_of(*history, {"role": "function", "name": "f", "content": "1"}, known=known)
    assert known.input is before
    assert input_of(*turns(1), known=known) == input_of(*history)


def test_a_request_that_may_be_changed_shares_nothing() -> None:
    """A middleware may write into the messages between two attempts with its copy of the request."""
    request = CompletionRequest(Agent(), {"model": "m", "messages": turns(1)}, _known=KnownHistory(is_chat=True))
    assert request.copy()._known is None
    assert replace(request, max_retries=0)._known is request._known


async def test_a_middleware_may_change_earlier_messages() -> None:
    """Its change reaches the model in each request, although the run converts each message once."""

    def shouting(handlers: Any) -> Any:
        async def complete(request: CompletionRequest) -> Any:
            for message in request.body["messages"]:
                message["content"] = message["content"] and message["content"].upper()
            async for chunk in handlers.complete(request):
                yield chunk

        return replace(handlers, complete=complete)

    async def look_up() -> str:
        return "sunny"

    model = ScriptedModel([call("look_up"), call("look_up"), "Fine."], api="responses")
    swarm = AsyncSwarm(model.client(), middleware=[shouting])
    await swarm.run(Agent(functions=[look_up]), [USER, {"role": "assistant", "content": "Hm."}, USER])
    for request in model.requests:
        assert request.body["input"][:3] == [{**USER, "content": "HI"}, said("HM."), {**USER, "content": "HI"}]
    assert model.requests[2].body["input"][4]["output"] == "SUNNY"


class Freed(dict[str, Any]):
    """A message with weak references."""


def test_the_messages_are_freed_with_the_run() -> None:
    """What is known of a history belongs to its run alone."""
    message = Freed(role="user", content=[{"type": "text", "text": "Hi"}])
    freed = weakref.ref(message)
    known = KnownHistory(is_chat=True)
    input_of(message, known=known)
    del message
    gc.collect()
    assert freed() is not None
    del known
    gc.collect()
    assert freed() is None


# --- answers to a program ---


def test_the_answer_to_a_program_names_the_program() -> None:
    """The API matches the answer to a call that a program of the model made by the program too."""
    item = {"id": "fc_1", "type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}", "caller": CALLER}
    custom = {"id": "ct_1", "type": "custom_tool_call", "call_id": "c2", "name": "g", "input": "raw", "caller": CALLER}
    direct = {"id": "fc_3", "type": "function_call", "call_id": "c3", "name": "f", "arguments": "{}"}
    calls = [made_call("c1"), {"id": "c2", "type": "custom", "custom": {"name": "g", "input": "raw"}}, made_call("c3")]
    message = asking(*calls, **{OUTPUT_ITEMS: [PROGRAM, item, custom, direct]})
    items = input_of(USER, message, answer("c1"), answer("c2"), answer("c3"))
    assert items[1:5] == [PROGRAM, item, custom, direct]
    assert items[5:] == [
        {"type": "function_call_output", "call_id": "c1", "output": "done", "caller": CALLER},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "done", "caller": CALLER},
        {"type": "function_call_output", "call_id": "c3", "output": "done"},
    ]


def test_a_program_that_is_not_sent_back_is_not_named() -> None:
    """A message that was edited goes in its plain form, without the program."""
    item = {"id": "fc_1", "type": "function_call", "call_id": "c1", "name": "g", "arguments": "{}", "caller": CALLER}
    items = input_of(USER, asking(made_call(), **{OUTPUT_ITEMS: [PROGRAM, item]}), answer())
    assert [set(each) for each in items[1:]] == [
        {"type", "call_id", "name", "arguments"},
        {"type", "call_id", "output"},
    ]


def test_a_call_keeps_its_namespace_in_the_plain_form() -> None:
    """The API knows a function that a search has found only in its namespace; arguments that were cut are sent as {}."""
    item = {"id": "fc_1", "type": "function_call", "call_id": "c1", "name": "f", "arguments": "{cut", "namespace": "n"}
    message = asking(made_call(), made_call("c2"), **{OUTPUT_ITEMS: [item, "odd"]})
    first, second = input_of(USER, message, answer(), answer("c2"))[1:3]
    assert first == {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}", "namespace": "n"}
    assert "namespace" not in second


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {"content", "encrypted_content"}),
        ({"include": []}, {"content"}),
        ({"include": ["web_search_call.action.sources"]}, {"content", "encrypted_content"}),
        ({"model": "gpt-4.1"}, set()),
    ],
)
def test_reasoning_goes_back_where_it_can_be_read(settings: dict[str, Any], expected: set[str]) -> None:
    """Encrypted reasoning only to a model that was asked for it; text that a server showed to any that reasons."""
    shown = {"encrypted_content": "x", "content": [{"type": "reasoning_text", "text": "Hm."}]}
    call_item = {"id": "fc_1", "type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    for key, value in shown.items():
        items = [{"id": "rs_1", "type": "reasoning", "summary": [], key: value}, call_item]
        sent = input_of(USER, asking(made_call(), **{OUTPUT_ITEMS: items}), answer(), **settings)
        assert (sent[1:3] == items) == (key in expected)


# --- messages that the API does not have ---


@pytest.mark.parametrize(
    ("part", "named"),
    [
        ({"type": "text"}, "'text' is missing or wrong.*expected a str"),
        ({"type": "text", "text": None}, "'text' is missing or wrong"),
        ({"type": "image_url"}, "'image_url' is missing or wrong.*expected a str or an object"),
        ({"type": "file", "file": "a.pdf"}, "'file' is missing or wrong.*expected an object"),
        ({"type": "video"}, "does not have: .*video"),
        ({}, r"does not have: \{\}"),
    ],
    ids=str,
)
@pytest.mark.parametrize("role", ["user", "tool"])
def test_a_part_that_cannot_be_sent_is_named(part: dict[str, Any], named: str, role: str) -> None:
    """A ConfigurationError before the request, with the part."""
    message = {"role": role, "content": [part], **({"tool_call_id": "c1"} if role == "tool" else {})}
    with pytest.raises(ConfigurationError, match=named):
        input_of(USER, asking(made_call()), message)


def test_each_message_of_the_assistant_has_its_type() -> None:
    """llama.cpp refuses one without it, and a message with a plain text as content; messages of other roles stay as they are."""
    message = {"role": "assistant", "content": "Hello."}
    parts = [{"type": "output_text", "text": "Hello."}]
    for sent in (message, {**message, "refusal": "No."}, {**message, "sender": "A"}, {**message, "content": parts}):
        assert input_of(USER, sent)[1:] == [{"type": "message", "role": "assistant", "content": parts}]
    assert input_of(USER, SYSTEM) == [USER, SYSTEM]


def test_an_image_may_be_a_url_alone() -> None:
    """As some servers take it."""
    part = {"type": "image_url", "image_url": "https://a.example/b.png"}
    (item,) = input_of({"role": "user", "content": [part]})
    assert item["content"] == [{"type": "input_image", "image_url": "https://a.example/b.png", "detail": "auto"}]


def test_spoken_answers_are_sent_as_their_text() -> None:
    """The API takes no audio of the assistant; the transcript has the same text."""
    spoken = {"role": "assistant", "content": None, "audio": {"id": "a1", "transcript": "Hello."}}
    assert input_of(USER, spoken, USER)[1] == said("Hello.")


@pytest.mark.parametrize(
    "lost", [{"audio": {"id": "a1"}}, {"audio": "a1"}, {"function_call": {"name": "f", "arguments": "{}"}}], ids=str
)
def test_a_message_that_would_vanish_is_refused(lost: Message) -> None:
    """An answer without a text, as audio or as a call of 2023: the error names it."""
    message = {"role": "assistant", "content": None, **lost}
    with pytest.raises(ConfigurationError, match=f"has only '{next(iter(lost))}'.*leave the message out"):
        input_of(USER, message, USER)
    assert len(input_of(USER, {**message, "content": "Hello."}, USER)) == 3


def test_parts_of_an_answer_that_would_vanish_are_refused() -> None:
    """An image alone is named; beside a text, and beside nothing but reasoning of another provider, no item is made."""
    image = {"type": "image_url", "image_url": {"url": "https://a.example/b.png"}}
    with pytest.raises(ConfigurationError, match=r"has only 'image_url'.*leave the message out"):
        input_of(USER, {"role": "assistant", "content": [image]}, USER)
    beside = {"role": "assistant", "content": [{"type": "text", "text": "Look."}, image]}
    assert input_of(USER, beside)[1:] == [said("Look.")]
    thought = {"role": "assistant", "content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}]}
    assert input_of(USER, thought) == [USER]


def test_a_call_of_an_unknown_type_is_refused() -> None:
    """It has neither a function nor an input of its own."""
    with pytest.raises(ConfigurationError, match="tool call of a type that the Responses API does not have"):
        input_of(USER, asking({"id": "c1", "type": "odd"}), answer())


roles = st.sampled_from(["system", "user", "assistant", "tool"])
messages = st.builds(lambda role, content: {"role": role, "content": content}, roles, st.text(max_size=5))
histories = st.lists(messages, max_size=6)
keys = st.sampled_from(["messages", "input"])


def body_of(key: str, items: list[Any], **settings: Any) -> dict[str, Any]:
    return {"model": "m", key: items, **settings}


@given(keys, histories, st.lists(st.tuples(st.booleans(), st.integers(0, 6)), max_size=5))
def test_the_body_is_the_same_as_without_an_earlier_request(
    key: str, history: list[dict[str, Any]], requests: list[tuple[bool, int]]
) -> None:
    """Histories that grow, shrink or start with instructions."""
    known = KnownHistory(is_chat=True)
    for has_instructions, length in requests:
        items = [*([{"role": "system", "content": "Be brief."}] if has_instructions else []), *history[:length]]
        body = body_of(key, items, stream=False)
        assert json.loads(body_json(body, known)) == body == json.loads(body_json(body, None))


@pytest.mark.parametrize("key", ["messages", "input"])
def test_a_message_is_encoded_once_a_run(key: str) -> None:
    """A change of a message that was sent does not reach the next request; an equal copy of it is a new message."""
    known, first, second = (
        KnownHistory(is_chat=True),
        {"role": "user", "content": "a"},
        {"role": "user", "content": "b"},
    )
    body_json(body_of(key, [{"role": "system", "content": "x"}, first]), known)
    first["content"] = "changed"
    later = json.loads(body_json(body_of(key, [{"role": "system", "content": "y"}, first, second]), known))
    assert [item["content"] for item in later[key]] == ["y", "a", "b"]
    copied = json.loads(body_json(body_of(key, [{**first}, second]), known))
    assert [item["content"] for item in copied[key]] == ["changed", "b"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "NaN"])
def test_a_number_that_json_does_not_have_is_refused(value: Any) -> None:
    """In a new message, and after a request without it."""
    known, message = KnownHistory(is_chat=True), {"role": "user", "content": "a"}
    body_json(body_of("messages", [message]), known)
    with pytest.raises(ValueError, match="JSON number"):
        body_json(body_of("messages", [message, {"role": "user", "content": value}]), known)
