"""What a scripted model says, over whichever API it is asked: texts, tool calls, and how a stream cuts them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal, TypeAlias

Cut: TypeAlias = int | Callable[[str], Sequence[str]] | None
CallKind: TypeAlias = Literal["function", "custom"]
_ids = count(1)


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """One tool call of a scripted answer, as `call` makes it. `arguments` is the JSON text that the model writes.

    `kind="custom"`: a call of a custom tool, whose input is any text: `ScriptedCall("shell", "ls", "c1", kind="custom")`.
    """

    name: str
    arguments: str
    id: str
    kind: CallKind = "function"

    @property
    def payload(self) -> str:
        """The key under which APIs have the arguments: "arguments", or "input" of a custom tool."""
        return "arguments" if self.kind == "function" else "input"


def call(name: str, /, arguments: str | None = None, *, call_id: str | None = None, **named: Any) -> ScriptedCall:
    """A tool call with arguments given by name, or as raw text in `arguments` (which need not be JSON).

    `call_id`: by default "call_1", "call_2", ... in this process.
    """
    text = json.dumps(named, ensure_ascii=False) if arguments is None else arguments
    return ScriptedCall(name, text, call_id or f"call_{next(_ids)}")


@dataclass(frozen=True, slots=True)
class Answer:
    """One scripted completion.

    `text` and `calls`: what the message has. `extra`: further keys of the message, such as `{"reasoning_content": "..."}`.
    The Responses API has that one, "refusal", and "responses_output": items such as those of hosted tools, which stand
    before the text. `finish_reason`: None for the one that the API would send. `usage`: what the server reports; None
    reports nothing. `delay` and `pause`: seconds before the first byte, and before every chunk. `break_after`: how many
    chunks or events are sent before the connection breaks (a whole answer breaks too).
    """

    text: str | None = None
    calls: Sequence[ScriptedCall] = ()
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    finish_reason: str | None = None
    usage: Mapping[str, Any] | None = field(
        default_factory=lambda: {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    )
    delay: float = 0
    pause: float = 0
    break_after: int | None = None

    @property
    def message(self) -> dict[str, Any]:
        """The assistant message on the wire."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text, **self.extra}
        if self.calls:
            message["tool_calls"] = [wire_call(each) for each in self.calls]
        return message

    @property
    def finish(self) -> str:
        """The given finish reason, or the one that the API would send."""
        return self.finish_reason or ("tool_calls" if self.calls else "stop")


def wire_call(scripted: ScriptedCall) -> dict[str, Any]:
    """The call as an assistant message of Chat Completions has it."""
    named = {"name": scripted.name, scripted.payload: scripted.arguments}
    return {"id": scripted.id, "type": scripted.kind, scripted.kind: named}


def pieces(text: str, cut: Cut) -> Sequence[str]:
    """The text as a stream cuts it."""
    if callable(cut):
        return cut(text)
    size = cut or len(text) or 1
    return [text[start : start + size] for start in range(0, len(text), size)]
