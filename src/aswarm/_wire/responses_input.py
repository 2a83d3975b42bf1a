"""The history as input items of the Responses API.

Decides which items a message of Chat Completions becomes. Sans-IO. The history of a run only grows, so a request uses again
what the request before it has made of the same messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import is_
from typing import Any

from aswarm._errors import ConfigurationError
from aswarm._json import is_array, is_object, shown
from aswarm._messages import Message, text_of

from .responses_items import OUTPUT_ITEMS, Item, items_to_replay, objects_in

_LONGEST_CALL_ID = 64  # the API refuses a longer one
_SHOWN = 80
_ROLES = frozenset({"user", "assistant", "system", "developer"})
# Parts of an answer that may be left out: empty ones, and the reasoning of another provider.
_UNSENT_PARTS = frozenset({"text", "output_text", "refusal", "reasoning", "thinking", "redacted_thinking"})
_OUTPUTS = {"function_call": "function_call_output", "custom_tool_call": "custom_tool_call_output"}
_USE_CHAT = 'AsyncSwarm(api="chat")'


@dataclass(frozen=True, slots=True)
class InputHistory:
    """Messages, and the input items that they became. Never changed; it keeps the messages alive, whose identity it compares.

    `readable`: the keys by which the model reads earlier reasoning again. `outputs`: what a call says about the item of its
    answer, by the id of the call: the calls of the last message that has some.
    """

    readable: Sequence[str] = ()
    messages: Sequence[Message] = ()
    items: Sequence[Item] = ()
    outputs: Mapping[str, Item] = field(default_factory=dict[str, Item])

    def extended(self, messages: Sequence[Message]) -> InputHistory:
        """The items of these messages, of which the first are those of this history.

        Raises ConfigurationError for a message, or a part of one, that the API does not have.
        """
        items, outputs = list(self.items), self.outputs
        for message in messages[len(self.messages) :]:
            role, content = message["role"], message.get("content")
            if len(message) == 2 and content and isinstance(content, str) and role in _ROLES:  # noqa: PLR2004
                # Most messages of a long history.
                items.append(_assistant_item(content) if role == "assistant" else message)
            elif role == "assistant":
                replayed = items_to_replay(message, self.readable)
                items += _plain_items(message) if replayed is None else replayed
                if calls := message.get("tool_calls"):
                    outputs = _custom_outputs(calls) if replayed is None else _outputs_of(replayed)
            else:
                items.append(_item_of(message, outputs))
        return InputHistory(self.readable, messages, items, outputs)

    def begins(self, messages: Sequence[Message], readable: Sequence[str]) -> bool:
        """Whether these messages begin with the very objects of this history, for a model that reads the same."""
        is_shorter = len(self.messages) <= len(messages)
        return is_shorter and self.readable == readable and all(map(is_, self.messages, messages))


@dataclass(eq=False, slots=True)
class KnownHistory:
    """What is known of the messages of a run. They only grow and are never changed, so all requests of the run share this.

    `is_chat`: all messages have the form of Chat Completions. `input`: what the last request made of them for the Responses
    API, if it went there.
    """

    is_chat: bool
    input: InputHistory | None = None


def input_history(messages: Sequence[Message], readable: Sequence[str], known: InputHistory | None) -> InputHistory:
    """The input items of the messages. `known`: what an earlier request of the same run has made of its messages."""
    begun = known if known is not None and known.begins(messages, readable) else InputHistory(readable)
    return begun.extended(messages)


def _item_of(message: Message, outputs: Mapping[str, Item]) -> Item:
    """The item of a message that is not of the model."""
    role = message["role"]
    if role == "tool":
        call_id: str = message["tool_call_id"]
        item = {"type": "function_call_output", "call_id": _call_id(call_id), "output": _content(message["content"])}
        return {**item, **outputs[call_id]} if call_id in outputs else item
    if role == "function":
        raise ConfigurationError(
            "messages have one with the role 'function', which the Responses API does not have; use tool messages, "
            f"or {_USE_CHAT}"
        )
    return {"role": role, "content": _content(message["content"])}


def _custom_outputs(calls: Sequence[Message]) -> dict[str, Item]:
    return {call["id"]: {"type": "custom_tool_call_output"} for call in calls if "custom" in call}


def _outputs_of(items: Sequence[Item]) -> dict[str, Item]:
    """The answers to calls that go back as they came: the same id, and the program of the model that made the call."""
    calls = [(item.get("call_id") or item["id"], item) for item in items if item["type"] in _OUTPUTS]
    return {
        call_id: {"type": _OUTPUTS[item["type"]], "call_id": call_id, **_only_caller(item)} for call_id, item in calls
    }


def _only_caller(item: Item) -> Item:
    return {"caller": item["caller"]} if item.get("caller") else {}


def _assistant_item(text: str) -> Item:
    return {"type": "message", "role": "assistant", "content": text}  # llama.cpp knows it by its type alone


def _plain_items(message: Message) -> Iterator[Item]:
    """The items of a message that came over another API, or was edited."""
    audio: Any = message.get("audio")
    content: Any = message.get("content")
    written = text_of(content) or message.get("refusal") or _refusal_of(content)
    text = written or (audio.get("transcript") if is_object(audio) else None)
    calls: list[Message] = message.get("tool_calls") or []
    if not (text or calls) and (lost := _lost(message)):
        raise ConfigurationError(
            f"messages have one of the assistant with nothing but {lost[0]!r}, which the Responses API does not have; leave "
            f"the message out, or use {_USE_CHAT}"
        )
    if text:
        yield _assistant_item(text)
    namespaces = _namespaces(message.get(OUTPUT_ITEMS)) if calls else {}
    for call in calls:
        yield {**_call_item(call), **namespaces.get(call["id"], {})}


def _refusal_of(content: Any) -> str:
    refusals = [part.get("refusal") for part in objects_in(content) if part.get("type") == "refusal"]
    return "".join(filter(None, refusals))


def _lost(message: Message) -> list[str]:
    """What of a message of the assistant has no item."""
    kinds = [str(part.get("type")) for part in objects_in(message.get("content"))]
    return [
        *(key for key in ("audio", "function_call") if message.get(key)),
        *(kind for kind in kinds if kind not in _UNSENT_PARTS),
    ]


def _namespaces(items: Any) -> dict[Any, Item]:
    """The namespaces of calls by their ids. The API refuses a call of a function that it finds only in a namespace."""
    known = [item for item in objects_in(items) if item.get("namespace")]
    return {item.get("call_id"): {"namespace": item["namespace"]} for item in known}


def _call_item(call: Message) -> Item:
    kind, payload = ("custom_tool_call", "input") if "custom" in call else ("function_call", "arguments")
    named = call.get("custom") or call.get("function")
    if not is_object(named):
        raise ConfigurationError(
            f"messages have a tool call of a type that the Responses API does not have: {shown(call, _SHOWN)}; leave the "
            f"call out, or use {_USE_CHAT}"
        )
    fields = {key: named.get(key) or "" for key in ("name", payload)}
    return {"type": kind, "call_id": _call_id(call["id"]), **fields}


def _call_id(call_id: str) -> str:
    # Ids of other providers may be longer. Both sides of a pair are cut in the same way.
    return call_id[-_LONGEST_CALL_ID:]


# --- parts of a message -----------------------------------------------------------------------------------------------


def _content(content: Any) -> Any:
    return [_part(part) for part in content] if is_array(content) else content


def _part(part: Mapping[str, Any]) -> Mapping[str, Any]:
    kind = str(part.get("type"))
    if kind.startswith("input_") and kind != "input_audio":
        return part
    if kind not in _PARTS:
        raise ConfigurationError(
            f"messages have a content part that the Responses API does not have: {shown(part, _SHOWN)}; it has text, "
            f"image_url and file. Remove the part, or use {_USE_CHAT}"
        )
    make, types = _PARTS[kind]
    value = part.get(kind)
    if not isinstance(value, types):
        raise ConfigurationError(
            f"messages have a content part of the type {kind!r} whose {kind!r} is missing or wrong: {shown(part, _SHOWN)}; "
            f"expected {' or '.join('an object' if each is Mapping else 'a str' for each in types)}"
        )
    rest = {key: value for key, value in part.items() if key not in ("type", kind)}
    return {**make(value), **rest}


def _image(image: Any) -> dict[str, Any]:
    image = image if is_object(image) else {"url": image}
    return {"type": "input_image", "image_url": image.get("url"), "detail": image.get("detail") or "auto"}


def _file(file: Mapping[str, Any]) -> dict[str, Any]:
    data = file.get("file_data")
    is_url = isinstance(data, str) and data.startswith(("https:", "http:"))
    return {"type": "input_file", **({"file_url": data} if is_url else file)}


def _text(text: str) -> dict[str, Any]:
    return {"type": "input_text", "text": text}


_PARTS: Mapping[str, tuple[Callable[[Any], dict[str, Any]], tuple[type, ...]]] = {
    "text": (_text, (str,)),
    "image_url": (_image, (str, Mapping)),
    "file": (_file, (Mapping,)),
}
