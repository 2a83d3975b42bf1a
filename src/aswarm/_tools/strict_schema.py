"""OpenAI's strict form of a JSON schema: no additional properties, every property required, no defaults.

Source: OpenAI's guide on structured outputs, "Supported schemas".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from aswarm._values.errors import ConfigurationError
from aswarm._values.json import is_array, is_object


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


_UNIONS = ("anyOf", "oneOf", "allOf")


def without_refused_nulls(
    arguments: Mapping[str, Any], error: ValidationError, schema: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the arguments without each null that this error is about and that stands for a default; None if there is none.

    `schema`: the JSON schema of the parameters. A parameter or a field has a default if it is not required. A null in a list
    or in a dict of any keys stays.
    """
    details = error.errors(include_url=False, include_context=False)
    if not (refused := [detail["loc"] for detail in details if detail["input"] is None]):
        return None
    data: dict[str, Any] = from_json(to_json(arguments, inf_nan_mode="constants"))
    definitions = schema.get("$defs", {})
    removed = [_remove(data, schema, definitions, place) for place in refused]
    return data if any(removed) else None


def without_optional_nulls(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments without each null of a parameter that may be left out, and whose schema refuses null.

    For a JSON schema of another program, which validates the arguments itself.
    """
    definitions = {**schema.get("definitions", {}), **schema.get("$defs", {})}
    optional = schema["properties"].keys() - set(schema.get("required", ()))
    refusing = {key for key in optional if not _takes_null(schema["properties"][key], definitions)}
    return {key: value for key, value in arguments.items() if value is not None or key not in refusing}


def _takes_null(schema: Any, definitions: Mapping[str, Any]) -> bool:
    branches = _branches([schema], definitions)
    return not branches or any(map(_admits_null, branches))


def _admits_null(schema: Mapping[str, Any]) -> bool:
    """Return whether this part of a schema, without its branches, admits null."""
    if "enum" in schema or "const" in schema:
        return None in schema.get("enum", [schema.get("const")])
    if "type" in schema:
        return "null" in schema["type"]  # a name, or a list of names
    return not schema.keys() & {"$ref", *_UNIONS}


def _remove(data: Any, schema: Mapping[str, Any], definitions: Mapping[str, Any], place: Sequence[int | str]) -> bool:
    schemas = [schema]
    for part in place:
        if is_array(data) and isinstance(part, int):
            schemas = _branches((subschema.get("items") for subschema in schemas), definitions)
            data = data[part]
        elif is_object(data) and isinstance(part, str) and part in data:  # otherwise the part names a branch of a union
            owners = [subschema for subschema in schemas if part in subschema.get("properties", ())]
            if data[part] is None:
                has_default = any(part not in subschema.get("required", ()) for subschema in owners)
                if has_default:
                    del cast("dict[str, Any]", data)[part]
                return has_default
            inner = [subschema["properties"][part] for subschema in owners]
            schemas = _branches(
                [*inner, *(subschema.get("additionalProperties") for subschema in schemas)], definitions
            )
            data = data[part]
    return False


def _branches(schemas: Iterable[Any], definitions: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the schemas, with the branches of unions and the targets of references."""
    branches = [subschema for subschema in schemas if is_object(subschema)]
    for subschema in branches:  # the list grows during the loop
        inner = [branch for key in _UNIONS for branch in subschema.get(key, ())]
        if "$ref" in subschema:
            inner.append(definitions.get(subschema["$ref"].rsplit("/", 1)[-1], {}))
        branches.extend(branch for branch in inner if not any(branch is known for known in branches))
    return branches
