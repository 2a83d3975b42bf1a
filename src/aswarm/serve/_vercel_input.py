"""What a request of Vercel's `DefaultChatTransport` asks for.

Taken are the user's messages after the last one of an assistant, and of that one the approvals and the outputs of the
client's own tools. An output of a function that runs here (`providerExecuted`) is not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from aswarm._json import is_array, is_object

from ._requests import (
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
    """What the body asks for. Raises RequestError with the place of the fault.

    An answer to a call that is not open is left out: a message keeps its answers, so the client sends them again.
    """
    data = an_object(body, "body")
    messages = a_list(data.get("messages"), "messages")
    last: Any = messages[-1] if messages else None
    is_answer = is_object(last) and last.get("role") == "assistant"
    said = [_new_message(message) for message in last_said(messages)]
    return ClientRequest(
        messages=[message for message in said if message.content],
        answers=list(_answers(last)) if is_answer else [],
        must_fit=False,
        conversation=a_text(data.get("id"), "id"),
        regenerate=an_optional_text(data.get("trigger"), "trigger") == "regenerate-message",
    )


def _answers(message: Mapping[str, Any]) -> Iterator[CallAnswer]:
    parts = message.get("parts")
    for part in parts if is_array(parts) else ():
        if is_object(part) and isinstance(call := part.get("toolCallId"), str):
            approval = part.get("approval")
            if part.get("state") == "approval-responded" and is_object(approval):
                yield _decided(call, approval)
            elif not part.get("providerExecuted") and part.get("state") == "output-available":
                yield CallAnswer(call, content=part.get("output"))
            elif not part.get("providerExecuted") and part.get("state") == "output-error":
                yield CallAnswer(call, content=f"Error: {part.get('errorText')}")


def _decided(call: str, approval: Mapping[str, Any]) -> CallAnswer:
    run, has_run, _ = str(approval.get("id")).partition("/")
    reason = approval.get("reason")
    return CallAnswer(
        call,
        approve=approval.get("approved") is True,
        reason=reason if isinstance(reason, str) else "",
        run=run if has_run else "",
    )


def _new_message(message: Mapping[str, Any]) -> NewMessage:
    parts, own = message.get("parts"), message.get("id")
    content = user_content(map(_part, parts if is_array(parts) else ()))
    return NewMessage(content, own if isinstance(own, str) else None)


def _part(part: object) -> dict[str, Any] | None:
    """A part in the form of Chat Completions; None for one that it does not have."""
    if not is_object(part):
        return None
    if part.get("type") == "text" and isinstance(part.get("text"), str):
        return a_text_part(part["text"])
    is_image = str(part.get("mediaType")).startswith("image/")
    if part.get("type") == "file" and is_image and isinstance(part.get("url"), str):
        return an_image_part(part["url"])
    return None
