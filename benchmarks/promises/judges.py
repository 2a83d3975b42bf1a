"""From the facts of a program to its verdict: the requests that the server recorded, the lines of the tools, the ends of the steps."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from scripts import ANSWER, GO_ON

Json = dict[str, Any]
KEPT, BROKEN, REFUSED, NOT_OFFERED = 0, 10, 11, 12
NAMES = {KEPT: "kept", BROKEN: "broken", REFUSED: "refused", NOT_OFFERED: "not offered"}

# How a result says that a call has started and its outcome is not known. A result that denies the start is false.
_UNKNOWN = re.compile(
    r"unknown|interrupt|cancel|abort|uncertain|may have|may or may not|might have|in doubt|not known", re.IGNORECASE
)
_DENIES = re.compile(
    r"(?<!may or may )not (been )?(run|executed|performed|started)\b|(was|were) never (run|executed)\b", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class StepEnd:
    """The end of a process. `code`: its exit code, None if it was killed as planned. `output`: its last lines."""

    name: str
    code: int | None
    output: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a program did."""

    requests: list[Json]
    effects: list[Json]
    ends: list[StepEnd]

    def count(self, what: str, **details: Any) -> int:
        """Return the number of lines of the tools with this text."""
        return sum(
            line["what"] == what and all(line.get(key) == value for key, value in details.items())
            for line in self.effects
        )

    def results(self, call_id: str, *steps: str) -> list[str]:
        """Return the results of a call, as the model has read them in these steps."""
        return [
            item["text"]
            for request in self.requests
            if not steps or request["step"] in steps
            for item in request["items"]
            if item["kind"] == "result" and item["call_id"] == call_id
        ]

    def going_on(self) -> Json | None:
        """Return the first request that ends with the user's "Go on."."""
        for request in self.requests:
            asked = [item["text"] for item in request["items"] if item["kind"] == "user"]
            if asked and asked[-1] == GO_ON:
                return request
        return None


Judge = Callable[[Facts], Iterator[str]]


def verdict(scenario: str, facts: Facts) -> tuple[int, str]:
    """Return the verdict, and the line that shows it. Raises RuntimeError if the program has no verdict."""
    for end in facts.ends:
        if end.code == NOT_OFFERED:
            return NOT_OFFERED, end.output.splitlines()[-1]
    for request in facts.requests:
        if request["faults"]:
            return BROKEN, f"step {request['step']!r} sent an invalid request: {request['faults'][0]}"
    if failed := [end for end in facts.ends if end.code not in (None, 0, REFUSED)]:
        raise RuntimeError(f"step {failed[0].name!r} ended with {failed[0].code}:\n{failed[0].output}")
    refusal = next((end.output.splitlines()[-1] for end in facts.ends if end.code == REFUSED), "")
    if fault := next(JUDGES[scenario](facts), None):
        return BROKEN, f"{fault} (one step {refusal})" if refusal else fault
    if refusal and not _may_refuse_one(scenario):
        return REFUSED, refusal
    return KEPT, refusal


def _may_refuse_one(scenario: str) -> bool:
    # Of two approvals of the same call, a framework refuses one, as it should.
    return scenario == "approved_by_two_processes"


# --- sentence 1 -------------------------------------------------------------------------------------------------------


def _goes_on(facts: Facts, *, finished: dict[str, str] | None = None, started: str = "") -> Iterator[str]:
    """Yield the faults of the conversation after the user's "Go on.".

    `finished`: the results that must be kept, by the id of the call. `started`: the id of a call whose outcome is unknown.
    """
    request = facts.going_on()
    if request is None:
        yield "the user's 'Go on.' did not reach the model"
        return
    users = [item["text"] for item in request["items"] if item["kind"] == "user"]
    if len(users) < 2:
        yield f"the first message of the user is lost; the model reads only {users}"
    results = {item["call_id"]: item["text"] for item in request["items"] if item["kind"] == "result"}
    for call_id, text in (finished or {}).items():
        if text not in results.get(call_id, ""):
            yield f"the finished result of {call_id!r} is lost; the model reads {results.get(call_id)!r}"
    if started:
        yield from _unknown(started, results.get(started) or _said_elsewhere(request, started))


def _said_elsewhere(request: Json, call_id: str) -> str | None:
    """Return a message that is no result, and says something about the call: a program may add it from a ledger of calls."""
    return next(
        (item["text"] for item in request["items"] if item["kind"] != "result" and call_id in item["text"]), None
    )


def _unknown(call_id: str, text: str | None) -> Iterator[str]:
    if text is None:
        yield f"the model does not read that {call_id!r} was started"
    elif _DENIES.search(text):
        yield f"{call_id!r} was started, but the model reads {text!r}"
    elif not _UNKNOWN.search(text):
        yield f"the outcome of {call_id!r} is unknown, but the model reads {text!r}"


_LOOKED = {"call_look": "Order 7: one lamp"}


def _cancelled(facts: Facts) -> Iterator[str]:
    yield from _goes_on(facts, finished={"call_hotel": "hotel: room 12"}, started="call_train")


def _cut(facts: Facts) -> Iterator[str]:
    yield from _goes_on(facts)
    if facts.count("book_hotel") > 1:
        yield "the hotel was booked twice"


def _killed(facts: Facts) -> Iterator[str]:
    yield from _goes_on(facts, finished=_LOOKED, started="call_train")
    if facts.count("book_train") > 1:
        yield "the train was booked twice"


def _left(facts: Facts) -> Iterator[str]:
    yield from _goes_on(facts, finished=_LOOKED)


# --- sentence 2 -------------------------------------------------------------------------------------------------------


def _refunded(facts: Facts, order: int = 7, call_id: str = "call_refund") -> Iterator[str]:
    count = facts.count("refund", order=order)
    if count != 1:
        yield f"order {order} was refunded {count} times"
    elif not any(f"refunded order {order}" in text for text in facts.results(call_id)):
        yield f"order {order} was refunded, but the model reads {facts.results(call_id)[-1:]}"


def _killed_after_the_effect(facts: Facts) -> Iterator[str]:
    count = facts.count("refund")
    if count != 1:
        yield f"order 7 was refunded {count} times"
        return
    results = facts.results("call_refund", "recover", "go_on")
    yield from _unknown("call_refund", results[-1]) if results else _goes_on(facts, started="call_refund")
    yield from _goes_on(facts)


def _two_processes(facts: Facts) -> Iterator[str]:
    yield from _refunded(facts)
    yield from _goes_on(facts, finished={"call_refund": "refunded order 7"})


def _reverse(facts: Facts) -> Iterator[str]:
    yield from _refunded(facts)
    yield from _refunded(facts, 8, "call_second")
    yield from _goes_on(facts, finished={"call_refund": "refunded order 7", "call_second": "refunded order 8"})


def _model_failed(facts: Facts) -> Iterator[str]:
    yield from _refunded(facts)
    yield from _goes_on(facts, finished={"call_refund": "refunded order 7"})


def _sub_agent(facts: Facts) -> Iterator[str]:
    yield from _refunded(facts)
    if facts.count("look_up") != 1:
        yield f"the finished call of the sub-agent ran {facts.count('look_up')} times"
    yield from _goes_on(facts, finished={"call_ask": "The cashier has refunded."})


# --- sentence 3 -------------------------------------------------------------------------------------------------------


def _returned(facts: Facts) -> Iterator[str]:
    pieces = [line["text"] for line in facts.effects if line["what"] == "read"]
    before = "".join(line["text"] for line in facts.effects if line["what"] == "read" and line["step"] == "leave")
    whole = next((line["text"] for line in facts.effects if line["what"] == "whole"), None)
    if not before or before == ANSWER:
        yield f"the client did not leave in the middle of the text: it had read {before!r}"
    if facts.count("look_up") != 1 or len(facts.requests) != 2:
        yield f"the run was made again: {facts.count('look_up')} calls, {len(facts.requests)} requests"
    if ANSWER not in ("".join(pieces), whole):
        yield f"after its return, the client has read {''.join(pieces)!r} and {whole!r}"


def _stopped(facts: Facts) -> Iterator[str]:
    if facts.count("book_train ended") or not facts.count("book_train cancelled"):
        yield "the tool still runs after the stop"
    later = [request for request in facts.requests if request["step"] == "stop"]
    if later:
        yield "the model was asked after the stop"
    yield from _goes_on(facts, finished=_LOOKED, started="call_train")


def _restarted(facts: Facts) -> Iterator[str]:
    yield from _refunded(facts)
    yield from _goes_on(facts, finished={"call_refund": "refunded order 7"})


JUDGES: dict[str, Judge] = {
    "cancelled_with_two_calls": _cancelled,
    "stream_cut_in_arguments": _cut,
    "killed_in_a_tool": _killed,
    "reader_leaves_in_mid_text": _left,
    "killed_after_the_effect": _killed_after_the_effect,
    "approved_by_two_processes": _two_processes,
    "answered_in_reverse": _reverse,
    "model_fails_after_the_action": _model_failed,
    "approval_in_a_sub_agent": _sub_agent,
    "client_returns": _returned,
    "stopped_from_another_process": _stopped,
    "restarted_while_waiting": _restarted,
}
