"""Compares the request that aswarm sends after an answer with the request that a project sent, and that the provider accepted."""

from __future__ import annotations

from typing import Any

from tests.support.anthropic_checks import blocks_of, fault
from tests.support.recorded.comparison import EDITED, value_of
from tests.support.recorded.decoder import Answer, Json, decode
from tests.support.recorded.player import Player
from tests.support.recorded.reading import read

OWN_FORM = "the client's own form"
Difference = tuple[str, Any, Any, str | None]
# Keys that clients add or leave out as they like. Servers ignore them in a request.
_FREE = frozenset(
    {"id", "status", "role", "refusal", "annotations", "logprobs", "index", "audio", "function_call", "name"}
)
_DONE = {
    "messages": '{"type": "message", "role": "assistant", "content": [{"type": "text", "text": "Done"}], "stop_reason": "end_turn"}',
    "chat": '{"choices": [{"index": 0, "message": {"role": "assistant", "content": "Done"}, "finish_reason": "stop"}]}',
    "responses": '{"object": "response", "status": "completed", "output": [{"type": "message", "role": "assistant", '
    '"content": [{"type": "output_text", "text": "Done"}]}]}',
}


async def follow_up_differences(server: Player, recording: Json, message: Json) -> list[Difference]:
    """Return the differences of the earlier answer in the two requests."""
    api, body = recording["api"], recording["request"]["body"]
    if body is None:
        return []
    if '"pause_turn"' in recording["earlier"]["body"]:  # the source has continued the answer
        return _blocks(server.requests[recording["earlier"]["id"]][-1]["messages"], body, recording)
    done = {**recording, "id": f"{recording['id']}+", "body": _DONE[api], "status": 200, "content_type": None}
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": "found"} for call in message.get("tool_calls") or ()
    ]
    model = body.get("model") or "gpt-6"
    history = [{"role": "user", "content": "Hi"}, message, *results, {"role": "user", "content": "And?"}]
    await read("httpx", server.url(done), api, streamed=False, messages=history, model=model)
    sent = server.requests[done["id"]][-1]
    compare = {"chat": _message, "responses": _items, "messages": _blocks}[api]
    return compare(sent["input" if api == "responses" else "messages"], body, recording) + (
        [("request", "", reason, None)] if api == "messages" and (reason := fault(sent)) else []
    )


def _message(sent: list[Json], body: Json, recording: Json) -> list[Difference]:
    """Compare the messages of the assistant over Chat Completions."""
    ours = [message for message in sent if message["role"] == "assistant"]
    theirs = [each for each in body["messages"] if each["role"] == "assistant" and _is_from(each, recording["earlier"])]
    if not theirs:
        return []
    if not ours:
        return [("message", theirs[-1], None, None)]
    one, other = _flat(theirs[-1]), _flat(ours[0])
    wrong = [key for key, value in one.items() if key not in _FREE and not _same(value, other.get(key))]
    return [(f"message.{key}", one[key], other.get(key), _why(key, other, recording["earlier"])) for key in wrong]


def _is_from(message: Json, earlier: Json) -> bool:
    """Whether a message of a request is made from an answer: its call ids, or its text, are in the answer."""
    calls = [call["id"] for call in message.get("tool_calls") or ()]
    if calls:
        return all(f'"{each}"' in earlier["body"] for each in calls)
    text = _text(message.get("content"))
    return bool(text) and text[:12].split("\n")[0].split('"')[0] in earlier["body"]


def _flat(message: Json) -> Json:
    fields = {key: value for key, value in message.items() if value not in (None, [], "", False)}
    fields["content"] = _text(message.get("content"))
    fields["tool_calls"] = [
        (call["id"], call["function"]["name"], value_of(call["function"]["arguments"]))
        for call in message.get("tool_calls") or ()
        if "function" in call
    ]
    return fields


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content if part.get("type") in ("text", "output_text"))
    return content if isinstance(content, str) else ""


def _why(key: str, ours: Json, earlier: Json) -> str | None:
    """Return the reason of a difference: aswarm sends what the decoder has read, and the project another form of it."""
    answer = decode("chat", earlier["body"])
    calls = [(name, function, value_of(arguments) or {}) for name, function, arguments in answer.calls]
    kept = {
        "content": ours["content"] in (answer.text, ""),
        "tool_calls": [*map(tuple, ours["tool_calls"])] == calls,
        "reasoning_content": answer.reasoning in (ours.get("reasoning"), ours.get("reasoning_content")),
    }
    return OWN_FORM if kept.get(key) else None


def _items(sent: list[Json], body: Json, recording: Json) -> list[Difference]:
    """Compare the items of the answer over the Responses API, found by the ids of calls and items."""
    found: list[Difference] = []
    earlier = recording["earlier"]
    answer = decode("responses", earlier["body"])
    given = body["input"] if isinstance(body["input"], list) else []
    theirs = [each for each in given if each.get("type") not in (None, "function_call_output") and _names(each)]
    for item in theirs:
        if not all(f'"{name}"' in earlier["body"] for name in _names(item)):
            continue
        ours = [each for each in sent if _names(each) & _names(item) and each.get("type") == item.get("type")]
        if len(ours) != 1:
            found.append((f"item {item.get('type')}", item, ours, _why_missing(item, sent, answer)))
        else:
            wrong = [
                key for key, value in item.items() if key not in _FREE and value and not _same(value, ours[0].get(key))
            ]
            reason = OWN_FORM if ours[0] in answer.items else None
            found += [(f"{item['type']}.{key}", item[key], ours[0].get(key), reason) for key in wrong]
    return found


def _why_missing(item: Json, sent: list[Json], answer: Answer) -> str | None:
    """Return why an item is not sent. A server can read reasoning without encrypted content only if it has stored the answer."""
    if (
        item.get("execution") == "client"
    ):  # the request of this module does not offer the search, so its call is a plain one
        return "a search that the request does not offer"
    # Copilot gives an item another id in each event.
    if any(each in answer.items and each.get("type") == item["type"] for each in sent):
        return OWN_FORM
    reasoning = [each for each in answer.items if each["type"] == "reasoning"]
    if not reasoning or all(each.get("encrypted_content") or each.get("content") for each in reasoning):
        return None
    texts = [_text(each["content"]) for each in sent if each.get("role") == "assistant"]
    is_kept = item["type"] == "reasoning" or (item["type"] == "message" and _text(item["content"]) in texts)
    return "reasoning that only the server has" if is_kept else None


def _names(item: Json) -> set[str]:
    return {item[key] for key in ("id", "call_id", "encrypted_content") if isinstance(item.get(key), str) and item[key]}


def _same(one: Any, other: Any) -> bool:
    """Whether a value of the project's request is in ours. Empty values do not count."""
    if isinstance(one, dict) and isinstance(other, dict):
        return all(key in _FREE or not value or _same(value, other.get(key)) for key, value in one.items())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return one == other or (isinstance(one, str) and isinstance(other, str) and value_of(one) == value_of(other))


def _blocks(sent: list[Json], body: Json, recording: Json) -> list[Difference]:
    """Compare the blocks of the answer over the Messages API. Empty texts, marks for the cache and nulls do not count."""
    answer = decode("messages", recording["earlier"]["body"])
    expected = [*map(_bare, answer.items)]
    theirs = [_bare(b) for m in body["messages"] if m["role"] == "assistant" for b in blocks_of(m)]
    ours = [_bare(b) for m in sent if m["role"] == "assistant" for b in blocks_of(m)]
    common = [
        block for block in expected if block in theirs and not (block["type"] == "text" and not block["text"].strip())
    ]
    reason = "an edited fixture" if recording["id"] in EDITED else None
    found = [(f"block {block['type']}", block, ours, reason) for block in common if block not in ours]
    return found + [(f"block {block['type']}", None, block, reason) for block in ours if block not in expected]


def _bare(block: Json) -> Json:
    free = (None, {"type": "direct"})  # the caller of a call that is not made by code
    return {key: value for key, value in block.items() if value not in free and key != "cache_control"}
