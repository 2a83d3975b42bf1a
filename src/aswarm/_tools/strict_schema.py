"""OpenAI's strict form of a JSON schema: no additional properties, every property required, no defaults.

Source: OpenAI's guide on structured outputs, "Supported schemas".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aswarm._values.errors import ConfigurationError
from aswarm._values.json import is_array


def strict_parameters(name: str, parameters: dict[str, Any], required: set[str]) -> dict[str, Any]:
    """Return the parameters in strict form. An optional parameter becomes nullable, because the model must send every one.

    Raises ConfigurationError, with the function and the parameter, for a type that strict mode cannot express.
    """
    nullable = {
        key: value if key in required or _allows_null(value) else {"anyOf": [value, {"type": "null"}]}
        for key, value in parameters["properties"].items()
    }
    strict: dict[str, Any] = _make_strict({**parameters, "properties": nullable}, f"function {name!r}")
    return strict


def _allows_null(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "null" or any(map(_allows_null, schema.get("anyOf", ())))


# The keywords in the guide. Other keywords (uniqueItems, other formats) are not sent, but the arguments are still checked.
_KEYWORDS = frozenset({
    "type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf", "$ref", "$defs",
    "description", "pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
    "minItems", "maxItems", "minLength", "maxLength",
})  # fmt: skip
_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})


def _make_strict(schema: Any, place: str) -> Any:
    if is_array(schema):
        return [_make_strict(item, place) for item in schema]
    strict = _keywords(schema, place)
    if not {"type", "anyOf", "$ref", "enum", "const"} & strict.keys() or (
        strict.get("type") == "array" and "items" not in strict
    ):
        raise ConfigurationError(f"{place} allows any type, which strict mode cannot express; give it a type")
    if schema.get("type") == "object":
        if "properties" not in schema and schema.get("additionalProperties", True) is not False:
            raise ConfigurationError(f"{place} is a dict of any keys, which strict mode cannot express; use a model")
        strict["required"] = list(schema.get("properties", ()))
        strict["additionalProperties"] = False
    if "$ref" in strict and len(strict) > 1:
        # Strict mode allows no other keyword in an object with "$ref".
        return {"anyOf": [{"$ref": strict.pop("$ref")}], **strict}
    return strict


def _keywords(schema: Mapping[str, Any], place: str) -> dict[str, Any]:
    strict: dict[str, Any] = {}
    for key, value in schema.items():
        if key in ("properties", "$defs"):
            strict[key] = {name: _make_strict(item, f"{place}: {name!r}") for name, item in value.items()}
        elif key == "oneOf":  # a discriminated union
            strict["anyOf"] = _make_strict(value, place)
        elif key in ("items", "anyOf"):
            strict[key] = _make_strict(value, place)
        elif key in _KEYWORDS and (key != "format" or value in _FORMATS):
            strict[key] = value
    return strict
