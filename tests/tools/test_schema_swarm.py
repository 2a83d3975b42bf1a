"""`function_to_json` gives exactly Swarm's dict for what Swarm could express."""

# No `from __future__ import annotations`: these hints are objects; annotated_functions.py has the ones that are text.

from typing import Any

import pytest
from hypothesis import given

from aswarm import tool
from aswarm.util import function_to_json
from tests.support.tools.hint_schemas import (
    SWARM_TYPES,
    Address,
    parameters_of,
    received,
    signatures,
    taking,
    with_signature,
)


@given(signatures)
def test_whatever_swarm_could_express_is_as_swarm_expressed_it(drawn: dict[str, tuple[Any, bool]]) -> None:
    """For every signature of Swarm's types: Swarm's dict, in the order of the parameters, for any parameter names."""
    function = with_signature(drawn)
    expected = {name: {"type": SWARM_TYPES.get(hint, "string")} for name, (hint, _) in drawn.items()}
    required = [name for name, (_, has_default) in drawn.items() if not has_default]
    parameters = parameters_of(function)
    assert parameters == {"type": "object", "properties": expected, "required": required}
    assert list(parameters["properties"]) == list(drawn)


@given(signatures)
def test_what_fits_arrives_as_it_was_sent(drawn: dict[str, tuple[Any, bool]]) -> None:
    """Correct arguments are given to the function under the names and with the values that were sent."""
    samples = {str: "7", int: 7, float: 7.5, bool: True, list: [7], dict: {"seven": 7}}
    arguments = {name: samples.get(hint, {"any": [None]}) for name, (hint, _) in drawn.items()}
    assert received(with_signature(drawn), arguments) == arguments


ODD_NAMES = [
    "schema", "model_config", "self_", "_private", "title", "properties", "class_", "json", "default", "enum", "const",
    "required", "type", "description", "items", "self", "cls", "copy", "name", "strict", "extra", "function",
    "arguments", "examples", "model_fields", "__dunder", "validate",
]  # fmt: skip


@pytest.mark.parametrize("name", ODD_NAMES)
def test_any_parameter_name_is_fine(name: str) -> None:
    """Names that mean something to pydantic or to JSON schema are names like any other, in both forms."""
    function = with_signature({name: (int, False), "other": (str, True)})
    assert parameters_of(function)["properties"] == {name: {"type": "integer"}, "other": {"type": "string"}}
    strict = parameters_of(tool(strict=True)(function))
    assert strict["properties"][name] == {"type": "integer"}
    assert received(function, {name: "3"}) == {name: 3}


def test_nested_fields_may_have_any_name_too() -> None:
    """A field called `title` of a model is not taken for a title."""
    definition = parameters_of(taking(Address))["$defs"]["Address"]
    assert definition["properties"] == {
        "title": {"type": "string"},
        "street": {"type": "string", "description": "without number"},
    }


def test_the_dict_is_the_callers_own() -> None:
    """A change of a dict of `function_to_json` does not change the dict of the next caller."""

    def look(city: str) -> None: ...

    function_to_json(look)["function"]["parameters"]["properties"].clear()
    assert parameters_of(look)["properties"] == {"city": {"type": "string"}}
