"""JSON schemas in the form that the Messages API accepts for strict tools and for the output format.

Source: Anthropic's page on structured outputs. The API compiles such schemas, and refuses those that it cannot compile, so a schema
that has no accepted form is sent without `strict`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from aswarm._values.json import is_array, is_object

_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"})
_KEPT = frozenset({"type", "required", "enum", "const", "description", "title", "$ref"})
_BRANCHES = {"anyOf": "anyOf", "oneOf": "anyOf", "allOf": "allOf"}
_LOCAL = "#/$defs/"
# The most in all schemas of a request: strict tools, optional properties, and properties with a union.
_LIMITS = (20, 24, 16)


def accepted_schema(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the schema in the form that the API accepts. Return None if there is none, as for a dict of any keys.

    Keywords that the API does not have become a part of the description, so that the model can read them.
    """
    try:
        accepted = _accepted(schema)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    return None if _is_recursive(accepted) or accepted.get("type") != "object" else accepted


def are_few(schemas: Sequence[Mapping[str, Any]], tools: int) -> bool:
    """Return whether the API can compile all these schemas in one request. `tools`: the number of strict tools."""
    inner = [part for schema in schemas for part in _parts(schema)]
    optional = sum(len(part.get("properties", {}).keys() - set(part.get("required", ()))) for part in inner)
    return all(
        count <= most for count, most in zip((tools, optional, sum(map(_is_union, inner))), _LIMITS, strict=True)
    )


def _is_union(schema: Mapping[str, Any]) -> bool:
    return "anyOf" in schema or is_array(schema.get("type"))


def _accepted(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the accepted form of a part. Raises ValueError if it has none."""
    if _admits_anything(schema):
        raise ValueError("it has no accepted form")
    accepted: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for key, value in schema.items():
        if key in ("properties", "$defs"):
            accepted[key] = {name: _accepted(part) for name, part in value.items()}
        elif key in _BRANCHES:
            accepted[_BRANCHES[key]] = [*map(_accepted, value)]
        elif key == "items":
            accepted[key] = _accepted(value)
        elif key in _KEPT or (key == "format" and value in _FORMATS) or (key == "minItems" and value in (0, 1)):
            accepted[key] = value
        elif key != "additionalProperties":
            others[key] = value
    if schema.get("type") == "object":
        accepted["additionalProperties"] = False
    return _described(accepted, others)


def _admits_anything(schema: Mapping[str, Any]) -> bool:
    """Return whether the schema admits any value, a dict with any keys, or a list of anything."""
    match schema.get("type"):
        case "object":
            return schema.get("additionalProperties", not schema.get("properties")) is not False
        case "array":
            return "items" not in schema
        case None:
            return not {"$ref", "enum", "const", *_BRANCHES} & schema.keys()
        case _:
            return False


def _described(accepted: dict[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    others = {key: value for key, value in others.items() if key not in ("default", "discriminator", "examples")}
    if not others:
        return accepted
    text = ", ".join(f"{key}: {value}" for key, value in others.items())
    return {**accepted, "description": f"{accepted.get('description', '')} ({text})".strip()}


def _parts(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield schema
    inner = [*schema.get("properties", {}).values(), *schema.get("$defs", {}).values(), schema.get("items")]
    for branches in _BRANCHES:
        inner += schema.get(branches, ())
    for part in inner:
        if is_object(part):
            yield from _parts(part)


def _is_recursive(schema: Mapping[str, Any]) -> bool:
    definitions: Mapping[str, Any] = schema.get("$defs", {})
    targets = {name: {*_targets(part)} for name, part in definitions.items()}
    if not {*_targets(schema)} <= targets.keys():
        return True  # a reference outside of the definitions
    while targets:
        leaves = {name for name, inner in targets.items() if not inner}
        if not leaves:
            return True
        targets = {name: inner - leaves for name, inner in targets.items() if name not in leaves}
    return False


def _targets(schema: Mapping[str, Any]) -> Iterator[str]:
    return (part["$ref"].removeprefix(_LOCAL) for part in _parts(schema) if "$ref" in part)
