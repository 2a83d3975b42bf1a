"""Readers of the wires that fail where real clients fail; each case was observed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from aswarm.runs import Entry
from tests.support.runs.run_logs import Scene, logged_now

Json = dict[str, Any]


def log_of(*script: Any, **options: Any) -> list[Entry]:
    """Return the log of the last run of a scene."""
    return logged_now(Scene(script, cut=None, **options)).logs[-1]


def data_of(frames: Iterable[bytes]) -> list[str]:
    """Return the data of server-sent events. A frame has one line of data, may have an id, and its lines end with LF only."""
    found = []
    for frame in frames:
        assert frame.endswith(b"\n\n")
        assert b"\r" not in frame
        lines = frame[:-2].decode().split("\n")
        names = [line.partition(": ")[0] for line in lines]
        assert names in (["data"], ["id", "data"])
        found.append(lines[-1].removeprefix("data: "))
    return found


def joined(log: Sequence[Entry]) -> list[Entry]:
    """Return the log for a later reader: consecutive pieces of one text, or of the arguments of one call, are one entry."""
    found: list[Entry] = []
    for entry in log:
        last = found[-1] if found else entry
        key = "arguments" if entry.type == "ToolCallDelta" else "text"
        is_more = last is not entry and entry.type == last.type and key in entry.fields
        if is_more and key == "arguments":
            new = entry.fields["id"] is not None or entry.fields["name"] is not None
            is_more = not new and entry.fields["index"] == last.fields["index"]
        if not is_more:
            found.append(entry)
            continue
        whole = (last.fields[key] or "") + (entry.fields[key] or "")
        first = last.seq if last.first is None else last.first
        found[-1] = Entry(entry.seq, last.at_ms, last.type, {**last.fields, key: whole}, first)
    return found


def _no_nulls(value: Json, place: str) -> None:
    for key, each in value.items():
        assert each is not None, f"{place}.{key} is null"


# --- AG-UI ------------------------------------------------------------------------------------------------------------

_NEEDED: dict[str, tuple[str, ...]] = {
    "RUN_STARTED": ("threadId", "runId"),
    "RUN_FINISHED": ("threadId", "runId"),
    "RUN_ERROR": ("message",),
    "STEP_STARTED": ("stepName",),
    "STEP_FINISHED": ("stepName",),
    "TEXT_MESSAGE_START": ("messageId",),
    "TEXT_MESSAGE_CONTENT": ("messageId", "delta"),
    "TEXT_MESSAGE_END": ("messageId",),
    "REASONING_START": ("messageId",),
    "REASONING_MESSAGE_START": ("messageId", "role"),
    "REASONING_MESSAGE_CONTENT": ("messageId", "delta"),
    "REASONING_MESSAGE_END": ("messageId",),
    "REASONING_END": ("messageId",),
    "TOOL_CALL_START": ("toolCallId", "toolCallName"),
    "TOOL_CALL_ARGS": ("toolCallId", "delta"),
    "TOOL_CALL_END": ("toolCallId",),
    "TOOL_CALL_RESULT": ("messageId", "toolCallId", "content"),
    "STATE_SNAPSHOT": ("snapshot",),
    "STATE_DELTA": ("delta",),
    "CUSTOM": ("name", "value"),
}
_OPENS = {
    "STEP_STARTED": ("step", "stepName"),
    "TEXT_MESSAGE_START": ("text", "messageId"),
    "REASONING_START": ("reasoning", "messageId"),
    "REASONING_MESSAGE_START": ("reasoning message", "messageId"),
    "TOOL_CALL_START": ("call", "toolCallId"),
}
_NEEDS_OPEN = {
    "STEP_FINISHED": ("step", "stepName", True),
    "TEXT_MESSAGE_CONTENT": ("text", "messageId", False),
    "TEXT_MESSAGE_END": ("text", "messageId", True),
    "REASONING_MESSAGE_CONTENT": ("reasoning message", "messageId", False),
    "REASONING_MESSAGE_END": ("reasoning message", "messageId", True),
    "REASONING_END": ("reasoning", "messageId", True),
    "TOOL_CALL_ARGS": ("call", "toolCallId", False),
    "TOOL_CALL_END": ("call", "toolCallId", True),
}


class AguiReader:
    """A reader of the events of one run, like `HttpAgent`. `calls`, `results`, `texts`: the data so far, by id."""

    def __init__(self, known_calls: Iterable[str] = ()) -> None:
        self.known_calls = set(known_calls)
        self.opened: set[tuple[str, str]] = set()
        self.begun: set[tuple[str, str]] = set()
        self.state: Any = {}
        self.texts: dict[str, str] = {}
        self.arguments: dict[str, str] = {}
        self.results: dict[str, str] = {}
        self.message_ids: set[str] = set()
        self.last: Json | None = None
        self.events: list[Json] = []

    def read(self, frames: Iterable[bytes]) -> None:
        for text in data_of(frames):
            self.event(json.loads(text))

    def event(self, event: Json) -> None:
        kind = event["type"]
        assert self.last is None, f"{kind} after the end"
        assert self.events or kind in ("RUN_STARTED", "RUN_ERROR")
        assert kind != "RUN_STARTED" or not self.events
        self.events.append(event)
        _no_nulls(event, kind)
        assert {"type", "timestamp", *_NEEDED[kind]} <= event.keys()
        assert event.get("delta") != "", f"an empty {kind}"
        if kind in _OPENS:
            name, key = _OPENS[kind]
            assert (name, event[key]) not in self.begun or name == "step", f"{event[key]} begins twice"
            self.begun.add((name, event[key]))
            self.opened.add((name, event[key]))
        if kind in _NEEDS_OPEN:
            name, key, closes = _NEEDS_OPEN[kind]
            assert (name, event[key]) in self.opened, f"{kind} without its start"
            if closes:
                self.opened.remove((name, event[key]))
        getattr(self, f"_{kind.lower()}", lambda _: None)(event)

    def _text_message_start(self, event: Json) -> None:
        self._new_message(event["messageId"])
        self.texts[event["messageId"]] = ""

    def _text_message_content(self, event: Json) -> None:
        self.texts[event["messageId"]] += event["delta"]

    def _tool_call_start(self, event: Json) -> None:
        parent = event.get("parentMessageId")
        assert parent is None or parent in self.message_ids
        assert (parent is None) is (event["toolCallId"] in self.known_calls)
        self.arguments[event["toolCallId"]] = ""

    def _tool_call_args(self, event: Json) -> None:
        assert event["toolCallId"] not in self.known_calls, "the client has the arguments of a call of an earlier run"
        self.arguments[event["toolCallId"]] += event["delta"]

    def _tool_call_result(self, event: Json) -> None:
        assert event["toolCallId"] in self.arguments, "a result of an unknown call"
        assert ("call", event["toolCallId"]) not in self.opened
        assert event["toolCallId"] not in self.results, "two results of one call"
        self._new_message(event["messageId"])
        self.results[event["toolCallId"]] = event["content"]

    def _new_message(self, message_id: str) -> None:
        assert message_id not in self.message_ids, f"the message id {message_id} twice"
        self.message_ids.add(message_id)

    def _state_snapshot(self, event: Json) -> None:
        self.state = dict(event["snapshot"])

    def _state_delta(self, event: Json) -> None:
        for operation in event["delta"]:
            key = operation["path"].removeprefix("/").replace("~1", "/").replace("~0", "~")
            if operation["op"] == "remove":
                del self.state[key]
            else:
                assert operation["op"] == "add"
                self.state[key] = operation["value"]

    def _run_finished(self, event: Json) -> None:
        assert not self.opened, f"open at the end: {self.opened}"
        started = self.events[0]
        assert (started["threadId"], started["runId"]) == (event["threadId"], event["runId"])
        outcome = event.get("outcome")
        assert outcome is None or outcome["type"] in ("success", "interrupt", "cancelled")
        for each in (outcome or {}).get("interrupts", ()):
            _no_nulls(each, "interrupt")
            assert {"id", "reason"} <= each.keys()
        for each in (outcome or {}).get("pendingToolCallIds", ()):
            assert each not in self.results
        self.last = event

    def _run_error(self, event: Json) -> None:
        assert not self.opened, f"open at the end: {self.opened}"
        self.last = event


# --- Vercel -----------------------------------------------------------------------------------------------------------

_PARTS: dict[str, tuple[set[str], set[str]]] = {  # the required keys of a part, and the allowed ones
    "start": (set(), {"messageId", "messageMetadata"}),
    "start-step": (set(), set()),
    "finish-step": (set(), set()),
    "text-start": ({"id"}, set()),
    "text-delta": ({"id", "delta"}, set()),
    "text-end": ({"id"}, set()),
    "reasoning-start": ({"id"}, set()),
    "reasoning-delta": ({"id", "delta"}, set()),
    "reasoning-end": ({"id"}, set()),
    "tool-input-start": ({"toolCallId", "toolName"}, {"dynamic", "providerExecuted"}),
    "tool-input-delta": ({"toolCallId", "inputTextDelta"}, set()),
    "tool-input-available": ({"toolCallId", "toolName", "input"}, {"dynamic", "providerExecuted"}),
    "tool-input-error": ({"toolCallId", "toolName", "input", "errorText"}, {"dynamic", "providerExecuted"}),
    "tool-output-available": ({"toolCallId", "output"}, {"dynamic", "providerExecuted"}),
    "tool-output-error": ({"toolCallId", "errorText"}, {"dynamic", "providerExecuted"}),
    "tool-output-denied": ({"toolCallId"}, set()),
    "tool-approval-request": ({"toolCallId", "approvalId"}, set()),
    "finish": ({"finishReason", "messageMetadata"}, set()),
    "abort": ({"reason"}, set()),
    "error": ({"errorText"}, set()),
}
_COMPLETE = ("output-available", "output-error", "output-denied", "approval-responded")


class VercelReader:
    """A reader of the parts of one message, like `AbstractChat`. `calls`: the state of each tool part. `texts`: by id."""

    def __init__(self) -> None:
        self.opened: dict[str, str] = {}
        self.texts: dict[str, str] = {}
        self.calls: dict[str, Json] = {}
        self.in_step = False
        self.data: dict[str, Any] = {}
        self.last: Json | None = None
        self.is_done = False
        self.to_run: list[str] = []  # calls that the client would run
        self.parts: list[Json] = []

    def read(self, frames: Iterable[bytes]) -> None:
        for text in data_of(frames):
            assert not self.is_done
            if text == "[DONE]":
                self.is_done = True
            else:
                self.part(json.loads(text))

    def part(self, part: Json) -> None:
        kind = part["type"]
        assert self.last is None, f"{kind} after the end"
        assert bool(self.parts) is (kind != "start")
        self.parts.append(part)
        if kind.startswith("data-"):
            assert part.keys() <= {"type", "id", "data"}
            self.data[kind] = part["data"]
            return
        needed, possible = _PARTS[kind]
        assert needed <= part.keys() - {"type"} <= needed | possible, part
        for key in needed - {"input", "output"}:
            assert part[key] is not None
        getattr(self, "_" + kind.replace("-", "_"))(part)

    def _start(self, part: Json) -> None:
        pass

    def _start_step(self, part: Json) -> None:
        assert not self.in_step
        self.in_step = True

    def _finish_step(self, part: Json) -> None:
        assert self.in_step
        assert not self.opened, f"open at the end of a step: {self.opened}"
        self.in_step = False

    def _text_start(self, part: Json) -> None:
        assert part["id"] not in self.texts
        assert self.in_step
        self.opened[part["id"]] = part["type"].partition("-")[0]
        self.texts[part["id"]] = ""

    def _text_delta(self, part: Json) -> None:
        assert self.opened[part["id"]] == part["type"].partition("-")[0]
        assert part["delta"]
        self.texts[part["id"]] += part["delta"]

    def _text_end(self, part: Json) -> None:
        assert self.opened.pop(part["id"]) == part["type"].partition("-")[0]

    _reasoning_start, _reasoning_delta, _reasoning_end = _text_start, _text_delta, _text_end

    def _tool_input_start(self, part: Json) -> None:
        assert part["toolCallId"] not in self.calls
        self.calls[part["toolCallId"]] = {"state": "input-streaming", "text": "", "name": part["toolName"]}

    def _tool_input_delta(self, part: Json) -> None:
        assert self.calls[part["toolCallId"]]["state"] == "input-streaming"
        self.calls[part["toolCallId"]]["text"] += part["inputTextDelta"]

    def _tool_input_available(self, part: Json) -> None:
        assert part["dynamic"] is True
        call = self.calls.setdefault(part["toolCallId"], {"text": None})
        assert call["text"] is None or json.loads(call["text"] or "{}") == part["input"]
        call |= {"state": "input-available", "ours": part["providerExecuted"], "name": part["toolName"]}
        if not part["providerExecuted"]:
            self.to_run.append(part["toolCallId"])

    def _tool_input_error(self, part: Json) -> None:
        call = self.calls.setdefault(part["toolCallId"], {"text": None})
        call |= {"state": "output-error", "ours": part["providerExecuted"]}

    def _tool_output_available(self, part: Json) -> None:
        call = self.calls[part["toolCallId"]]
        assert call["ours"] and part["providerExecuted"] is True
        call |= {"state": part["type"].removeprefix("tool-"), "output": part.get("output", part.get("errorText"))}

    def _tool_output_denied(self, part: Json) -> None:
        self.calls[part["toolCallId"]]["state"] = "output-denied"

    _tool_output_error = _tool_output_available

    def _tool_approval_request(self, part: Json) -> None:
        self.calls[part["toolCallId"]] |= {"state": "approval-requested", "approval": part["approvalId"]}

    def _finish(self, part: Json) -> None:
        assert part["finishReason"] in ("stop", "length", "content-filter", "tool-calls", "error", "other")
        self._end(part)

    def _end(self, part: Json) -> None:
        assert not self.in_step
        assert not self.opened
        assert not [call for call in self.calls.values() if call["state"] == "input-streaming"]
        self.last = part

    _abort = _error = _end

    @property
    def would_send_again(self) -> bool:
        """Return whether the client would send the message again by itself, as if the calls were its own."""
        own = [call for call in self.calls.values() if not call.get("ours")]
        return bool(own) and all(call["state"] in _COMPLETE for call in own)


# --- Chat Completions -------------------------------------------------------------------------------------------------


class ChatReader:
    """A reader of the chunks of a completion, like a client of OpenAI."""

    def __init__(self) -> None:
        self.content = ""
        self.reasoning = ""
        self.refusal = ""
        self.tool_calls: list[Json] = []
        self.finish_reason: str | None = None
        self.usage: Json | None = None
        self.error: Json | None = None
        self.is_done = False
        self.chunks: list[Json] = []

    def read(self, frames: Iterable[bytes]) -> None:
        for text in data_of(frames):
            assert not self.is_done
            assert self.error is None
            if text == "[DONE]":
                assert self.finish_reason is not None
                self.is_done = True
            else:
                self.chunk(json.loads(text))

    def chunk(self, chunk: Json) -> None:
        if "error" in chunk:
            assert {"message", "type", "param", "code"} == chunk["error"].keys()
            self.error = chunk["error"]
            return
        self.chunks.append(chunk)
        assert chunk["object"] == "chat.completion.chunk"
        assert {chunk[key] for key in ("id",)} == {self.chunks[0]["id"]}
        if not chunk["choices"]:
            self.usage = chunk["usage"]
            return
        assert self.finish_reason is None
        (choice,) = chunk["choices"]
        delta = choice["delta"]
        assert ("role" in delta) is (len(self.chunks) == 1)
        assert not (delta.get("reasoning_content") and self.content), "reasoning inside the answer"
        self.content += delta.get("content", "")
        self.reasoning += delta.get("reasoning_content", "")
        self.refusal += delta.get("refusal", "")
        self.tool_calls += delta.get("tool_calls", ())
        self.finish_reason = choice["finish_reason"]
        assert self.finish_reason in (None, "stop", "length", "content_filter", "tool_calls")
