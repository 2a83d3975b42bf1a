"""Settings that no request can contain are found when the agent is made."""

from __future__ import annotations

import math
from datetime import date
from typing import Any

import pytest
from openai import NOT_GIVEN
from pydantic import BaseModel

from aswarm import Agent, ConfigurationError


class Format(BaseModel):
    kind: str = "x"


def _circle() -> list[Any]:
    circle: list[Any] = []
    circle.append(circle)
    return circle


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"x": object()}, r"model_settings\['x'\] is <object object .*>, which is not JSON"),
        ({"x": {"y": [1, math.nan]}}, r"model_settings\['x'\]\['y'\]\[1\] is nan, which is not JSON"),
        ({"x": (1, {2})}, r"model_settings\['x'\]\[1\] is \{2\}, which is not JSON"),
        ({"x": {(1, 2): 3}}, r"model_settings\['x'\] has the key \(1, 2\), which is not JSON"),
        ({"x": {"\ud800": 3}}, r"model_settings\['x'\] has the key '\\ud800', which is not JSON"),
        ({"x": b"a"}, r"model_settings\['x'\] is b'a', which is not JSON"),
        ({"stop": ["a\udce9"]}, r"model_settings\['stop'\]\[0\] has half a surrogate pair"),
        ({"extra_body": {"a": object()}}, r"model_settings\['extra_body'\]\['a'\] is <object"),
        ({"extra_query": {"a": "\ud800"}}, r"model_settings\['extra_query'\]\['a'\] has half a surrogate pair"),
        ({"x": _circle()}, "is nested too deeply, or contains itself"),
        (
            {"extra_headers": {"a": 7}},
            r"model_settings\['extra_headers'\]\['a'\] has the type int, and a header is a str",
        ),
        ({"extra_headers": {5: "a"}}, r"\['extra_headers'\]\[5\] has a name that is not a line of ASCII"),
        ({"extra_headers": {"a\nb": "a"}}, r"\['extra_headers'\]\['a\\nb'\] has a name that is not a line of ASCII"),
        ({"extra_headers": {"a": "secret\nb"}}, r"\['extra_headers'\]\['a'\] has a line break or a NUL character"),
        ({"extra_headers": {"a": "secret\ud800"}}, r"\['extra_headers'\]\['a'\] has half a surrogate pair"),
    ],
)
def test_a_setting_that_cannot_be_sent_is_named(settings: dict[str, Any], fault: str) -> None:
    """With the agent and the place; the value of a header may be a secret."""
    with pytest.raises(ConfigurationError, match=f"the agent 'A': .*{fault}") as caught:
        Agent(name="A", model_settings=settings)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("field", ["name", "model"])
def test_a_name_that_cannot_be_sent_is_refused(field: str) -> None:
    """The name of an agent is the sender of its messages, so a conversation would store it."""
    with pytest.raises(ConfigurationError, match=f"{field} has half a surrogate pair"):
        Agent(**{field: "caf\udce9"})


def test_a_tool_choice_that_cannot_be_sent_is_named() -> None:
    """As a setting."""
    with pytest.raises(ConfigurationError, match=r"tool_choice\['x'\] is inf"):
        Agent(tool_choice={"x": math.inf})


@pytest.mark.parametrize(
    "settings",
    [
        {"logit_bias": {50256: -100}, "stop": ("a", "b"), "seed": None},
        {"x": date(2026, 1, 2), "response_format": Format, "y": [Format()], "z": NOT_GIVEN},
        {"timeout": object(), "extra_headers": {"a": "b", "c": b"d", "e": NOT_GIVEN}},
        {"extra_headers": None},
    ],
    ids=["JSON", "values of the SDK", "options", "nothing"],
)
def test_settings_that_a_client_can_send_are_accepted(settings: dict[str, Any]) -> None:
    """The client converts them, or refuses them."""
    assert Agent(model_settings=settings).model_settings == settings
