"""What clients ask for, as data: new messages of the user, answers to open calls, and tools that the client has.

A request of any wire becomes one of these values. Everything else that a client sends (an assistant message, a result of a
function that runs here, a state) is not in them. So nothing that a client makes up becomes history.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aswarm._decisions import Answer, Approve, Decision, Deny, waiting, waiting_entries
from aswarm._json import is_array, is_object, shown
from aswarm._messages import Message

from ._entries import public_ids

_SHOWN = 100
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}


class RequestError(Exception):
    """A request that cannot be served. `status` is that of HTTP, `code` a word for programs, `param` the place in the body."""

    def __init__(self, status: int, code: str, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message of the user. `content`: a text, or parts in the form of Chat Completions. `id`: that of the client, if any."""

    content: str | list[dict[str, Any]]
    id: str | None = None

    @property
    def message(self) -> Message:
        """The message for the history."""
        return {"role": "user", "content": self.content}


@dataclass(frozen=True, slots=True)
class CallAnswer:
    """What a client says about a call.

    `call`: the public id of the call. `approve`: True or False for a decision, None for an answer, which is `content`.
    `arguments`: run the call with these. `reason`: the text that the model is told about a call that is denied. `run`: the
    id of the run that asked, or None if the client does not say.
    """

    call: str
    approve: bool | None = None
    arguments: Mapping[str, Any] | None = None
    reason: str = ""
    content: Any = None
    run: str | None = None


@dataclass(frozen=True, slots=True)
class ClientTool:
    """A tool that the client has: the run leaves its calls open, and the client answers them."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """What a client asks for.

    `messages`: what the user has said since the last message of an assistant, in order. `answers`: about open calls.
    `must_fit`: an answer about a call that is not open is an error; otherwise it is old history, and left out. `tools`: those
    of the client. `state`: what the client takes for the state; only keys that the service allows are of use.
    `conversation`, `run_id`, `agent`: the client's, None if it names none. `regenerate`: the last answer is to be made again.
    `continues`: the model goes on from the history as it is.
    `protocol_version`: for wires that have one.
    """

    messages: Sequence[NewMessage] = ()
    answers: Sequence[CallAnswer] = ()
    must_fit: bool = True
    tools: Sequence[ClientTool] = ()
    state: Mapping[str, Any] | None = None
    conversation: str | None = None
    run_id: str | None = None
    agent: str | None = None
    regenerate: bool = False
    continues: bool = False
    protocol_version: str | None = None


def decisions(
    answers: Iterable[CallAnswer],
    history: Sequence[Message],
    *,
    must_fit: bool = True,
    complete: bool = False,
    last_run: str | None = None,
) -> dict[int, Decision]:
    """What the answers mean for the open calls of a stored history: the `resume=` of the next run.

    `last_run`: the id of the run that left them open; an answer to the question of another run does not fit. An answer that
    names this run may have the id that the model gave the call, where earlier calls had the same one. `complete`:
    each call that has asked must have its answer. Raises RequestError: 409 for a call that is not open, 422 for an answer
    that is not of the form that the call asks for, or that is missing.
    """
    ids = public_ids(history)
    open_calls = {call.index: call for call in waiting(history)} if history else {}
    marks = (waiting_entries(history) or {}) if open_calls else {}
    found: dict[int, Decision] = {}
    for answer in answers:
        named = [
            call.index
            for call in open_calls.values()
            if answer.run and (call.id, last_run) == (answer.call, answer.run)
        ]
        index = ids.get(answer.call, named[0] if len(named) == 1 else -1)
        is_current = answer.run is None or last_run is None or answer.run == last_run
        if index in open_calls and is_current:
            found[index] = _decision(answer, is_approval=bool(marks.get(index, {}).get("approval")))
        elif must_fit:
            raise RequestError(
                409,
                "call_not_open",
                f"the call {shown(answer.call, _SHOWN)} waits for no answer; it may have been answered already. Load the "
                "conversation again to see which calls are open",
            )
    missing = [call.id for index, call in open_calls.items() if index in marks and index not in found]
    if complete and missing:
        raise RequestError(
            422, "answers_missing", f"the calls {', '.join(missing)} wait too; send an answer for each of them"
        )
    return found


def _decision(answer: CallAnswer, *, is_approval: bool) -> Decision:
    if answer.approve is None and is_approval:
        answer = _approval(answer)
    if answer.approve is None:
        return Answer(answer.content)
    return Approve(answer.arguments) if answer.approve else Deny(answer.reason)


def _approval(answer: CallAnswer) -> CallAnswer:
    """The decision that stands in the content of an answer."""
    content: Any = {"approved": answer.content} if isinstance(answer.content, bool) else answer.content
    if not (is_object(content) and isinstance(content.get("approved"), bool)):
        raise RequestError(
            422,
            "not_an_approval",
            f"the call {shown(answer.call, _SHOWN)} asks for an approval, and the answer is {shown(answer.content, _SHOWN)}; "
            'send {"approved": true} or {"approved": false, "reason": "..."}',
        )
    arguments, reason = content.get("arguments", content.get("editedArgs")), content.get("reason")
    return CallAnswer(
        answer.call,
        approve=content["approved"],
        arguments=None if arguments is None else an_object(arguments, "arguments"),
        reason=reason if isinstance(reason, str) else "",
    )


# --- reading a body ---------------------------------------------------------------------------------------------------


def invalid(param: str, expected: str, value: object) -> RequestError:
    """The error for a value of the wrong form."""
    message = f"{param} must be {expected}, not {shown(value, _SHOWN)}"
    return RequestError(422, "invalid_request", message, param=param)


def an_object(value: object, param: str) -> Mapping[str, Any]:
    """The value if it is a JSON object. Raises RequestError."""
    if not is_object(value):
        raise invalid(param, "an object", value)
    return value


def a_list(value: object, param: str) -> list[Any]:
    """The value if it is a list; an empty one if it is absent. Raises RequestError."""
    if value is None:
        return []
    if not is_array(value):
        raise invalid(param, "a list", value)
    return value


def a_text(value: object, param: str) -> str:
    """The value if it is a text that is not empty. Raises RequestError."""
    if not (isinstance(value, str) and value):
        raise invalid(param, "a text that is not empty", value)
    return value


def an_optional_text(value: object, param: str) -> str | None:
    """The value if it is a text, None if it is absent. Raises RequestError."""
    return None if value is None else a_text(value, param)


def a_flag(value: object, param: str) -> bool:
    """The value if it is true or false; False if it is absent. Raises RequestError."""
    if value is not None and not isinstance(value, bool):
        raise invalid(param, "true or false", value)
    return bool(value)


def client_tool(data: Mapping[str, Any], param: str) -> ClientTool:
    """A tool that the client declares: `name`, `description` and `parameters`, a JSON schema. Raises RequestError."""
    name = a_text(data.get("name"), f"{param}.name")
    if not _TOOL_NAME.fullmatch(name):
        raise invalid(f"{param}.name", "of letters, digits, _ and -, and at most 64 of them", name)
    parameters = data.get("parameters")
    schema = _NO_PARAMETERS if parameters is None else an_object(parameters, f"{param}.parameters")
    return ClientTool(name, str(data.get("description") or ""), schema)


def last_said(messages: Sequence[Any]) -> list[Mapping[str, Any]]:
    """The messages of the user after the last message of an assistant or of a tool."""
    found: list[Mapping[str, Any]] = []
    for message in reversed(messages):
        role = message.get("role") if is_object(message) else None
        if role in ("assistant", "tool"):
            break
        if role == "user":
            found.append(message)
    return found[::-1]


def user_content(parts: Iterable[Mapping[str, Any] | None]) -> str | list[dict[str, Any]]:
    """The content of a message from its parts that could be read: a text if all of them are text."""
    known = [dict(part) for part in parts if part is not None]
    if all(part["type"] == "text" for part in known):
        return "".join(part["text"] for part in known)
    return known


def a_text_part(text: str) -> dict[str, Any]:
    """A part of text in the form of Chat Completions."""
    return {"type": "text", "text": text}


def an_image_part(url: str) -> dict[str, Any]:
    """An image in the form of Chat Completions. `url` may have the image itself ("data:image/png;base64,...")."""
    return {"type": "image_url", "image_url": {"url": url}}
