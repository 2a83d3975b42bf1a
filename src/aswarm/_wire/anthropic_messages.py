"""Messages for the Messages API, from a history in wire form: roles, content parts, calls and their results.

All messages between two assistant messages become one turn of the user, with the results first. The history of a run only grows,
so a request reuses the messages of the previous request up to its last assistant message.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from operator import is_
from typing import Any, NamedTuple

from aswarm._values.errors import ConfigurationError
from aswarm._values.json import is_array, is_object, shown
from aswarm._values.messages import INSTRUCTING, Message
from aswarm._values.wire_messages import ORIGIN

from .anthropic_blocks import ALONE, CALL, REFUSED, Block, blocks_to_replay, digest, plain_blocks, with_valid_thinking

CONTINUE = "Continue."
_NOT_IN_IDS = re.compile(r"[^a-zA-Z0-9_-]")
_LONGEST_ID = 64
_DATA_URL = re.compile(r"data:([^;,]*)[^,]*;base64,(.*)", re.DOTALL)
_TEXTUAL = ("application/json", "application/xml", "application/yaml", "application/x-yaml", "application/javascript")
_OWN_PARTS = frozenset({"container_upload", "document", "image", "search_result", "tool_reference"})
_SHOWN = 80


class Way(NamedTuple):
    """How the messages of a request are made.

    `model`: the name of the model. `thinks_from`: the position of the first message whose thinking is sent back. `has_roles`: whether messages in the
    conversation may have the role `system`. `continues_text`: whether the model continues a text of the assistant at the end.
    """

    model: str
    thinks_from: int
    has_roles: bool
    continues_text: bool


@dataclass(slots=True, eq=False)
class SentTurns:
    """Messages up to an assistant message, and the messages of the API that were made from them.

    `start`, `prefix`: the digests of the request before the messages, and up to here. `ids`: the ids of all calls. `open`: the ids
    of the calls of the last message, as they are in the history and as they are sent.
    """

    way: Way
    start: str
    prefix: str
    messages: Sequence[Message] = ()
    sent: list[Block] = field(default_factory=list[Block])
    ids: set[str] = field(default_factory=set[str])
    open: list[tuple[Any, str]] = field(default_factory=list[tuple[Any, str]])

    def is_start_of(self, messages: Sequence[Message], way: Way, start: str) -> bool:
        """Return whether these messages start with the same objects as these turns, and are sent in the same way."""
        is_shorter = len(self.messages) <= len(messages)
        return is_shorter and (self.way, self.start) == (way, start) and all(map(is_, self.messages, messages))

    def extended(self, messages: Sequence[Message]) -> tuple[SentTurns, SentTurns]:
        """Return the turns up to the last assistant message, and all turns, which end with a message of the user.

        These turns do not change. Raises ConfigurationError for a message or a part that the API does not have.
        """
        turns, start, asked = self._copy(), len(self.messages), list[Message]()
        for at in range(start, len(messages)):
            if messages[at]["role"] != "assistant":
                asked.append(messages[at])
            elif turns._answer(asked, messages[at], may_think=at >= self.way.thinks_from):
                start, asked = at + 1, []
        turns.messages = messages[:start]
        ended = turns._copy()
        ended._ask(asked)
        ended._end()
        return turns, ended

    def _copy(self) -> SentTurns:
        return replace(self, sent=self.sent.copy(), ids=self.ids.copy(), open=self.open.copy())

    def _ask(self, messages: Sequence[Message]) -> None:
        """Add the messages between two assistant messages."""
        results, content, late = list[Block](), list[Block](), list[Block]()
        order = {sent: position for position, (_, sent) in enumerate(self.open)}
        for message in messages:
            match message["role"]:
                case "tool":
                    results.append(_result(message, self.open))
                case "user":
                    content += blocks_of(message.get("content"))
                case role if role in INSTRUCTING:
                    for block in blocks_of(message.get("content")):
                        (late if block["type"] == "text" else content).append(block)
                case role:
                    raise ConfigurationError(
                        f"a message has the role {role!r}, which the Messages API does not have; use tool messages"
                    )
        results.sort(key=lambda result: order.get(result["tool_use_id"], len(order)))
        asked = [*results, *content]
        if late and not (asked and self.way.has_roles):
            asked += [{**block, "text": f"<system>\n{block['text']}\n</system>"} for block in late]
            late = []
        self._add("user", asked)
        self._add("system", late)

    def _answer(self, before: Sequence[Message], message: Message, *, may_think: bool) -> bool:
        """Add an assistant message after the messages before it. If it has nothing to send, add nothing and return False."""
        size, prefix, given = len(self.sent), self.prefix, self.open.copy()
        self._ask(before)
        if not self.way.continues_text:
            self._end()
        blocks = self._replayed(message, may_think)
        if blocks is None:
            blocks = [*map(self._with_new_id, plain_blocks(message))]
        if not blocks:
            del self.sent[size:]
            self.prefix, self.open = prefix, given
            return False
        calls = [block["id"] for block in blocks if block["type"] == CALL]
        self.ids.update(calls)
        self.open = [*zip((call["id"] for call in message.get("tool_calls") or ()), calls, strict=True)]
        self._add("assistant", blocks)
        return True

    def _replayed(self, message: Message, may_think: bool) -> list[Block] | None:
        """Return the blocks of the message that are sent back; None if it has none, or if one of its ids is not new."""
        blocks = blocks_to_replay(message)
        if blocks is None or not self.ids.isdisjoint(block["id"] for block in blocks if block["type"] == CALL):
            return None
        return with_valid_thinking(blocks, message.get(ORIGIN) if may_think else REFUSED, self.way.model, self.prefix)

    def _with_new_id(self, block: Block) -> Block:
        if block["type"] != CALL:
            return block
        new = _id_of(block["id"], self.ids)
        self.ids.add(new)
        return {**block, "id": new}

    def _add(self, role: str, blocks: Sequence[Block]) -> None:
        if blocks:
            self.sent.append({"role": role, "content": blocks})
            self.prefix = digest(self.prefix, self.sent[-1:])

    def _end(self) -> None:
        """Add a turn of the user after an assistant message, for a model that does not continue a text."""
        last = self.sent[-1] if self.sent else None
        if last is None or last["role"] == "assistant":
            if last is not None and self.way.continues_text and last["content"][-1]["type"] == "text":
                *blocks, text = last["content"]
                # The API refuses white space at the end of such a text.
                self.sent[-1] = {**last, "content": [*blocks, {**text, "text": text["text"].rstrip()}]}
            else:
                self._add("user", [{"type": "text", "text": CONTINUE}])


def start_of_thinking(messages: Sequence[Message]) -> int:
    """Return the position of the last message that was made without the thinking before it, because the API had refused it."""
    origins = ((at, messages[at].get(ORIGIN)) for at in range(len(messages) - 1, 0, -1))
    return next((at for at, origin in origins if is_object(origin) and origin.get(ALONE)), 0)


def container_of_turn(messages: Sequence[Message]) -> str | None:
    """Return the id of the container whose code may wait for the results at the end of the messages; None if there is none.

    The API demands it then. It is not sent in a later turn, because a container expires.
    """
    has_results = has_answer = False
    for message in reversed(messages):
        match message["role"]:
            case "tool":
                has_results = True
            case "assistant" if not has_results:
                return None
            case "assistant":
                has_answer = True
                origin = message.get(ORIGIN)
                if is_object(origin) and isinstance(container := origin.get("container"), str):
                    return container
            case "user" if has_answer:
                return None
            case _:
                pass
    return None


def split_system(messages: Sequence[Message]) -> tuple[list[Block], Sequence[Message]]:
    """Return the blocks of the system prompt, which are the first messages of the developer, and the other messages."""
    end = next((at for at, message in enumerate(messages) if message["role"] not in INSTRUCTING), len(messages))
    return [block for message in messages[:end] for block in blocks_of(message.get("content"))], messages[end:]


# --- calls and their results ------------------------------------------------------------------------------------------


def _id_of(call_id: Any, used: set[str]) -> str:
    """Return the id of a call as the API accepts it, and different from all used ids."""
    name = _NOT_IN_IDS.sub("_", str(call_id))[-_LONGEST_ID:] or "call"
    if name == call_id and name not in used:
        return name
    names = (f"{name[-_LONGEST_ID + 8 :]}_{number}" for number in count(len(used) + 1))
    return next(new for new in names if new not in used)


def _result(message: Message, ids: list[tuple[Any, str]]) -> Block:
    """Return the result of a call. Remove the call from `ids`, because a message may have equal ids."""
    call_id = message["tool_call_id"]
    at = next((at for at, (given, _) in enumerate(ids) if given == call_id), None)
    result = {"type": "tool_result", "tool_use_id": _id_of(call_id, set()) if at is None else ids.pop(at)[1]}
    content = message.get("content")
    blocks = content if isinstance(content, str) and content.strip() else blocks_of(content)
    return {**result, "content": blocks} if blocks else result


# --- parts of a message -----------------------------------------------------------------------------------------------


def blocks_of(content: Any) -> list[Block]:
    """Return the content of a message as blocks, without empty texts."""
    parts: Sequence[Any] = content if is_array(content) else [{"type": "text", "text": content or ""}]
    return [block for block in map(_block, parts) if block.get("type") != "text" or block["text"].strip()]


def _block(part: Any) -> Block:
    kind = str(part.get("type")) if is_object(part) else None
    if kind in _OWN_PARTS:
        return {**part}
    if kind not in _PARTS:
        raise ConfigurationError(
            f"a message has a content part that the Messages API does not have: {shown(part, _SHOWN)}; it has text, image_url "
            "and file, and its own types. Remove the part"
        )
    make, keys = _PARTS[kind]
    rest = {key: value for key, value in part.items() if key not in ("type", *keys)}
    try:
        return {**make(part), **rest}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"a message has a content part that cannot be sent to the Messages API: {shown(part, _SHOWN)}; {error}"
        ) from error


def _text(part: Mapping[str, Any]) -> Block:
    text = part.get("text") or part.get("refusal") or ""
    if not isinstance(text, str):
        raise TypeError("its text must be a str")
    return {"type": "text", "text": text}


def _image(part: Mapping[str, Any]) -> Block:
    image = part["image_url"]
    url = image["url"] if is_object(image) else image
    kind, data = _decoded(url)
    source = {"type": "url", "url": url} if kind is None else {"type": "base64", "media_type": kind, "data": data}
    return {"type": "image", "source": source}


def _file(part: Mapping[str, Any]) -> Block:
    file = part["file"] if part["type"] == "file" else part
    title = {"title": file["filename"]} if file.get("filename") else {}
    if file_id := file.get("file_id"):
        return {"type": "document", "source": {"type": "file", "file_id": file_id}, **title}
    url = file.get("file_data") or file["file_url"]
    return {"type": "document", "source": _document(url, *_decoded(url)), **title}


def _document(url: str, kind: str | None, data: str) -> Block:
    if kind is None:
        return {"type": "url", "url": url}
    if kind.startswith("text/") or kind in _TEXTUAL:
        text = b64decode(data).decode()
        return {"type": "text", "media_type": "text/plain", "data": text}
    if kind != "application/pdf":
        raise ValueError(f"the API has files of text and PDFs, not {kind!r}")
    return {"type": "base64", "media_type": kind, "data": data}


def _decoded(url: str) -> tuple[str | None, str]:
    """Return the media type and the base64 text of a data URL. The type is None for the address of a file."""
    if (match := _DATA_URL.match(url)) is None:
        if not url.startswith(("https:", "http:")):
            raise ValueError('it must be an address that starts with "https:", or "data:...;base64,..."')
        return None, ""
    return match[1].replace("image/jpg", "image/jpeg"), match[2]


# By type: the function that makes the block, and the keys that it reads.
_PARTS: Mapping[str | None, tuple[Callable[[Mapping[str, Any]], Block], Sequence[str]]] = {
    **dict.fromkeys(("text", "input_text", "output_text"), (_text, ("text",))),
    "refusal": (_text, ("refusal",)),
    **dict.fromkeys(("image_url", "input_image"), (_image, ("image_url", "detail"))),
    **dict.fromkeys(
        ("file", "input_file"), (_file, ("file", "filename", "file_data", "file_id", "file_url", "detail"))
    ),
}
