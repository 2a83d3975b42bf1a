"""OpenAI's tool search in the Responses API, executed by the client: `search_tools` and its results in this form.

The model gets the definitions of the found tools at the place of the search, so that the cached prefix of the prompt stays. The
messages of the run have calls of `search_tools` and results in text form, as for any other provider. Sans-IO.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from aswarm._values.found_tools import CALL_TOOL, SEARCH_TOOLS, definitions_in
from aswarm._values.json import is_object
from aswarm._values.messages import call_name, text_of
from aswarm._values.wire_messages import is_json_object

from .responses_items import Item

# The models with tool search, on 2026-11-27 (developers.openai.com/api/docs/guides/tools-tool-search). gpt-5.4-nano refuses it.
_MODELS = ("gpt-5.4", "gpt-5.5", "gpt-5.6", "gpt-6-", "gpt-6.1-", "gpt-6.2-")
_REFUSING = ("gpt-5.4-nano",)
OUTPUT = "tool_search_output"


def has_search(body: Mapping[str, Any]) -> bool:
    """Return whether a body of Chat Completions can have tool search instead of its functions `search_tools` and `call_tool`.

    A choice of tools cannot name a search, so these functions then stay.
    """
    model, own = str(body.get("model")), {SEARCH_TOOLS, CALL_TOOL}
    if not model.startswith(_MODELS) or model.startswith(_REFUSING):
        return False
    offered = {call_name(tool) for tool in body.get("tools") or () if is_object(tool)}
    return own <= offered and own.isdisjoint(_chosen(body.get("tool_choice")))


def _chosen(choice: Any) -> Iterator[str]:
    if is_object(choice):
        yield call_name(choice) or str(choice.get("name"))
        allowed = choice.get("allowed_tools")
        for tool in (allowed if is_object(allowed) else choice).get("tools") or ():
            yield call_name(tool) or str(tool.get("name"))


def with_search(tools: Sequence[Any]) -> Iterator[Any]:
    """Yield the tools with tool search. `tools`: in the form of the Responses API.

    `call_tool` is left out, also if the history has calls of it from another API, so that the start of the prompt never changes.
    """
    for tool in tools:
        name = tool.get("name") if is_object(tool) else None
        if name == SEARCH_TOOLS:
            about = {key: tool[key] for key in ("description", "parameters")}
            yield {"type": "tool_search", "execution": "client", **about}
        elif name != CALL_TOOL:
            yield tool


def search_call(call_id: str, arguments: str) -> Item:
    """Return the item of a call of `search_tools` that has no items."""
    sent: Any = json.loads(arguments) if is_json_object(arguments) else {}
    return {
        "type": "tool_search_call",
        "execution": "client",
        "call_id": call_id,
        "status": "completed",
        "arguments": sent,
    }


def search_output(call_id: str, content: Any) -> Item:
    """Return the item of a result of `search_tools`: the definitions in it."""
    tools = [
        {"type": "function", "strict": False, **found, "defer_loading": True}
        for found in definitions_in(text_of(content))
    ]
    return {"type": OUTPUT, "execution": "client", "call_id": call_id, "status": "completed", "tools": tools}


def loaded(items: Sequence[Item]) -> set[str]:
    """Return the names of the functions that the searches in these items have found. Their calls need a namespace."""
    outputs = (item for item in items if item.get("type") == OUTPUT)
    return {tool["name"] for item in outputs for tool in item.get("tools") or () if is_object(tool) and "name" in tool}
