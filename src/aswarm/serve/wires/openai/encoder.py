"""Wire of Chat Completions: a run becomes the chunks of one completion, or one whole completion.

The `tool_calls` never contain handoffs or functions that run here. A client would execute such a call itself, and then send
another request. The texts of several turns become one text, with a blank line between them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from aswarm._record.entries import Entry, as_json, call_id
from aswarm.serve.wires.turns import MEDIA_TYPE, data_frame, public_error, tokens

DONE = b"data: [DONE]\n\n"
_FINISH = {"max_turns": "length", "budget": "length"}
_PROVIDER_FINISH = ("length", "content_filter")
_RATE_LIMIT = 429
_BLOCKED = 400
_RETRY_SECONDS = 2  # used if the provider sends no `retry-after`


class OpenAIWire:
    """The wire of OpenAI's Chat Completions, streamed: encodes the entries of one run for one reader, from the first entry.

    Args:
        model: The model name in the client's request.
        include_usage: Whether to send the token counts in a last chunk.
        activity: Whether to show calls and handoffs as reasoning, until the first text.
        client_tools: Names of the client's own tools. Only open calls of these tools are sent as `tool_calls`.
    """

    media_type: str = MEDIA_TYPE
    headers: Mapping[str, str] = {}

    def __init__(
        self, model: str, *, include_usage: bool = False, activity: bool = False, client_tools: Collection[str] = ()
    ) -> None:
        self._model = model
        self._include_usage = include_usage
        self._activity = activity
        self._client_tools = frozenset(client_tools)
        self._id = ""
        self._created = 0
        self._has_text = False
        self._starts_turn = False
        self._provider_reason: str | None = None

    def encode(self, entry: Entry) -> list[bytes]:
        """Return the frames of the next entry."""
        frames = [data_frame(as_json(chunk)) for chunk in self.chunks(entry)]
        return [*frames, DONE] if entry.is_last and entry.type != "RunFailed" else frames

    def chunks(self, entry: Entry) -> list[dict[str, Any]]:
        """Return the chunks of the next entry, as JSON data."""
        if entry.type == "RunStarted":
            self._id, self._created = f"chatcmpl-{entry.fields['run_id']}", entry.at_ms // 1000
            return [self._chunk({"role": "assistant", "content": ""})]
        if entry.is_last:
            return self._ended(entry)
        delta = self._delta(entry)
        return [self._chunk(delta)] if delta else []

    def _chunk(self, delta: Mapping[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        return {**self._head("chat.completion.chunk"), "choices": [choice]}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}

    def _delta(self, entry: Entry) -> dict[str, Any]:
        fields = entry.fields
        match entry.type:
            case "TurnStarted":
                self._starts_turn = True
            case "TextDelta":
                return {"content": self._joined(fields["text"])}
            case "RefusalDelta":
                return {"refusal": fields["text"]}
            case "ReasoningDelta":
                return self._reasoning(fields["text"])
            case "CompletionFinished":
                self._provider_reason = fields["finish_reason"]
            case "ToolCallStarted" if self._activity:
                return self._reasoning(f"{fields['name']}({fields['arguments']})\n")
            case "HandedOff" if self._activity:
                return self._reasoning(f"{fields['source']} hands off to {fields['target']}\n")
            case _:
                pass
        return {}

    def _joined(self, text: str) -> str:
        """Return the text. A blank line comes before the first text of each later turn."""
        gap = "\n\n" if self._starts_turn and self._has_text else ""
        self._starts_turn, self._has_text = False, True
        return gap + text

    def _reasoning(self, text: str) -> dict[str, Any]:
        # After the first text, no reasoning is sent: a client that prints each chunk would print it inside of the answer.
        return {} if self._has_text else {"reasoning_content": text}

    # --- the end ---

    def _ended(self, entry: Entry) -> list[dict[str, Any]]:
        if entry.type == "RunFailed":
            _, kind, code = _failure(entry)
            return [error_body(public_error(entry), code=code, type_=kind)]
        waiting: Sequence[Mapping[str, Any]] = entry.response["waiting"] if entry.type == "RunFinished" else ()
        calls = [call for call in waiting if call["name"] in self._client_tools and call.get("kind") == "external"]
        chunks = (
            [self._chunk({"tool_calls": [_call(index, call) for index, call in enumerate(calls)]})] if calls else []
        )
        others = [call for call in waiting if call not in calls and call.get("kind") is not None]
        if others:
            chunks.append(self._chunk({"content": self._waiting_text(others)}))
        chunks.append(self._chunk({}, "tool_calls" if calls else self._finish_reason(entry)))
        if self._include_usage:
            chunks.append({**self._head("chat.completion.chunk"), "choices": [], "usage": _usage(entry)})
        return chunks

    def _waiting_text(self, calls: Iterable[Mapping[str, Any]]) -> str:
        self._starts_turn = True
        names = ", ".join(f"{call['name']} ({call['reason']})" for call in calls)
        return self._joined(f"Waiting for a decision that cannot be made in this client: {names}.")

    def _finish_reason(self, entry: Entry) -> str:
        stop: str = entry.response.get("stop", "")
        if stop == "answer" and self._provider_reason in _PROVIDER_FINISH:
            return str(self._provider_reason)
        return _FINISH.get(stop, "stop")


def whole_completion(entries: Iterable[Entry], wire: OpenAIWire) -> dict[str, Any]:
    """Return the whole completion of a finished log (the chunks of the stream, joined), or an error body if the run failed."""
    answer: dict[str, Any] = {"role": "assistant", "content": None}
    head: dict[str, Any] = {}
    finish_reason: str | None = None
    last: Entry | None = None
    for entry in entries:
        last = entry
        for chunk in wire.chunks(entry):
            if "error" in chunk:
                return chunk
            head = head or chunk
            for choice in chunk["choices"]:
                _add_delta(answer, choice["delta"])
                finish_reason = choice["finish_reason"]
    answer["content"] = answer["content"] or (None if answer.get("tool_calls") or answer.get("refusal") else "")
    choice = {"index": 0, "message": answer, "finish_reason": finish_reason}
    usage = {} if last is None else _usage(last)
    return {**head, "object": "chat.completion", "choices": [choice], "usage": usage}


def _add_delta(message: dict[str, Any], delta: Mapping[str, Any]) -> None:
    for key in ("content", "refusal", "reasoning_content"):
        if delta.get(key):
            message[key] = (message.get(key) or "") + delta[key]
    if "tool_calls" in delta:
        message["tool_calls"] = [{key: call[key] for key in call if key != "index"} for call in delta["tool_calls"]]


def _call(index: int, call: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": call["name"], "arguments": call["arguments"]}
    return {"index": index, "id": call_id(call), "type": "function", "function": function}


def _usage(entry: Entry) -> dict[str, Any]:
    usage = tokens(entry)
    counts = {key: usage.get(key, 0) for key in ("prompt_tokens", "completion_tokens", "total_tokens")}
    details: Mapping[str, Any] = usage.get("details") or {}
    known = ("prompt_tokens_details", "completion_tokens_details")
    return {**counts, **{key: details[key] for key in known if key in details}}


def _failure(entry: Entry) -> tuple[int, str, str]:
    """Return the HTTP status, the type and the code of a run that failed."""
    error = entry.fields["error"]
    if error.get("status_code") == _RATE_LIMIT:
        return _RATE_LIMIT, "rate_limit_error", "rate_limit_exceeded"
    if error["type"] == "Blocked":  # a guard refused the request; the status is not 5xx, because clients would retry
        return _BLOCKED, "invalid_request_error", "content_filter"
    return 502, "server_error", "run_failed"


def failure_head(entry: Entry) -> tuple[int, dict[str, str]]:
    """Return the HTTP status and the headers for a run that failed, if the client did not ask for a stream.

    The status is 429 for a rate limit of the provider, 400 for a run that a guard blocked, and otherwise 502. With 429 and 502,
    the headers include `retry-after`.
    """
    status = _failure(entry)[0]
    if status == _BLOCKED:
        return status, {}
    return status, {"retry-after": str(math.ceil(entry.fields["error"].get("retry_after") or _RETRY_SECONDS))}


def error_body(message: str, *, code: str, type_: str, param: str | None = None) -> dict[str, Any]:
    """Return an error body of the API. It always has all four keys, because clients read them; a value may be null."""
    return {"error": {"message": message, "type": type_, "param": param, "code": code}}


def model_body(name: str, created: int) -> dict[str, Any]:
    """Return one model of the list. `created`: seconds since the epoch."""
    return {"id": name, "object": "model", "created": created, "owned_by": "aswarm"}


def models_body(names: Iterable[str], created: int) -> dict[str, Any]:
    """Return the list of models: the names of the agents."""
    return {"object": "list", "data": [model_body(name, created) for name in names]}
