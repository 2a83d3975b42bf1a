"""A scripted model that refuses the requests that OpenAI's own servers refuse.

Each body is checked against the types of the official package: missing, wrong and unknown keys. More rules are not in the types:
which models accept the fields of prompt caching, and that a choice of tools names only tools of the request.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import httpx
from openai.types.chat.completion_create_params import (
    CompletionCreateParamsNonStreaming,
    CompletionCreateParamsStreaming,
)
from openai.types.shared import chat_model
from pydantic import TypeAdapter, ValidationError

from aswarm.testing import Request, ScriptedModel, Step
from tests.support.wire.response_bodies import TYPES_ARE_COMPLETE, check_body, read_to_end

Json = dict[str, Any]

OPENAI = "https://api.openai.com/v1"
AZURE = "https://hotel.openai.azure.com/openai/v1"
PROXY = "https://gateway.example/v1"
# Models that refused `prompt_cache_breakpoint` in the field, although their family has it (August 2026).
REFUSING = frozenset({"gpt-5.6-terra"})
_FAMILIES = ("gpt-5.6", "gpt-6")
_CHAT: Mapping[bool, TypeAdapter[Any]] = {
    True: TypeAdapter(CompletionCreateParamsStreaming),
    False: TypeAdapter(CompletionCreateParamsNonStreaming),
}
# The oldest versions of the package do not know the fields of prompt caching.
KNOWS_CACHING = TYPES_ARE_COMPLETE and "gpt-6-luna" in str(chat_model.ChatModel)


class OpenAIRules(ScriptedModel):
    """A scripted model with the rules of OpenAI's servers. Its `client` sends to OpenAI's address.

    Args:
        script: As for `ScriptedModel`.
        refusing: More models that refuse breakpoints.
        allowed_tools: Whether the models accept a choice of the type "allowed_tools".

    Attributes:
        refused: The refused requests, with the reason.
    """

    def __init__(
        self,
        script: Iterable[Step | Callable[[Request], Step]] | Callable[[Request], Step],
        *,
        refusing: Collection[str] = (),
        allowed_tools: bool = True,
    ) -> None:
        super().__init__(script, api="responses")
        self._refusing = REFUSING | set(refusing)
        self._allowed_tools = allowed_tools
        self.refused: list[tuple[Json, str]] = []

    @property
    def bodies(self) -> list[Json]:
        """The bodies of the accepted requests."""
        return [request.body for request in self.requests]

    async def _respond(self, request: Request) -> httpx.Response:
        if (reason := self.fault(request.body)) is None:
            return await super()._respond(request)
        self.refused.append((request.body, reason))
        return httpx.Response(400, json={"error": {"message": reason, "code": None, "type": "invalid_request_error"}})

    def fault(self, body: Json) -> str | None:
        """Return the reason to refuse a request, or None."""
        return _unknown(body) or self._caching_fault(body) or self._choice_fault(body)

    def _caching_fault(self, body: Json) -> str | None:
        model = str(body.get("model"))
        knows = model.startswith(_FAMILIES) and model not in self._refusing
        named = {"prompt_cache_breakpoint", "prompt_cache_options"} & set(_keys(body))
        if named and not knows:
            return f"{min(named)} is not supported on this model"
        return None

    def _choice_fault(self, body: Json) -> str | None:
        choice = body.get("tool_choice")
        if choice is not None and not body.get("tools"):
            return "Invalid value for 'tool_choice': 'tool_choice' is only allowed when 'tools' are specified."
        if not isinstance(choice, dict) or choice.get("type") != "allowed_tools":
            return None
        if not self._allowed_tools:
            return "tool_choice of the type allowed_tools is not supported with this model"
        allowed = {_name(tool) for tool in (choice.get("allowed_tools") or choice)["tools"]}
        missing = allowed - {_name(tool) for tool in body["tools"]} - _additional(body)
        return f"Tool choice {missing} not found in 'tools' parameter." if missing else None


def _unknown(body: Json) -> str | None:
    """Return the difference between the body and its parsed form, which has no unknown keys. None if they are equal."""
    if not KNOWS_CACHING:
        return None
    try:
        if "input" in body:
            check_body(body)
        else:
            parsed = read_to_end(_CHAT[bool(body.get("stream"))].validate_python(body))
            assert parsed == body, f"the types do not have: {sorted(set(_keys(body)) - set(_keys(parsed)))}"
    except (ValidationError, AssertionError) as error:
        return f"Unknown or wrong parameter: {error}"
    return None


def _keys(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        yield from value
    for inner in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from _keys(inner)


def _name(tool: Json) -> Any:
    return (tool.get("function") or tool).get("name", tool["type"])


def _additional(body: Json) -> set[Any]:
    """Return the names of the tools that items of the input add."""
    return {
        _name(tool)
        for item in body.get("input", ())
        if isinstance(item, dict) and item.get("type") == "additional_tools"
        for tool in item["tools"]
    }
