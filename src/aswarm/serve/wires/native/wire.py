"""The native wire: the reader of its requests, and its encoder, which makes one server-sent event of each entry of the log.

The `id` of an event is the number (`seq`) of the entry. A browser's `EventSource` sends the last id when it reconnects. So a
reader gets each entry once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aswarm._record.entries import Entry
from aswarm._values.errors import ConfigurationError
from aswarm._values.json import is_object
from aswarm.runs import CallAnswer, ContextEdit
from aswarm.runs.executors import an_object, fault_at
from aswarm.serve.wires.parts import chat_parts, check_keys
from aswarm.serve.wires.requests import (
    ClientRequest,
    NewMessage,
    a_flag,
    a_list,
    a_string,
    a_text,
    an_optional_text,
    user_content,
)
from aswarm.serve.wires.turns import MEDIA_TYPE


class NativeWire:
    """The native wire: each entry is a server-sent event. Its id is the number of the entry; its data is the entry as JSON.

    The wire has no state, so all readers get the same frames.
    """

    media_type: str = MEDIA_TYPE
    headers: Mapping[str, str] = {}

    def encode(self, entry: Entry) -> list[bytes]:
        """Return the frames of the next entry."""
        return [b"id: %d\ndata: %b\n\n" % (entry.seq, entry.to_json())]


_KEYS = ("text", "content", "answers", "continue", "regenerate", "agent", "model", "context", "on_disconnect")
_ANSWER_KEYS = ("call", "run", "approve", "content", "arguments", "expected", "reason")


def native_request(body: object) -> ClientRequest:
    """Return the request in the body of `POST /conversations/{c}/runs`. Raises InvalidRequest with the place of the fault.

    The body has `agent`; `model` and `context`, if the service allows them; and one of:

    - `text`: a message.
    - `content`: a message as a list of parts of Chat Completions, with the types "text", "image_url", "input_audio"
      and "file".
    - `answers`: `[{"call", "run", "approve" | "content", "arguments"?, "expected"?, "reason"?}]`. `run`: the id of the run that
      waits; null if this run has no log. `expected`: the arguments that the user has seen.
    - `"continue": true`: the model continues without a new message.
    - `"regenerate": true`: the model answers the last message of the user again, and the later messages are removed.

    `model`: the model of the run, in place of the models of its agents. `context`: a change of the context variables before the
    run, `{"set": {...}, "remove": [...], "revision"}`; the revision is that of the conversation, "" for a new one.
    """
    data = an_object(body, "body")
    answers = [_answer(item, f"answers[{at}]") for at, item in enumerate(a_list(data.get("answers"), "answers"))]
    continues = a_flag(data.get("continue", False), "continue")
    regenerate = a_flag(data.get("regenerate"), "regenerate")
    text, parts = data.get("text"), a_list(data.get("content"), "content")
    if [bool(answers), text is not None, bool(parts), continues, regenerate].count(True) != 1:
        raise fault_at(
            "text", "the body must have exactly one of the keys text, content, answers, continue and regenerate"
        )
    return ClientRequest(
        messages=_messages(text, parts),
        answers=answers,
        continues=continues,
        regenerate=regenerate,
        agent=an_optional_text(data.get("agent"), "agent"),
        model=an_optional_text(data.get("model"), "model"),
        context_edit=None if data.get("context") is None else _context_edit(data["context"]),
        left_out=[key for key, value in data.items() if key not in _KEYS and value],
    )


def _context_edit(value: object) -> ContextEdit:
    data = an_object(value, "context")
    check_keys(data, ("set", "remove", "revision"), "context")
    removed = [
        a_string(name, f"context.remove[{at}]") for at, name in enumerate(a_list(data.get("remove"), "context.remove"))
    ]
    changes, revision = (
        an_object(data.get("set", {}), "context.set"),
        a_string(data.get("revision"), "context.revision"),
    )
    try:
        return ContextEdit(changes=changes, removed=removed, revision=revision)
    except ConfigurationError as error:  # a number such as 1e999
        raise fault_at("context.set", str(error)) from error


def _messages(text: object, parts: Sequence[object]) -> list[NewMessage]:
    if parts:
        for at, part in enumerate(parts):
            if is_object(part) and part.get("type") == "text":
                a_text(part.get("text"), f"content[{at}].text")
        return [NewMessage(user_content(chat_parts(parts, "content")))]
    return [] if text is None else [NewMessage(a_text(text, "text"))]


def _answer(answer: object, param: str) -> CallAnswer:
    data = an_object(answer, param)
    check_keys(data, _ANSWER_KEYS, param)
    if ("approve" in data) is ("content" in data):
        raise fault_at(param, f"{param} must have either approve or content")
    arguments, expected = data.get("arguments"), data.get("expected")
    return CallAnswer(
        a_text(data.get("call"), f"{param}.call"),
        approve=a_flag(data["approve"], f"{param}.approve") if "approve" in data else None,
        arguments=None if arguments is None else an_object(arguments, f"{param}.arguments"),
        expected=None if expected is None else an_object(expected, f"{param}.expected"),
        reason=an_optional_text(data.get("reason"), f"{param}.reason") or "",
        data=data.get("content"),
        run_id=_run_that_asked(data, param),
    )


def _run_that_asked(data: Mapping[str, Any], param: str) -> str | None:
    if "run" not in data:
        raise fault_at(param, f"{param} must have run, the id of the run that waits")
    return an_optional_text(data["run"], f"{param}.run")
