"""Messages of a server, drawn by hypothesis, and the possible cuts of a text and of several calls."""

from __future__ import annotations

import json
from collections.abc import Iterable

from hypothesis import strategies as st

from tests.support.wire.accumulated import Json, json_values

_arguments = st.dictionaries(st.text(max_size=4), json_values, max_size=3).map(
    lambda value: json.dumps(value, ensure_ascii=False)
)


@st.composite
def pieces_of(draw: st.DrawFn, text: str) -> list[str]:
    """Draw a cut of the text."""
    places = sorted(draw(st.sets(st.integers(1, max(len(text) - 1, 1)), max_size=5))) if text else []
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]


@st.composite
def messages(draw: st.DrawFn) -> Json:
    """Draw a message as the server intends it; calls may lack an id."""
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
def interleaved(draw: st.DrawFn, rows: list[list[Json]]) -> list[Json]:
    """Mix the rows; keep the order within each, and the order of their first items."""
    mixed = [row.pop(0) for row in rows]
    while rows := [row for row in rows if row]:
        mixed.append(draw(st.sampled_from(rows)).pop(0))
    return mixed


def expected_message(message: Json) -> Json:
    """Return the message as it is recorded, with None for ids that aswarm makes."""
    calls = [{"id": None, **made} for made in message.get("tool_calls", ())]
    content = message["content"] or (None if calls or message.get("refusal") else "")
    return {**message, "content": content, "tool_calls": calls or None}


def merged_by_index(shown: Iterable[Json]) -> Json:
    """Merge the deltas as a client of Swarm does: strings concatenated, calls by their index."""
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
