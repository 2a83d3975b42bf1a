"""Strict mode: the schema has the form that the API takes, or the tool is refused."""

# ruff: noqa: UP007, UP045, RUF013 - the old spellings of hints are what is tested
# No `from __future__ import annotations`: these hints are objects; annotated_functions.py has the ones that are text.

import inspect
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, Optional, Union
from uuid import UUID

import pytest
from hypothesis import given
from pydantic import Field

from aswarm import ConfigurationError, tool
from aswarm.util import function_to_json
from tests.support.tools.hint_schemas import (
    Address,
    Cat,
    Color,
    Dog,
    Level,
    Node,
    Options,
    Pair,
    Point,
    complaints,
    parameters_of,
    received,
    refused,
    signatures,
    taking,
    with_signature,
)

# The API's guide on structured outputs, "Supported schemas". Reported as refused: oneOf (livekit/agents#5302),
# prefixItems (pydantic-ai#7315), format uri (pydantic-ai#4490); as accepted: lengths (both of pydantic-ai).
STRICT_KEYWORDS = {
    "type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf", "$ref", "$defs",
    "description", "pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
    "minItems", "maxItems", "minLength", "maxLength",
}  # fmt: skip
STRICT_FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}


def faults_of_strict(schema: Any, place: str = "") -> Iterator[str]:
    """What OpenAI's strict mode would refuse in a schema."""
    unknown = schema.keys() - STRICT_KEYWORDS
    if unknown:
        yield f"{place}: {sorted(unknown)} not permitted"
    if not {"type", "anyOf", "$ref", "enum", "const"} & schema.keys():
        yield f"{place}: says no type"
    if "$ref" in schema and len(schema) > 1:
        yield f"{place}: $ref with neighbours"
    if schema.get("format", "date") not in STRICT_FORMATS:
        yield f"{place}: format {schema['format']!r} not permitted"
    if schema.get("type") == "array" and "items" not in schema:
        yield f"{place}: array without items"
    if schema.get("type") == "object":
        if schema.get("additionalProperties") is not False:
            yield f"{place}: not closed"
        if list(schema.get("required", ())) != list(schema.get("properties", ())):
            yield f"{place}: not all required"
    for key in ("properties", "$defs"):
        for name, item in schema.get(key, {}).items():
            yield from faults_of_strict(item, f"{place}/{name}")
    for item in schema.get("anyOf", ()):
        yield from faults_of_strict(item, f"{place}/anyOf")
    if "items" in schema:
        yield from faults_of_strict(schema["items"], f"{place}/items")


@pytest.mark.parametrize(
    "hint",
    [
        str, int, float, bool, None, Any, Optional[int], Union[int, str], Literal["a", "b"], Color, Level, list[int],
        list[Node], Point, Options, Address, Node, date, datetime, UUID, Decimal, timedelta, Dog | Cat,
        Annotated[Dog | Cat, Field(discriminator="kind")], Annotated[Node, "the root"], Annotated[Color, "which"],
        Annotated[str, Field(min_length=2, max_length=5)], set[int], frozenset[str], bytes, Path, Pair,
        tuple[int, str], tuple[int, ...], list, list[Any], Optional[list], Literal[1, "a"],
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("default", [inspect.Parameter.empty, None, "d"], ids=["required", "None", "default"])
def test_strict_form_is_valid_or_refused(hint: Any, default: Any) -> None:
    """Every hint gives a schema that the API's strict mode takes, or an error with function and parameter (or type)."""
    try:
        made = function_to_json(tool(strict=True)(taking(hint, default)))
    except ConfigurationError as error:
        assert "'function'" in str(error)  # noqa: PT017
        assert "'x'" in str(error) or f"'{getattr(hint, '__name__', '')}'" in str(error)  # noqa: PT017
        return
    assert made["function"]["strict"] is True
    assert list(faults_of_strict(made["function"]["parameters"])) == []


EXPRESSIBLE = [
    str, int, float, bool, None, Optional[int], Union[int, str], Literal["a", "b"], Color, list[int], list[Node], Point,
    Options, Address, Node, date, UUID, Decimal, Dog | Cat, Annotated[Dog | Cat, Field(discriminator="kind")],
    Annotated[str, Field(min_length=2)], Path,
]  # fmt: skip


@pytest.mark.parametrize("hint", EXPRESSIBLE, ids=str)
def test_strict_form_does_not_refuse_what_it_can_express(hint: Any) -> None:
    """Unknown keywords of strict mode (formats, discriminators) are left out, and the arguments are checked."""
    assert parameters_of(tool(strict=True)(taking(hint)))["required"] == ["x"]


@pytest.mark.parametrize("hint", [dict, dict[str, int], list[dict], Optional[dict[str, int]]], ids=str)
def test_strict_mode_refuses_a_dict_of_any_keys(hint: Any) -> None:
    """Strict mode cannot express it; the error names function and parameter."""
    text = refused(tool(strict=True)(taking(hint)))
    assert "'function'" in text
    assert "'x'" in text


def test_strict_mode_refuses_further_arguments() -> None:
    """`**rest` cannot be closed."""

    def f(**rest: int) -> None: ...

    assert "'f'" in refused(tool(strict=True)(f))


def test_in_strict_mode_null_means_the_default() -> None:
    """The model must send every argument; null for one with a default leaves it to the function."""

    def f(a: int, b: int = 7, c: int = None, d: int | None = 3) -> None: ...  # type: ignore[assignment]

    strict = tool(strict=True)(f)
    assert received(strict, {"a": 1, "b": None, "c": None, "d": None}) == {"a": 1, "d": None}
    nullable = {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    assert parameters_of(strict)["properties"] == {
        "a": {"type": "integer"},
        "b": nullable,
        "c": nullable,
        "d": nullable,
    }
    [line] = complaints(strict, {"a": None, "b": 1, "c": 1, "d": 1})
    assert line.startswith("a: ")


def test_strict_mode_makes_no_difference_to_what_arrives() -> None:
    """The same arguments are converted the same way."""
    sent = {"x": {"value": "1", "children": []}}
    assert received(tool(strict=True)(taking(Node)), sent) == received(taking(Node), sent)


def test_without_strict_there_is_no_strict_key() -> None:
    """The key is Swarm's absence of it, not false."""
    assert "strict" not in function_to_json(taking(int))["function"]


@given(signatures)
def test_strict_mode_requires_every_parameter_whatever_its_name(drawn: dict[str, tuple[Any, bool]]) -> None:
    """All are required and the object is closed, also where a parameter is named like a keyword of JSON schema."""
    typed = {name: (str if hint in (dict, list) else hint, has) for name, (hint, has) in drawn.items()}
    schema = parameters_of(tool(strict=True)(with_signature(typed)))
    assert schema["required"] == list(drawn)
    assert list(faults_of_strict(schema)) == []
