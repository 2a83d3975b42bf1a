"""Histories of any shape: only a valid history is sent, and the cost grows with the length, not with the square."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aswarm import Agent, ConfigurationError
from aswarm._run.state import RunState
from aswarm._run.turn import plan
from aswarm._values.messages import (
    INTERRUPTED,
    ROLES,
    call_name,
    match_answers,
    message_blocks,
    normalize,
    tool_message,
    unanswered_calls,
)
from aswarm._values.wire_messages import to_wire
from aswarm.testing import check_history
from tests.support.values.histories import USER, Message, answer, asking, made_call

ids = st.sampled_from(["", "a", "b", "call_1"])
names = st.sampled_from(["f", "g"])
contents = st.sampled_from([None, "", "text", [], [{"type": "text", "text": "part"}]])
own_keys = st.fixed_dictionaries(
    {},
    optional={
        "sender": st.sampled_from([None, "Agent A"]),
        "tool_name": st.sampled_from([None, "f"]),
        "name": st.none(),
        "refusal": st.sampled_from([None, "", "No."]),
        "function_call": st.none(),
        "reasoning_content": st.sampled_from([None, "Hm."]),
    },
)
calls = st.builds(made_call, ids, names, st.sampled_from(["", "{}", '{"x": 1}', "{cut"]))
plain_messages = st.builds(
    lambda role, content, extra: {"role": role, "content": content, **extra},
    st.sampled_from([role for role in ROLES if role not in ("tool", "assistant")]),
    contents.filter(lambda content: content is not None),
    own_keys,
)
assistant_messages = st.builds(
    lambda content, made, extra: {"role": "assistant", "content": content, "tool_calls": made, **extra},
    contents,
    st.one_of(st.none(), st.lists(calls, max_size=4)),
    own_keys,
)
tool_messages = st.builds(
    lambda call_id, extra: {"role": "tool", "tool_call_id": call_id, "content": "done", **extra},
    ids,
    st.fixed_dictionaries({}, optional={"tool_name": names}),
)
histories = st.lists(st.one_of(plain_messages, assistant_messages, tool_messages), max_size=10)


@pytest.mark.slow
@given(histories)
def test_whatever_goes_in_a_valid_history_goes_out(messages: list[Message]) -> None:
    """Every call on the wire is answered exactly once and in call order, and no tool message is without its call."""
    check_history(to_wire(messages))


@pytest.mark.slow
@given(histories)
def test_the_wire_form_of_a_wire_form_is_itself(messages: list[Message]) -> None:
    """A second cleaning changes nothing."""
    sent = to_wire(messages)
    assert to_wire(sent) == sent


@pytest.mark.slow
@given(histories, st.sampled_from([None, ""]))
def test_neither_our_keys_nor_nulls_are_sent(messages: list[Message], empty: str | None) -> None:
    """Only the content of an assistant message with calls may be null; no key of ours, no empty list of calls."""
    for message in to_wire(messages, empty_content=empty):
        assert not {"sender", "tool_name"} & message.keys()
        nulls = {key for key, value in message.items() if value is None}
        assert nulls <= ({"content"} if message.get("tool_calls") and empty is None else set())
        assert message.get("tool_calls") != []


@pytest.mark.slow
@given(histories)
def test_the_input_is_never_changed(messages: list[Message]) -> None:
    """Cleaning, normalizing and the search for open calls do not change their input."""
    before = copy.deepcopy(messages)
    to_wire(messages)
    normalize(messages)
    unanswered_calls(messages)
    list(message_blocks(messages))
    assert messages == before


@pytest.mark.slow
@given(histories)
def test_what_people_said_is_all_sent_in_order(messages: list[Message]) -> None:
    """System, developer, user and function messages all reach the wire, in their order, with their content."""
    others = [m for m in messages if m["role"] not in ("assistant", "tool")]
    sent = [m for m in to_wire(messages) if m["role"] not in ("assistant", "tool")]
    assert [(m["role"], m["content"]) for m in others] == [(m["role"], m.get("content")) for m in sent]


@pytest.mark.slow
@given(histories)
def test_every_call_is_sent_once(messages: list[Message]) -> None:
    """The calls on the wire are the calls of the history, in order: none is lost, none is doubled."""
    asked = [(c["id"], call_name(c)) for m in messages for c in m.get("tool_calls") or ()]
    sent = [(c["id"], call_name(c)) for m in to_wire(messages) for c in m.get("tool_calls") or ()]
    assert sent == asked


@pytest.mark.slow
@given(histories)
def test_the_open_calls_are_those_that_answering_would_close(messages: list[Message]) -> None:
    """Once every open call has its answer at the end, nothing is open, and the history is sent without an interruption
    at its end."""
    answers = [tool_message(call, "now") for call in unanswered_calls(messages)]
    closed = [*messages, *answers]
    assert unanswered_calls(closed) == []
    contents_sent = [m["content"] for m in to_wire(closed)[-len(answers) :]] if answers else []
    assert INTERRUPTED not in contents_sent


@pytest.mark.slow
@given(histories)
def test_blocks_lose_nothing(messages: list[Message]) -> None:
    """The blocks, one after another, are the history."""
    again = [message for head, answers in message_blocks(messages) for message in ([head] if head else []) + answers]
    assert again == messages


# --- matching ------------------------------------------------------------------------------------------------------

few_ids = st.sampled_from(["", "a", "b"])
few_names = st.sampled_from(["f", "g", ""])
few_calls = st.builds(made_call, few_ids, few_names)
# A browser may send any name.
tool_names = st.sampled_from([None, "f", "g", "", "other", 7, True, [], {"f": 1}])
answers = st.builds(
    lambda call_id, extra: answer(call_id, **extra),
    few_ids,
    st.fixed_dictionaries({}, optional={"tool_name": tool_names}),
)


Fits = Callable[[Message, str], bool]
# First an answer with the name of the call, then an answer without a name, then any.
PASSES: tuple[Fits, ...] = (
    lambda answer, name: answer.get("tool_name") == name,
    lambda answer, _: answer.get("tool_name") is None,
    lambda _answer, _name: True,
)


def match_by_rule(calls: Sequence[Message], answers: Sequence[Message]) -> list[Message | None]:
    """In each pass, match each open call with the first remaining answer that has its id and fits."""
    left = list(answers)
    found: list[Message | None] = [None] * len(calls)
    for fits in PASSES:
        for position, call in enumerate(calls):
            found[position] = found[position] or _take(call, left, fits)
    return found


def _take(call: Message, left: list[Message], fits: Fits) -> Message | None:
    for position, each in enumerate(left):
        if each["tool_call_id"] == call["id"] and fits(each, call["function"]["name"]):
            return left.pop(position)
    return None


@given(st.lists(few_calls, max_size=8), st.lists(answers, max_size=8))
def test_matching_follows_the_rule(made: list[Message], told: list[Message]) -> None:
    """The same answers go to the same calls as by the plain rule in three passes."""
    assert list(map(id, match_answers(made, told))) == list(map(id, match_by_rule(made, told)))


# --- the cost ---------------------------------------------------------------------------------------------------------


class CountedText(str):
    """A text that counts how often it is compared."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        CountedText.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def steps_of(work: Callable[[], object]) -> int:
    """The operations of Python code that the work takes, and the comparisons of its ids."""
    steps = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal steps
        steps += 1
        frame.f_trace_opcodes = True
        return trace

    CountedText.compared = 0
    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(previous)
    return steps + CountedText.compared


def text(value: object) -> CountedText:
    return CountedText(value)


def many_calls(size: int) -> list[Message]:
    return [made_call(text(n), "look") for n in range(size)]


# Each is one assistant message with many calls, and the messages after it.
SHAPES: dict[str, Callable[[int], list[Message]]] = {
    "answers of other calls": lambda size: [
        asking(*many_calls(size)),
        *(answer(text(-n)) for n in range(1, size)),
        USER,
    ],
    "answers in another order": lambda size: [
        asking(*many_calls(size)),
        *(answer(text(n)) for n in reversed(range(size))),
        USER,
    ],
    "one id": lambda size: [
        asking(*(made_call(text("x"), f"f{n}") for n in range(size))),
        *(answer(text("x"), tool_name=f"f{n}") for n in reversed(range(size))),
        USER,
    ],
    "one id, other names": lambda size: [
        asking(*(made_call(text("x"), f"f{n}") for n in range(size))),
        *(answer(text("x"), tool_name=f"g{n}") for n in range(size)),
        USER,
    ],
    "one id, no names": lambda size: [
        asking(*(made_call(text("x")) for _ in range(size))),
        *(answer(text("x")) for _ in range(size)),
        USER,
    ],
    "tool messages without calls": lambda size: [USER, *(answer(text(n)) for n in range(size)), USER],
    "open at the end": lambda size: [USER, asking(*many_calls(size))],
    "half of them open": lambda size: [
        USER,
        asking(*many_calls(size)),
        *(answer(text(n), tool_name="look") for n in reversed(range(size // 2))),
    ],
    "many messages": lambda size: [
        message for n in range(size) for message in (USER, asking(made_call(text("x"))), answer(text("x")))
    ],
}


async def look() -> str:
    """Look."""
    return "seen"


def begin_and_leave(history: list[Message]) -> None:
    """Start a run with this history, and stop it at once."""
    state = RunState(Agent(functions=[look]), history, None, resume=True)
    plan(state.turn.calls)
    _ = state.response
    if state.turn.calls:  # one is finished, and one is started
        state.turn.calls[-1].start()
    _ = state.response


USES: dict[str, Callable[[list[Message]], object]] = {
    "normalize": normalize,
    "open_calls": unanswered_calls,
    "to_wire": to_wire,
    "a run": begin_and_leave,
}


@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_twice_the_history_is_twice_the_work(
    shape: Callable[[int], list[Message]], use: Callable[[list[Message]], object]
) -> None:
    """Operations are counted and not timed: four times the messages take at most five times as many."""
    small, large = shape(50), shape(200)
    use(small)  # what is made once
    assert steps_of(lambda: use(large)) <= 5 * steps_of(lambda: use(small))


def test_the_refusal_of_open_calls_stays_short() -> None:
    """A thousand open calls with huge ids: the error names the first ones, shortened, and their number."""
    history = [USER, asking(*(made_call(f"{n}" * 1000, "look") for n in range(1000)))]
    with pytest.raises(ConfigurationError, match="and 995 more") as caught:
        RunState(Agent(functions=[look]), history, None)
    assert len(str(caught.value)) < 700


def test_what_is_nested_too_deeply_is_named_all_the_same() -> None:
    """A value whose repr fails is a mistake of the caller like any other, not a RecursionError."""
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ConfigurationError, match=r"messages\[0\] has the content part <list>"):
        normalize([{"role": "user", "content": [deep]}])
