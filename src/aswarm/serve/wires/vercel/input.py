"""Reader of the requests of Vercel's `DefaultChatTransport`.

The module reads the user's messages after the last assistant message. If the last message is an assistant message, the module
reads the approvals in it, and the outputs of the client's own tools. It ignores the outputs of functions that run here
(`providerExecuted`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from aswarm._values.json import is_array, is_object
from aswarm.runs._requests import (
    CallAnswer,
    ClientRequest,
    NewMessage,
    a_list,
    a_text,
    a_text_part,
    an_image_part,
    an_object,
    an_optional_text,
    last_said,
    user_content,
)


def vercel_request(body: object) -> ClientRequest:
    """Return the request in a body. Raises InvalidRequest with the place of the fault.

    A client sends a message again with the old answers in it. So when the run starts, answers to calls that are not open are
    ignored.
    """
    data = an_object(body, "body")
    messages = a_list(data.get("messages"), "messages")
    last: Any = messages[-1] if messages else None
    is_answer = is_object(last) and last.get("role") == "assistant"
    new = [_new_message(message) for message in last_said(messages)]
    return ClientRequest(
        messages=[message for message in new if message.content],
        answers=list(_answers(last)) if is_answer else [],
        strict=False,
        conversation=a_text(data.get("id"), "id"),
        regenerate=an_optional_text(data.get("trigger"), "trigger") == "regenerate-message",
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


def _new_message(message: Mapping[str, Any]) -> NewMessage:
    parts, own = message.get("parts"), message.get("id")
    content = user_content(map(_part, parts if is_array(parts) else ()))
    return NewMessage(content, own if isinstance(own, str) else None)


def _part(part: object) -> dict[str, Any] | None:
    """Return a part in the form of Chat Completions; None if Chat Completions has no part of its type."""
    if not is_object(part):
        return None
    if part.get("type") == "text" and isinstance(part.get("text"), str):
        return a_text_part(part["text"])
    is_image = str(part.get("mediaType")).startswith("image/")
    if part.get("type") == "file" and is_image and isinstance(part.get("url"), str):
        return an_image_part(part["url"])
    return None
