"""Requests of clients as data, and the functions that read the body of a request. Each wire has its own form of a body."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from aswarm._values.found_tools import CALL_TOOL
from aswarm._values.json import is_array, is_object
from aswarm._values.messages import Message
from aswarm.runs import CallAnswer, ClientTool, ContextEdit
from aswarm.runs.executors import an_object, invalid

_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message of the user. `content`: a text, or Chat Completions content parts. `id`: the client's id, or None.

    `name`: the name of the user in the message, or None. `place`: the content in the body of the request, for an error.
    """

    content: str | list[dict[str, Any]]
    id: str | None = None
    _: KW_ONLY
    name: str | None = None
    place: str = field(default="content", compare=False)

    @property
    def message(self) -> Message:
        """The message for the history."""
        name = {} if self.name is None else {"name": self.name}
        return {"role": "user", **name, "content": self.content}


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """The request of a client.

    `messages`: the messages of the user since the last assistant message, in order. `answers`: the answers to open calls.
    `strict`: if True, an answer to a call that is not open is an error; if False, it is ignored as old history.
    `tools`: the tools of the client. `state`: the state of the client; the service reads only the allowed keys.
    `conversation`, `run_id`, `agent`, `model`: ids and names, None if the client does not send them. `context_edit`: see
    `NewRun`. `regenerate`: whether to
    replace the last answer. `continues`: whether to call the model without a new message. `protocol_version`: the client's
    version, for wires with versions. `shown`: the messages that the client shows, in the form of its wire.
    `notes`: texts of the client about its page, with their descriptions. `left_out`: what the service does not use of the
    request, for its log.
    """

    messages: Sequence[NewMessage] = ()
    answers: Sequence[CallAnswer] = ()
    strict: bool = True
    tools: Sequence[ClientTool] = ()
    state: Mapping[str, Any] | None = None
    conversation: str | None = None
    run_id: str | None = None
    agent: str | None = None
    model: str | None = None
    context_edit: ContextEdit | None = None
    regenerate: bool = False
    continues: bool = False
    protocol_version: str | None = None
    shown: Sequence[Mapping[str, Any]] = ()
    notes: Sequence[str] = ()
    left_out: Sequence[str] = ()


# --- reading a body ---


def a_list(value: object, param: str) -> list[Any]:
    """Return the value if it is a list; an empty list for None. Raises InvalidRequest."""
    if value is None:
        return []
    if not is_array(value):
        raise invalid(param, "a list", value)
    return value


def a_text(value: object, param: str) -> str:
    """Return the value if it is a text that is not empty. Raises InvalidRequest."""
    if not (isinstance(value, str) and value):
        raise invalid(param, "a text that is not empty", value)
    return value


def a_string(value: object, param: str) -> str:
    """Return the value if it is a text, which may be empty. Raises InvalidRequest."""
    if not isinstance(value, str):
        raise invalid(param, "a text", value)
    return value


def an_optional_text(value: object, param: str) -> str | None:
    """Return the value if it is a text that is not empty, or None. Raises InvalidRequest."""
    return None if value is None else a_text(value, param)


def a_flag(value: object, param: str) -> bool:
    """Return the value if it is true or false; False for None. Raises InvalidRequest."""
    if value is not None and not isinstance(value, bool):
        raise invalid(param, "true or false", value)
    return bool(value)


def client_tool(data: Mapping[str, Any], param: str) -> ClientTool:
    """Return a tool of the client from `name`, `description` and `parameters`, a JSON schema. Raises InvalidRequest."""
    name = a_text(data.get("name"), f"{param}.name")
    if not _TOOL_NAME.fullmatch(name) or name == CALL_TOOL:
        raise invalid(f"{param}.name", f"1 to 64 letters, digits, _ or -, and not {CALL_TOOL}, which is reserved", name)
    parameters = data.get("parameters")
    schema = _NO_PARAMETERS if parameters is None else an_object(parameters, f"{param}.parameters")
    return ClientTool(name=name, description=str(data.get("description") or ""), parameters=schema)


# The service has its own messages of these roles. Texts for the system are not for clients to send.
_OF_THE_SERVICE = ("activity", "reasoning")
_SYSTEM = ("system", "developer")


def last_said(
    messages: Sequence[Any], read: Callable[[Mapping[str, Any], str], NewMessage]
) -> tuple[list[NewMessage], list[str]]:
    """Return the messages of the user after the last message of an assistant or of a tool, and what is left out.

    `read`: returns the message from its form in the body and its place. Raises InvalidRequest for a message of an unknown role.
    """
    roles = [message.get("role") if is_object(message) else None for message in messages]
    start = next((at for at in range(len(roles), 0, -1) if roles[at - 1] in ("assistant", "tool")), 0)
    said: list[NewMessage] = []
    left_out: list[str] = []
    for at, role in list(enumerate(roles))[start:]:
        if role == "user":
            said.append(read(messages[at], f"messages[{at}]"))
        elif role in _SYSTEM:
            left_out.append(f"messages with the role {role}")
        elif role not in _OF_THE_SERVICE:
            an_object(messages[at], f"messages[{at}]")
            raise invalid(f"messages[{at}].role", '"user", "assistant", "tool", "system" or "developer"', role)
    return [message for message in said if message.content], left_out


def user_content(parts: Iterable[Mapping[str, Any]]) -> str | list[dict[str, Any]]:
    """Return the content of a message from its parts: one text if all parts are text."""
    present = [dict(part) for part in parts]
    if all(part["type"] == "text" for part in present):
        return "".join(part["text"] for part in present)
    return present


def a_text_part(text: str) -> dict[str, Any]:
    """Return a text part of Chat Completions."""
    return {"type": "text", "text": text}


def an_image_part(url: str) -> dict[str, Any]:
    """Return an image part of Chat Completions. `url` may be a data URL ("data:image/png;base64,...")."""
    return {"type": "image_url", "image_url": {"url": url}}


def a_file_part(name: str, data: str) -> dict[str, Any]:
    """Return a file part of Chat Completions. `data`: a data URL ("data:application/pdf;base64,...")."""
    return {"type": "file", "file": {"filename": name, "file_data": data}}
