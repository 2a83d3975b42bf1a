"""The fake server of Anthropic: its client reads its answers, and each rule refuses the request that breaks only this rule."""

from __future__ import annotations

import copy
import json
from typing import Any

import anthropic
import pytest

from tests.support.anthropic_checks import TYPES_ARE_COMPLETE
from tests.support.anthropic_rules import Answer, AnthropicRules, Failure, text, thinking, use

Json = dict[str, Any]

TOOL: Json = {"name": "look", "input_schema": {"type": "object", "properties": {}}}
ASKED: Json = {"role": "user", "content": "Hi"}
CALLED: Json = {"role": "assistant", "content": [use("look")]}
FOUND: Json = {"type": "tool_result", "tool_use_id": "toolu_look_1", "content": "found"}
RESULT: Json = {"role": "user", "content": [FOUND]}
MARK: Json = {"type": "ephemeral"}
OLD, ADAPTIVE, NEW = "claude-haiku-4-5", "claude-opus-5", "claude-opus-5-5"


def body(*messages: Json, model: str = OLD, **settings: Any) -> Json:
    return copy.deepcopy({"model": model, "max_tokens": 4000, "messages": [*(messages or [ASKED])], **settings})


def said(words: str, role: str = "assistant") -> Json:
    return {"role": role, "content": words}


def marked(count: int) -> Json:
    return {"role": "user", "content": [{**text("Hi"), "cache_control": MARK} for _ in range(count)]}


def strict(schema: Json) -> Json:
    inner = {"type": "object", "additionalProperties": False, "properties": {"n": schema}}
    return {"name": "look", "strict": True, "input_schema": inner}


REFUSED = {
    "an unknown key": (body(colour="red"), "Extra inputs"),
    "an unknown key in a block": (body({"role": "user", "content": [{**text("Hi"), "name": "n"}]}), "Extra inputs"),
    "a text that is null": (body({"role": "user", "content": [{"type": "text", "text": None}]}), "Input should be"),
    "no content": (body(said("", "user")), "non-empty content"),
    "an empty text": (body({"role": "user", "content": [text("")]}), "non-empty"),
    "a text of spaces": (
        body(ASKED, CALLED, {"role": "user", "content": [FOUND, text(" ")]}, tools=[TOOL]),
        "non-whitespace",
    ),
    "an unknown role": (body(said("Hi", "developer")), "role"),
    "a call in a user message": (body({"role": "user", "content": [use("look")]}), "can not be in user"),
    "an image of the assistant": (
        body(
            ASKED,
            {"role": "assistant", "content": [{"type": "image", "source": {"type": "url", "url": "http://a"}}]},
            ASKED,
        ),
        "can not be in assistant",
    ),
    "a call without a result": (body(ASKED, CALLED, ASKED), "without `tool_result`"),
    "a result after a text": (
        body(ASKED, CALLED, {"role": "user", "content": [text("Hi"), FOUND]}),
        "without `tool_result`",
    ),
    "a result without a call": (body(ASKED, RESULT), "unexpected `tool_use_id`"),
    "two results of a call": (body(ASKED, CALLED, {"role": "user", "content": [FOUND, FOUND]}), "a single result"),
    "two calls with an id": (
        body(ASKED, {"role": "assistant", "content": [use("look"), use("look")]}, RESULT),
        "must be unique",
    ),
    "an id of another provider": (
        body(ASKED, {"role": "assistant", "content": [{**use("look"), "id": "call:1"}]}, RESULT),
        "match pattern",
    ),
    "a name with a point": (body(tools=[{**TOOL, "name": "a.b"}]), "match pattern"),
    "two tools of a name": (body(tools=[TOOL, TOOL]), "names must be unique"),
    "a choice without tools": (body(tool_choice={"type": "any"}), "while providing tools"),
    "a choice of no tool": (body(tools=[TOOL], tool_choice={"type": "tool", "name": "n"}), "not found"),
    "only deferred tools": (body(tools=[{**TOOL, "defer_loading": True}]), "defer_loading"),
    "a schema without properties of an object": (
        body(tools=[{"name": "a", "input_schema": {"type": "string"}}]),
        "object",
    ),
    "a strict schema that is open": (
        body(tools=[strict({"type": "object", "properties": {}})]),
        "additionalProperties",
    ),
    "a strict schema with a limit": (body(tools=[strict({"type": "integer", "minimum": 1})]), "minimum"),
    "five cache points": (body(marked(5)), "maximum of 4"),
    "four cache points and the automatic one": (body(marked(4), cache_control=MARK), "maximum of 4"),
    "a long life after a short one": (body(marked(1), cache_control={**MARK, "ttl": "1h"}), "ttl='1h'"),
    "prefill for a new model": (body(ASKED, said("The"), model=ADAPTIVE), "prefill"),
    "prefill that ends with a space": (body(ASKED, said("The ")), "trailing whitespace"),
    "thinking at the end of a message": (
        body(ASKED, {"role": "assistant", "content": [{**thinking(), "signature": "x"}]}, ASKED),
        "final block",
    ),
    "a budget for a new model": (body(model=NEW, thinking={"type": "enabled", "budget_tokens": 2000}), "not supported"),
    "a budget of everything": (body(thinking={"type": "enabled", "budget_tokens": 4000}), "must be greater"),
    "adaptive thinking of an old model": (body(thinking={"type": "adaptive"}), "not supported"),
    "no thinking of a model that always thinks": (body(model=NEW, thinking={"type": "disabled"}), "not supported"),
    "a forced choice with a budget": (
        body(tools=[TOOL], tool_choice={"type": "any"}, thinking={"type": "enabled", "budget_tokens": 2000}),
        "forces tool use",
    ),
    "a forced choice of a model that refuses it": (
        body(model=NEW, tools=[TOOL], tool_choice={"type": "any"}),
        "forced",
    ),
    "a loop that lost its thinking": (
        body(ASKED, CALLED, RESULT, tools=[TOOL], thinking={"type": "enabled", "budget_tokens": 2000}),
        "Expected `thinking`",
    ),
    "a high temperature": (body(temperature=1.5), "range"),
    "a temperature for a new model": (body(model=ADAPTIVE, temperature=0.5), "not supported"),
    "a system message for an old model": (body(ASKED, said("Be brief", "system")), "role 'system'"),
    "a system message at the start": (body(said("Be brief", "system"), ASKED, model=ADAPTIVE), "must follow"),
    "a system message before a user message": (
        body(ASKED, said("Be brief", "system"), ASKED, model=ADAPTIVE),
        "the last one",
    ),
    "a block binding without its header": (
        body(model=NEW, thinking={"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}),
        "beta header",
    ),
}
NEEDS_TYPES = {"an unknown key", "an unknown key in a block", "a text that is null", "an unknown role"}


@pytest.mark.parametrize("name", REFUSED)
async def test_each_rule_refuses_the_request_that_breaks_it(name: str) -> None:
    """The refused request is the reason, not the script: the text of the error names the rule."""
    sent, words = copy.deepcopy(REFUSED[name])
    if name in NEEDS_TYPES and not TYPES_ARE_COMPLETE:
        pytest.skip("the types of this version of the package do not know the newest fields")
    rules = AnthropicRules(["never"])
    with pytest.raises(anthropic.BadRequestError) as caught:
        await rules.client().post("/v1/messages", body=sent, cast_to=object)
    assert words in caught.value.message
    assert not rules.requests


ACCEPTED = {
    "results before a text": body(ASKED, CALLED, {"role": "user", "content": [FOUND, text("And?")]}, tools=[TOOL]),
    "prefill of an old model": body(ASKED, said("The answer is")),
    "a system message at the end": body(ASKED, said("Be brief", "system"), model=ADAPTIVE),
    "a forced choice beside adaptive thinking": body(model=ADAPTIVE, tools=[TOOL], tool_choice={"type": "any"}),
    "four cache points": body(marked(4)),
    "a strict tool": body(tools=[strict({"type": "integer"})]),
}


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("name", ACCEPTED)
async def test_a_correct_request_gets_a_message_that_the_client_reads(name: str, streams: bool) -> None:
    """The streamed message is equal to the whole message."""
    rules = AnthropicRules(lambda _: [thinking(), text("A"), use("look", n="é")])
    sent = ACCEPTED[name]
    if streams:
        async with rules.client().messages.stream(**sent) as stream:
            message = await stream.get_final_message()
    else:
        message = await rules.client().messages.create(**sent)
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use"]
    assert message.content[2].input == {"n": "é"}
    assert (message.stop_reason, message.usage.output_tokens) == ("tool_use", 5)


async def conversation(model: str) -> Json:
    """A body whose history has two loops of thinking, from the server."""
    rules = AnthropicRules(lambda _: [thinking(), use("look", len(rules.requests))])
    sent = body(model=model, tools=[TOOL], system="Be brief")
    for number in (1, 2):
        message = await rules.client().messages.create(**sent)
        blocks = [block.to_dict() for block in message.content]
        found = {**FOUND, "tool_use_id": f"toolu_look_{number}"}
        sent["messages"] += [{"role": "assistant", "content": blocks}, {"role": "user", "content": [found]}]
    return sent


def without(sent: Json, *places: int) -> Json:
    for place in places:
        del sent["messages"][place]["content"][0]
    return sent


CHANGES = {
    "nothing": (lambda sent: sent, None, None),
    "a mark for the cache": (lambda sent: sent["messages"][2]["content"][0].update(cache_control=MARK), None, None),
    "no thinking at the start": (lambda sent: without(sent, 1), None, None),
    "no thinking": (lambda sent: without(sent, 1, 3), None, None),
    "another system prompt": (lambda sent: sent.update(system="Be long"), None, "different conversation"),
    "another tool": (lambda sent: sent["tools"].append({**TOOL, "name": "b"}), None, "different conversation"),
    "another question": (lambda sent: sent["messages"][0].update(content="Ho"), None, "different conversation"),
    "another text in the last thinking": (
        lambda sent: sent["messages"][3]["content"][0].update(thinking="Hm"),
        "cannot be modified",
        "cannot be modified",
    ),
    "another text in the first thinking": (
        lambda sent: sent["messages"][1]["content"][0].update(thinking="Hm"),
        "Invalid `signature`",
        "Invalid `signature`",
    ),
    "thinking of a stranger": (
        lambda sent: sent["messages"][3]["content"][0].update(signature="abc"),
        "cannot be modified",
        "cannot be modified",
    ),
}


@pytest.mark.parametrize("model", [ADAPTIVE, NEW])
@pytest.mark.parametrize("change", CHANGES)
async def test_thinking_comes_back_unchanged_and_newer_models_bind_it_to_its_prefix(change: str, model: str) -> None:
    """The older model checks the signature only. Thinking may be left out at the start, for both."""
    act, old, new = CHANGES[change]
    sent, rules = await conversation(model), AnthropicRules(["done"])
    act(sent)
    reply = rules.reply(copy.deepcopy(sent))
    expected = new if model == NEW else old
    assert (expected is None) == reply.status.startswith("200")
    if expected:
        assert expected in rules.refused[0][1]


async def test_a_gap_in_the_middle_invalidates_later_thinking_and_the_server_can_drop_it() -> None:
    """With `drop_block`, the request succeeds without the block."""
    sent = await conversation(NEW)
    rules = AnthropicRules([[thinking("More."), use("look", 3)], "done", "done"])
    reply = rules.reply(sent)
    assert reply.status.startswith("200")
    made = json.loads(reply.pieces[0])["content"]
    found = {**FOUND, "tool_use_id": "toolu_look_3"}
    sent["messages"] += [{"role": "assistant", "content": made}, {"role": "user", "content": [found]}]
    without(sent, 3)
    assert not rules.reply(sent).status.startswith("200")
    sent["thinking"] = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
    assert rules.reply(sent).status.startswith("200")
    assert rules.dropped == ["messages.5.content.0"]


async def test_thinking_of_a_newer_model_is_only_dropped() -> None:
    """The server says nothing, so a test reads `dropped`."""
    sent, rules = {**await conversation(NEW), "model": ADAPTIVE}, AnthropicRules(["done"])
    assert rules.reply(sent).status.startswith("200")
    assert rules.dropped == ["messages.1.content.0", "messages.3.content.0"]


async def test_failures_have_the_form_of_the_server() -> None:
    """A status, an error in a stream, and a connection that ends early."""
    rules = AnthropicRules(
        [Failure(headers={"retry-after": "3"}), Failure(in_stream=True), Answer("Hello", break_after=4)]
    )
    with pytest.raises(anthropic.APIStatusError) as caught:
        await rules.client().messages.create(**body())
    assert (caught.value.status_code, caught.value.response.headers["retry-after"]) == (529, "3")
    overloaded, broken = rules.reply(body(stream=True)), rules.reply(body(stream=True))
    assert b"overloaded_error" in overloaded.pieces[-1]
    assert (len(broken.pieces), broken.end) == (4, "reset")
