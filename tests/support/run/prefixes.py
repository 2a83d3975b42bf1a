"""The rendered order of a request, and whether the next request extends it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

Json = dict[str, Any]

# Keys that have a place in the prompt, or none: a choice of tools, the transport and the length of the answer.
_PLACED = frozenset({"tools", "instructions", "messages", "input"})
_WITHOUT_PLACE = frozenset({"tool_choice", "stream", "stream_options", "include", "store"})


def rendered(body: Json) -> list[str]:
    """Return the parts of the prompt in their order: the settings, each tool, the instructions and each message."""
    settings = {key: value for key, value in body.items() if key not in _PLACED | _WITHOUT_PLACE}
    parts = [settings, *body.get("tools", ()), "end of the tools"]
    parts += [body["instructions"]] if "instructions" in body else []
    return [json.dumps(part, sort_keys=True) for part in [*parts, *(body.get("messages") or body["input"])]]


def breaks(bodies: Iterable[Json]) -> list[tuple[int, str]]:
    """Return the requests that do not extend the request before them, each with its first different part."""
    found: list[tuple[int, str]] = []
    for at, (before, now) in enumerate(pairwise(map(rendered, bodies)), 1):
        if now[: len(before)] != before:
            old, new = next((old, new) for old, new in zip(before, [*now, "nothing"], strict=False) if old != new)
            found.append((at, f"{old} -> {new}"))
    return found
