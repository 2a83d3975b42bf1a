"""A history that a browser sends may have any shape: what it costs grows with its length, not with the square."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aswarm import Agent, ConfigurationError
from aswarm._run.plan import plan
from aswarm._run.state import RunState
from aswarm._values.messages import match_answers, normalize, open_calls, to_wire
from tests.support.values.histories import USER, Message, answer, asking, made_call
from tests.support.wire.plain_matching import match_by_rule

# --- what is matched --------------------------------------------------------------------------------------------------

ids = st.sampled_from(["", "a", "b"])
names = st.sampled_from(["f", "g", ""])
calls = st.builds(made_call, ids, names)
# A browser may send any name.
tool_names = st.sampled_from([None, "f", "g", "", "other", 7, True, [], {"f": 1}])
answers = st.builds(
    lambda call_id, extra: answer(call_id, **extra), ids, st.fixed_dictionaries({}, optional={"tool_name": tool_names})
)


@given(st.lists(calls, max_size=8), st.lists(answers, max_size=8))
def test_matching_follows_the_rule(made: list[Message], told: list[Message]) -> None:
    """The same answers go to the same calls as by the plain rule in three passes."""
    assert list(map(id, match_answers(made, told))) == list(map(id, match_by_rule(made, told)))


# --- what it costs ----------------------------------------------------------------------------------------------------


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


# All of them as one assistant message with many calls, and what follows it.
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
    """Begin a run with this history, and leave it at once."""
    state = RunState(Agent(functions=[look]), history, None, resume=True)
    plan(state.turn.calls)
    _ = state.response
    if state.turn.calls:  # one has ended, and one has begun
        state.turn.calls[-1].start()
    _ = state.response


USES: dict[str, Callable[[list[Message]], object]] = {
    "normalize": normalize,
    "open_calls": open_calls,
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
    """A thousand open calls with huge ids: the error names the first ones, shortened, and says how many there are."""
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
