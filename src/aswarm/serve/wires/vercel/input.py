"""Reader of the requests of Vercel's `DefaultChatTransport`.

The module reads the user's messages after the last assistant message. If the last message is an assistant message, the module
reads the approvals in it, and the outputs of the client's own tools. It ignores the outputs of functions that run here
(`providerExecuted`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from aswarm._values.json import is_array, is_object
from aswarm.runs import CallAnswer
from aswarm.runs.executors import an_object
from aswarm.serve.wires.parts import an_address, check_keys, media_part, unsupported
from aswarm.serve.wires.requests import (
    ClientRequest,
    NewMessage,
    a_list,
    a_string,
    a_text,
    a_text_part,
    an_optional_text,
    last_said,
    user_content,
)

_KEYS = ("id", "messages", "trigger", "messageId")
_MESSAGE_KEYS = ("parts",)


def vercel_request(body: object) -> ClientRequest:
    """Return the request in a body. Raises InvalidRequest with the place of the fault.

    A client sends a message again with the old answers in it. So when the run starts, answers to calls that are not open are
    ignored.
    """
    data = an_object(body, "body")
    messages = a_list(data.get("messages"), "messages")
    last: Any = messages[-1] if messages else None
    is_answer = is_object(last) and last.get("role") == "assistant"
    new, left_out = last_said(messages, _new_message)
    return ClientRequest(
        messages=new,
        answers=list(_answers(last)) if is_answer else [],
        strict=False,
        conversation=a_text(data.get("id"), "id"),
        regenerate=an_optional_text(data.get("trigger"), "trigger") == "regenerate-message",
        left_out=[*left_out, *(key for key, value in data.items() if key not in _KEYS and value is not None)],
    )


def _answers(message: Mapping[str, Any]) -> Iterator[CallAnswer]:
    parts = message.get("parts")
    parts = parts if is_array(parts) else []
    runs = dict(filter(None, map(_waiting_call, parts)))
    for part in parts:
        if is_object(part) and isinstance(call := part.get("toolCallId"), str):
            approval = part.get("approval")
            if part.get("state") == "approval-responded" and is_object(approval):
                yield _decided(call, approval)
            elif not part.get("providerExecuted") and part.get("state") == "output-available":
                yield CallAnswer(call, data=part.get("output"), run_id=runs.get(call))
            elif not part.get("providerExecuted") and part.get("state") == "output-error":
                yield CallAnswer(call, data=f"Error: {part.get('errorText')}", run_id=runs.get(call))


def _waiting_call(part: object) -> tuple[str, str] | None:
    """Return the ids of the call and of the run from a part about a waiting call; None for other parts."""
    data = part.get("data") if is_object(part) and part.get("type") == "data-aswarm-waiting" else None
    if not is_object(data):
        return None
    call, run = data.get("toolCallId"), data.get("run")
    return (call, run) if isinstance(call, str) and isinstance(run, str) else None


def _decided(call: str, approval: Mapping[str, Any]) -> CallAnswer:
    run, has_run, _ = str(approval.get("id")).partition("/")
    reason = approval.get("reason")
    return CallAnswer(
        call,
        approve=approval.get("approved") is True,
        reason=reason if isinstance(reason, str) else "",
        run_id=run if has_run else "",
    )


def _new_message(message: Mapping[str, Any], place: str) -> NewMessage:
    parts, message_id = a_list(message.get("parts"), f"{place}.parts"), message.get("id")
    content = user_content(_parts(parts, f"{place}.parts"))
    known = _MESSAGE_KEYS if message.get("content") != content else (*_MESSAGE_KEYS, "content")  # `ai` 4 has it too
    check_keys(message, known, place)
    return NewMessage(content, message_id if isinstance(message_id, str) else None, place=f"{place}.parts")


def _parts(parts: Sequence[Any], place: str) -> Iterator[dict[str, Any]]:
    """Yield the parts in the form of Chat Completions. Raises InvalidRequest if Chat Completions has no part of a type."""
    for at, part in enumerate(parts):
        data = an_object(part, part_place := f"{place}[{at}]")
        match kind := data.get("type"):
            case "text":
                check_keys(data, ("text",), part_place)
                yield a_text_part(a_string(data.get("text"), f"{part_place}.text"))
            case "file":
                yield _file(data, part_place)
            case "step-start":  # only a mark between steps
                check_keys(data, (), part_place)
            case _:
                raise unsupported(part_place, kind, "a message of the user takes text and file")


def _file(data: Mapping[str, Any], place: str) -> dict[str, Any]:
    check_keys(data, ("mediaType", "url", "filename"), place)
    media_type = a_text(data.get("mediaType"), f"{place}.mediaType")
    name = an_optional_text(data.get("filename") or None, f"{place}.filename")
    return media_part(
        media_type, an_address(data.get("url"), f"{place}.url"), place, name=name, kind=f"file ({media_type})"
    )
