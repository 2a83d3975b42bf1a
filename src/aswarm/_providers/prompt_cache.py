"""The prompt prefix at OpenAI's own servers: the bodies that keep it, and the repeat without a field that a model refuses.

From GPT-5.6 on, an entry of the prompt cache ends at the message of the user, so a second chat cannot read the instructions and
tools of the first chat. For these models, the instructions end with a breakpoint. `instructions` of the Responses API cannot
have one, so a message of the developer takes their place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate
from typing import Any
from weakref import WeakKeyDictionary

from aswarm._values.errors import CompletionError
from aswarm._values.json import is_array, is_object
from aswarm._wire.request import (
    CompletionRequest,
    has_allowed_tools,
    openai_body,
    openai_chat_body,
    without_allowed_tools,
)

# The models with breakpoints, on 2026-11-27. gpt-5.6-terra refuses them.
_MODELS = frozenset(
    {"gpt-5.6", "gpt-5.6-luna", "gpt-5.6-sol"}
    | {"gpt-6-astra", "gpt-6-luna", "gpt-6-sol", "gpt-6.1-sol", "gpt-6.1-terra", "gpt-6.2-astra", "gpt-6.2-sol"}
)
_SNAPSHOT = re.compile(r"-\d{4}-\d\d-\d\d$")
_LEAST_SIZE = 4 * 1024  # bytes of the prefix: about 1,024 tokens, the shortest prefix that is cached
_BAD_REQUEST = 400
_BREAKPOINT = "prompt_cache_breakpoint"


def has_breakpoints(model: object) -> bool:
    """Return whether this model of OpenAI accepts breakpoints."""
    return _SNAPSHOT.sub("", str(model)) in _MODELS


def chat_body(request: CompletionRequest) -> dict[str, Any]:
    """Return the body for Chat Completions at OpenAI's own servers."""
    body = openai_chat_body(request)
    if not has_breakpoint(request):
        return body
    first, *messages = body["messages"]
    return {**body, "messages": [_with_breakpoint("text", first["content"]), *messages]}


def responses_body(request: CompletionRequest) -> dict[str, Any]:
    """Return the body for the Responses API at OpenAI's own servers."""
    body = openai_body(request)
    if "instructions" not in body or not has_breakpoint(request):
        return body
    instructions = body.pop("instructions")
    return {**body, "input": [_with_breakpoint("input_text", instructions), *body["input"]]}


def has_breakpoint(request: CompletionRequest) -> bool:
    """Return whether the instructions end with a breakpoint: other chats have the same instructions, and can be cached.

    A write to the cache costs more than other input, so the text of a function and an edited text get no breakpoint.
    """
    if not request._may_share_prefix:
        return False
    body, instructions = request.body, request.agent.instructions
    if not isinstance(instructions, str) or not has_breakpoints(body["model"]):
        return False
    if body["messages"][:1] != [{"role": "system", "content": instructions}] or _is_set_otherwise(body):
        return False
    own_size = len(instructions.encode("utf-8", "replace"))
    sizes = accumulate(map(len, map(str, body.get("tools") or ())), initial=own_size)
    return any(size >= _LEAST_SIZE for size in sizes)  # reads only as many tools as needed


def _is_set_otherwise(body: Mapping[str, Any]) -> bool:
    """Return whether a setting of the user excludes the breakpoint: own breakpoints only, or a format that needs `instructions`."""
    options, text_format = body.get("prompt_cache_options"), body.get("response_format")
    has_own = is_object(options) and options.get("mode") == "explicit"
    return has_own or (is_object(text_format) and text_format.get("type") == "json_object")


def _with_breakpoint(kind: str, text: str) -> dict[str, Any]:
    part = {"type": kind, "text": text, _BREAKPOINT: {"mode": "explicit"}}
    return {"role": "developer", "content": [part]}


# --- models that refuse a field ---------------------------------------------------------------------------------------


def _marked(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    return is_array(content) and any(is_object(part) and _BREAKPOINT in part for part in content)


def _without_breakpoints(request: CompletionRequest) -> CompletionRequest:
    """Return the request without breakpoints, also without those of a middleware or of the user."""
    messages: list[Any] = list(request.body["messages"])
    for at, message in enumerate(messages):
        if _marked(message):
            parts = [{key: part[key] for key in part if key != _BREAKPOINT} for part in message["content"]]
            messages[at] = {**message, "content": parts}
    return replace(request, body={**request.body, "messages": messages}, _may_share_prefix=False)


# The fields that a model may refuse, by the word in the error of a server.
_FIELDS: Mapping[str, tuple[Callable[[CompletionRequest], bool], Callable[[CompletionRequest], CompletionRequest]]] = {
    _BREAKPOINT: (
        lambda request: has_breakpoint(request) or any(map(_marked, request.body["messages"])),
        _without_breakpoints,
    ),
    "allowed_tools": (has_allowed_tools, without_allowed_tools),
}
# By the source or client that sent the request: pairs of a model and a field.
_refused: WeakKeyDictionary[object, set[tuple[Any, str]]] = WeakKeyDictionary()


def accepted(sender: object, request: CompletionRequest) -> CompletionRequest:
    """Return the request without the fields that its model has refused before. `sender`: the source or client that sends it."""
    if not (refused := _refused_by(sender)):
        return request
    for field, (_, without) in _FIELDS.items():
        if (request.body["model"], field) in refused:
            request = without(request)
    return request


def repeatable(sender: object, request: CompletionRequest, error: Exception) -> CompletionRequest | None:
    """Return the request without the field that the error names, and remember the field. None for another error."""
    if not isinstance(error, CompletionError) or error.status_code != _BAD_REQUEST:
        return None
    for field, (has_field, without) in _FIELDS.items():
        if field in str(error) and has_field(request):
            _refused_by(sender).add((request.body["model"], field))
            return without(request)
    return None


def _refused_by(sender: object) -> set[tuple[Any, str]]:
    with suppress(TypeError):  # a client of another package without a hash
        return _refused.setdefault(sender, set())
    return set()
