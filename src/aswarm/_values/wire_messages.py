"""The wire form of a history, in which it is sent, and the keys of messages that are sent back to the provider.

Providers add keys to their answers that are no part of a request. Mistral, Groq and others reject unknown keys; each key also
costs input tokens, or changes the prefix of the prompt cache. But DeepSeek, Gemini and Anthropic reject a history without the
reasoning and the signatures that they sent. So an answer goes back with the fields of the API, and with the keys that carry what
the model thought and signed; their names say so. Any other key of an answer is recorded and shown, and never sent.

A message without `sender` was written by the caller. Its keys are the caller's choice, for example the `prefix` of Mistral.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import groupby
from typing import Any

from pydantic_core import from_json

from .json import is_array, is_object
from .messages import (
    OUTCOME_UNKNOWN,
    SENT_INPUT,
    WAITING,
    Message,
    is_text_message,
    match_answers,
    message_blocks,
    settled,
    started_inside,
)
from .text import whole_escapes

# Keys that providers and SDKs add to answers: citations, padding, the channel and the hosted tools of Groq, the form of a parsed
# answer, the routing of a gateway. They are never sent, also if the caller has added the answer of an SDK to the history.
ANSWER_KEYS = frozenset(
    {"annotations", "channel", "executed_tools", "padding"}
    | {"parsed", "parsed_arguments", "provider_metadata", "token_id"}
)
_OWN_KEYS = frozenset({"sender", "tool_name", WAITING, SENT_INPUT})
_NEVER_SENT = _OWN_KEYS | ANSWER_KEYS
_PLAIN_CALL, _PLAIN_FUNCTION = {"id", "type", "function"}, {"name", "arguments"}  # most calls have only these keys
# An assistant message is sent only if it has one of these keys, because Mistral rejects an empty message.
_SUBSTANCE = ("tool_calls", "content", "refusal", "audio", "function_call", "responses_output", "anthropic_output")
# The fields of the API: of an assistant message, and of its calls and their functions.
FIELDS = frozenset(
    {"role", "content", "refusal", "tool_calls", "function_call", "audio"}
    | {"responses_output", "anthropic_output", "anthropic_origin"}
)
CALL_FIELDS = frozenset({"id", "type", "function", "custom", "name", "arguments", "input"})
_OF_MODEL = ("reasoning", "thinking", "thought", "signature", "encrypted", "opaque")
# `extra_content` (Gemini) and `provider_specific_fields` (LiteLLM) contain signatures. `images` (OpenRouter) are content.
_CARRIERS = frozenset({"extra_content", "images", "provider_specific_fields"})


def has_substance(message: Mapping[str, Any]) -> bool:
    """Return whether an assistant message has calls or content. Other assistant messages are not sent."""
    return any(map(message.get, _SUBSTANCE))


@lru_cache(maxsize=1000)  # the keys come from servers
def is_of_model(key: str) -> bool:
    """Return whether this key of an answer carries what the model thought or signed."""
    name = key.lower()
    return key in _CARRIERS or any(word in name for word in _OF_MODEL)


def to_wire(messages: Sequence[Message], *, empty_content: str | None = None) -> list[Message]:
    """Return the history in the wire form: without aswarm's keys and nulls, and with one answer for every call, in order.

    A call without an answer gets the answer that it was interrupted. A tool message without its call is removed. An assistant
    message with neither text nor calls is removed too. Reasoning and signatures of the provider stay, because DeepSeek and
    Gemini reject a history without them; its other keys are removed from an answer; see `is_of_model`.

    `empty_content`: the content of an assistant message that has only calls: None (null, as OpenAI documents it) or "".
    """
    sent: list[Message] = []
    for is_text, group in groupby(messages, lambda message: is_text_message(message) and message["content"] != ""):
        if is_text:
            sent += [{"role": message["role"], "content": message["content"]} for message in group]
        else:
            sent += wire_blocks(list(group), empty_content)
    return sent


def wire_blocks(messages: Sequence[Message], empty_content: str | None) -> Iterator[Message]:
    """Yield the messages of `to_wire`. For a few messages, this is faster than `to_wire`, which searches for plain messages."""
    marks: dict[int, list[Message]] = {}
    for head, answers in message_blocks(messages, marks):
        if head.get("role") == "assistant":
            yield from _wire_assistant(head, answers, empty_content, marks.get(id(head), ()))
        elif head:
            yield _clean(head)


def _wire_assistant(
    head: Message, answers: list[Message], empty_content: str | None, behind: Iterable[Message]
) -> Iterator[Message]:
    calls: list[Message] = head.get("tool_calls") or []
    is_answer = "sender" in head
    message = _clean_answer(head) if is_answer else _clean(head)
    if calls:
        message["tool_calls"] = [*map(_clean_answer_call if is_answer else _clean_own_call, calls)]
        message["content"] = message.get("content") or empty_content
        yield message
    elif has_substance(message):
        yield message
    matched = match_answers(calls, answers)
    if None in matched:
        matched = settled(calls, matched, dict.fromkeys(started_inside(head, behind), OUTCOME_UNKNOWN))
    for answer in filter(None, matched):
        yield {"content": "", **_clean(answer)}


def _clean(message: Message) -> Message:
    return {
        key: value
        for key, value in message.items()
        # OpenAI rejects an empty list of tool calls (openai-node#1341). No server needs an empty list in another key.
        if key not in _NEVER_SENT and value is not None and (value != [] or key == "content")
    }


def _clean_answer(message: Message) -> Message:
    return {
        key: value
        for key, value in message.items()
        if value is not None and (key in FIELDS or is_of_model(key)) and (value != [] or key == "content")
    }


def _clean_call(call: Message, *, is_answer: bool) -> Message:
    function = call.get("function")
    is_plain = call.keys() == _PLAIN_CALL and function and function.keys() == _PLAIN_FUNCTION
    cleaned = {**call} if is_plain else _clean_fields(call, is_answer=is_answer)
    if function is not None and not is_json_object(text := function.get("arguments")):
        whole = whole_escapes(text) if isinstance(text, str) else ""
        cleaned["function"] = {**cleaned["function"], "arguments": whole if is_json_object(whole) else "{}"}
    return cleaned


_clean_answer_call, _clean_own_call = partial(_clean_call, is_answer=True), partial(_clean_call, is_answer=False)


def _clean_fields(fields: Mapping[str, Any], *, is_answer: bool) -> Message:
    """Return the fields of a call, or of its function, that are sent."""
    return {
        key: _clean_fields(value, is_answer=is_answer) if key in ("function", "custom") and is_object(value) else value
        for key, value in fields.items()
        if value is not None and (key in CALL_FIELDS or (is_of_model(key) if is_answer else key not in ANSWER_KEYS))
    }


def is_json_object(text: object) -> bool:
    """Return whether this is the text of a JSON object. The arguments of a call must be such a text."""
    # vLLM, Ollama and llama.cpp parse the arguments of every earlier call, and reject the whole history if one text is
    # incomplete. So `_clean_call` sends "{}" instead. The model can read the incomplete text in the answer to the call.
    try:
        return isinstance(text, str) and isinstance(from_json(text, allow_inf_nan=False), dict)
    except ValueError:
        return False


# --- output items of the Responses API, and blocks of Claude ------------------------------------------------------------

# The key of an assistant message for its output items, unchanged and in order. Only the provider that sent an item can read it.
OUTPUT_ITEMS = "responses_output"
# The keys for the blocks of an answer of Claude, and for its origin: the model, and a digest of the request.
BLOCKS, ORIGIN = "anthropic_output", "anthropic_origin"
# All keys of a message that only one API has. Its other keys have the same content, as far as the other APIs have it.
ITEM_KEYS = frozenset({OUTPUT_ITEMS, BLOCKS, ORIGIN})
_READABLE = "reasoning_content"  # servers of Chat Completions reject unknown keys


def without_items(messages: Sequence[Message], keys: frozenset[str] = ITEM_KEYS) -> list[Message]:
    """Return the messages without output items of the Responses API, and without blocks of Claude.

    A message that has only items, for example an image that the provider generated, is removed. `keys`: the keys to remove.
    """
    stripped = (_without_items(message, keys) for message in messages)
    return [message for message in stripped if message]


def _without_items(message: Message, keys: frozenset[str]) -> Message:
    if keys.isdisjoint(message):
        return message
    rest = {key: value for key, value in message.items() if key not in keys and key != _READABLE}
    return rest if any(value for key, value in rest.items() if key != "role") else {}


def chunk_without_items(chunk: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the chunk of a completion without output items of the Responses API."""
    choices = chunk.get("choices")
    return {**chunk, "choices": [*map(_choice_without_items, choices)]} if is_array(choices) else chunk


def _choice_without_items(choice: Any) -> Any:
    for key in ("message", "delta"):
        wire = choice.get(key) if is_object(choice) else None
        if is_object(wire) and OUTPUT_ITEMS in wire:
            rest = {name: value for name, value in wire.items() if name not in (OUTPUT_ITEMS, _READABLE)}
            return {**choice, key: rest}
    return choice
