"""Text and keys of a completion are joined, merged or replaced, and any cut of a message gives the same message."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aswarm import CompletionError
from aswarm._wire.accumulator import Accumulator
from aswarm._wire.calls import join_pieces, merge_parts
from tests.support.wire.accumulated import Json, accumulate, message_of, whole
from tests.support.wire.drawn_messages import expected_message, interleaved, merged_by_index, messages, pieces_of
from tests.support.wire.wire_cases import chunk, fragment


def test_an_empty_answer_with_a_finish_is_empty_text() -> None:
    """A finish with no content at all is an answer with empty text, because the finish reason marks it as whole."""
    completion = accumulate([chunk({}, "stop")])
    assert (completion.message["content"], completion.finish_reason) == ("", "stop")


def test_the_pieces_of_a_thinking_block_are_one_block() -> None:
    """LiteLLM streams Anthropic's thinking in pieces, the signature last: both go back in one block, or it is refused."""
    texts = [{"type": "thinking", "thinking": text} for text in ("Let ", "me.")]
    signed = [{"type": "thinking", "thinking": "", "signature": name} for name in ("s1", "s2")]
    blocks = [*texts, signed[0], {"type": "redacted_thinking", "data": "AA"}, texts[0], signed[1]]
    first = {"type": "thinking", "thinking": "Let me.", "signature": "s1"}
    second = {"type": "thinking", "thinking": "Let ", "signature": "s2"}
    joined = [first, {"type": "redacted_thinking", "data": "AA"}, second]
    assert message_of(*({"thinking_blocks": [block]} for block in blocks))["thinking_blocks"] == joined
    assert message_of({"thinking_blocks": [first, second]})["thinking_blocks"] == [first, second]


def test_lists_without_an_index_are_extended() -> None:
    """List items of a key that only the provider knows are appended, in order."""
    assert message_of({"cites": [{"a": 1}, 1]}, {"cites": ["x", {"a": 2}]})["cites"] == [{"a": 1}, 1, "x", {"a": 2}]


def test_dicts_are_merged_and_numbers_replaced() -> None:
    """A dict in pieces is merged deeply, its names kept once, its numbers and flags replaced by the last."""
    pieces = [{"audio": {"id": "a", "data": "AA", "n": 1}}, {"audio": {"id": "a", "data": "BB", "n": 2, "x": None}}]
    assert message_of(*pieces)["audio"] == {"id": "a", "data": "AABB", "n": 2}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("s", [1]),
        ([1], "s"),
        ({"a": 1}, [1]),
        ([1], {"a": 1}),
        (1, [1]),
        (1, {"a": 1}),
        ({"a": 1}, "s"),
        ("s", {"a": 1}),
    ],
)
def test_a_key_that_changes_its_type_does_no_harm(first: object, second: object) -> None:
    """A key that comes as one type and then as another ends the completion no differently, and keeps one of them."""
    message = message_of({"content": "ok", "key": first}, {"key": second}, {"key": copy.deepcopy(second)})
    assert message["content"] == "ok"
    assert "key" in message


@pytest.mark.parametrize("pieces", [["Hello"], ["Hel", "lo"], ["H", "e", "l", "l", "o"]])
def test_text_around_parts_is_one_part_however_it_was_cut(pieces: list[str]) -> None:
    """Mistral streams thinking as parts and then text as strings: the text is one part, in any cut."""
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}
    said = {"type": "text", "text": "Hello"}
    texts = [{"content": piece} for piece in pieces]
    assert message_of({"content": [thinking]}, *texts)["content"] == [thinking, said]
    assert message_of(*texts, {"content": [thinking]})["content"] == [said, thinking]
    assert message_of(*texts, {"content": [thinking]}, *texts)["content"] == [said, thinking, said]


def pieces(kind: str, *texts: str) -> list[list[Any]]:
    """The content of several chunks, each a list with one part."""
    return [[{"type": kind, kind: text}] for text in texts]


def merged(chunks: Iterable[list[Any]]) -> Any:
    """The parts of the whole content."""
    parts: list[Any] = []
    for content in chunks:
        merge_parts(parts, content)
    return join_pieces(parts)


def test_pieces_of_one_part_become_one_part() -> None:
    """Mistral streams thinking as a list of parts in each chunk: 400 of them were 400 parts, sent back in each turn."""
    thinking = [[{"type": "thinking", "thinking": [{"type": "text", "text": text}]}] for text in ("Let", " me", " see")]
    image = {"type": "image_url", "image_url": {"url": "data:"}}
    chunks = [*thinking, *pieces("text", "Hel", "lo"), [image], [image], *pieces("text", "!")]
    assert merged(chunks) == [
        {"type": "thinking", "thinking": [{"type": "text", "text": "Let me see"}]},
        {"type": "text", "text": "Hello"},
        image,
        image,
        {"type": "text", "text": "!"},
    ]


def test_parts_that_are_no_dicts_stay() -> None:
    """In a list inside of a part, such as the numbers of references; nothing is lost."""
    assert merged([["a", 7], [{"type": "thinking"}], [{"type": "thinking", "thinking": "x"}]]) == [
        "a",
        7,
        {"type": "thinking"},
        {"type": "thinking", "thinking": "x"},
    ]


@given(st.lists(st.tuples(st.sampled_from(["text", "thinking"]), st.text()), max_size=12))
def test_it_does_not_matter_how_parts_are_cut(parts: list[tuple[str, str]]) -> None:
    """A part for each character gives the same as one part for each run of a kind."""
    uncut = merged(pieces(kind, text)[0] for kind, text in parts if text)
    cut = merged(piece for kind, text in parts for piece in pieces(kind, *text))
    assert cut == uncut


@pytest.mark.parametrize(
    "content",
    [
        7,
        {"type": "text", "text": "a"},
        ["a"],
        [None],
        [7, {"type": "text", "text": "a"}],
        [[]],
        [{"type": "text", "text": ["a"]}],
        [{"type": "text", "text": {"a": 1}}],
        [{"type": "image_url", "text": ["a"]}],
    ],
    ids=str,
)
@pytest.mark.parametrize("is_whole", [True, False])
def test_a_content_that_no_api_takes_back_is_an_error(content: object, is_whole: bool) -> None:
    """Parts that are no objects, and texts that are lists: a history with them would be refused by the next run."""
    with pytest.raises(CompletionError, match=r"the provider sent something that is not a completion: .*content"):
        accumulate([whole({"content": content}) if is_whole else chunk({"content": content})])


def test_parts_of_one_kind_in_two_forms_are_two_parts() -> None:
    """Thinking as a text, then as a list, and a number in place of a text: nothing is lost or joined to another form."""
    thinking = [{"type": "text", "text": "Hm."}]
    chunks: list[list[Any]] = [
        pieces("thinking", "Let")[0],
        [{"type": "thinking", "thinking": thinking}],
        pieces("thinking", " me")[0],
        [{"type": "text", "text": 7, "tags": "a"}],
        [{"type": "text", "text": "b", "tags": "a"}],
        [{"type": "text", "text": "c", "tags": ["b"]}],
    ]
    before = copy.deepcopy(chunks)
    assert merged(chunks) == [
        {"type": "thinking", "thinking": "Let"},
        {"type": "thinking", "thinking": thinking},
        {"type": "thinking", "thinking": " me"},
        {"type": "text", "text": 7, "tags": "a"},
        {"type": "text", "text": "bc", "tags": ["b"]},
    ]
    assert chunks == before


def test_a_content_of_nothing_but_text_is_a_string() -> None:
    """A list with other parts is kept: thinking, references, images."""
    text = [
        {"content": [{"type": "text", "text": "Hel"}]},
        {"content": "l"},
        {"content": [{"type": "text", "text": "o"}]},
    ]
    assert message_of(*text)["content"] == "Hello"
    reference = {"type": "reference", "reference_ids": [1]}
    parts = message_of(*text, {"content": [reference]})["content"]
    assert parts == [{"type": "text", "text": "Hello"}, reference]


@st.composite
def name_pieces(draw: st.DrawFn, name: str) -> list[str]:
    """Draw a cut of the name in which no piece equals the text before it: that would be a repeat."""
    pieces = draw(pieces_of(name))
    so_far = ""
    for piece in pieces:
        if piece == so_far:
            return [name]
        so_far += piece
    return pieces


@st.composite
def fragments_of(draw: st.DrawFn, made: Json) -> list[Json]:
    """One call in fragments: ids, types and names once or each time, names in pieces, arguments cut anywhere."""
    name, arguments = made["function"]["name"], made["function"]["arguments"]
    parts = [fragment(piece, draw(st.sampled_from([None, ""]))) for piece in draw(name_pieces(name))]
    always_named = len(parts) == 1 and draw(st.booleans())
    parts += [fragment(name if always_named else None, piece) for piece in draw(pieces_of(arguments))]
    repeated = draw(st.booleans())
    empty_id: Json = draw(st.sampled_from([{}, {"id": ""}, {"id": None}]))
    for number, part in enumerate(parts):
        if "id" in made:
            part.update({"id": made["id"]} if number == 0 or repeated else empty_id)
        if number == 0 or repeated:
            part["type"] = "function"
    if "extra_content" in made:
        draw(st.sampled_from(parts))["extra_content"] = made["extra_content"]
    return parts


_noise: st.SearchStrategy[Json] = st.sampled_from(
    [
        {"choices": []},
        {"choices": None},
        {"choices": [], "prompt_filter_results": [{"index": 0}]},
        chunk(None),
        chunk({}),
        chunk({"content": ""}),
        chunk({"role": "assistant", "content": None, "tool_calls": None}),
        chunk({"tool_calls": []}),
        {"choices": [{"index": 0, "finish_reason": None}]},
        {"choices": [{"index": 1, "delta": {"content": "another choice"}}]},
    ]
)


@st.composite
def cut(draw: st.DrawFn, message: Json) -> list[Json]:
    """The message as the chunks of some server."""
    deltas: list[Json] = []
    for key in draw(st.permutations([key for key in message if key not in ("role", "tool_calls")])):
        deltas += [{key: piece} for piece in draw(pieces_of(message[key] or ""))]
    rows = [draw(fragments_of(made)) for made in message.get("tool_calls", ())]
    for index, row in enumerate(rows):
        for part in row:
            part["index"] = index
    deltas += [{"tool_calls": [part]} for part in draw(interleaved(rows))]
    role = draw(st.sampled_from(["missing", "first", "every", "null"]))
    for number, delta in enumerate(deltas):
        if role == "every" or (role == "first" and number == 0):
            delta["role"] = "assistant"
        elif role == "null":
            delta["role"] = None
    chunks = [chunk(delta) for delta in deltas]
    chunks.append(chunk({}, "tool_calls" if rows else "stop"))
    if draw(st.booleans()):
        for number, item in enumerate(chunks):
            item["usage"] = {"prompt_tokens": 7, "completion_tokens": number, "total_tokens": 7 + number}
    for place, item in draw(st.lists(st.tuples(st.integers(0, len(chunks)), _noise), max_size=4)):
        chunks.insert(place, item)
    return chunks


def without_made_ids(accumulated: Json, message: Json) -> Json:
    """The accumulated message with None in place of the ids that had to be made."""
    calls = accumulated["tool_calls"] or []
    sent = message.get("tool_calls", [])
    assert len(calls) == len(sent)
    assert len({made["id"] for made in calls}) == len(calls)
    shown = [made if "id" in given_call else {**made, "id": None} for made, given_call in zip(calls, sent, strict=True)]
    return {**accumulated, "tool_calls": shown or None}


@pytest.mark.slow
@given(st.data())
def test_any_cut_gives_the_same_message(data: st.DataObject) -> None:
    """Any cut of a completion into chunks gives the original message."""
    message = data.draw(messages())
    completion = accumulate(data.draw(cut(message)))
    assert without_made_ids(completion.message, message) == expected_message(message)


@pytest.mark.slow
@given(messages())
def test_a_whole_completion_gives_the_same_as_its_chunks(message: Json) -> None:
    """A whole completion gives the message that any of its cuts would give."""
    completion = accumulate([whole(message, "tool_calls")])
    assert without_made_ids(completion.message, message) == expected_message(message)


@pytest.mark.slow
@given(st.data())
def test_sequential_calls_need_no_index(data: st.DataObject) -> None:
    """Calls one after another, each with an id, need no index, and may all have the index 0."""
    message = data.draw(messages().filter(lambda made: all("id" in item for item in made.get("tool_calls", ()))))
    same: Json = data.draw(st.sampled_from([{}, {"index": None}, {"index": 0}]))
    parts = [{**part, **same} for made in message.get("tool_calls", ()) for part in data.draw(fragments_of(made))]
    completion = accumulate(
        [chunk({"content": message["content"]}), *(chunk({"tool_calls": [part]}) for part in parts), chunk({}, "stop")]
    )
    assert completion.message["tool_calls"] == expected_message(message)["tool_calls"]


@pytest.mark.slow
@given(st.data())
def test_what_is_shown_adds_up_to_the_message(data: st.DataObject) -> None:
    """Whoever concatenates the deltas by index gets the message; ids that were made are the only thing not shown."""
    message = data.draw(messages())
    accumulator = Accumulator()
    shown = [delta for item in data.draw(cut(message)) if (delta := accumulator.feed(item)) is not None]
    merged = merged_by_index(shown)
    for key in message.keys() - {"tool_calls", "role"}:
        assert merged.get(key, "") == (message[key] or "")
    assert merged.get("role", "assistant") == "assistant"
    assert list(merged["calls"]) == list(range(len(merged["calls"])))
    extras = ("extra_content",)
    assert list(merged["calls"].values()) == [
        {
            "id": made.get("id", ""),
            "type": "function",
            **made["function"],
            **{key: made[key] for key in extras if key in made},
        }
        for made in message.get("tool_calls", ())
    ]
