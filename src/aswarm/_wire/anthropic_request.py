"""Body of a request for Claude's Messages API, from a request whose body has the form of Chat Completions.

Source: Anthropic's page on structured outputs. The API compiles such schemas, and refuses those that it cannot compile, so a schema
that has no accepted form is sent without `strict`.

The module converts settings, tools, the choice of a tool and the format of the answer, sets cache points, and never sends
anything. Each request contains the whole history. The tools and the system prompt depend only on the agent and its settings,
because the prompt cache and the signatures of Claude's thinking need an unchanged prefix.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from aswarm._values.errors import ConfigurationError
from aswarm._values.json import is_array, is_object
from aswarm._values.messages import Message

from .anthropic_blocks import ALONE, THINKING, Block, Model, digest, model_named
from .anthropic_messages import SentTurns, Way, container_of_turn, split_system, start_of_thinking
from .request import CompletionRequest, has_allowed_tools, is_forced, is_requiring, without_allowed_tools
from .responses_request import CHAT_ONLY, LIMITS, check_limits

_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"})
_KEPT = frozenset({"type", "required", "enum", "const", "description", "title", "$ref"})
_BRANCHES = {"anyOf": "anyOf", "oneOf": "anyOf", "allOf": "allOf"}
_LOCAL = "#/$defs/"
# The most in all schemas of a request: strict tools, optional properties, and properties with a union.
_LIMITS = (20, 24, 16)


def accepted_schema(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the schema in the form that the API accepts. Return None if there is none, as for a dict of any keys.

    Keywords that the API does not have become a part of the description, so that the model can read them.
    """
    try:
        accepted = _accepted(schema)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    return None if _is_recursive(accepted) or accepted.get("type") != "object" else accepted


def are_few(schemas: Sequence[Mapping[str, Any]], tools: int) -> bool:
    """Return whether the API can compile all these schemas in one request. `tools`: the number of strict tools."""
    inner = [part for schema in schemas for part in _parts(schema)]
    optional = sum(len(part.get("properties", {}).keys() - set(part.get("required", ()))) for part in inner)
    return all(
        count <= most for count, most in zip((tools, optional, sum(map(_is_union, inner))), _LIMITS, strict=True)
    )


def _is_union(schema: Mapping[str, Any]) -> bool:
    return "anyOf" in schema or is_array(schema.get("type"))


def _accepted(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the accepted form of a part. Raises ValueError if it has none."""
    if _admits_anything(schema):
        raise ValueError("it has no accepted form")
    accepted: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for key, value in schema.items():
        if key in ("properties", "$defs"):
            accepted[key] = {name: _accepted(part) for name, part in value.items()}
        elif key in _BRANCHES:
            accepted[_BRANCHES[key]] = [*map(_accepted, value)]
        elif key == "items":
            accepted[key] = _accepted(value)
        elif key in _KEPT or (key == "format" and value in _FORMATS) or (key == "minItems" and value in (0, 1)):
            accepted[key] = value
        elif key != "additionalProperties":
            others[key] = value
    if schema.get("type") == "object":
        accepted["additionalProperties"] = False
    return _described(accepted, others)


def _admits_anything(schema: Mapping[str, Any]) -> bool:
    """Return whether the schema admits any value, a dict with any keys, or a list of anything."""
    match schema.get("type"):
        case "object":
            return schema.get("additionalProperties", not schema.get("properties")) is not False
        case "array":
            return "items" not in schema
        case None:
            return not {"$ref", "enum", "const", *_BRANCHES} & schema.keys()
        case _:
            return False


def _described(accepted: dict[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    others = {key: value for key, value in others.items() if key not in ("default", "discriminator", "examples")}
    if not others:
        return accepted
    text = ", ".join(f"{key}: {value}" for key, value in others.items())
    return {**accepted, "description": f"{accepted.get('description', '')} ({text})".strip()}


def _parts(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield schema
    inner = [*schema.get("properties", {}).values(), *schema.get("$defs", {}).values(), schema.get("items")]
    for branches in _BRANCHES:
        inner += schema.get(branches, ())
    for part in inner:
        if is_object(part):
            yield from _parts(part)


def _is_recursive(schema: Mapping[str, Any]) -> bool:
    definitions: Mapping[str, Any] = schema.get("$defs", {})
    targets = {name: {*_targets(part)} for name, part in definitions.items()}
    if not {*_targets(schema)} <= targets.keys():
        return True  # a reference outside of the definitions
    while targets:
        leaves = {name for name, inner in targets.items() if not inner}
        if not leaves:
            return True
        targets = {name: inner - leaves for name, inner in targets.items() if name not in leaves}
    return False


def _targets(schema: Mapping[str, Any]) -> Iterator[str]:
    return (part["$ref"].removeprefix(_LOCAL) for part in _parts(schema) if "$ref" in part)


BETA = "thinking-binding-controls-2026-08-01"
# A whole answer with a larger limit may take longer than ten minutes, which is the time limit of Anthropic's client.
_LARGEST_WHOLE = 21_333
_NOT_SENT = (CHAT_ONLY.keys() - {"stop"}) | {*LIMITS} | {
    "cache_control", "include", "messages", "metadata", "model", "output_config", "parallel_tool_calls", "prompt_cache_key",
    "prompt_cache_options", "prompt_cache_retention", "reasoning_effort", "response_format", "safety_identifier", "stop",
    "store", "stream_options", "thinking", "tool_choice", "tools", "user",
}  # fmt: skip
_DEFAULT_MARK = {"type": "ephemeral"}
_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}
_COMBINED = ("allOf", "anyOf", "oneOf")  # the API refuses them at the top of the parameters of a tool
_EFFORTS = {"minimal": "low"}
_BUDGETS = {"minimal": 1_024, "low": 2_048, "medium": 8_192, "high": 16_384, "xhigh": 32_768, "max": 32_768}
_LEAST_EFFORT, _LEAST_BUDGET = "low", 1_024


def anthropic_request(
    request: CompletionRequest, *, is_claude_api: bool = True, thinking: bool = True
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the body for `/v1/messages`, and the origin for the message of its answer. The request does not change.

    `is_claude_api`: whether the server has the newest features: messages with the role `system`, and `block_binding`.
    `thinking`: whether thinking of the history is sent back, as far as it is valid. Raises ConfigurationError for a setting or a
    part of a message that the API does not have.
    """
    if has_allowed_tools(request) and not is_requiring(request):
        request = without_allowed_tools(request)  # the API cannot allow only some tools
    chat = request._sendable_body()
    name = str(chat["model"])
    model = model_named(name)
    _check(chat)
    system, messages = split_system(chat["messages"])
    strict = _strict_schemas(chat, model)
    body = _settings(chat, model)
    body["tools"] = [_tool(tool, strict) for tool in chat.get("tools") or ()]
    system += _format(chat, body, strict)
    messages = [*messages, *_choice(request, chat, model, body)]
    start = digest("", [body["tools"], system])
    may_continue = model.continues_text and not _has_budget(body)
    thinks_from = start_of_thinking(messages) if thinking else len(messages)
    way = Way(name, thinks_from, is_claude_api and model.has_system_role, may_continue)
    turns = _turns(request, messages, way, start)
    body |= {"system": system, "messages": [*turns.sent], **_in_container(body, container_of_turn(messages))}
    if is_claude_api and model.binds_thinking:
        _ask_for_drops(body)
    _without_thinking_in_loop(body)
    _mark(body, chat.get("cache_control", _DEFAULT_MARK))
    filled = {key: value for key, value in body.items() if value not in (None, [], {}) or key == "messages"}
    origin = {"model": name, "prefix": turns.prefix}
    return filled, origin if thinking else {**origin, ALONE: True}


def needs_stream(body: Mapping[str, Any]) -> bool:
    """Return whether the answer must be streamed, because it may be long."""
    return bool(body.get("stream")) or body["max_tokens"] > _LARGEST_WHOLE


def betas_of(body: Mapping[str, Any]) -> list[str]:
    """Return the values of the header `anthropic-beta` that the body needs."""
    return [BETA] if "block_binding" in (body.get("thinking") or ()) else []


def continued(body: Mapping[str, Any], blocks: Sequence[Block], container: str | None = None) -> dict[str, Any]:
    """Return the body of the request that continues a paused answer.

    `blocks`: all blocks of the answer so far. `container`: the id of its container.
    """
    messages = [*body["messages"], {"role": "assistant", "content": [*blocks]}]
    return {**body, "messages": messages, **_in_container(body, container)}


def _in_container(body: Mapping[str, Any], container: str | None) -> dict[str, Any]:
    """Return the `container` of a request whose code runs in this container. The user's setting overrides its id, and may have skills."""
    own = body.get("container")
    if container is None or isinstance(own, str):
        return {}
    return {"container": {"id": container, **own} if own else container}


def _turns(request: CompletionRequest, messages: Sequence[Message], way: Way, start: str) -> SentTurns:
    known = request._known
    first = known.turns if known is not None else None
    if first is None or not first.is_start_of(messages, way, start):
        first = SentTurns(way, start, start)
    settled, turns = first.extended(messages)
    if known is not None:
        known.turns = settled
    return turns


# --- settings ---------------------------------------------------------------------------------------------------------


def _check(chat: Mapping[str, Any]) -> None:
    for key, default in CHAT_ONLY.items():
        if key != "stop" and key in chat and chat[key] != default:
            raise ConfigurationError(
                f"model_settings has {key!r}, which the Messages API does not have; remove the setting, or set it to None "
                "for this agent"
            )
    check_limits(chat)


def _settings(chat: Mapping[str, Any], model: Model) -> dict[str, Any]:
    body = {"model": chat["model"], **{key: value for key, value in chat.items() if key not in _NOT_SENT}}
    stop, user = chat.get("stop"), chat.get("user")
    if stop:
        body["stop_sequences"] = [stop] if isinstance(stop, str) else stop
    metadata = chat.get("metadata") or ({"user_id": user} if user else None)
    thinking, effort = _thinking(chat, model)
    budget: int = thinking.get("budget_tokens") or 0
    return {
        **body,
        "max_tokens": _limit(chat) or (model.max_tokens if model.max_tokens > budget else model.max_tokens + budget),
        "metadata": metadata,
        "thinking": thinking,
        "output_config": {**effort, **(chat.get("output_config") or {})},
    }


def _limit(chat: Mapping[str, Any]) -> int | None:
    return next((chat[key] for key in LIMITS if key in chat), None)


def _thinking(chat: Mapping[str, Any], model: Model) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return `thinking`, and the effort for `output_config`. The user's `thinking` overrides `reasoning_effort`."""
    own: dict[str, Any] = chat.get("thinking") or {}
    effort = chat.get("reasoning_effort")
    if effort is None:
        return own, {}
    if effort == "none":
        if model.least_thinking is None:
            return own, {"effort": _LEAST_EFFORT}
        return own or {"type": model.least_thinking}, {}
    level = {"effort": _EFFORTS.get(effort, effort)} if model.has_effort else {}
    if model.is_adaptive:
        return own or {"type": "adaptive"}, level
    budget = _BUDGETS.get(effort, _BUDGETS["medium"])
    if (limit := _limit(chat)) is not None:  # the API refuses a budget that leaves no tokens for the answer
        budget = min(budget, limit // 2)
    enabled = {"type": "enabled", "budget_tokens": budget} if budget >= _LEAST_BUDGET else {}
    return own or enabled, level


def _has_budget(body: Mapping[str, Any]) -> bool:
    return bool(body["thinking"].get("type") == "enabled")


def _ask_for_drops(body: dict[str, Any]) -> None:
    """Let the server drop thinking whose prefix has changed: the history may be of another program, without digests."""
    thinking: dict[str, Any] = body["thinking"]
    has_blocks = any(block["type"] in THINKING for message in body["messages"] for block in message["content"])
    if has_blocks and thinking.get("type", "adaptive") == "adaptive":
        binding = {"block_binding": {"prefix_mismatch_behavior": "drop_block"}}
        body["thinking"] = {"type": "adaptive", **binding, **thinking}


def _without_thinking_in_loop(body: dict[str, Any]) -> None:
    """Turn off thinking with a budget if the current turn has started without thinking, as after a fallback.

    The API refuses a change within a turn. A turn contains all calls up to the answer.
    """
    if not _has_budget(body):
        return
    messages: Sequence[Mapping[str, Any]] = body["messages"]
    at = len(messages) - 1
    while at >= 0 and not (messages[at]["role"] == "user" and messages[at]["content"][0]["type"] != "tool_result"):
        at -= 1
    started = next((message for message in messages[at + 1 :] if message["role"] == "assistant"), None)
    if started is not None and started["content"][0]["type"] not in THINKING:
        body["thinking"] = {}


# --- tools ------------------------------------------------------------------------------------------------------------


def _strict_schemas(chat: Mapping[str, Any], model: Model) -> dict[str, dict[str, Any]]:
    """Return the accepted schemas by the name of the strict tool, and by "" for the format of the answer.

    The result is empty if the model has no such schemas, or if they are more than the API can compile.
    """
    functions = [function for function in map(_function, chat.get("tools") or ()) if function.get("strict")]
    schemas = {each["name"]: accepted_schema(each.get("parameters") or _NO_PARAMETERS) for each in functions}
    if (answer := _answer_schema(chat)) is not None:
        schemas[""] = accepted_schema(answer)
    accepted = {name: schema for name, schema in schemas.items() if schema is not None}
    if not model.has_schemas:
        return {}
    if are_few([*accepted.values()], len(accepted.keys() - {""})):
        return accepted
    alone = accepted.get("")
    return {"": alone} if alone is not None and are_few([alone], 0) else {}


def _function(tool: Any) -> Mapping[str, Any]:
    function = tool.get("function") if is_object(tool) else None
    return function if is_object(function) else {}


def _tool(tool: Any, strict: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    function = _function(tool)
    if not function:
        if is_object(tool) and tool.get("type") == "custom" and "custom" in tool:
            raise ConfigurationError("model_settings has a custom tool of OpenAI, which the Messages API does not have")
        return {**tool}
    name, parameters = function["name"], function.get("parameters") or _NO_PARAMETERS
    plain = {key: value for key, value in parameters.items() if key not in _COMBINED}
    schema = strict.get(name) or {"type": "object", **plain}
    more = {key: value for key, value in tool.items() if key not in ("type", "function")}
    described = {"description": function["description"]} if function.get("description") else {}
    return {"name": name, **described, "input_schema": schema, **({"strict": True} if name in strict else {}), **more}


def _choice(
    request: CompletionRequest, chat: Mapping[str, Any], model: Model, body: dict[str, Any]
) -> Iterator[Message]:
    """Set the choice of a tool. Yield a sentence for the end of the messages if the model cannot be forced."""
    if not body["tools"]:
        return
    choice = chat.get("tool_choice")
    named = _forced_name(request, choice)
    made: dict[str, Any] = {"type": choice if choice == "none" else "auto"}
    if named or is_forced(choice):
        if not model.can_be_forced or _has_budget(body):
            yield {"role": "developer", "content": f"Call {f'the tool {named}' if named else 'one of the tools'} now."}
        else:
            made = {"type": "tool", "name": named} if named else {"type": "any"}
    if chat.get("parallel_tool_calls") is False and made["type"] != "none":
        made["disable_parallel_tool_use"] = True
    if made != {"type": "auto"}:
        body["tool_choice"] = made


def _forced_name(request: CompletionRequest, choice: Any) -> str | None:
    if is_requiring(request):
        return request._required
    function = choice.get("function") if is_object(choice) else None
    return function.get("name") if is_object(function) else None


# --- the format of the answer -----------------------------------------------------------------------------------------


def _answer_schema(chat: Mapping[str, Any]) -> Mapping[str, Any] | None:
    wanted = chat.get("response_format")
    named = wanted.get("json_schema") if is_object(wanted) else None
    return named.get("schema") if is_object(named) else None


def _format(chat: Mapping[str, Any], body: dict[str, Any], strict: Mapping[str, Any]) -> Iterator[Block]:
    """Set the format of the answer. Yield a sentence for the system prompt if the API has no format for the schema.

    The type "json_object" needs nothing: the instructions already ask for JSON, because other APIs demand it.
    """
    if (schema := _answer_schema(chat)) is None:
        return
    if "" in strict:
        body["output_config"] = {"format": {"type": "json_schema", "schema": strict[""]}, **body["output_config"]}
    else:
        written = json.dumps(schema, ensure_ascii=False)
        text = f"Write your final answer as JSON that matches this schema, with nothing before or after it:\n{written}"
        yield {"type": "text", "text": text}


# --- cache points -----------------------------------------------------------------------------------------------------


def _mark(body: dict[str, Any], mark: Any) -> None:
    """Set cache points at the end of the tools, of the system prompt and of the history.

    `mark`: their value; False for none. Own cache points of the user replace them.
    """
    parts = [body["tools"], body["system"], *(message["content"] for message in body["messages"])]
    if not mark or any("cache_control" in block for blocks in parts for block in blocks):
        return
    loaded = [tool for tool in body["tools"] if not tool.get("defer_loading")]
    deferred = [tool for tool in body["tools"] if tool.get("defer_loading")]  # the API refuses a cache point there
    body["tools"], body["system"] = [*_marked(loaded, mark), *deferred], _marked(body["system"], mark)
    *messages, last = body["messages"]
    if last["role"] != "assistant":
        body["messages"] = [*messages, {**last, "content": _marked(last["content"], mark)}]


def _marked(blocks: Sequence[Any], mark: Any) -> list[Any]:
    return [*blocks[:-1], {**blocks[-1], "cache_control": mark}] if blocks else []
