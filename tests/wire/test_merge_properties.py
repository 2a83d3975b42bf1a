"""The accumulator: any cut of a message gives the same message, and what is shown adds up to it."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest
from accumulated import Json, accumulate, json_values, whole
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_cases import chunk, fragment

from aswarm._wire.accumulator import Accumulator

pytestmark = pytest.mark.slow

_arguments = st.dictionaries(st.text(max_size=4), json_values, max_size=3).map(
    lambda value: json.dumps(value, ensure_ascii=False)
)


@st.composite
def pieces_of(draw: st.DrawFn, text: str) -> list[str]:
    """The text in any cut."""
    places = sorted(draw(st.sets(st.integers(1, max(len(text) - 1, 1)), max_size=5))) if text else []
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]


@st.composite
def name_pieces(draw: st.DrawFn, name: str) -> list[str]:
    """The name in any cut in which no piece equals what stands before it: that would be a repeat."""
    pieces = draw(pieces_of(name))
    so_far = ""
    for piece in pieces:
        if piece == so_far:
            return [name]
        so_far += piece
    return pieces


@st.composite
def messages(draw: st.DrawFn) -> Json:
    """A message as a server means it; calls may lack an id."""
    message: Json = {"role": "assistant", "content": draw(st.none() | st.text(max_size=12))}
    for key in draw(st.sets(st.sampled_from(["reasoning_content", "refusal", "vendor_key"]))):
        message[key] = draw(st.text(min_size=1, max_size=12))
    calls: list[Json] = []
    for number in range(draw(st.integers(0, 3))):
        name, arguments = draw(st.from_regex(r"[a-z_]{1,10}", fullmatch=True)), draw(_arguments | st.just(""))
        made: Json = {"type": "function", "function": {"name": name, "arguments": arguments}}
        if draw(st.booleans()):
            made = {"id": f"call_{number}", **made}
        if draw(st.booleans()):
            made["extra_content"] = {"google": {"thought_signature": f"s{number}"}}
        calls.append(made)
    return {**message, "tool_calls": calls} if calls else message


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


@st.composite
def interleaved(draw: st.DrawFn, rows: list[list[Json]]) -> list[Json]:
    """The rows mixed, the order within each kept, and the first of each in the order of the rows."""
    mixed = [row.pop(0) for row in rows]
    while rows := [row for row in rows if row]:
        mixed.append(draw(st.sampled_from(rows)).pop(0))
    return mixed


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


def expected_message(message: Json) -> Json:
    """The message as it is recorded, with None for ids that are to be made."""
    calls = [{"id": None, **made} for made in message.get("tool_calls", ())]
    content = message["content"] or (None if calls or message.get("refusal") else "")
    return {**message, "content": content, "tool_calls": calls or None}


def without_made_ids(accumulated: Json, message: Json) -> Json:
    """The accumulated message with None in place of the ids that had to be made."""
    calls = accumulated["tool_calls"] or []
    sent = message.get("tool_calls", [])
    assert len(calls) == len(sent)
    assert len({made["id"] for made in calls}) == len(calls)
    shown = [made if "id" in given_call else {**made, "id": None} for made, given_call in zip(calls, sent, strict=True)]
    return {**accumulated, "tool_calls": shown or None}


@given(st.data())
@settings(max_examples=200)
def test_any_cut_gives_the_same_message(data: st.DataObject) -> None:
    """However a completion is cut into chunks, the accumulated message is the one that was meant."""
    message = data.draw(messages())
    completion = accumulate(data.draw(cut(message)))
    assert without_made_ids(completion.message, message) == expected_message(message)


@given(messages())
@settings(max_examples=100)
def test_a_whole_completion_gives_the_same_as_its_chunks(message: Json) -> None:
    """A whole completion gives the message that any of its cuts would give."""
    completion = accumulate([whole(message, "tool_calls")])
    assert without_made_ids(completion.message, message) == expected_message(message)


@given(st.data())
@settings(max_examples=100)
def test_sequential_calls_need_no_index(data: st.DataObject) -> None:
    """Calls one after another, each with an id, need no index, and may all have the index 0."""
    message = data.draw(messages().filter(lambda made: all("id" in item for item in made.get("tool_calls", ()))))
    same: Json = data.draw(st.sampled_from([{}, {"index": None}, {"index": 0}]))
    parts = [{**part, **same} for made in message.get("tool_calls", ()) for part in data.draw(fragments_of(made))]
    completion = accumulate(
        [chunk({"content": message["content"]}), *(chunk({"tool_calls": [part]}) for part in parts), chunk({}, "stop")]
    )
    assert completion.message["tool_calls"] == expected_message(message)["tool_calls"]


def merged_by_index(shown: Iterable[Json]) -> Json:
    """What a consumer in Swarm's manner makes of the deltas: strings concatenated, calls by their index."""
    merged: Json = {"calls": {}}
    for delta in shown:
        for key, value in delta.items():
            if isinstance(value, str):
                merged[key] = merged.get(key, "") + value
        for part in delta["tool_calls"] or ():
            made = merged["calls"].setdefault(part["index"], {"id": "", "type": "", "name": "", "arguments": ""})
            for key, value in {**part, **part["function"]}.items():
                if key in made:
                    made[key] += value or ""
                elif key == "extra_content":
                    made[key] = value
    return merged


@given(st.data())
@settings(max_examples=150)
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
