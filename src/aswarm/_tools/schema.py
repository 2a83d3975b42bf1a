"""Creates the JSON schema of a function, and checks the arguments from the model. It never calls the function.

For hints that Swarm supports, the schema is the same as Swarm's (`{"type": ...}` and nothing else). For other hints, pydantic
makes the schema. pydantic also validates and converts the arguments by the hints (lax mode). So a parameter with the hint
`date` gets a date.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, NotRequired, TypeAlias, Union, get_args, get_origin

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticSerializationError, SchemaError, to_json
from typing_extensions import TypedDict

from aswarm._values.errors import ConfigurationError, ToolArgumentsError
from aswarm._values.hints import modern
from aswarm._values.json import fault_of_json, faults_of, is_array, is_object

from .filled import CONTEXT, Filled, filled_by, is_resource, may_be_resource
from .hints import (
    EMPTY,
    behind_partials,
    bound_by_partials,
    has_code_flag,
    name_of,
    resolve_hints,
    signature_of,
    warn_of,
    with_attribute,
    without_attributes,
)
from .strict_schema import strict_parameters, without_refused_nulls

_FUNCTION_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")  # the API's own pattern
_LOCAL_NAME = re.compile(r"[\w-]{1,64}")  # names that most local servers accept
_PROPERTY_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
# For the hint str, a number becomes a string, because models often send 7 instead of "7".
_LAX = ConfigDict(arbitrary_types_allowed=True, coerce_numbers_to_str=True)
_TYPE_KEYWORDS = frozenset(("type", "anyOf", "oneOf", "allOf", "$ref", "enum", "const"))
_VAR_KEYWORD = inspect.Parameter.VAR_KEYWORD
_REFUSED_KINDS = {
    inspect.Parameter.VAR_POSITIONAL: "a *parameter",
    inspect.Parameter.POSITIONAL_ONLY: "a positional-only parameter",
}
_Validate: TypeAlias = Callable[[Mapping[str, Any]], dict[str, Any]]
_VALUES = ("default", "examples", "enum", "const")  # keywords with values, not schemas


@dataclass(frozen=True, slots=True)
class FunctionSchema:
    """The name and the schema of a function for the model. They must not refer to the function, see `cached_by_function`.

    `json`: the tool in the form of the API.
    `returns`: the return hint, or `inspect.Parameter.empty`.
    `validate`: converts the arguments from the model. Raises ToolArgumentsError.
    `fault`: the error text for a hint that pydantic cannot describe; empty if there is no such hint. As in Swarm, the
    parameter with this hint then has the type "string".
    `validate_json`: converts the JSON text of valid arguments. Raises pydantic's ValidationError for any other text, in which
    `validate` finds the faults. None if some keys have rules that only `validate` knows.
    `filled`: the parameters that the run fills; None if there is none.
    """

    name: str
    json: dict[str, Any]
    returns: object
    validate: _Validate
    fault: str = ""
    validate_json: Callable[[str], dict[str, Any]] | None = None
    filled: Filled | None = None


@dataclass(frozen=True, slots=True)
class _Validator:
    """Checks and converts the arguments of one function. `extra`: the adapter for the arguments of `**parameters`, or None."""

    named: TypeAdapter[dict[str, Any]]
    extra: TypeAdapter[dict[str, Any]] | None
    known: frozenset[str]
    null_is_default: frozenset[str]
    schema: Mapping[str, Any]

    def __call__(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        unset = [CONTEXT, *(key for key in self.null_is_default if arguments.get(key) is None)]
        sent = dict(arguments)
        for key in unset:
            sent.pop(key, None)
        unknown = [key for key in sent if key not in self.known] if self.extra else []
        others = {key: sent.pop(key) for key in unknown}
        valid: dict[str, Any] = {}
        faults: list[str] = []
        for adapter, part in ((self.named, sent), (self.extra, others)):
            try:
                valid.update(self._valid(adapter, part) if adapter else {})
            except ValidationError as error:
                faults += faults_of(error, "arguments")
        if faults:
            raise ToolArgumentsError("\n".join(faults))
        return valid

    def _valid(self, adapter: TypeAdapter[dict[str, Any]], part: Mapping[str, Any]) -> dict[str, Any]:
        # Validate as JSON: a pydantic model in strict mode accepts a str for a date only in JSON.
        try:
            return adapter.validate_json(to_json(part, inf_nan_mode="constants"))
        except ValidationError as error:
            others = without_refused_nulls(part, error, self.schema) if adapter is self.named else None
            if others is None:
                raise
        return adapter.validate_json(to_json(others, inf_nan_mode="constants"))


def schema_of(
    function: Callable[..., Any], *, name: str | None = None, description: str | None = None, strict: bool = False
) -> FunctionSchema:
    """Return the schema of a function. Raises ConfigurationError with the function and the parameter.

    `description`: replaces the docstring of the function.
    """
    name = _checked_name(name or name_of(function), function)
    _refuse_generator(function, name)
    parameters = _parameters(function, name)
    resolved = resolve_hints(function, parameters)
    filled_names = [key for key in parameters if key == CONTEXT or is_resource(resolved[key])]
    filled = filled_by(function, {key: resolved[key] for key in filled_names}) if filled_names else None
    offered = {key: parameter for key, parameter in parameters.items() if key not in filled_names}
    extra = next((offered.pop(key) for key in list(offered) if offered[key].kind is _VAR_KEYWORD), None)
    faults: list[str] = []
    hints = {
        key: _describable(_with_description(modern(resolved[key])), f"function {name!r}: parameter {key!r}", faults)
        for key in offered
    }
    required = [key for key, argument in offered.items() if argument.default is EMPTY]
    optional = {key: parameter.default for key, parameter in offered.items() if parameter.default is not EMPTY}
    accepted = {key: _accepted(hint, optional[key]) if key in optional else hint for key, hint in hints.items()}
    fields = {key: hint if key in required else NotRequired[hint] for key, hint in hints.items()}
    schema: dict[str, Any] = without_titles(_adapter(fields, _LAX).json_schema())
    validator = _Validator(
        _adapter(accepted, {**_LAX, "extra": "forbid"}),
        _extra_adapter(name, resolved[extra.name], strict, faults) if extra else None,
        # Bound parameters count as known, so that the model cannot set them by `**parameters`.
        frozenset(hints) | bound_by_partials(function),
        # In strict mode the model must send all parameters. So null stands for an omitted parameter.
        frozenset(key for key in optional if strict and not _admits_none(hints[key])),
        schema,
    )
    described = _checked_description(name, description_of(function) if description is None else description)
    return FunctionSchema(
        name=name,
        json=_json(name, described, hints, required, schema, strict),
        returns=resolved["return"],
        validate=_hiding(filled, validator),
        validate_json=None if validator.extra or validator.null_is_default else validator.named.validator.validate_json,
        fault=next(iter(faults), ""),
        filled=filled,
    )


def _hiding(filled: Filled | None, validate: _Validate) -> _Validate:
    """Return a check of the arguments that first drops resources that the model sends."""
    if filled is None or not filled.resources:
        return validate
    names = {resource.name for resource in filled.resources}
    return lambda sent: validate({key: value for key, value in sent.items() if key not in names})


def _accepted(hint: Any, default: object) -> Any:
    # If the default is None, None is a valid argument, even if the hint does not allow it.
    return NotRequired[Union[hint, None] if default is None and hint is not Any else hint]  # noqa: UP007 - not every hint has |


def _json(
    name: str,
    description: str,
    hints: Mapping[str, Any],
    required: list[str],
    schema: Mapping[str, Any],
    strict: bool,
) -> dict[str, Any]:
    if aliased := hints.keys() - schema["properties"].keys():
        raise ConfigurationError(
            f"function {name!r}: parameter {min(aliased)!r} has an alias; rename the parameter instead"
        )
    properties = {key: _as_swarm(hint, schema["properties"][key]) for key, hint in hints.items()}
    parameters: dict[str, Any] = {"type": "object", "properties": properties, "required": required}
    if "$defs" in schema:
        parameters["$defs"] = schema["$defs"]
    function: dict[str, Any] = {"name": name, "description": description, "parameters": parameters}
    if strict:
        function["strict"] = True
        function["parameters"] = strict_parameters(name, parameters, set(required))
    return {"type": "function", "function": function}


def ready_schema(
    function: Callable[..., Any], *, name: str, description: str, parameters: Mapping[str, Any]
) -> FunctionSchema:
    """Return the schema of a function whose parameters already have a JSON schema. Its arguments are not validated."""
    described = _checked_description(name, description)
    offered = {"name": _checked_name(name, function), "description": described, "parameters": parameters}
    _refuse_generator(function, name)
    try:
        own_parameters = signature_of(function).parameters
    except (TypeError, ValueError):  # a builtin without a signature
        hints: dict[str, Any] = {"return": EMPTY}
    else:
        may_be_filled = {key: item for key, item in own_parameters.items() if key == CONTEXT or may_be_resource(item)}
        hints = resolve_hints(function, may_be_filled)
    filled = filled_by(function, {key: hint for key, hint in hints.items() if key == CONTEXT or is_resource(hint)})
    return FunctionSchema(
        name=name,
        json={"type": "function", "function": offered},
        returns=hints["return"],
        validate=_hiding(filled, lambda sent: {key: value for key, value in sent.items() if key != CONTEXT}),
        filled=filled,
    )


def _checked_name(name: str, function: Callable[..., Any]) -> str:
    if _FUNCTION_NAME.fullmatch(name):
        return name
    if not _LOCAL_NAME.fullmatch(name):
        raise ConfigurationError(
            f"function {name!r} has a name that the API refuses; it accepts names of 1 to 64 letters, digits, _ and -. "
            "Give it another name, for example with @tool(name=...)"
        )
    warn_of(
        function,
        f"function {name!r}: OpenAI refuses names with letters beyond ASCII, and other servers may accept them; "
        "use @tool(name=...) for a name that every server accepts",
    )
    return name


def _checked_description(name: str, description: str) -> str:
    if fault := fault_of_json(description, "the description"):
        raise ConfigurationError(f"function {name!r}: {fault}")
    return description


def _refuse_generator(function: Any, name: str) -> None:
    if has_code_flag(function, inspect.CO_GENERATOR):
        raise ConfigurationError(
            f"function {name!r} is a generator function, and the model would not get its items; return the whole result, for "
            "example a list, or make it an `async def` that yields Progress(...) and its result last"
        )


def description_of(function: object) -> str:
    """Return the docstring without indentation. A partial may have its own; an instance has it on `__call__` or its class."""
    described = with_attribute(function, "__doc__")
    if described is behind_partials(function) and not hasattr(described, "__name__"):
        kind: Any = type(described)  # pyright: ignore[reportUnknownVariableType]
        described = kind.__call__ if callable(described) and kind.__call__.__doc__ else kind
    return inspect.cleandoc(getattr(described, "__doc__", None) or "")


def _parameters(function: Callable[..., Any], name: str) -> dict[str, inspect.Parameter]:
    try:
        parameters = dict(signature_of(without_attributes(function)).parameters)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"function {name!r} has no readable signature: {error}") from error
    for bound in bound_by_partials(function):
        parameters.pop(bound, None)
    for parameter in parameters.values():
        if parameter.kind in _REFUSED_KINDS:
            kind = _REFUSED_KINDS[parameter.kind]
            raise ConfigurationError(
                f"function {name!r}: parameter {parameter.name!r} is {kind}; "
                "the model passes arguments by name, so give it a plain or keyword-only parameter"
            )
        if not _PROPERTY_NAME.fullmatch(parameter.name):
            raise ConfigurationError(
                f"function {name!r}: the API refuses the parameter name {parameter.name!r}; "
                "use 1 to 64 ASCII letters, digits and _"
            )
        if isinstance(parameter.default, FieldInfo):
            raise ConfigurationError(
                f"function {name!r}: parameter {parameter.name!r} has a Field as its default, and the function would get "
                "that Field as a value; write Annotated[<type>, Field(...)]"
            )
    return parameters


def _extra_adapter(name: str, hint: Any, strict: bool, faults: list[str]) -> TypeAdapter[dict[str, Any]]:
    if strict:
        raise ConfigurationError(
            f"function {name!r}: strict mode cannot express **parameters; give each parameter a name"
        )
    values: Any = _describable(hint, f"function {name!r}: **parameter", faults)
    extra: Any = dict[str, values]
    return TypeAdapter(extra, config=_LAX)


def _adapter(fields: Mapping[str, Any], config: ConfigDict) -> TypeAdapter[dict[str, Any]]:
    # A TypedDict, because its keys may have any name. A pydantic model rejects some field names, such as `model_config`.
    make: Any = TypedDict  # its fields are known only at run time, which type checkers do not accept
    arguments: Any = make("arguments", dict(fields))
    arguments.__pydantic_config__ = config
    return TypeAdapter(arguments)


def _with_description(hint: Any) -> Any:
    """Return `Annotated[int, Field(description="text")]` for `Annotated[int, "text"]`."""
    if get_origin(hint) in (Union, types.UnionType):
        return Union[tuple(map(_with_description, get_args(hint)))]  # noqa: UP007 - the options are known only at run time
    if get_origin(hint) is not Annotated:
        return hint
    base, *metadata = get_args(hint)
    described = tuple(Field(description=item) if isinstance(item, str) else item for item in metadata)
    return Annotated[(base, *described)]


def _describable(hint: Any, place: str, faults: list[str]) -> Any:
    """Return the hint. If pydantic has no JSON schema for it, add a text to `faults` and return Any."""
    if hint is Any or (isinstance(hint, type) and hint in (str, int, float, bool)):
        return hint
    # Check the hint first. For some objects that are not types (the builtin `any`, a number), pydantic would only warn.
    is_hint = isinstance(hint, type) or get_origin(hint) is not None or type(hint).__module__.startswith("typing")
    with suppress(TypeError, ValueError, NameError):
        if is_hint:
            _check_describable(hint, place)
            return hint
    name = hint.__name__ if isinstance(hint, type) else inspect.formatannotation(hint)
    faults.append(
        f"{place} has the hint {name}, which has no JSON form, so the model is asked for a string; "
        f"if the program has the value, write Resource[{name}], and pass resources={{...}}"
    )
    return Any


def _check_describable(hint: Any, place: str) -> None:
    """Raise ConfigurationError for a hint that cannot be used, and TypeError, ValueError or NameError if it has no JSON form."""
    try:
        schema = _adapter({"value": hint}, _LAX).json_schema()
    except PydanticUserError as error:
        if error.code == "typed-dict-version":
            raise ConfigurationError(f"{place}: {error.message}") from error
        if error.code == "class-not-fully-defined":  # a field names a class that is local to a function
            raise ConfigurationError(
                f"{place} has the hint {inspect.formatannotation(hint)}, and a field in it names a class that cannot be found; "
                "define both classes at the top level of their module"
            ) from error
        raise TypeError(error.message) from error
    except PydanticSerializationError as error:
        raise ConfigurationError(
            f"{place} cannot be described to a model, because its schema is not JSON: {error}"
        ) from error
    except SchemaError as error:
        raise ConfigurationError(f"{place} has a constraint that cannot be used: {error}") from error
    if fault := fault_of_json(schema, "its schema"):
        raise ConfigurationError(f"{place} cannot be described to a model: {fault}")


def _admits_none(hint: Any) -> bool:
    if get_origin(hint) is Annotated:
        return _admits_none(get_args(hint)[0])
    if get_origin(hint) in (Union, types.UnionType):
        return any(_admits_none(option) for option in get_args(hint))
    return hint in (None, type(None), Any)


def _as_swarm(hint: Any, schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema in Swarm's form: without `items` for a plain `list`, and "string" for an unknown type."""
    base = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    if base in (list, dict):
        return {key: value for key, value in schema.items() if key not in ("items", "additionalProperties")}
    if base in (Any, object) or not _TYPE_KEYWORDS & schema.keys():
        return {"type": "string", **schema}
    return schema


def without_titles(schema: Any) -> Any:
    return map_schemas(lambda subschema: {key: value for key, value in subschema.items() if key != "title"}, schema)


def map_schemas(change: Callable[[dict[str, Any]], dict[str, Any]], schema: Any, *, named: bool = False) -> Any:
    """Return the schema after applying `change` to each schema in it, first to the inner schemas.

    `named`: whether the keys of this object are names of parameters or models, instead of keywords.
    """
    if is_array(schema):
        return [map_schemas(change, item) for item in schema]
    if not is_object(schema):
        return schema
    changed = {
        key: value if key in _VALUES and not named
        else map_schemas(change, value, named=not named and key in ("properties", "$defs"))
        for key, value in schema.items()
    }  # fmt: skip
    return changed if named else change(changed)
