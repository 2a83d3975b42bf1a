"""OpenAI's strict form of a JSON schema: every object closed, every property required, no defaults.

Source: the API's guide on structured outputs, "Supported schemas".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ._errors import ConfigurationError
from ._json import is_array, is_object


def strict_parameters(name: str, parameters: dict[str, Any], required: set[str]) -> dict[str, Any]:
    """The parameters in strict form; an optional one becomes nullable, for the model must send every one.

    Raises ConfigurationError for what strict mode cannot express, naming function and parameter.
    """
    nullable = {
        key: value if key in required or _allows_null(value) else {"anyOf": [value, {"type": "null"}]}
        for key, value in parameters["properties"].items()
    }
    strict: dict[str, Any] = _make_strict({**parameters, "properties": nullable}, f"function {name!r}")
    return strict


def _allows_null(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "null" or any(map(_allows_null, schema.get("anyOf", ())))


def _make_strict(schema: Any, place: str) -> Any:
    if is_array(schema):
        return [_make_strict(item, place) for item in schema]
    if not is_object(schema):
        return schema
    strict: dict[str, Any] = {}
    for key, value in schema.items():
        if key in ("properties", "$defs"):
            strict[key] = {name: _make_strict(item, f"{place}: {name!r}") for name, item in value.items()}
        elif key != "default":
            strict[key] = value if key in ("enum", "const", "required") else _make_strict(value, place)
    if schema.get("type") == "object":
        if "properties" not in schema and schema.get("additionalProperties", True) is not False:
            raise ConfigurationError(f"{place} is a dict of any keys, which strict mode cannot express; use a model")
        strict["required"] = list(schema.get("properties", ()))
        strict["additionalProperties"] = False
    if "$ref" in strict and len(strict) > 1:
        # A reference may have no neighbours in strict mode.
        return {"anyOf": [{"$ref": strict.pop("$ref")}], **strict}
    return strict
