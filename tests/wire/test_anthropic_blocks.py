"""The message that is made from blocks of Claude, and the blocks that are sent back."""

from __future__ import annotations

from typing import Any

import pytest

from aswarm._values.wire_messages import BLOCKS, ORIGIN
from aswarm._wire.accumulator import Accumulator
from aswarm._wire.anthropic_blocks import blocks_to_replay, digest, message_of, model_named, with_valid_thinking
from aswarm._wire.anthropic_request import accepted_schema, are_few

ORIGIN_OF = {"model": "claude-opus-5-5", "prefix": "p"}
THOUGHT = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
HIDDEN = {"type": "redacted_thinking", "data": "d"}
CALL = {"type": "tool_use", "id": "t", "name": "f", "input": {"x": "ä"}, "caller": {"type": "direct"}}
SEARCH = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}


def said(text: str, citations: Any = None) -> dict[str, Any]:
    return {"type": "text", "text": text, "citations": citations}


def test_the_message_has_the_text_the_reasoning_and_the_calls_of_the_blocks() -> None:
    """Citations divide a text into blocks. After another block, a new paragraph starts."""
    blocks = [THOUGHT, said("I "), said("search.", [{}]), SEARCH, FOUND, HIDDEN, THOUGHT, said("Found."), CALL]
    call = {"id": "t", "type": "function", "function": {"name": "f", "arguments": '{"x": "ä"}'}}
    assert message_of(blocks, ORIGIN_OF) == {
        "role": "assistant",
        "content": "I search.\n\nFound.",
        "reasoning_content": "Hm.\n\nHm.",
        "tool_calls": [call],
        BLOCKS: blocks,
        ORIGIN: ORIGIN_OF,
    }


@pytest.mark.parametrize("blocks", [[], [said("Hello")], [said("Hello"), CALL], [CALL]])
def test_blocks_that_the_chat_form_can_make_are_not_stored(blocks: list[Any]) -> None:
    """Most answers have only a text and calls."""
    assert message_of(blocks, ORIGIN_OF).keys() <= {"role", "content", "tool_calls"}


def test_blocks_with_half_a_character_are_not_stored() -> None:
    """The text is repaired when it is recorded, and the signature would not match."""
    message = message_of([{**THOUGHT, "thinking": "\ud83d"}, said("Hi")], ORIGIN_OF)
    assert message == {"role": "assistant", "content": "Hi", "reasoning_content": "\ud83d"}


def test_a_stream_records_the_blocks_unchanged() -> None:
    """They come with the last chunk, and the shown delta omits them."""
    blocks = [THOUGHT, said("Hi")]
    accumulator = Accumulator()
    accumulator.feed({"choices": [{"index": 0, "delta": {"content": "Hi"}}]})
    last = {"delta": {BLOCKS: blocks, ORIGIN: ORIGIN_OF}, "index": 0, "finish_reason": "stop"}
    assert accumulator.feed({"choices": [last]}) is None
    message = accumulator.finish().message
    assert (message[BLOCKS], message[ORIGIN]) == (blocks, ORIGIN_OF)


WHOLE = message_of([THOUGHT, said("Hi"), said(" "), CALL], ORIGIN_OF)


@pytest.mark.parametrize(
    "change",
    [
        {"content": "Hi!"},
        {"content": "Hi ", "tool_calls": None},
        {"content": "Hi ", "reasoning_content": "Other."},
        {"refusal": "No."},
        {"tool_calls": [{**WHOLE["tool_calls"][0], "id": "other"}]},
        {"tool_calls": [{**WHOLE["tool_calls"][0], "function": {"name": "f", "arguments": "{}"}}]},
        {BLOCKS: [{**THOUGHT, "signature": None}, said("Hi"), said(" "), CALL]},
        {BLOCKS: [said("Hi"), said(" "), {**CALL, "input": "text"}]},
    ],
)
def test_an_edited_message_is_sent_without_its_blocks(change: Any) -> None:
    """Signed blocks are left out, and never changed."""
    assert blocks_to_replay(WHOLE) == [THOUGHT, said("Hi"), CALL]
    assert blocks_to_replay({key: value for key, value in WHOLE.items() if key != "reasoning_content"}) is not None
    assert blocks_to_replay(WHOLE | change) is None


@pytest.mark.parametrize(
    ("blocks", "is_valid"),
    [([SEARCH, FOUND, said("a")], True), ([said("a"), SEARCH], False), ([said("a"), SEARCH, CALL], True)],
)
def test_an_open_call_of_a_server_tool_is_sent_only_beside_an_open_call(blocks: list[Any], is_valid: bool) -> None:
    """Code of the server waits for a call of the client. Otherwise, the answer was paused and not continued."""
    assert (blocks_to_replay(message_of([THOUGHT, *blocks], ORIGIN_OF)) is not None) == is_valid


@pytest.mark.parametrize(
    ("origin", "model", "is_sent"),
    [
        (ORIGIN_OF, "claude-opus-5-5", True),
        (ORIGIN_OF, "claude-opus-4-8", True),
        ({**ORIGIN_OF, "prefix": "q"}, "claude-opus-5-5", False),
        ({**ORIGIN_OF, "prefix": "q"}, "claude-opus-5", True),
        ({}, "claude-opus-5-5", True),
        (None, "claude-opus-5-5", True),
        ({"model": "minimax-m3"}, "claude-opus-5-5", False),
        ({"model": "minimax-m3"}, "minimax-m3", True),
        (ORIGIN_OF, "minimax-m3", False),
        ({"model": 1}, "claude-opus-5-5", False),
    ],
)
def test_thinking_is_sent_to_a_model_that_may_read_it(origin: Any, model: str, is_sent: bool) -> None:
    """And behind an unchanged prefix, if the model binds its thinking."""
    sent = with_valid_thinking([THOUGHT, HIDDEN, said("Hi")], origin, model, "p")
    assert sent == ([THOUGHT, HIDDEN, said("Hi")] if is_sent else [said("Hi")])


def test_thinking_at_the_end_or_without_a_signature_is_left_out() -> None:
    """A cut answer ends with it, and the API refuses both."""
    assert with_valid_thinking([THOUGHT, said("Hi"), HIDDEN], ORIGIN_OF, "claude-opus-5-5", "p") == [
        THOUGHT,
        said("Hi"),
    ]
    assert with_valid_thinking([{**THOUGHT, "signature": ""}, said("Hi")], None, "claude-opus-5", "p") == [said("Hi")]
    assert with_valid_thinking([THOUGHT, HIDDEN], ORIGIN_OF, "claude-opus-5-5", "p") == []


def test_a_digest_depends_on_all_values_and_not_on_cache_points() -> None:
    """Nor on the order of the keys, which a database may change."""
    turn = {"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {}}]}
    assert digest("", [turn]) == digest("", [{"content": [{"text": "Hi", "type": "text"}], "role": "user"}])
    assert len({digest("", []), digest("", [turn]), digest("a", [turn]), digest("", [turn, turn])}) == 4
    assert digest("", [turn, turn]) == digest(digest("", [turn]), [turn])


@pytest.mark.parametrize(
    ("name", "family", "version"),
    [
        ("claude-sonnet-4-5-20250929", "sonnet", (4, 5)),
        ("anthropic/claude-haiku-4.5", "haiku", (4, 5)),
        ("us.anthropic.claude-opus-5-5-v1:0", "opus", (5, 5)),
        ("claude-3-5-haiku@20241022", "", (3, 5)),
        ("claude-opus-4@20250514", "opus", (4, 0)),
        ("claude-sonnet-4-20250514", "sonnet", (4, 0)),
        ("claude-mythos-preview", "mythos", (99, 0)),
        ("claude-instant-1.2", "instant", (1, 2)),
        ("glm-5", "", (0, 0)),
    ],
)
def test_a_model_is_known_by_its_name_on_every_cloud(name: str, family: str, version: tuple[int, int]) -> None:
    """An unknown Claude counts as a new model."""
    assert model_named(name) == (family, version)


# --- schemas ----------------------------------------------------------------------------------------------------------

ITEM = {"type": "object", "properties": {"x": {"type": "string"}}}
CLOSED = {**ITEM, "additionalProperties": False}


def test_a_schema_keeps_what_the_api_has_and_describes_the_rest() -> None:
    """The model can read the rest, and the answer is checked by aswarm."""
    schema = {
        "type": "object",
        "description": "A trip.",
        "properties": {
            "days": {"type": "integer", "minimum": 1, "default": 3},
            "at": {"type": "string", "format": "date", "description": "When."},
            "code": {"type": "string", "format": "regex"},
            "stops": {"type": "array", "items": {"$ref": "#/$defs/Stop"}, "minItems": 1, "maxItems": 2},
            "kind": {"oneOf": [{"const": "a"}, {"type": "null"}], "discriminator": {}},
        },
        "required": ["days"],
        "$defs": {"Stop": ITEM},
    }
    assert accepted_schema(schema) == {
        "type": "object",
        "description": "A trip.",
        "properties": {
            "days": {"type": "integer", "description": "(minimum: 1)"},
            "at": {"type": "string", "format": "date", "description": "When."},
            "code": {"type": "string", "description": "(format: regex)"},
            "stops": {
                "type": "array",
                "items": {"$ref": "#/$defs/Stop"},
                "minItems": 1,
                "description": "(maxItems: 2)",
            },
            "kind": {"anyOf": [{"const": "a"}, {"type": "null"}]},
        },
        "required": ["days"],
        "$defs": {"Stop": CLOSED},
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "array", "items": {"type": "string"}},
        {"type": "object", "properties": {"a": {}}},
        {"type": "object", "properties": {"a": {"type": "array"}}},
        {"type": "object", "properties": {"a": {"type": "object", "additionalProperties": {"type": "string"}}}},
        {"type": "object", "properties": {"a": True}},
        {"type": "object", "properties": {"a": {"$ref": "https://schema.example"}}},
        {
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/A"}},
            "$defs": {"A": {"anyOf": [{"$ref": "#/$defs/A"}]}},
        },
    ],
)
def test_a_schema_that_the_api_cannot_compile_has_no_accepted_form(schema: Any) -> None:
    """A dict of any keys, any value, a recursion."""
    assert accepted_schema(schema) is None


def test_a_request_has_a_limit_of_optional_properties_and_unions() -> None:
    """Looked up in the answers of the API."""

    def schema(count: int, kind: Any, required: bool) -> Any:
        names = [f"p{number}" for number in range(count)]
        return {"type": "object", "properties": dict.fromkeys(names, kind), "required": names if required else []}

    assert are_few([schema(24, {"type": "string"}, False)], 1)
    assert not are_few([schema(25, {"type": "string"}, False)], 1)
    assert not are_few([schema(9, {"type": ["string", "null"]}, True), schema(8, {"anyOf": [ITEM]}, True)], 2)
