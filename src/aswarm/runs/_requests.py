"""Requests of clients as data: new messages of the user, answers to open calls, and tools of the client.

Each wire converts its requests to these values. They have no field for an assistant message. Only the program of the service
sets the result of a function that runs here (`CallAnswer.result`). So a client cannot invent history.

Security: On the native, Vercel and AG-UI wires, a request adds only messages of the user, and answers to calls that are open on
the server.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

from aswarm._record.entries import public_ids
from aswarm._record.entry_maker import CLIENT_TOOL
from aswarm._run.resuming import as_decision, by_position, fault_of_expected
from aswarm._tools.conversion import arguments_or_text
from aswarm._values.decisions import (
    RUNS_ELSEWHERE,
    Answer,
    Approve,
    Decision,
    Decisions,
    Deny,
    OpenCall,
    is_run_inside,
    waiting,
    waiting_entries,
)
from aswarm._values.errors import AswarmError, ConfigurationError
from aswarm._values.json import is_array, is_object, shown
from aswarm._values.messages import Message

_SHOWN = 100
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}


class RequestRefused(AswarmError):  # noqa: N818 - named after the event
    """Base class of the errors of `Runs`: a request that was refused, and changed nothing.

    `code`: the name of the error for clients. `status_code`: the HTTP status of a service.
    """

    code: str = "refused"
    status_code: int = 400


class InvalidRequest(RequestRefused):
    """A request that cannot be served.

    Args:
        message: The text for people.
        code: The name of the error for programs.
        status_code: The HTTP status.
        param: The field of the body with the fault, or None.
    """

    def __init__(self, message: str, *, code: str, status_code: int = 400, param: str | None = None) -> None:
        super().__init__(message)
        self.status_code = status_code
        self.code = code
        self.message = message
        self.param = param


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
class CallAnswer:
    """The answer of a client to an open call.

    Args:
        call_id: The public id of the call. With `run_id`, it may also be the id from the model, or the index of the call.
        run_id: The id of the run that waits. Without this id, a repeated answer could answer the next question of the same
            call. The id may be None for the result of an external tool, and is None if the waiting run has no record.
        approve: True or False for an approval; None for an answer in `data`.
        arguments: Arguments that replace the arguments of an approved call.
        expected: The arguments that the user has seen. If the call has other arguments, AnswersRefused is raised.
        reason: The reason of a denial, for the model.
        data: The answer.
        result: The result of the call, instead of running its function. No wire sets it.
    """

    call_id: str
    _: KW_ONLY
    run_id: str | None = None
    approve: bool | None = None
    arguments: Mapping[str, Any] | None = None
    expected: Mapping[str, Any] | None = None
    reason: str = ""
    data: Any = None
    result: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTool:
    """A tool of the client. The run keeps its calls open, and the client answers them."""

    name: str
    description: str
    parameters: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return the tool as JSON data, in the form of a function of Chat Completions."""
        return {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """The request of a client.

    `messages`: the messages of the user since the last assistant message, in order. `answers`: the answers to open calls.
    `strict`: if True, an answer to a call that is not open is an error; if False, it is ignored as old history.
    `tools`: the tools of the client. `state`: the state of the client; the service reads only the allowed keys.
    `conversation`, `run_id`, `agent`: ids and a name, None if the client does not send them. `regenerate`: whether to
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
    regenerate: bool = False
    continues: bool = False
    protocol_version: str | None = None
    shown: Sequence[Mapping[str, Any]] = ()
    notes: Sequence[str] = ()
    left_out: Sequence[str] = ()


def decisions(
    answers: Iterable[CallAnswer],
    history: Sequence[Message],
    *,
    strict: bool = True,
    complete: bool = False,
    last_run: str | None = None,
) -> dict[int, Decision]:
    """Return the decisions about the open calls of a stored history, for the `resume=` of the next run.

    `last_run`: the id of the run that has left the calls open, or None if no run has left them; an answer that names another
    run is not accepted. An answer to this run may have the provider's id of the call, even if earlier calls had the same id.
    `complete`: whether each waiting call needs an answer.

    Raises InvalidRequest with the status 409 for a call that is not open. The status is 422 if an answer is missing, does not
    name its run, or has the wrong form.
    """
    ids = public_ids(history)
    open_calls = {call.index: call for call in waiting(history)} if history else {}
    marks = (waiting_entries(history) or {}) if open_calls else {}
    by_index: dict[int, Decision] = {}
    for answer in answers:
        index = ids.get(answer.call_id, _index_of(answer, open_calls.values(), last_run))
        mark = marks.get(index, {})
        # The first answer closes the call of a tool that runs in another program, so such an answer needs no run id.
        is_elsewhere = mark.get("reason") == RUNS_ELSEWHERE or mark.get("data") == CLIENT_TOOL
        # An answer that names a run is never an answer to another run, or to calls that no run has left.
        is_current = (answer.run_id or None) == last_run or (answer.run_id is None and is_elsewhere)
        if index in open_calls and is_current:
            by_index[index] = _decision(answer, open_calls[index], mark)
        elif strict and index in open_calls and answer.run_id is None:
            raise InvalidRequest(
                f"the answer to the call {shown(answer.call_id, _SHOWN)} does not name the run that waits; send its id as run",
                code="run_missing",
                status_code=422,
            )
        elif strict:
            raise InvalidRequest(
                f"the call {shown(answer.call_id, _SHOWN)} does not wait for an answer; it may already have one. Load the "
                "conversation again to see which calls are open",
                code="call_not_open",
                status_code=409,
            )
    missing = [call.id for index, call in open_calls.items() if index in marks and index not in by_index]
    if complete and missing:
        raise InvalidRequest(
            f"the calls {', '.join(missing)} also wait for answers; send an answer to each call",
            code="answers_missing",
            status_code=422,
        )
    return by_index


def _index_of(answer: CallAnswer, open_calls: Collection[OpenCall], last_run: str | None) -> int:
    """Return the index of the call that an answer to the last run names by the id from the model, or by its index; otherwise -1."""
    if not answer.run_id or answer.run_id != last_run:
        return -1
    named = [call.index for call in open_calls if call.id == answer.call_id]
    by_index = [call.index for call in open_calls if str(call.index) == answer.call_id]
    indexes = named or by_index
    return indexes[0] if len(indexes) == 1 else -1


def answers_of(decisions: Decisions, run_id: str) -> list[CallAnswer]:
    """Return the answers to a run with these decisions. Raises ConfigurationError for a value that is no decision."""
    if not isinstance(decisions, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may pass anything
        raise ConfigurationError(
            f"answer() needs a dict of decisions by call id, such as {{'call_1': True}}, not {shown(decisions, _SHOWN)}"
        )
    return [_answer_of(str(call), decision, run_id) for call, decision in decisions.items()]


def _answer_of(call_id: str, decision: Decision, run_id: str) -> CallAnswer:
    match as_decision(call_id, decision):
        case str() as text:
            return CallAnswer(call_id, run_id=run_id, result=text)
        case Deny(reason):
            return CallAnswer(call_id, run_id=run_id, approve=False, reason=reason)
        case Approve(arguments, expected=expected):
            return CallAnswer(call_id, run_id=run_id, approve=True, arguments=arguments, expected=expected)
        case Answer(data, expected=expected):
            return CallAnswer(call_id, run_id=run_id, data=data, expected=expected)


def _decision(answer: CallAnswer, call: OpenCall, mark: Mapping[str, Any]) -> Decision:
    if answer.result is not None:
        return answer.result
    if answer.approve is None and mark.get("approval"):
        answer = _approval(answer)
    if answer.approve is False:
        return Deny(answer.reason)
    decision = (
        Answer(answer.data, expected=answer.expected)
        if answer.approve is None
        else Approve(answer.arguments, expected=answer.expected)
    )
    _check(call, decision, mark.get("data"))
    return decision


def _check(call: OpenCall, decision: Decision, data: Any) -> None:
    """Raise InvalidRequest if a decision, or a decision on a call inside this call, does not fit.

    A run checks this too. But here nothing has started, so the client gets the error as the response to its request.
    `data`: the data of the call in the history.
    """
    if not isinstance(decision, Approve | Answer):
        return
    if (fault := fault_of_expected(call.id, decision.expected, arguments_or_text(call.arguments))) is not None:
        raise InvalidRequest(fault, code="arguments_changed", status_code=409)
    if isinstance(decision, Approve) and decision.arguments is not None:
        an_object(decision.arguments, "arguments")
    if isinstance(decision, Answer) and is_run_inside(data):
        _check_inside(call, an_object(decision.data, "the answer to the calls inside the call"), data["messages"])


def _check_inside(call: OpenCall, decisions: Decisions, messages: Sequence[Message]) -> None:
    """Raise InvalidRequest if a decision on a call inside this call does not fit."""
    inside, marks = {call.index: call for call in waiting(messages)}, waiting_entries(messages) or {}
    names = {name for inner in inside.values() for name in (inner.id, str(inner.index))}
    if closed := [str(name) for name in decisions if str(name) not in names]:
        raise InvalidRequest(
            f"inside the call {call.id!r}, no call with the id or index {shown(closed[0], _SHOWN)} waits for an answer",
            code="call_not_open",
            status_code=409,
        )
    try:
        by_index = by_position(list(inside.values()), decisions)
        decided = {index: as_decision(inside[index].id, decision) for index, decision in by_index.items()}
    except ConfigurationError as error:
        text = f"the answer to the call {call.id!r}: {error}"
        raise InvalidRequest(text, code="invalid_request", status_code=422) from error
    for index, decision in decided.items():
        _check(inside[index], decision, marks.get(index, {}).get("data"))


def _approval(answer: CallAnswer) -> CallAnswer:
    """Return the answer to an approval with `approve` set from its data. Raises InvalidRequest for other data."""
    data: Any = {"approved": answer.data} if isinstance(answer.data, bool) else answer.data
    if not (is_object(data) and isinstance(data.get("approved"), bool)):
        raise InvalidRequest(
            f"the call {shown(answer.call_id, _SHOWN)} waits for an approval, and the answer is {shown(answer.data, _SHOWN)}; "
            'send {"approved": true} or {"approved": false, "reason": "..."}',
            code="not_an_approval",
            status_code=422,
        )
    arguments, reason = data.get("arguments", data.get("editedArgs")), data.get("reason")
    expected = data.get("expected", answer.expected)
    return replace(
        answer,
        approve=data["approved"],
        arguments=None if arguments is None else an_object(arguments, "arguments"),
        expected=None if expected is None else an_object(expected, "expected"),
        reason=reason if isinstance(reason, str) else "",
    )


# --- reading a body ---------------------------------------------------------------------------------------------------


def invalid(param: str, expected: str, value: object) -> InvalidRequest:
    """Return the error for a value of the wrong form."""
    return fault_at(param, f"{param} must be {expected}, not {shown(value, _SHOWN)}")


def fault_at(param: str, message: str) -> InvalidRequest:
    """Return the error for a fault in this field of the body."""
    return InvalidRequest(message, code="invalid_request", status_code=422, param=param)


def an_object(value: object, param: str) -> Mapping[str, Any]:
    """Return the value if it is a JSON object. Raises InvalidRequest."""
    if not is_object(value):
        raise invalid(param, "an object", value)
    return value


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
    if not _TOOL_NAME.fullmatch(name):
        raise invalid(f"{param}.name", "1 to 64 letters, digits, _ or -", name)
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
