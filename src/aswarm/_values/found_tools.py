"""Names and texts of tool search: a call of `call_tool`, and the functions in a result of `search_tools`.

A deferred tool is not in the requests. The model finds it with `search_tools`, and calls it with `call_tool`, whose arguments
are the name and the arguments of the tool. The history keeps the call as the model wrote it, so that the next request extends the
last one. Everything else reads the call inside: `call_name` and `call_arguments` return its name and its arguments.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from .json import is_object
from .text import sendable

SEARCH_TOOLS = "search_tools"
CALL_TOOL = "call_tool"  # reserved: no function of an agent has this name


def found_call(function: Mapping[str, Any]) -> tuple[str, str]:
    """Return the name and the arguments of the tool that a call of `call_tool` calls.

    `function`: the function of the call. If its arguments cannot be read, return its own name and arguments; the call then fails.
    """
    text = function.get("arguments")
    sent = _object_in(text if isinstance(text, str) else "")
    if not (isinstance(name := sent.get("name"), str) and name):
        return CALL_TOOL, str(text or "")
    # Some models write the arguments beside the name, or as a JSON text, as in any other call.
    arguments = sent.get("arguments", {key: value for key, value in sent.items() if key != "name"})
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return sendable(name), sendable(text)


def definitions_in(text: str) -> Iterator[dict[str, Any]]:
    """Yield the functions in a result of `search_tools`: `name`, `description` and `parameters`, one in each line.

    Other lines are left out, because a middleware may have shortened the text, and because a history may come from a browser.
    """
    for line in text.split("\n"):
        read = _object_in(line)
        name, about, parameters = (read.get(key) for key in ("name", "description", "parameters"))
        if isinstance(name, str) and name and isinstance(about, str) and is_object(parameters):
            strict = {"strict": True} if read.get("strict") is True else {}
            yield {"name": name, "description": about, "parameters": dict(parameters), **strict}


def _object_in(text: str) -> Mapping[str, Any]:
    try:
        value: object = json.loads(text) if text[:1] == "{" or text.lstrip()[:1] == "{" else None
    except (ValueError, RecursionError):
        return {}
    return value if is_object(value) else {}
