"""The native wire: each entry of the log as one server-sent event, whose `id` is the `seq` of the entry.

A browser's `EventSource` reads it, and sends the last id when it connects again. So a reader gets each entry once.
"""

from __future__ import annotations

from collections.abc import Mapping

from ._entries import Entry
from ._requests import (
    CallAnswer,
    ClientRequest,
    NewMessage,
    RequestError,
    a_flag,
    a_list,
    a_text,
    an_object,
    an_optional_text,
)

MEDIA_TYPE = "text/event-stream"
HEARTBEAT = b":\n\n"  # a comment: it keeps proxies from closing a connection that says nothing


def retry(milliseconds: int) -> bytes:
    """The frame that tells a browser when to connect again, as a stream that ends before its run."""
    return b"retry: %d\n\n" % milliseconds


def data_frame(data: bytes) -> bytes:
    """A server-sent event with one line of data."""
    return b"data: %b\n\n" % data


class NativeWire:
    """The native wire: an entry is a server-sent event with its number as id and its JSON as data.

    It has no state: the frames of an entry are the same for each reader.
    """

    media_type = MEDIA_TYPE
    headers: Mapping[str, str] = {}

    def encode(self, entry: Entry) -> list[bytes]:
        """The frames of the next entry."""
        return [b"id: %d\ndata: %b\n\n" % (entry.seq, entry.to_json())]


# --- what a client asks for -------------------------------------------------------------------------------------------


def native_request(body: object) -> ClientRequest:
    """What the body of `POST /conversations/{c}/runs` asks for. Raises RequestError with the place of the fault.

    `{"text": "..."}`, or `{"answers": [{"call", "approve" | "content", "arguments"?, "reason"?, "run"?}]}`; and `agent`.
    Or `{"continue": true}`: the model goes on from the history as it is. Or `{"regenerate": true}`: what follows the last
    message of the user is taken back first.
    """
    data = an_object(body, "body")
    answers = [_answer(each, f"answers[{at}]") for at, each in enumerate(a_list(data.get("answers"), "answers"))]
    continues = a_flag(data.get("continue", False), "continue")
    regenerate = a_flag(data.get("regenerate"), "regenerate")
    if [bool(answers), data.get("text") is not None, continues, regenerate].count(True) != 1:
        raise RequestError(
            422, "invalid_request", "the body must have one of text, answers, continue and regenerate", param="text"
        )
    return ClientRequest(
        messages=[NewMessage(a_text(data["text"], "text"))] if data.get("text") is not None else [],
        answers=answers,
        continues=continues,
        regenerate=regenerate,
        agent=an_optional_text(data.get("agent"), "agent"),
    )


def _answer(answer: object, param: str) -> CallAnswer:
    data = an_object(answer, param)
    if ("approve" in data) is ("content" in data):
        raise RequestError(422, "invalid_request", f"{param} must have either approve or content", param=param)
    arguments = data.get("arguments")
    return CallAnswer(
        a_text(data.get("call"), f"{param}.call"),
        approve=a_flag(data["approve"], f"{param}.approve") if "approve" in data else None,
        arguments=None if arguments is None else an_object(arguments, f"{param}.arguments"),
        reason=an_optional_text(data.get("reason"), f"{param}.reason") or "",
        content=data.get("content"),
        run=an_optional_text(data.get("run"), f"{param}.run"),
    )
