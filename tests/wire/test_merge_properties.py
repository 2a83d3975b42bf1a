"""The accumulator: any cut of a message gives the same message, and what is shown adds up to it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aswarm._wire.accumulator import Accumulator
from tests.support.wire.accumulated import Json, accumulate, whole
from tests.support.wire.drawn_messages import expected_message, interleaved, merged_by_index, messages, pieces_of
from tests.support.wire.wire_cases import chunk, fragment

pytestmark = pytest.mark.slow


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


@given(st.data())
def test_any_cut_gives_the_same_message(data: st.DataObject) -> None:
    """However a completion is cut into chunks, the accumulated message is the one that was meant."""
    message = data.draw(messages())
    completion = accumulate(data.draw(cut(message)))
    assert without_made_ids(completion.message, message) == expected_message(message)


@given(messages())
def test_a_whole_completion_gives_the_same_as_its_chunks(message: Json) -> None:
    """A whole completion gives the message that any of its cuts would give."""
    completion = accumulate([whole(message, "tool_calls")])
    assert without_made_ids(completion.message, message) == expected_message(message)


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
