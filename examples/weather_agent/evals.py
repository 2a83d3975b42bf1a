"""Evals as tests: the agent looks up the weather if, and only if, the user asks for it.

    pytest examples/weather_agent/evals.py     # or run this file, which does the same

A test fails if its case fails too often. An attempt is one completion, and no function is executed.
"""

from __future__ import annotations

import asyncio
import sys

import pytest
from agents import weather_agent

from aswarm.evals import Case, assert_case

REPEATS = 5
THRESHOLD = 0.8  # models vary: four of five attempts must pass


def check(case: Case) -> None:
    """Run a case several times."""
    asyncio.run(assert_case(weather_agent, case, repeats=REPEATS, threshold=THRESHOLD))


@pytest.mark.parametrize(
    "question",
    ["What's the weather in Oslo?", "Do I need an umbrella in Chicago today?", "Is it cold in Lima?"],
)
def test_looks_the_weather_up_when_asked(question: str) -> None:
    """Check that the first call is of `get_weather`."""
    check(Case(question, function="get_weather"))


@pytest.mark.parametrize(
    ("question", "city", "day"),
    [("Will it rain in Oslo tomorrow?", "Oslo", "tomorrow"), ("How warm is it in Lima today?", "Lima", "today")],
)
def test_asks_for_the_city_and_the_day_of_the_question(question: str, city: str, day: str) -> None:
    """Check that the arguments come from the question."""
    check(Case(question, function="get_weather", arguments={"city": city, "day": day}))


def test_asks_for_both_cities_at_once() -> None:
    """Check that one completion has both calls, which aswarm then runs together."""
    check(Case("Where is more sun, in Oslo or in Lima?", function=["get_weather", "get_weather"]))


@pytest.mark.parametrize("question", ["Who wrote Faust?", "What time is it?", "Hi!"])
def test_calls_nothing_when_not_asked_for_the_weather(question: str) -> None:
    """Check that there is no call."""
    check(Case(question, function=None))


if __name__ == "__main__":
    # Without pytest's warning that aswarm's dependencies were imported before it could rewrite them.
    sys.exit(pytest.main(["-q", "-p", "no:warnings", "-o", "console_output_style=classic", __file__]))
