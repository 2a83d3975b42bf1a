"""Token counts: sums of the reported counts. No report of a provider breaks a run."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from functools import reduce
from operator import add
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aswarm import Agent, AsyncSwarm, Usage
from aswarm.testing import RawAnswer, ScriptedModel

counts = st.integers(min_value=0, max_value=10**9)
keys = st.sampled_from(["cached_tokens", "audio_tokens", "cost"])
details = st.recursive(
    st.dictionaries(keys, counts, max_size=3), lambda inner: st.dictionaries(st.just("details"), inner), max_leaves=5
)
usages = st.builds(Usage, counts, counts, counts, counts, details)
# Numbers that are no count: they fit no float, no integer of 64 bits, or nothing at all.
ODD_NUMBERS = [10**400, -(10**400), 10**4000, 2**63, 1e300, -1e300, math.inf, -math.inf, math.nan]
HELLO = {"role": "assistant", "content": "Hello"}
# Whatever a server may put there.
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.sampled_from(ODD_NUMBERS), st.floats(), st.text(max_size=3)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=3)),
    max_leaves=8,
)
reports = st.dictionaries(keys, json_values, max_size=3)


@given(usages, usages, usages)
def test_sums_do_not_depend_on_grouping(a: Usage, b: Usage, c: Usage) -> None:
    """(a + b) + c is a + (b + c): the order of additions does not matter."""
    assert (a + b) + c == a + (b + c)


@given(usages, usages)
def test_a_sum_changes_neither_part_and_shares_nothing_with_them(a: Usage, b: Usage) -> None:
    """The sum is a new object, its details included: writing to it leaves the parts as they were."""
    before = copy.deepcopy((a, b))
    total = a + b
    _write_everywhere(total.details)
    assert (a, b) == before


def _write_everywhere(details: dict[str, Any]) -> None:
    for value in list(details.values()):
        if isinstance(value, dict):
            _write_everywhere(value)
    details["written"] = 1


@given(st.lists(st.tuples(counts, counts), max_size=5))
def test_a_run_sums_its_completions(reported: list[tuple[int, int]]) -> None:
    """Each count is the sum of the reported counts, `requests` the number of completions."""
    each = [
        Usage.of_completion({"prompt_tokens": p, "completion_tokens": c, "total_tokens": p + c}) for p, c in reported
    ]
    total = reduce(add, each, Usage())
    prompt, completion = sum(p for p, _ in reported), sum(c for _, c in reported)
    assert (total.prompt_tokens, total.completion_tokens) == (prompt, completion)
    assert (total.total_tokens, total.requests) == (prompt + completion, len(reported))


@given(reports, reports)
def test_whatever_details_come_they_can_be_summed(first: dict[str, Any], second: dict[str, Any]) -> None:
    """Two providers of one run may report different kinds of things under one key; that never ends the run."""
    total = Usage.of_completion(first) + Usage.of_completion(second)
    assert total.requests == 2


@given(st.dictionaries(st.sampled_from(["prompt_tokens", "completion_tokens", "total_tokens"]), json_values))
def test_whatever_counts_come_the_completion_counts(reported: dict[str, Any]) -> None:
    """A count that is no number is unknown, never an error: the answer was paid for and must not be lost."""
    assert Usage.of_completion(reported).requests == 1


@pytest.mark.parametrize("number", ODD_NUMBERS, ids=lambda number: f"{number!r:.10}")
def test_numbers_that_cannot_be_counts_are_unknown(number: float) -> None:
    """They are left out, and other numbers count. So no sum over a run or a batch can fail or overflow."""
    used = Usage.of_completion({"prompt_tokens": number, "completion_tokens": 3, "cost": number, "more": {"n": number}})
    assert used == Usage(0, 3, 0, 1, {"more": {}})
    sums = Usage.of_completion({"cost": 0.5, "more": {"n": 1}}) + used + Usage.of_completion({"cost": 2**62})
    assert sums.details == {"cost": 0.5 + 2**62, "more": {"n": 1}}


@pytest.mark.asyncio
@pytest.mark.parametrize("number", ["1e400", "-1e400", "1" + "0" * 400, "NaN", '"7"', "[7]", "{}"])
@pytest.mark.parametrize("stream", [True, False])
async def test_an_odd_count_of_a_server_does_not_end_the_run(number: str, stream: bool) -> None:
    """The answer was paid for: over HTTP, whole or streamed, it comes whatever `usage` has."""
    choice = {"index": 0, "finish_reason": "stop", "delta" if stream else "message": HELLO}
    answer = {"choices": [choice], "usage": {"prompt_tokens": "?", "completion_tokens": 3, "cost": "?"}}
    text = json.dumps(answer).replace('"?"', number)
    raw = (
        RawAnswer([f"data: {text}\n\ndata: [DONE]\n\n".encode()])
        if stream
        else RawAnswer([text.encode()], "application/json")
    )
    client = ScriptedModel([raw]).client()
    async with AsyncSwarm(client).stream(Agent(), "Hi", deltas=stream) as run:
        async for _ in run:
            pass
    assert (run.response.text, run.response.usage.completion_tokens) == ("Hello", 3)


@pytest.mark.parametrize(
    ("reported", "usage"),
    [
        (None, Usage(0, 0, 0, 1, {})),
        ({}, Usage(requests=1)),
        ({"prompt_tokens": None, "completion_tokens": 3}, Usage(0, 3, 0, 1)),
        (
            {"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 4, "audio_tokens": None}, "cost": 0.5},
            Usage(10, 0, 0, 1, {"prompt_tokens_details": {"cached_tokens": 4}, "cost": 0.5}),
        ),
        ({"is_byok": True, "tier": "default", "choices": [1]}, Usage(requests=1)),
    ],
)
def test_the_usage_of_a_completion(reported: dict[str, Any] | None, usage: Usage) -> None:
    """A missing count is zero. Further numbers keep the keys of the provider; words, flags and lists are left out."""
    assert Usage.of_completion(reported) == usage


def test_details_are_summed_key_by_key() -> None:
    """Numbers under the same keys are added, at any depth; others are kept."""
    first = Usage.of_completion({"prompt_tokens_details": {"cached_tokens": 4}, "cost": 0.5})
    second = Usage.of_completion({"prompt_tokens_details": {"cached_tokens": 1, "audio_tokens": 2}})
    expected = {"prompt_tokens_details": {"cached_tokens": 5, "audio_tokens": 2}, "cost": 0.5}
    assert (first + second).details == expected


def test_a_usage_cannot_be_changed() -> None:
    """An event and the response share a Usage; a sum is a new object."""
    usage = Usage(1, 2, 3, 1)
    with pytest.raises((AttributeError, TypeError)):  # a TypeError of Python 3.11 for a frozen class with slots
        usage.prompt_token = 1  # type: ignore[attr-defined]
    with pytest.raises(dataclasses.FrozenInstanceError):
        usage.requests = 2  # type: ignore[misc]
    assert usage + usage == Usage(2, 4, 6, 2)
