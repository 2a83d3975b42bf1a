"""Swarm's import path for helpers. New code does not need to merge deltas: see `Response.messages`."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

from ._run.handlers import debug_print as _debug_print
from ._tools.tool import function_to_json
from ._values.json import is_object

__all__ = ["debug_print", "function_to_json", "merge_chunk", "merge_fields"]


def debug_print(debug: bool, *args: object) -> None:
    """Print a line with the time in front, if `debug` is true."""
    if debug:
        _debug_print(*args)


def merge_fields(target: MutableMapping[str, Any], source: Mapping[str, Any]) -> None:
    """Append the texts of `source` to the texts of `target`, at every depth. Ignore other values."""
    for key, value in source.items():
        if isinstance(value, str):
            target[key] = (target.get(key) or "") + value
        elif is_object(value):
            merge_fields(target.setdefault(key, {}), value)


def merge_chunk(final_response: MutableMapping[str, Any], delta: Mapping[str, Any]) -> None:
    """Merge a delta of a stream into a message. The `tool_calls` of this message are a dict by index.

    The role is not merged, and the delta does not change. All tool calls of a delta are merged; Swarm merges only the first.
    """
    merge_fields(final_response, {key: value for key, value in delta.items() if key != "role"})
    for call in delta.get("tool_calls") or ():
        merge_fields(final_response["tool_calls"][call["index"]], {k: v for k, v in call.items() if k != "index"})
