"""A case passes by the calls of the model and by its answer."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from aswarm import Agent, AsyncSwarm, ConfigurationError, tool
from aswarm.evals import Case, CaseCall, evaluate
from aswarm.testing import ScriptedAnswer, ScriptedCall, ScriptedModel, call


class Trip(BaseModel):
    city: str
    days: int = 1


def offered(name: str) -> Any:
    """A function of this name that accepts any arguments."""

    @tool(name=name)
    def function(city: Any = None, nights: Any = None, a: Any = None, b: Any = None) -> str:
        return "done"

    return function


AGENT = Agent(functions=[offered(name) for name in ("f", "g", "book", "transfer_to_sales")])


async def reason(case: Case, calls: list[ScriptedCall]) -> str:
    """Return the reason of a failed attempt whose model makes these calls; empty if the attempt passes."""
    model = ScriptedModel([ScriptedAnswer("Well.", calls=calls), "Done."])
    report = await evaluate(AGENT, [case], swarm=AsyncSwarm(model.client()))
    return report.cases[0].attempts[0].reason


def calls(*made: str | tuple[str, dict[str, Any]]) -> list[ScriptedCall]:
    return [call(each) if isinstance(each, str) else call(each[0], **each[1]) for each in made]


PARIS = ("book", {"city": "Paris", "nights": 2})
ROME = ("book", {"city": "Rome"})


@pytest.mark.parametrize(
    ("fields", "made"),
    [
        ({"function": None}, []),
        ({"function": "None"}, []),
        ({"function": []}, []),
        ({"function": "f"}, ["f"]),
        ({"function": "f"}, ["f", "g"]),
        ({"function": ["f"]}, ["f"]),
        ({"function": ["f", "g"]}, ["g", "f"]),
        ({"function": ["f", "f"]}, ["f", "f"]),
        ({"function": "f", "run": "whole"}, ["transfer_to_sales", "f"]),
        ({"function": ["f"], "run": "whole", "arguments": {}}, ["f"]),
        ({"function": "book", "arguments": {"city": "Paris"}}, [PARIS]),
        ({"function": "book", "arguments": {"city": "Paris", "nights": 2.0}}, [PARIS]),
        ({"function": ["book"], "arguments": {"city": "Rome"}}, [ROME]),
        ({"function": "book", "arguments": {"city": "Rome"}, "run": "whole"}, [PARIS, ROME]),
        ({"arguments": {"city": "Rome"}}, [ROME]),
        ({"arguments": {"city": lambda city: "om" in city}}, [ROME]),
        ({"arguments": {"a": [1, {"b": None}]}}, [("f", {"a": [1, {"b": None}]})]),
    ],
)
async def test_calls_that_pass(fields: dict[str, Any], made: list[Any]) -> None:
    """A name expects the first call, a list all calls, named arguments their values, and in a whole run any call."""
    assert await reason(Case("Hi", **fields), calls(*made)) == ""


@pytest.mark.parametrize(
    ("fields", "made", "text"),
    [
        ({"function": None}, ["f"], "expected no call"),
        ({"function": "None"}, ["f"], "expected no call"),
        ({"function": "f"}, [], "expected f"),
        ({"function": "f"}, ["g", "f"], "expected f"),
        ({"function": ["f"]}, ["f", "f"], "expected exactly these calls: f"),
        ({"function": ["f"]}, [], "expected exactly these calls: f"),
        ({"function": ["f"]}, ["f", "g"], "expected exactly these calls: f"),
        ({"function": ["f", "g"]}, ["f"], "expected exactly these calls: f, g"),
        ({"function": "f", "run": "whole"}, ["g"], "expected f"),
        ({"function": "book", "arguments": {"city": "Paris"}}, [ROME], 'expected book with city="Paris"'),
        ({"function": "book", "arguments": {"city": "Rome"}}, [PARIS, ROME], 'expected book with city="Rome"'),
        ({"function": "book", "arguments": {"nights": 1}}, [ROME], "expected book with nights=1"),
        ({"function": "book", "arguments": {"nights": "2"}}, [PARIS], 'expected book with nights="2"'),
        ({"arguments": {"a": True}}, [("f", {"a": 1})], "expected a call with a=true"),
        ({"arguments": {"a": [1]}}, [("f", {"a": [1, 2]})], "expected a call with a=[1]"),
        ({"arguments": {"a": {"b": 1}}}, [("f", {"a": {"b": 1, "c": 1}})], 'expected a call with a={"b": 1}'),
        ({"arguments": {"a": str.isupper, "b": "ü"}}, [("f", {"a": "c"})], 'expected a call with a=<isupper>, b="ü"'),
        ({"function": "f", "arguments": {"a": 1}}, [("g", {"a": 1})], "expected f with a=1"),
    ],
)
async def test_calls_that_fail(fields: dict[str, Any], made: list[Any], text: str) -> None:
    """The reason of the attempt names the expectation."""
    assert await reason(Case("Hi", **fields), calls(*made)) == text


async def test_arguments_that_are_no_json_have_no_values() -> None:
    """Arguments that are not JSON fail an expected value, and do not matter for an expected name."""
    broken = [ScriptedCall("f", '{"a": ', "c1")]
    assert await reason(Case("Hi", function="f", arguments={"a": 1}), broken) == "expected f with a=1"
    assert await reason(Case("Hi", function="f"), broken) == ""


@pytest.mark.parametrize(
    ("call", "shown"),
    [
        (CaseCall("f", ""), "f()"),
        (CaseCall("f", " {} "), "f()"),
        (CaseCall("f", '{"a":\n  1}'), 'f({"a": 1})'),
        (CaseCall("f", '{"a": '), 'f({"a":)'),
        (CaseCall("f", "[" * 100_000), f"f({'[' * 100_000})"),
    ],
)
def test_a_call_is_shown_on_one_line(call: CaseCall, shown: str) -> None:
    """A call is shown as the model wrote it, on one line."""
    assert str(call) == shown


@pytest.mark.parametrize(
    ("kind", "step", "expected", "reason"),
    [
        (Trip, '{"city": "Rome"}', {"city": "Rome"}, ""),
        (Trip, '{"city": "Rome"}', {"days": lambda days: days == 1}, ""),
        (Trip, '{"city": "Rome"}', {"city": "Oslo", "days": 1}, 'expected an output with city="Oslo", not {"city": '),
        (Trip, '{"city": "Rome"}', {"nights": 1}, "expected an output with nights=1"),
        (int, "7", {"value": 7}, ""),
        (Trip, "no", {"city": "Rome"}, "the model gave no answer of the type Trip"),
        (None, "no", {"city": "Rome"}, "the response has no output type"),
    ],
)
async def test_the_fields_of_a_typed_answer(kind: Any, step: Any, expected: Any, reason: str) -> None:
    """Only the expected fields count, and a run without a typed answer is an error of the attempt."""
    swarm = AsyncSwarm(ScriptedModel(lambda _: step).client())
    report = await evaluate(Agent(output=kind), [Case("Go", output=expected)], swarm=swarm)
    assert report.cases[0].attempts[0].reason.startswith(reason)
    assert (report.accuracy == 1) == (reason == "")


@pytest.mark.parametrize(
    ("options", "text"), [({"output": 7}, "output must be"), ({"run": "completion"}, "needs a whole run")]
)
async def test_an_expected_output_that_cannot_be_used(options: Any, text: str) -> None:
    """The error names the wrong field."""
    with pytest.raises(ConfigurationError, match=text):
        Case("Go", **{"output": {"city": "Rome"}, **options})
