"""Reader of the `RunAgentInput` of AG-UI.

The module reads the user's messages after the last assistant message, the results of the client's own tools, `resume`, `tools`,
`context` and `state`. It ignores the rest of the messages, because the server has its own history.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aswarm._tools.conversion import to_text
from aswarm._values.json import is_array, is_object
from aswarm.runs import CallAnswer
from aswarm.runs.executors import an_object, invalid
from aswarm.serve.wires.parts import a_media_type, an_address, check_keys, data_url, media_part, unsupported
from aswarm.serve.wires.requests import (
    ClientRequest,
    NewMessage,
    a_list,
    a_string,
    a_text,
    a_text_part,
    an_optional_text,
    client_tool,
    last_said,
    user_content,
)

_KEYS = ("threadId", "runId", "parentRunId", "protocolVersion", "messages", "resume", "tools", "state", "context")
_MESSAGE_KEYS = ("content", "name")
# The parts with a source, and their media types if the source has none.
_MEDIA = {"image": "image", "audio": "audio", "video": "video", "document": ""}


def agui_request(body: object) -> ClientRequest:
    """Return the request in a body. Raises InvalidRequest with the place of the fault.

    An answer in `resume` must be for an open call. Without `resume`, the results of tools in the messages are the answers. When
    the run starts, results of calls that are not open are ignored as old history.
    """
    data = an_object(body, "body")
    messages = a_list(data.get("messages"), "messages")
    resumed = [_resumed(item, f"resume[{at}]") for at, item in enumerate(a_list(data.get("resume"), "resume"))]
    tools = [
        client_tool(an_object(item, f"tools[{at}]"), f"tools[{at}]")
        for at, item in enumerate(a_list(data.get("tools"), "tools"))
    ]
    state = data.get("state")
    new, left_out = last_said(messages, _new_message)
    left_out += ["state"] if state and not is_object(state) else []
    left_out += [key for key, value in data.items() if key not in _KEYS and value]
    return ClientRequest(
        messages=new,
        answers=resumed or results_in(messages),
        strict=bool(resumed),
        tools=tools,
        shown=[message for message in messages if is_object(message)],
        state=state if is_object(state) else None,
        conversation=a_text(data.get("threadId"), "threadId"),
        run_id=a_text(data.get("runId"), "runId"),
        protocol_version=an_optional_text(data.get("protocolVersion"), "protocolVersion"),
        notes=[_note(item, f"context[{at}]") for at, item in enumerate(a_list(data.get("context"), "context"))],
        left_out=left_out,
    )


def _resumed(entry: object, param: str) -> CallAnswer:
    data = an_object(entry, param)
    run, has_run, call = a_text(data.get("interruptId"), f"{param}.interruptId").partition("/")
    if not has_run:
        run, call = "", run
    status = data.get("status")
    if status == "cancelled":
        return CallAnswer(call, approve=False, reason=_reason_in(data.get("payload")), run_id=run)
    if status != "resolved":
        raise invalid(f"{param}.status", '"resolved" or "cancelled"', status)
    return CallAnswer(call, data=data.get("payload"), run_id=run)


def _reason_in(payload: object) -> str:
    reason = payload.get("reason") if is_object(payload) else payload
    return reason if isinstance(reason, str) else ""


def results_in(messages: Sequence[Any]) -> list[CallAnswer]:
    """Return the results of the client's tools. This ignores results of an unknown form.

    Only results after the last message of the assistant can answer open calls. A part of such a result that is not supported
    raises InvalidRequest.
    """
    roles = [message.get("role") if is_object(message) else None for message in messages]
    start = max((at for at, role in enumerate(roles) if role == "assistant"), default=-1)
    return [
        CallAnswer(message["toolCallId"], data=_result(message, f"messages[{at}]", is_new=at > start))
        for at, message in enumerate(messages)
        if roles[at] == "tool" and isinstance(message.get("toolCallId"), str)
    ]


def _result(message: Mapping[str, Any], place: str, *, is_new: bool) -> Any:
    content, error = message.get("content"), message.get("error")
    if is_array(content):
        content = _result_text(content, f"{place}.content") if is_new else None  # an old result is not read
    if error and isinstance(error, str):
        text = content if isinstance(content, str) else to_text(content)
        return f"Error: {error}" if content in (None, "", error) else f"Error: {error}\n{text}"
    return content


def _result_text(parts: Sequence[Any], place: str) -> str:
    """Return the text of a result in parts. A tool message of Chat Completions has only text."""
    content = _content(parts, place)
    if not isinstance(content, str):
        at = next(at for at, part in enumerate(content) if part["type"] != "text")
        raise unsupported(f"{place}[{at}]", parts[at]["type"], "a result of a tool takes only text")
    return content


def _new_message(message: Mapping[str, Any], place: str) -> NewMessage:
    check_keys(message, _MESSAGE_KEYS, place)
    message_id, content = message.get("id"), message.get("content")
    return NewMessage(
        content if isinstance(content, str) else _content(a_list(content, f"{place}.content"), f"{place}.content"),
        message_id if isinstance(message_id, str) else None,
        name=an_optional_text(message.get("name") or None, f"{place}.name"),
        place=f"{place}.content",
    )


def _content(parts: Sequence[Any], place: str) -> str | list[dict[str, Any]]:
    return user_content(_part(part, f"{place}[{at}]") for at, part in enumerate(parts))


def _part(part: object, place: str) -> dict[str, Any]:
    """Return a part in the form of Chat Completions. Raises InvalidRequest if Chat Completions has no part of its type."""
    data = an_object(part, place)
    kind = data.get("type")
    if kind == "text":
        check_keys(data, ("text",), place)
        return a_text_part(a_string(data.get("text"), f"{place}.text"))
    if kind == "binary":  # AG-UI before 1.0
        return _binary(data, place)
    if kind not in _MEDIA:
        raise unsupported(place, kind, "it takes text, image, audio and document")
    check_keys(data, ("source",), place)
    source = an_object(data.get("source"), f"{place}.source")
    check_keys(source, ("value", "mimeType"), f"{place}.source")
    own_type = an_optional_text(source.get("mimeType") or None, f"{place}.source.mimeType")
    value = a_text(source.get("value"), f"{place}.source.value")
    match source.get("type"):
        case "data":
            url = (
                value
                if value.startswith("data:")
                else data_url(a_media_type(own_type, f"{place}.source.mimeType"), value)
            )
        case "url":
            url = an_address(value, f"{place}.source.value")
        case "file":
            raise unsupported(place, f"{kind} with a file of a provider", "send the data of the file")
        case other:
            raise invalid(f"{place}.source.type", '"data" or "url"', other)
    return media_part(own_type or _MEDIA[kind], url, place, name=_name_in(data.get("metadata")), kind=kind)


def _binary(data: Mapping[str, Any], place: str) -> dict[str, Any]:
    check_keys(data, ("mimeType", "url", "data", "filename"), place)
    own_type = a_media_type(data.get("mimeType"), f"{place}.mimeType")
    content, name = data.get("data"), an_optional_text(data.get("filename") or None, f"{place}.filename")
    if content:
        url = data_url(own_type, a_text(content, f"{place}.data"))
    elif data.get("url"):
        url = an_address(data.get("url"), f"{place}.url")
    else:
        raise unsupported(place, "binary", "send its data or its url: an id names a file at another provider")
    return media_part(own_type, url, place, name=name, kind="binary")


def _name_in(metadata: object) -> str | None:
    """Return the name of a file, which clients put into the metadata of the part."""
    name = metadata.get("filename") or metadata.get("name") if is_object(metadata) else None
    return name if name and isinstance(name, str) else None


def _note(entry: object, place: str) -> str:
    data = an_object(entry, place)
    check_keys(data, ("description", "value"), place)
    value = data.get("value")
    text = value if isinstance(value, str) else to_text(value)
    description = an_optional_text(data.get("description") or None, f"{place}.description")
    return text if description is None else f"{description}: {text}"
