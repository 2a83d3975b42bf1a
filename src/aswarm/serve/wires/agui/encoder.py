"""Wire of AG-UI 1.0: turns the entries of a run into events of AG-UI.

Handoffs, the start of a function and progress become CUSTOM events, because AG-UI has no events for them and clients drop
unknown events. An optional field without a value is left out, because clients reject null.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from aswarm._record.entries import Entry, as_json, call_id
from aswarm.serve.wires.turns import MEDIA_TYPE, TurnCall, Turns, data_frame, public_error, tokens

VERSION = "1.0"
_APPROVAL_SCHEMA = {
    "type": "object",
    "properties": {
        "approved": {"type": "boolean"},
        "arguments": {"type": "object"},
        "reason": {"type": "string"},
    },
    "required": ["approved"],
}


class AGUIWire:
    """The wire of AG-UI: encodes the entries of one run for one reader, from the first entry.

    Args:
        thread_id: The thread id of the client; by default the conversation of the log.
        run_id: The run id of the client; by default the run id of the log.
        protocol_version: The version of the client; None for a client older than 1.0. Such a client does not get the outcomes
            that it would reject.
        known: Ids of the calls whose results the client already has, for example from its own tools. These results are not sent
            again, because the client would show them twice.
        snapshot: The messages that the client sent, without the messages of this run; None if it sent no message of this run.
            The snapshot replaces the messages in the client, so that the client shows nothing twice.
    """

    media_type: str = MEDIA_TYPE
    headers: Mapping[str, str] = {}

    def __init__(
        self,
        *,
        thread_id: str | None = None,
        run_id: str | None = None,
        protocol_version: str | None = VERSION,
        known: Collection[str] = (),
        snapshot: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        self._is_old = protocol_version is None or protocol_version.startswith("0.")
        self._thread_id = thread_id
        self._run_id = run_id
        self._known = frozenset(known)
        self._snapshot = snapshot
        self._turns = Turns()
        self._step: str | None = None

    def encode(self, entry: Entry) -> list[bytes]:
        """Return the frames of the next entry."""
        return [data_frame(as_json({**event, "timestamp": entry.at_ms})) for event in self.events(entry)]

    def events(self, entry: Entry) -> list[dict[str, Any]]:  # noqa: C901, PLR0911, PLR0912 - a case for each type
        """Return the events of the next entry, as JSON data."""
        match entry.type:
            case "RunStarted":
                return self._run_started(entry)
            case "TurnStarted":
                return self._turn_started(entry)
            case "ReasoningDelta":
                return self._reasoning_delta(entry.fields["text"])
            case "TextDelta":
                return self._text_delta(entry.fields["text"])
            case "RefusalDelta":
                return self._text_delta(entry.fields["text"], {"refusal": True})
            case "ToolCallDelta":
                return self._call_delta(entry)
            case "CompletionFinished":
                return self._completed(entry)
            case "ToolCallStarted":
                return [_custom("tool_started", {"toolCallId": self._turns.of(entry).id})]
            case "CallWaiting" | "ToolCallWithdrawn":
                self._turns.of(entry)
                return []
            case "ToolProgress":
                value = {"toolCallId": self._turns.of(entry).id, "value": entry.fields["value"]}
                return [_custom("tool_progress", value)]
            case "ToolCallFinished":
                failed = entry.fields["error"] is not None
                return self._result(self._turns.of(entry), entry.fields["content"], failed=failed)
            case "TurnFinished":
                return self._results(self._turns.answers(entry))
            case "ContextChanged":
                return [{"type": "STATE_DELTA", "delta": _patch(entry.fields)}]
            case "HandedOff":
                names = {"source": entry.fields["source"], "target": entry.fields["target"]}
                return [*self._results(self._turns.answers(entry)), _custom("handoff", names)]
            case "RunFinished" | "RunFailed" | "RunStopped":
                return self._ended(entry)
            case _:
                return []

    # --- the run, and its turns ---

    def _run_started(self, entry: Entry) -> list[dict[str, Any]]:
        fields = entry.fields
        self._turns.start_run(entry)
        self._thread_id = fields["conversation"] if self._thread_id is None else self._thread_id
        self._run_id = fields["run_id"] if self._run_id is None else self._run_id
        started = [self._started]
        if self._snapshot is not None:
            started.append({"type": "MESSAGES_SNAPSHOT", "messages": self._snapshot})
        state: Mapping[str, Any] | None = fields.get("context_variables")
        # No snapshot without context variables: an empty snapshot would clear the state of the client.
        return [*started, {"type": "STATE_SNAPSHOT", "snapshot": state}] if state else started

    @property
    def _started(self) -> dict[str, Any]:
        return {"type": "RUN_STARTED", **self._ids, "protocolVersion": VERSION}

    @property
    def _ids(self) -> dict[str, Any]:
        return {"threadId": self._thread_id, "runId": self._run_id}

    def _turn_started(self, entry: Entry) -> list[dict[str, Any]]:
        closed = [*self._results(self._turns.answers(entry)), *self._close_all()]
        self._turns.start_turn(entry)
        self._step = f"{entry.fields['agent']} {self._turns.number}"
        return [*closed, {"type": "STEP_STARTED", "stepName": self._step}]

    def _close_all(self) -> list[dict[str, Any]]:
        closed = [*self._close_calls(), *self._close_text(), *self._close_reasoning()]
        if self._step is not None:
            closed.append({"type": "STEP_FINISHED", "stepName": self._step})
            self._step = None
        return closed

    # --- text ---

    def _text_delta(self, text: str, metadata: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        before = [*self._close_reasoning(), *self._open_text()]
        content: dict[str, Any] = {"type": "TEXT_MESSAGE_CONTENT", "messageId": self._turns.text, "delta": text}
        return [*before, content if metadata is None else {**content, "metadata": metadata}]

    def _open_text(self) -> list[dict[str, Any]]:
        if not self._turns.open_text():
            return []
        ids = {"messageId": self._turns.text, "role": "assistant", "name": self._turns.agent}
        return [{"type": "TEXT_MESSAGE_START", **ids}]

    def _close_text(self) -> list[dict[str, Any]]:
        text = self._turns.close_text()
        return [] if text is None else [{"type": "TEXT_MESSAGE_END", "messageId": text}]

    def _reasoning_delta(self, text: str) -> list[dict[str, Any]]:
        before: list[dict[str, Any]] = []
        if self._turns.open_reasoning():
            before = [
                {"type": "REASONING_START", "messageId": self._turns.reasoning},
                {"type": "REASONING_MESSAGE_START", "messageId": self._turns.reasoning, "role": "reasoning"},
            ]
        return [*before, {"type": "REASONING_MESSAGE_CONTENT", "messageId": self._turns.reasoning, "delta": text}]

    def _close_reasoning(self) -> list[dict[str, Any]]:
        reasoning = self._turns.close_reasoning()
        if reasoning is None:
            return []
        return [
            {"type": "REASONING_MESSAGE_END", "messageId": reasoning},
            {"type": "REASONING_END", "messageId": reasoning},
        ]

    # --- calls ---

    def _call_delta(self, entry: Entry) -> list[dict[str, Any]]:
        call = self._turns.feed(entry)
        if call.is_announced:
            return _arguments(call, entry.fields["arguments"])
        return self._announce(call) if call.may_be_announced else []

    def _announce(self, call: TurnCall) -> list[dict[str, Any]]:
        call.is_announced = True
        # The message that has the call must exist, even if the turn has no text.
        before = [*self._close_reasoning(), *self._open_text()]
        start = {
            "type": "TOOL_CALL_START",
            "toolCallId": call.id,
            "toolCallName": call.name,
            "parentMessageId": self._turns.text,
        }
        return [*before, start, *_arguments(call, call.arguments)]

    def _completed(self, entry: Entry) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        for call in self._turns.complete(entry):
            if not call.is_announced:
                events += self._announce(call)
            events.append({"type": "TOOL_CALL_END", "toolCallId": call.id})
        return [*events, *self._close_text(), *self._close_reasoning()]

    def _close_calls(self) -> list[dict[str, Any]]:
        return [{"type": "TOOL_CALL_END", "toolCallId": call.id} for call in self._turns.close_calls()]

    def _results(self, answers: Iterable[tuple[TurnCall, str]]) -> list[dict[str, Any]]:
        return [event for call, content in answers for event in self._result(call, content)]

    def _result(self, call: TurnCall, content: str, *, failed: bool = False) -> list[dict[str, Any]]:
        call.is_answered = True
        if call.id in self._known:
            return []
        events: list[dict[str, Any]] = []
        if not call.is_announced:
            # A call of an earlier run. A client that has this call keeps its arguments, because these events have none.
            call.is_announced = True
            events = [
                {"type": "TOOL_CALL_START", "toolCallId": call.id, "toolCallName": call.name},
                {"type": "TOOL_CALL_END", "toolCallId": call.id},
            ]
        result: dict[str, Any] = {
            "type": "TOOL_CALL_RESULT",
            "messageId": f"{self._turns.run_id}-t-{call.id}",
            "toolCallId": call.id,
            "content": content,
            "role": "tool",
        }
        return [*events, {**result, "metadata": {"error": True}} if failed else result]

    # --- the end ---

    def _ended(self, entry: Entry) -> list[dict[str, Any]]:
        # If the process of the run died early, the log has only a last entry, and the reader got no RUN_STARTED.
        before = [] if self._turns.run_id else [self._started]
        closed = [*before, *self._results(self._turns.answers(entry)), *self._close_all()]
        usage = _usage(tokens(entry))
        if entry.type == "RunFailed":
            error = {"type": "RUN_ERROR", "message": public_error(entry), "code": entry.fields["error"]["type"]}
            return [*closed, {**error, **usage}]
        stop: str = entry.response["stop"] if entry.type == "RunFinished" else "cancelled"
        result: dict[str, Any] = {"stop": stop}
        if entry.type == "RunStopped":
            result["reason"] = entry.fields["reason"]
        finished = {"type": "RUN_FINISHED", **self._ids, "result": result, **usage}
        outcome = self._outcome(stop, entry.response.get("waiting", ()))
        return [*closed, finished if outcome is None else {**finished, "outcome": outcome}]

    def _outcome(self, stop: str, waiting: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
        if stop == "cancelled":
            return None if self._is_old else {"type": "cancelled"}
        asked = [call for call in waiting if call.get("kind") in ("approval", "question")]
        if asked:
            return {"type": "interrupt", "interrupts": [self._interrupt(call) for call in asked]}
        pending = [call_id(call) for call in waiting if stop == "tool_calls" or call.get("kind") == "external"]
        if pending and not self._is_old:
            return {"type": "success", "pendingToolCallIds": pending}
        return {"type": "success"}

    def _interrupt(self, call: Mapping[str, Any]) -> dict[str, Any]:
        is_approval = call["kind"] == "approval"
        interrupt: dict[str, Any] = {
            "id": f"{self._turns.run_id}/{call_id(call)}",
            "reason": "tool_call" if is_approval else "input_required",
            "message": call["reason"],
            "toolCallId": call_id(call),
        }
        if is_approval:
            interrupt["responseSchema"] = _APPROVAL_SCHEMA
        if call.get("data") is not None:
            interrupt["metadata"] = {"data": call["data"]}
        return interrupt


def _custom(name: str, value: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "CUSTOM", "name": f"aswarm.{name}", "value": value}


def _arguments(call: TurnCall, text: str | None) -> list[dict[str, Any]]:
    return [{"type": "TOOL_CALL_ARGS", "toolCallId": call.id, "delta": text}] if text else []


def _patch(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the change as a JSON patch. In a patch, "add" also replaces an existing member (RFC 6902, section 4.1)."""
    removed = [{"op": "remove", "path": _pointer(key)} for key in fields["removed"]]
    return removed + [{"op": "add", "path": _pointer(key), "value": value} for key, value in fields["changes"].items()]


def _pointer(key: str) -> str:
    return "/" + key.replace("~", "~0").replace("/", "~1")


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    names = {"inputTokens": "prompt_tokens", "outputTokens": "completion_tokens", "totalTokens": "total_tokens"}
    counts = {name: usage[key] for name, key in names.items() if usage.get(key)}
    return {"usage": [counts]} if counts else {}
