"""How long to wait before a failed request is sent again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aswarm._wire.backoff import ATTEMPT_BACKOFF, SDK_BACKOFF, Backoff

FAILURES = (1, 2, 3, 4, 7, 8, 5000)


@pytest.mark.parametrize(
    ("backoff", "longest"),
    [
        (SDK_BACKOFF, [0.5, 1, 2, 4, 8, 8, 8]),
        (ATTEMPT_BACKOFF, [1, 2, 4, 8, 60, 60, 60]),
    ],
)
def test_a_wait_doubles_with_each_failure_up_to_the_longest(backoff: Backoff, longest: list[float]) -> None:
    """The openai SDK's numbers, and those of attempts."""
    assert [backoff.seconds(failures, 0.0) for failures in FAILURES] == longest


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_chance_takes_away_at_most_the_share_of_the_jitter(failures: int, chance: float) -> None:
    """Half of a wait for attempts, a quarter for the SDK's."""
    for backoff, share in ((ATTEMPT_BACKOFF, 0.5), (SDK_BACKOFF, 0.25)):
        longest = backoff.seconds(failures, 0.0)
        assert longest * (1 - share) <= backoff.seconds(failures, chance) <= longest
