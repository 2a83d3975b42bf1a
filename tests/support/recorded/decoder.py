"""Reads an answer of a provider with `json` and `str` only: a second opinion, which imports nothing of aswarm.

Written from the reference pages of Chat Completions, Responses and Messages, and from the pages of the providers that copy them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]
# The end of a stream without its last event. No provider sends this text.
CUT = "the answer was cut"


@dataclass
class Answer:
    """What an answer says, in one form for three APIs.

    Attributes:
        calls: The id, name and arguments of each call of a function or a custom tool of the client, in order.
        finish: The provider's own word.
        usage: `input` (with cache reads and writes), `output`, `cached`, `written` and `reasoning`, as far as they are given.
        items: The items of Responses, or the blocks of Messages. An input that is not JSON stays a text.
        error: The text of the error, `CUT`, or None.
        parts: The texts of the messages and of the reasoning of a response, one by one.
    """

    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str, str]] = field(default_factory=list)
    refusal: str = ""
    finish: str | None = None
    usage: dict[str, int] = field(default_factory=dict)
    items: list[Json] = field(default_factory=list)
    error: str | None = None
    parts: dict[str, list[str]] = field(default_factory=dict)


def decode(api: str, body: str, status: int | None = 200) -> Answer:
    """Read the body of an answer of the API "chat", "responses" or "messages"."""
    plain = _plain(body)
    if isinstance(plain, dict) and (status or 200) < 400 and not _error(plain):
        return {"chat": _chat, "responses": _responses, "messages": _messages}[api](plain)
    if plain is not None or (status or 200) >= 400:
        return Answer(error=_error(plain) or body)
    return {"chat": _chat_stream, "responses": _responses_stream, "messages": _messages_stream}[api](list(events(body)))


def events(body: str) -> Iterator[Json]:
    """Yield the data of server-sent events that are JSON objects."""
    data: list[str] = []
    for line in body.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line and data:
            if data != ["[DONE]"]:
                yield json.loads("\n".join(data))
            data = []


def _plain(body: str) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None


def _error(value: Any) -> str | None:
    """Return the text of the error of an object, wherever a provider puts it."""
    if isinstance(value, list):
        return next(filter(None, map(_error, value)), None)
    if not isinstance(value, dict):
        return value if isinstance(value, str) and value else None
    if error := value.get("error"):
        return error if isinstance(error, str) else str(error.get("message") or json.dumps(error))
    known = any(value.get(key) for key in ("choices", "output", "content"))
    said = value.get("message") or value.get("detail") or value.get("error_message")
    return None if known or not said else said if isinstance(said, str) else json.dumps(said)


# --- Chat Completions -------------------------------------------------------------------------------------------------------------


def _chat(body: Json) -> Answer:
    choice = _first_choice(body)
    if choice is None:
        return Answer(error=CUT, usage=_chat_usage(body))
    message = choice.get("message") or {}
    answer = Answer(
        text=_text(message.get("content")), reasoning=_reasoning(message), refusal=message.get("refusal") or ""
    )
    answer.calls = [_call(call) for call in message.get("tool_calls") or ()]
    if function := message.get("function_call"):
        answer.calls.append(("", *_named(function)))
    answer.finish, answer.usage = choice.get("finish_reason"), _chat_usage(body)
    return answer


def _first_choice(body: Json) -> Json | None:
    return next((choice for choice in body.get("choices") or () if not choice.get("index")), None)


def _text(content: Any) -> str:
    """Return the text of a string, of parts (Mistral), or of an object (a provider that parses the JSON of its answer)."""
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content if part.get("type") == "text")
    return content if isinstance(content, str) else "" if content is None else json.dumps(content)


def _reasoning(message: Json) -> str:
    """Return the reasoning of a message or a piece: DeepSeek's field, OpenRouter's field or details, Mistral's parts."""
    for name in ("reasoning_content", "reasoning"):
        if isinstance(message.get(name), str) and message[name]:
            return str(message[name])
    details = [d.get("text") or d.get("summary") or "" for d in message.get("reasoning_details") or ()]
    parts = message.get("content") if isinstance(message.get("content"), list) else ()
    thinking = [_thinking(part["thinking"]) for part in parts or () if part.get("type") == "thinking"]
    return "".join(details) or "".join(thinking)


def _thinking(thinking: Any) -> str:
    return thinking if isinstance(thinking, str) else "".join(part.get("text") or "" for part in thinking)


def _call(call: Json) -> tuple[str, str, str]:
    return (call.get("id") or "", *_named(call.get("function") or call["custom"]))


def _named(function: Json) -> tuple[str, str]:
    arguments = function.get("arguments", function.get("input"))
    return function.get("name") or "", arguments if isinstance(arguments, str) else json.dumps(arguments or {})


def _chat_usage(body: Json) -> dict[str, int]:
    usage = body.get("usage") or (body.get("x_groq") or {}).get("usage") or {}
    usage = usage or next((choice["usage"] for choice in body.get("choices") or () if choice.get("usage")), {})
    prompt, completion = usage.get("prompt_tokens_details") or {}, usage.get("completion_tokens_details") or {}
    found = {
        "input": usage.get("prompt_tokens"),
        "output": usage.get("completion_tokens"),
        "cached": prompt.get("cached_tokens", usage.get("prompt_cache_hit_tokens")),
        "written": prompt.get("cache_write_tokens"),
        "reasoning": completion.get("reasoning_tokens"),
    }
    return {name: tokens for name, tokens in found.items() if tokens is not None}


def _chat_stream(chunks: list[Json]) -> Answer:
    answer, calls = Answer(), list[Json]()
    for chunk in chunks:
        if error := _error(chunk):
            answer.error = error
            return answer
        answer.usage = _chat_usage(chunk) or answer.usage
        if (choice := _first_choice(chunk)) is not None:
            _add_delta(answer, calls, choice.get("delta") or choice.get("message") or {})
            answer.finish = choice.get("finish_reason") or answer.finish
    answer.calls = [(call["id"], call["name"], call["arguments"]) for call in calls]
    answer.error = None if answer.finish else CUT
    return answer


def _add_delta(answer: Answer, calls: list[Json], delta: Json) -> None:
    answer.text += _text(delta.get("content"))
    answer.reasoning += _reasoning(delta)
    answer.refusal += delta.get("refusal") or ""
    for piece in delta.get("tool_calls") or ():
        _add_piece(calls, piece.get("index"), piece.get("id") or "", piece.get("function") or piece.get("custom") or {})
    if function := delta.get("function_call"):
        _add_piece(calls, 0, "", function)


def _add_piece(calls: list[Json], index: int | None, name_of_call: str, function: Json) -> None:
    """Add a piece to the call of its index. Another id and a name at the index of a call begin a new call."""
    same = [call for call in calls if call["index"] == index] if index is not None else calls[-1:]
    begins = name_of_call and function.get("name") and same and same[-1]["id"] not in ("", name_of_call)
    if not same or begins:
        calls.append({"index": index, "id": name_of_call, "name": "", "arguments": ""})
        same = calls[-1:]
    call = same[-1]
    call["id"] = call["id"] or name_of_call
    name, arguments = function.get("name") or "", function.get("arguments", function.get("input"))
    call["name"] += "" if call["name"] == name else name
    call["arguments"] += arguments if isinstance(arguments, str) else json.dumps(arguments) if arguments else ""


# --- Responses --------------------------------------------------------------------------------------------------------------------


def _responses(body: Json) -> Answer:
    answer = _of_items(body.get("output") or [])
    usage = body.get("usage") or {}
    found = {
        "input": usage.get("input_tokens"),
        "output": usage.get("output_tokens"),
        "cached": (usage.get("input_tokens_details") or {}).get("cached_tokens"),
        "written": (usage.get("input_tokens_details") or {}).get("cache_write_tokens"),
        "reasoning": (usage.get("output_tokens_details") or {}).get("reasoning_tokens"),
    }
    answer.usage = {name: tokens for name, tokens in found.items() if tokens is not None}
    answer.finish = (body.get("incomplete_details") or {}).get("reason") or body.get("status")
    answer.error = answer.finish if answer.finish in ("queued", "in_progress", "cancelled", "failed") else None
    return answer


def _of_items(items: list[Json]) -> Answer:
    answer = Answer(items=items, parts={"text": [], "reasoning": []})
    for item in items:
        match item.get("type"):
            case "message":
                content = item["content"] or ()
                answer.parts["text"].append("".join(p.get("text") or "" for p in content if p["type"] == "output_text"))
                answer.refusal += "".join(p.get("refusal") or "" for p in content if p["type"] == "refusal")
            case "reasoning":
                parts = [*(item.get("summary") or ()), *(item.get("content") or ())]
                answer.parts["reasoning"] += [part.get("text") or "" for part in parts]
            case "function_call" | "custom_tool_call":
                answer.calls.append((item["call_id"], *_named(item)))
            case "tool_search_call" if item.get("execution") == "client":  # it has no name; this is the name in aswarm
                answer.calls.append((item["call_id"], "search_tools", json.dumps(item["arguments"])))
            case _:
                pass
    answer.text, answer.reasoning = ("".join(answer.parts[name]) for name in ("text", "reasoning"))
    return answer


def _responses_stream(all_events: list[Json]) -> Answer:
    done: dict[int, Json] = {}
    for event in all_events:
        kind, response = event.get("type"), event.get("response") or {}
        if kind == "response.output_item.done":
            done[event.get("output_index", len(done))] = event["item"]
        if kind in ("error", "response.failed") or (kind is None and event.get("error")):
            answer = _of_items([done[index] for index in sorted(done)])
            answer.error = _error(response) or _error({"error": event.get("error") or event}) or kind
            return answer
        if kind in ("response.completed", "response.incomplete", "response.done"):
            items = [done[index] for index in sorted(done)]
            return _responses(response | {"output": response.get("output") or items})
    answer = _of_items([done[index] for index in sorted(done)])
    answer.error = CUT
    return answer


# --- Messages ---------------------------------------------------------------------------------------------------------------------


def _messages(body: Json) -> Answer:
    blocks = body.get("content") or []
    answer = Answer(items=blocks, finish=body.get("stop_reason"), usage=_messages_usage(body.get("usage") or {}))
    answer.parts = {"text": [], "reasoning": []}
    for number, block in enumerate(blocks):
        match block["type"]:
            case "text":
                texts = answer.parts["text"]
                continues = number > 0 and blocks[number - 1]["type"] == "text"  # citations divide a sentence
                texts[-1:] = [texts[-1] + block["text"]] if continues else [*texts[-1:], block["text"]]
            case "thinking":
                answer.parts["reasoning"].append(block["thinking"])
            case "tool_use":
                given = block["input"]
                answer.calls.append(
                    (block["id"], block["name"], given if isinstance(given, str) else json.dumps(given))
                )
            case _:
                pass
    answer.text, answer.reasoning = ("".join(answer.parts[name]) for name in ("text", "reasoning"))
    answer.refusal = (body.get("stop_details") or {}).get("explanation") or ""
    if answer.finish == "refusal":
        answer.calls.clear()  # a refused answer is discarded
    return answer


def _messages_usage(usage: Json) -> dict[str, int]:
    read, written = usage.get("cache_read_input_tokens"), usage.get("cache_creation_input_tokens")
    given = usage.get("input_tokens")
    found = {
        "input": None if given is None else given + (read or 0) + (written or 0),
        "output": usage.get("output_tokens"),
        "cached": read,
        "written": written,
        "reasoning": (usage.get("output_tokens_details") or {}).get("thinking_tokens"),
    }
    return {name: tokens for name, tokens in found.items() if tokens is not None}


def _messages_stream(all_events: list[Json]) -> Answer:
    message: Json = {}
    blocks: dict[int, Json] = {}
    inputs: dict[int, str] = {}
    error: str | None = CUT
    for event in all_events:
        match event.get("type"):
            case "message_start":
                message = event["message"]
            case "content_block_start":
                blocks[event["index"]] = dict(event["content_block"])
            case "content_block_delta":
                _add_block_delta(blocks[event["index"]], inputs, event["index"], event["delta"])
            case "message_delta":
                message |= {key: value for key, value in event["delta"].items() if value is not None}
                counted = {key: value for key, value in (event.get("usage") or {}).items() if value is not None}
                message["usage"] = (message.get("usage") or {}) | counted
            case "message_stop":
                error = None
            case "error":
                error = _error(event)
                break
            case _:
                pass
    for index, text in inputs.items():
        parsed = _plain(text or "{}")
        blocks[index]["input"] = text if parsed is None else parsed
    answer = _messages(message | {"content": [blocks[index] for index in sorted(blocks)]})
    answer.error = error
    return answer


def _add_block_delta(block: Json, inputs: dict[int, str], index: int, delta: Json) -> None:
    match delta["type"]:
        case "input_json_delta":
            inputs[index] = inputs.get(index, "") + delta["partial_json"]
        case "citations_delta":
            block["citations"] = [*(block.get("citations") or ()), delta["citation"]]
        case "compaction_delta":
            block |= {key: value for key, value in delta.items() if key != "type" and value is not None}
        case kind:
            name = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}[kind]
            block[name] = block.get(name, "") + delta[name]
