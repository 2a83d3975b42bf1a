"""Wire of Vercel's UI message stream, version 1. It uses only parts that both `ai` 6 and `ai` 7 can read.

Calls of functions that run here are `providerExecuted`. Otherwise a client would treat their results as its own, and send them
again in a loop. A call that the client answers (an external tool, or a question) is not `providerExecuted`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from aswarm._record.entries import Entry, as_json
from aswarm._run.resuming import DENIED
from aswarm._values.json import is_object
from aswarm.serve.wires.turns import MEDIA_TYPE, TurnCall, Turns, data_frame, json_object, public_error, tokens

DONE = b"data: [DONE]\n\n"
_NOT_JSON = "The arguments are not a JSON object."
_CUT = "The completion was cut off."
_WAITS_FOR_ANOTHER = "Not run yet: another call waits for a decision."
_REASONS = {
    "answer": "stop",
    "waiting": "tool-calls",
    "tool_calls": "tool-calls",
}
# Finish reasons of the provider that differ from a normal end.
_PROVIDER_REASONS = {"length": "length", "content_filter": "content-filter"}


class VercelWire:
    """The wire of Vercel's AI SDK (`useChat`): encodes the entries of one run for one reader, from the first entry.

    If a run waited, then this run and the runs that resumed it make one message in the client. To replay this message, encode
    the entries of all these runs in order. Of each run except the last run, leave out the last entry.
    """

    media_type: str = MEDIA_TYPE
    headers: Mapping[str, str] = {"x-vercel-ai-ui-message-stream": "v1"}

    def __init__(self) -> None:
        self._has_started = False
        self._turns = Turns()
        self._in_step = False
        self._context: dict[str, Any] = {}
        self._provider_reason: str | None = None

    def encode(self, entry: Entry) -> list[bytes]:
        """Return the frames of the next entry."""
        frames = [data_frame(as_json(part)) for part in self.parts(entry)]
        return [*frames, DONE] if entry.is_last else frames

    def parts(self, entry: Entry) -> list[dict[str, Any]]:  # noqa: C901, PLR0911, PLR0912 - a case for each type
        """Return the parts of the next entry, as JSON data."""
        match entry.type:
            case "RunStarted":
                return self._run_started(entry)
            case "TurnStarted":
                return self._turn_started(entry)
            case "ReasoningDelta":
                return self._reasoning_delta(entry.fields["text"])
            case "TextDelta" | "RefusalDelta":
                return self._text_delta(entry.fields["text"])
            case "ToolCallDelta":
                return self._call_delta(entry)
            case "CompletionFinished":
                return self._completed(entry)
            case "ToolCallStarted":
                return self._announce_input(self._turns.of(entry))
            case "ToolProgress":
                call = self._turns.of(entry)
                value = {"toolCallId": call.id, "value": entry.fields["value"]}
                return [{"type": "data-aswarm-progress", "id": _id_of_progress(call.id, value["value"]), "data": value}]
            case "ToolCallFinished":
                return self._finished(entry)
            case "TurnFinished":
                return self._failed(self._turns.answers(entry))
            case "ContextChanged":
                return self._context_changed(entry.fields)
            case "HandedOff":
                names = {"source": entry.fields["source"], "target": entry.fields["target"]}
                return [*self._failed(self._turns.answers(entry)), {"type": "data-aswarm-handoff", "data": names}]
            case "RunFinished" | "RunFailed" | "RunStopped":
                return self._ended(entry)
            case "CallWaiting" | "ToolCallWithdrawn":  # the last entry has all waiting calls
                self._turns.of(entry)
                return []
            case _:
                return []

    # --- the run, and its turns ---

    def _run_started(self, entry: Entry) -> list[dict[str, Any]]:
        self._turns.start_run(entry)
        if self._has_started:
            return []
        self._has_started = True
        # A resumed run continues the last message of the client. This message must keep its id, so no id is sent.
        is_resumed = entry.fields["resume"] is not False
        start = {"type": "start"} if is_resumed else {"type": "start", "messageId": entry.fields["run_id"]}
        state: Mapping[str, Any] | None = entry.fields.get("context_variables")
        return [start, *self._context_part(state)] if state else [start]

    def _turn_started(self, entry: Entry) -> list[dict[str, Any]]:
        closed = [*self._failed(self._turns.answers(entry)), *self._close_all()]
        self._turns.start_turn(entry)
        self._in_step = True
        agent = {"agent": entry.fields["agent"], "turn": self._turns.number}
        return [*closed, {"type": "start-step"}, {"type": "data-aswarm-agent", "data": agent}]

    def _close_all(self) -> list[dict[str, Any]]:
        closed = [*self._close_reasoning(), *self._close_text(), *self._close_calls()]
        if self._in_step:
            closed.append({"type": "finish-step"})
            self._in_step = False
        return closed

    def _context_changed(self, fields: Mapping[str, Any]) -> list[dict[str, Any]]:
        kept = {key: value for key, value in self._context.items() if key not in fields["removed"]}
        return self._context_part({**kept, **fields["changes"]})

    def _context_part(self, context: Mapping[str, Any]) -> list[dict[str, Any]]:
        self._context = dict(context)
        return [{"type": "data-aswarm-context", "id": "context", "data": self._context}]

    # --- text ---

    def _text_delta(self, text: str) -> list[dict[str, Any]]:
        parts = self._close_reasoning()
        if self._turns.open_text():
            parts.append({"type": "text-start", "id": self._turns.text})
        return [*parts, {"type": "text-delta", "id": self._turns.text, "delta": text}]

    def _close_text(self) -> list[dict[str, Any]]:
        text = self._turns.close_text()
        return [] if text is None else [{"type": "text-end", "id": text}]

    def _reasoning_delta(self, text: str) -> list[dict[str, Any]]:
        is_new = self._turns.open_reasoning()
        parts = [{"type": "reasoning-start", "id": self._turns.reasoning}] if is_new else []
        return [*parts, {"type": "reasoning-delta", "id": self._turns.reasoning, "delta": text}]

    def _close_reasoning(self) -> list[dict[str, Any]]:
        reasoning = self._turns.close_reasoning()
        return [] if reasoning is None else [{"type": "reasoning-end", "id": reasoning}]

    # --- calls ---

    def _call_delta(self, entry: Entry) -> list[dict[str, Any]]:
        call = self._turns.feed(entry)
        if call.is_announced:
            return _input_delta(call, entry.fields["arguments"])
        return self._announce(call) if call.may_be_announced else []

    def _announce(self, call: TurnCall) -> list[dict[str, Any]]:
        call.is_announced = True
        start = {"type": "tool-input-start", "toolCallId": call.id, "toolName": call.name, "dynamic": True}
        # `providerExecuted` follows later, with the whole input: only a whole call shows whether the client runs it.
        return [*self._close_reasoning(), start, *_input_delta(call, call.arguments)]

    def _completed(self, entry: Entry) -> list[dict[str, Any]]:
        self._provider_reason = entry.fields["finish_reason"]
        parts: list[dict[str, Any]] = []
        for call in self._turns.complete(entry):
            if not call.is_announced:
                parts += self._announce(call)
            if not call.is_external:  # the client would run an external call at once, but the run may still answer it
                parts.append(_input(call))
        return [*parts, *self._close_text(), *self._close_reasoning()]

    def _announce_input(self, call: TurnCall) -> list[dict[str, Any]]:
        """Return the input of a call if the client may lack it, for example if an earlier run made the call.

        A client accepts an input twice.
        """
        if call.is_announced and not call.is_external:
            return []
        call.is_announced, call.is_external = True, False
        return [_input(call)]

    def _close_calls(self) -> list[dict[str, Any]]:
        return [_input_error(call, _CUT) for call in self._turns.close_calls()]

    def _failed(self, answers: Iterable[tuple[TurnCall, str]]) -> list[dict[str, Any]]:
        parts: list[dict[str, Any]] = []
        for call, content in answers:
            call.is_answered = True
            parts += [*self._announce_input(call), _output(call, content, failed=True)]
        return parts

    def _finished(self, entry: Entry) -> list[dict[str, Any]]:
        call = self._turns.of(entry)
        is_denied = self._turns.has_resumed_calls and entry.fields["content"].startswith(DENIED)
        parts = self._announce_input(call)
        call.is_answered = True
        if is_denied:
            return [*parts, {"type": "tool-output-denied", "toolCallId": call.id}]
        return [*parts, _output(call, entry.fields["content"], failed=entry.fields["error"] is not None)]

    # --- the end ---

    def _ended(self, entry: Entry) -> list[dict[str, Any]]:
        parts = [*self._close_reasoning(), *self._close_text(), *self._close_calls()]
        parts += self._failed(self._turns.answers(entry))
        stop: str = entry.response.get("stop", "")
        if entry.type == "RunFinished":
            parts += self._waiting(entry.response["waiting"], is_asked=stop == "waiting")
        parts += self._close_all()
        if entry.type == "RunFailed":
            return [*parts, {"type": "error", "errorText": public_error(entry)}]
        if entry.type == "RunStopped":
            return [*parts, {"type": "abort", "reason": entry.fields["reason"]}]
        reason = _REASONS.get(stop, "other")
        if reason == "stop":
            reason = _PROVIDER_REASONS.get(self._provider_reason or "", reason)
        metadata = {"stop": stop, "agent": entry.response["agent"], "usage": tokens(entry)}
        return [*parts, {"type": "finish", "finishReason": reason, "messageMetadata": metadata}]

    def _waiting(self, waiting: Sequence[Mapping[str, Any]], *, is_asked: bool) -> list[dict[str, Any]]:
        """Return the parts that ask the client for decisions.

        The client sends its decisions only when each call has a decision or an output. So a call that waits for another call
        gets an output too.
        """
        parts: list[dict[str, Any]] = []
        for fields in waiting:
            call, kind = self._turns.calls[fields["index"]], fields.get("kind")
            if kind == "approval":
                request = {"approvalId": f"{self._turns.run_id}/{call.id}", "toolCallId": call.id}
                parts += [*self._announce_input(call), {"type": "tool-approval-request", **request}]
            elif kind is not None or not is_asked:
                parts.append(_input(call, here=False))
            else:
                parts += [*self._announce_input(call), _output(call, _WAITS_FOR_ANOTHER)]
            if kind is not None:
                names = {"toolCallId": call.id, "run": self._turns.run_id, "kind": kind}
                data = {**names, "reason": fields["reason"], "data": fields["data"]}
                parts.append({"type": "data-aswarm-waiting", "id": f"waiting-{call.id}", "data": data})
        return parts


def _input_delta(call: TurnCall, text: str | None) -> list[dict[str, Any]]:
    return [{"type": "tool-input-delta", "toolCallId": call.id, "inputTextDelta": text}] if text else []


def _input(call: TurnCall, *, here: bool = True) -> dict[str, Any]:
    arguments = json_object(call.arguments)
    if arguments is None:
        return _input_error(call, _NOT_JSON)
    return {"type": "tool-input-available", **_of(call), "input": arguments, "providerExecuted": here}


def _input_error(call: TurnCall, text: str) -> dict[str, Any]:
    return {
        "type": "tool-input-error",
        **_of(call),
        "input": call.arguments,
        "errorText": text,
        "providerExecuted": True,
    }


def _of(call: TurnCall) -> dict[str, Any]:
    return {"toolCallId": call.id, "toolName": call.name, "dynamic": True}


def _output(call: TurnCall, content: str, *, failed: bool = False) -> dict[str, Any]:
    fields = {"toolCallId": call.id, "providerExecuted": True, "dynamic": True}
    if failed:
        return {"type": "tool-output-error", **fields, "errorText": content}
    return {"type": "tool-output-available", **fields, "output": content}


def _id_of_progress(call: str, value: Any) -> str:
    """Return the id of a part. The next part with this id replaces it, so each call inside the call has its own."""
    is_of_call = is_object(value) and value.get("type") in ("ToolCallStarted", "ToolCallFinished", "CallWaiting")
    return f"progress-{call}-{value['id']}" if is_of_call else f"progress-{call}"
