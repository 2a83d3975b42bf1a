"""`Case`: well-formed cases, their titles, and how much of the agent they run."""

from __future__ import annotations

from typing import Any

import pytest

from aswarm import ConfigurationError
from aswarm.evals import Case, evaluate
from tests.support.evals.evaluated import desk

ASKED = {"role": "user", "content": "Who sings?"}
ANSWERED = {"role": "assistant", "content": "Bono."}
CALLING = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": ""}}],
}


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({}, "expects nothing"),
        ({"function": 3}, "function must be a name, a list of names, or None, not 3"),
        ({"function": ""}, "function must be"),
        ({"function": ["f", 3]}, "function must be"),
        ({"arguments": [1]}, "arguments must be an object"),
        ({"judge": " "}, "judge must be a question"),
        ({"check": "len"}, "check must be a function"),
        ({"judge": "Is it?", "agent": 3}, "agent must be an Agent"),
        ({"judge": "Is it?", "context_variables": "x"}, "context_variables must be an object"),
        ({"judge": "Is it?", "run": "some"}, "run must be one of completion, whole, nothing"),
        ({"judge": "Is it?", "name": ""}, "name must be a text"),
        ({"function": None, "arguments": {"a": 1}}, "arguments belong to one function, not to None"),
        ({"function": "None", "arguments": {"a": 1}}, "arguments belong to one function"),
        ({"function": ["f", "g"], "arguments": {"a": 1}}, "arguments belong to one function"),
        ({"function": "f", "run": "nothing"}, "can be combined only with judge"),
        ({"function": "f", "conversation": []}, "the conversation is empty"),
        ({"function": "f", "conversation": [{"role": "usr", "content": "Hi"}]}, r"messages\[0\] has the role 'usr'"),
        ({"judge": "Is it?", "run": "nothing", "conversation": ["Hi"]}, "a message must be an object, not 'Hi'"),
    ],
)
def test_a_case_that_cannot_be_used(fields: dict[str, Any], error: str) -> None:
    """The class raises the error, which names the fault."""
    with pytest.raises(ConfigurationError, match=error):
        Case(**{"conversation": "Hi", **fields})


@pytest.mark.parametrize(
    ("case", "title"),
    [
        (Case("Hi", function=None), "Hi"),
        (Case("Hi", function=None, name="greeting"), "greeting"),
        (Case([ASKED, ANSWERED], judge="Is it?"), "Who sings?"),
        (Case([ANSWERED], judge="Is it?"), "1 message"),
        (Case("a\n  b " * 50, function=None), "a b " * 14 + "a..."),
    ],
)
def test_the_title_of_a_case(case: Case, title: str) -> None:
    """The title is the name or the last user message, on one line of at most 60 characters."""
    assert str(case) == title
    assert len(str(case)) <= 60


@pytest.mark.parametrize(
    ("case", "extent"),
    [
        (Case("Hi", function="f"), "completion"),
        (Case("Hi", arguments={"a": 1}), "completion"),
        (Case("Hi", function="f", run="whole"), "whole"),
        (Case("Hi", check=bool), "whole"),
        (Case("Hi", check=bool, run="completion"), "completion"),
        (Case("Hi", judge="Is it?"), "whole"),
        (Case("Hi", judge="Is it?", run="nothing"), "nothing"),
        (Case([ASKED], judge="Is it?"), "whole"),
        (Case([ASKED, ANSWERED], judge="Is it?"), "nothing"),
        (Case([ASKED, CALLING], judge="Is it?"), "whole"),
        (Case([ASKED, ANSWERED], judge="Is it?", run="whole"), "whole"),
        (Case([ASKED, ANSWERED], judge="Is it?", function="f"), "whole"),
        (Case([ASKED, ANSWERED], function="f"), "completion"),
    ],
)
def test_how_much_is_run(case: Case, extent: str) -> None:
    """Calls need one completion, a check or a judge the whole run, and a finished conversation nothing."""
    assert case.extent == extent


@pytest.mark.parametrize(
    ("case", "error"),
    [
        ({"conversation": "Hi", "functoin": "f"}, "no 'functoin'; did you mean 'function'?"),
        ({"conversation": "Hi", "xyz": "f"}, "no 'xyz'; it has conversation, function,"),
        ({"function": "f"}, "the case has no conversation: {'function': 'f'}"),
        ("Hi", "a case must be an object with a conversation, not 'Hi'"),
    ],
)
async def test_a_mapping_that_is_no_case_is_refused(case: Any, error: str) -> None:
    """A misspelt key of a mapping is an error."""
    with pytest.raises(ConfigurationError) as caught:
        await evaluate(desk, [case])
    assert error in str(caught.value)
