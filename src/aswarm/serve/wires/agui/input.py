"""Reader of the `RunAgentInput` of AG-UI.

The module reads the user's messages after the last assistant message, the results of the client's own tools, `resume`, `tools`
and `state`. It ignores the rest of the messages, because the server has its own history.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    client_tool,
    invalid,
    last_said,
    user_content,
)


def agui_request(body: object) -> ClientRequest:
    """Return the request in a body. Raises InvalidRequest with the place of the fault.

    An answer in `resume` must be for an open call. Without `resume`, the results of tools in the messages are the answers. When
    the run starts, results of calls that are not open are ignored as old history.
    """
    data = an_object(body, "body")
    messages = a_list(data.get("messages"), "messages")
    resumed = [_resumed(each, f"resume[{at}]") for at, each in enumerate(a_list(data.get("resume"), "resume"))]
    tools = [
        client_tool(an_object(each, f"tools[{at}]"), f"tools[{at}]")
        for at, each in enumerate(a_list(data.get("tools"), "tools"))
    ]
    state = data.get("state")
    new = [_new_message(message) for message in last_said(messages)]
    return ClientRequest(
        messages=[message for message in new if message.content],
        answers=resumed or results_in(messages),
        strict=bool(resumed),
        tools=tools,
        shown=[message for message in messages if is_object(message)],
        state=state if is_object(state) else None,
        conversation=a_text(data.get("threadId"), "threadId"),
        run_id=a_text(data.get("runId"), "runId"),
        protocol_version=an_optional_text(data.get("protocolVersion"), "protocolVersion"),
    )


def _resumed(entry: object, param: str) -> CallAnswer:
    data = an_object(entry, param)
    run, has_run, call = a_text(data.get("interruptId"), f"{param}.interruptId").partition("/")
    if not has_run:
        run, call = "", run
    status = data.get("status")
    if status == "cancelled":
        return CallAnswer(call, approve=False, run_id=run)
    if status != "resolved":
        raise invalid(f"{param}.status", '"resolved" or "cancelled"', status)
    return CallAnswer(call, data=data.get("payload"), run_id=run)


def results_in(messages: Sequence[Any]) -> list[CallAnswer]:
    """Return the results of the client's tools. This ignores results of an unknown form."""
    return [
        CallAnswer(message["toolCallId"], data=_result_text(message.get("content")))
        for message in messages
        if is_object(message) and message.get("role") == "tool" and isinstance(message.get("toolCallId"), str)
    ]


def _result_text(content: object) -> Any:
    return user_content(map(_part, content)) if is_array(content) else content


def _new_message(message: Mapping[str, Any]) -> NewMessage:
    content, own = message.get("content"), message.get("id")
    parts = [a_text_part(content)] if isinstance(content, str) else map(_part, content if is_array(content) else ())
    return NewMessage(user_content(parts), own if isinstance(own, str) else None)


def _part(part: object) -> dict[str, Any] | None:
    """Return a part in the form of Chat Completions; None if Chat Completions has no part of its type."""
    if not is_object(part):
        return None
    source = part.get("source")
    if part.get("type") == "text" and isinstance(part.get("text"), str):
        return a_text_part(part["text"])
    if part.get("type") == "image" and is_object(source) and isinstance(value := source.get("value"), str):
        is_data = source.get("type") == "data"
        return an_image_part(f"data:{source.get('mimeType')};base64,{value}" if is_data else value)
    return None
