"""The rules of Anthropic's Messages API: why its server would refuse a body. Looked up in November 2026.

Each body is checked against the types of the official package, unknown keys included. The other rules are from the pages about
errors, thinking, tool use, prompt caching, structured outputs and mid-conversation system messages, with the texts of the server.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Literal, NotRequired, Required

import typing_extensions
from anthropic.types import beta, message_create_params
from anthropic.types.beta import message_create_params as beta_params

Json = dict[str, Any]

_BINDING = "thinking-binding-controls-2026-08-01"
_WORD = re.compile(r"[a-zA-Z0-9_-]+")
# Older versions of the package do not know the newest fields.
TYPES_ARE_COMPLETE = hasattr(beta, "BetaThinkingBlockBindingParam")
_NOT_IN_A_GRAMMAR = frozenset(
    {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "maxItems"}
)


def version(model: str) -> tuple[int, int]:
    """Return the version of a model: (4, 5) of "claude-haiku-4-5-20251001", (5, 0) of "claude-opus-5"."""
    found = re.search(r"(\d)(?:[-.](\d)(?!\d))?(?!\d)", model)
    assert found, f"not a model of Anthropic: {model}"
    return int(found[1]), int(found[2] or 0)


def _is_story(model: str) -> bool:
    return "fable" in model or "mythos" in model


def binds_thinking(model: str) -> bool:
    """Whether a model has preserved thinking: its blocks are valid only behind the prefix that they were made for."""
    return version(model) >= ((5, 1) if _is_story(model) else (5, 5))


def _always_thinks(model: str) -> bool:
    return version(model) >= (5, 0) if _is_story(model) else "opus" in model and version(model) >= (5, 5)


def _has_system_messages(model: str) -> bool:
    oldest = (5, 0) if _is_story(model) else (4, 8) if "opus" in model else (5, 5)
    return version(model) >= oldest


def fault(body: Json, betas: frozenset[str] | None = None, *, is_paused: bool = False) -> str | None:
    """Return the reason to refuse a request, or None.

    `betas`: the values of the header `anthropic-beta`; None: not known. `is_paused`: whether the request ends with a paused answer.
    """
    if reason := _type_fault(body) or _binding_fault(body, betas):
        return reason
    checks = (_thinking_fault, _sampling_fault, _tool_fault, _cache_fault, _schema_fault)
    return next(filter(None, (check(body) for check in checks)), None) or next(_message_faults(body, is_paused), None)


# --- The types ----------------------------------------------------------------------------------------------------------------


def _type_fault(body: Json) -> str | None:
    if not TYPES_ARE_COMPLETE:
        return None
    # The package has no types for these settings any more, but older models accept them: `_sampling_fault`.
    typed = {key: value for key, value in body.items() if key not in ("temperature", "top_p", "top_k")}
    faults = [
        next(_misfits(typed, module.MessageCreateParams, "body"), None)
        for module in (message_create_params, beta_params)
    ]
    return faults[0] if all(faults) else None


def _misfits(value: Any, kind: Any, place: str) -> Iterator[str]:
    """Yield the places at which a JSON value is not of a type, with missing, wrong and unknown keys."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Annotated, Required, NotRequired):
        yield from _misfits(value, arguments[0], place)
    elif origin in (typing.Union, types.UnionType):
        yield from _misfits_of_each(value, arguments, place)
    elif origin is Literal:
        if value not in arguments:
            yield f"{place}: Input should be one of {arguments}"
    elif typing_extensions.is_typeddict(kind):
        yield from _misfits_of_keys(value, kind, place)
    elif origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, dict):
            yield f"{place}: Input should be an object"
    elif origin is not None:
        if not isinstance(value, list):
            yield f"{place}: Input should be a list"
        for index, item in enumerate(value if isinstance(value, list) else ()):
            yield from _misfits(item, arguments[0], f"{place}.{index}")
    elif kind is not object and kind is not Any:
        numbers = {float: (int, float), int: (int,)}.get(kind, (kind,))
        if not isinstance(value, numbers) or (kind in (int, float) and isinstance(value, bool)):
            yield f"{place}: Input should be {kind}"


def _misfits_of_each(value: Any, kinds: tuple[Any, ...], place: str) -> Iterator[str]:
    """Yield the fault of the best member of a union: the member whose `type` or `role` is that of the value, if there is one."""
    faults = [[*_misfits(value, kind, place)] for kind in kinds]
    if all(faults):
        named = [found for found in faults if not any(".type:" in each or ".role:" in each for each in found)]
        yield from max(named or faults, key=lambda found: found[0].partition(": ")[0].count("."))


def _misfits_of_keys(value: Any, kind: Any, place: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{place}: Input should be an object"
        return
    hints = _hints(kind)
    yield from (f"{place}.{key}: Field required" for key in sorted(kind.__required_keys__ - value.keys()))
    for key, inner in value.items():
        if key in hints:
            yield from _misfits(inner, hints[key], f"{place}.{key}")
        else:
            yield f"{place}.{key}: Extra inputs are not permitted"


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing_extensions.get_type_hints(kind, include_extras=True)


# --- The settings -------------------------------------------------------------------------------------------------------------


def _binding_fault(body: Json, betas: frozenset[str] | None) -> str | None:
    if "block_binding" not in (body.get("thinking") or {}) or betas is None or _BINDING in betas:
        return None
    return f"thinking.block_binding: requires the beta header {_BINDING}"


def _thinking_fault(body: Json) -> str | None:
    model, thinking = body["model"], body.get("thinking") or {}
    forces = (body.get("tool_choice") or {}).get("type") in ("any", "tool")
    match thinking.get("type"):
        case "enabled" if version(model) >= (4, 7):
            return '"thinking.type.enabled" is not supported for this model. Use "thinking.type.adaptive".'
        case "enabled" if not 1024 <= thinking["budget_tokens"] < body["max_tokens"]:
            return "`max_tokens` must be greater than `thinking.budget_tokens`."
        case "enabled" if forces:
            return "Thinking may not be enabled when tool_choice forces tool use."
        case "adaptive" if version(model) < (4, 6):
            return "adaptive thinking is not supported on this model"
        case "disabled" if _always_thinks(model):
            return '"thinking.type.disabled" is not supported for this model.'
        case _:
            refuses = forces and binds_thinking(model) and "haiku" not in model
            return "tool_choice: this model does not support forced tool use." if refuses else None


def _sampling_fault(body: Json) -> str | None:
    if not 0 <= body.get("temperature", 1) <= 1:
        return "temperature: range: 0..1"
    unusual = body.get("temperature", 1) != 1 or "top_k" in body or body.get("top_p", 1) < 0.95
    if unusual and version(body["model"]) >= (4, 7):
        return "`temperature`, `top_p` and `top_k` are not supported on this model."
    if unusual and (body.get("thinking") or {}).get("type") in ("enabled", "adaptive"):
        return "`temperature` may only be set to 1 when thinking is enabled."
    if any(not text.strip() for text in body.get("stop_sequences") or ()):
        return "stop_sequences: each stop sequence must contain non-whitespace"
    if body["max_tokens"] < 1:
        return "max_tokens: Input should be greater than or equal to 1"
    return None


def _tool_fault(body: Json) -> str | None:
    tools, choice = body.get("tools") or [], body.get("tool_choice")
    names = [tool["name"] for tool in tools if "name" in tool]
    if choice and not tools and not body.get("mcp_servers"):
        return "tool_choice: tool_choice may only be specified while providing tools."
    if len({*names}) < len(names):
        return "tools: Tool names must be unique."
    if wrong := [name for name in names if not re.fullmatch(r"[a-zA-Z0-9_-]{1,128}", name)]:
        return f"tools.0.custom.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$': {wrong}"
    if any(tool.get("input_schema", {"type": "object"}).get("type") != "object" for tool in tools):
        return "tools.0.custom.input_schema.type: Input should be 'object'"
    if tools and all(tool.get("defer_loading") for tool in tools):
        return "At least one tool must have defer_loading=false."
    missing = choice and choice["type"] == "tool" and choice["name"] not in names
    return f"Tool '{choice['name']}' not found in provided tools." if choice and missing else None


def _cache_fault(body: Json) -> str | None:
    marks = [*_marks({"tools": body.get("tools"), "system": body.get("system"), "messages": body["messages"]})]
    marks += [body["cache_control"]] if body.get("cache_control") else []
    if len(marks) > 4:
        return f"A maximum of 4 blocks with cache_control may be provided. Found {len(marks)}."
    lives = [mark.get("ttl", "5m") for mark in marks]
    if "5m" in lives and "1h" in lives[lives.index("5m") :]:
        return "a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block"
    return None


def _marks(value: Any) -> Iterator[Json]:
    if isinstance(value, Mapping):
        if value.get("cache_control"):
            yield value["cache_control"]
        if value.get("type") != "custom" or "input_schema" not in value:
            yield from (mark for each in value.values() for mark in _marks(each))
    elif isinstance(value, list):
        yield from (mark for each in value for mark in _marks(each))


def _schema_fault(body: Json) -> str | None:
    tools = [tool for tool in body.get("tools") or () if tool.get("strict")]
    if len(tools) > 20:
        return f"Too many strict tools ({len(tools)}). The maximum number of strict tools supported is 20."
    output = (body.get("output_config") or {}).get("format")
    schemas = [*(tool["input_schema"] for tool in tools), *([output["schema"]] if output else [])]
    return next((found for schema in schemas for found in _grammar_faults(schema)), None)


def _grammar_faults(schema: Any) -> Iterator[str]:
    if not isinstance(schema, dict):
        return
    if schema.get("type") == "object" and schema.get("additionalProperties") is not False:
        yield "For 'object' type, 'additionalProperties' must be explicitly set to false"
    if wrong := _NOT_IN_A_GRAMMAR & schema.keys():
        yield f"For '{schema.get('type')}' type, properties {', '.join(sorted(wrong))} are not supported"
    if schema.get("minItems", 0) > 1:
        yield "For 'array' type, 'minItems' values other than 0 or 1 are not supported"
    nested = [schema.get(key) or {} for key in ("properties", "$defs", "definitions")]
    parts = [each for names in nested for each in names.values()] + [schema.get("items")]
    for inner in parts + [each for key in ("anyOf", "allOf") for each in schema.get(key) or ()]:
        yield from _grammar_faults(inner)


# --- The messages -------------------------------------------------------------------------------------------------------------


def _message_faults(body: Json, is_paused: bool) -> Iterator[str]:
    messages = body["messages"]
    if not messages:
        yield "messages: at least one message is required"
    for index, message in enumerate(messages):
        is_last = index == len(messages) - 1
        yield from _content_faults(index, message, is_last)
        if message["role"] == "system":
            yield from _system_faults(body["model"], messages, index)
    yield from _system_text_faults(body)
    yield from _call_faults(_turns(messages))
    yield from _ending_faults(body, is_paused)


def blocks_of(message: Json) -> list[Json]:
    """Return the content of a message as blocks."""
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _turns(messages: list[Json]) -> list[Json]:
    """Return the messages with consecutive ones of a role in one, as the server joins them. A system message ends a turn."""
    turns: list[Json] = []
    for message in messages:
        if turns and turns[-1]["role"] == message["role"]:
            turns[-1] = {"role": message["role"], "content": [*blocks_of(turns[-1]), *blocks_of(message)]}
        else:
            turns.append({"role": message["role"], "content": blocks_of(message)})
    return turns


def _content_faults(index: int, message: Json, is_last: bool) -> Iterator[str]:
    blocks = blocks_of(message)
    if not message["content"] and not (is_last and message["role"] == "assistant"):
        yield f"messages.{index}: all messages must have non-empty content except for the optional final assistant message"
    for block in [*blocks, *(part for each in blocks for part in _parts(each))]:
        if block["type"] == "text" and message["content"] and not block["text"].strip():
            yield "messages: text content blocks must be non-empty and contain non-whitespace text"
    if message["role"] == "assistant" and blocks and blocks[-1]["type"] in ("thinking", "redacted_thinking"):
        yield f"messages.{index}: The final block in an assistant message cannot be `thinking`."
    foreign = {"user": ("thinking", "redacted_thinking", "tool_use"), "assistant": ("tool_result", "image", "document")}
    for block in blocks:
        if block["type"] in foreign.get(message["role"], ()):
            yield f"messages.{index}: `{block['type']}` blocks can not be in {message['role']} messages"


def _parts(block: Json) -> list[Json]:
    content = block.get("content") if block["type"] == "tool_result" else None
    return content if isinstance(content, list) else []


def _system_text_faults(body: Json) -> Iterator[str]:
    system = body.get("system")
    if isinstance(system, list) and any(not block["text"].strip() for block in system):
        yield "system: text content blocks must be non-empty"


def _system_faults(model: str, messages: list[Json], index: int) -> Iterator[str]:
    if not _has_system_messages(model):
        yield f"messages.{index}.role: role 'system' is not supported on this model"
    if index == 0 or messages[index - 1]["role"] == "system":
        yield f"messages.{index}: a system message must follow a user message"
    if index + 1 < len(messages) and messages[index + 1]["role"] != "assistant":
        yield f"messages.{index}: a system message must be the last one, or before an assistant message"


def _call_faults(turns: list[Json]) -> Iterator[str]:
    turns = [turn for turn in turns if turn["role"] != "system"]
    for index, turn in enumerate(turns):
        calls = [block["id"] for block in turn["content"] if block["type"] == "tool_use"]
        results = [block["tool_use_id"] for block in turn["content"] if block["type"] == "tool_result"]
        earlier = [b["id"] for b in turns[index - 1]["content"] if b["type"] == "tool_use"] if index else []
        following = turns[index + 1]["content"] if index + 1 < len(turns) else []
        first = [block.get("tool_use_id") for block in following[: len(calls)]]
        if len({*calls}) < len(calls):
            yield f"messages.{index}: `tool_use` ids must be unique"
        if wrong := [each for each in calls if not _WORD.fullmatch(each)]:
            yield f"messages.{index}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$': {wrong}"
        if len({*results}) < len(results):
            yield f"messages.{index}: each tool_use must have a single result. Found multiple `tool_result` blocks"
        if missing := [each for each in results if each not in earlier]:
            yield f"messages.{index}: unexpected `tool_use_id` found in `tool_result` blocks: {missing}"
        if open_calls := [each for each in calls if each not in first]:
            yield (
                f"messages.{index}: `tool_use` ids were found without `tool_result` blocks immediately after: "
                f"{open_calls}. Each `tool_use` block must have a corresponding `tool_result` block in the next message."
            )


def _ending_faults(body: Json, is_paused: bool) -> Iterator[str]:
    last = body["messages"][-1]
    if last["role"] == "assistant" and blocks_of(last):
        block = blocks_of(last)[-1]
        # A paused answer goes back unchanged. It has calls of tools on the server.
        paused = is_paused or any(each["type"].startswith(("server_tool", "mcp_tool")) for each in blocks_of(last))
        thinks = (body.get("thinking") or {}).get("type") in ("enabled", "adaptive")
        if not paused and (version(body["model"]) >= (4, 6) or thinks):
            yield "This model does not support assistant message prefill. The conversation must end with a user message."
        if block["type"] == "text" and block["text"] != block["text"].rstrip():
            yield "messages: final assistant content cannot end with trailing whitespace"
    if (body.get("thinking") or {}).get("type") == "enabled" and last["role"] == "user":
        yield from _loop_faults(_turns(body["messages"]))


def _loop_faults(turns: list[Json]) -> Iterator[str]:
    """Yield the fault of a loop of calls that began without thinking. Later answers of a loop may have none."""
    asked = [
        at for at, turn in enumerate(turns) if turn["role"] == "user" and turn["content"][0]["type"] != "tool_result"
    ]
    loop = [turn for turn in turns[asked[-1] if asked else 0 :] if turn["role"] == "assistant"]
    first = loop[0]["content"][0]["type"] if loop else "thinking"
    if first not in ("thinking", "redacted_thinking"):
        yield (
            f"messages.{turns.index(loop[0])}.content.0.type: Expected `thinking` or `redacted_thinking`, but found `{first}`. "
            "When `thinking` is enabled, a final `assistant` message must start with a thinking block."
        )
