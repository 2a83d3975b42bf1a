"""From a function's signature: the JSON schema that the model sees, and the check of the arguments that it sends.

Decides types, names, descriptions and conversions. Never calls the function, and knows nothing of agents or runs.

Where Swarm can express a hint, the schema is Swarm's (`{"type": ...}` and nothing else); otherwise it is pydantic's.
Arguments are validated from the same hints and converted (pydantic's lax mode), so that a function that asks for a
`date` gets one.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NotRequired, Union, get_args, get_origin

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic_core import SchemaError, to_json
from typing_extensions import TypedDict

from aswarm._errors import ConfigurationError, ToolArgumentsError
from aswarm._json import faults_of, is_array, is_object

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
from .strict_schema import strict_parameters
from .typed_dicts import modern

CONTEXT = "context_variables"
_FUNCTION_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")  # the API's own pattern
_LOCAL_NAME = re.compile(r"[\w-]{1,64}")  # what Python and most local servers take
_PROPERTY_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
# Numbers become strings where a string is asked for: models often send 7 for "7".
_LAX = ConfigDict(arbitrary_types_allowed=True, coerce_numbers_to_str=True)
_TYPE_KEYWORDS = frozenset(("type", "anyOf", "oneOf", "allOf", "$ref", "enum", "const"))


@dataclass(frozen=True, slots=True)
class FunctionSchema:
    """What the model sees of a function. It does not refer to the function, so that it can be cached for it.

    `json`: the tool as the API wants it. `context_hint`: the hint of `context_variables`, or None where the function
    does not take it. `returns`: the return hint, `inspect.Parameter.empty` where there is none. `validate`: from the
    arguments that the model sent to those that the function gets; raises ToolArgumentsError.
    """

    name: str
    json: dict[str, Any]
    context_hint: object | None
    returns: object
    validate: Callable[[Mapping[str, Any]], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class _Validator:
    """Checks and converts the arguments of one function. `extra` is for those that `**parameters` takes."""

    named: TypeAdapter[dict[str, Any]]
    extra: TypeAdapter[dict[str, Any]] | None
    known: frozenset[str]
    null_is_default: frozenset[str]

    def __call__(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        sent = {key: value for key, value in arguments.items() if key != CONTEXT and not self._is_unset(key, value)}
        others = {key: sent.pop(key) for key in list(sent) if self.extra and key not in self.known}
        valid: dict[str, Any] = {}
        faults: list[str] = []
        for adapter, part in ((self.named, sent), (self.extra, others)):
            try:
                # Validated as JSON, which the arguments were: a strict model takes a date from a str only there.
                valid.update(adapter.validate_json(to_json(part, inf_nan_mode="constants")) if adapter else {})
            except ValidationError as error:
                faults += faults_of(error, "arguments")
        if faults:
            raise ToolArgumentsError("\n".join(faults))
        return valid

    def _is_unset(self, key: str, value: object) -> bool:
        return value is None and key in self.null_is_default


def schema_of(function: Callable[..., Any], *, name: str | None = None, strict: bool = False) -> FunctionSchema:
    """Build the schema of a function. Raises ConfigurationError that names the function and the parameter."""
    name = _checked_name(name or name_of(function), function)
    _refuse_generator(function, name)
    parameters = _parameters(function, name)
    hints = resolve_hints(function, parameters)
    offered = {key: hints[key] for key in parameters if key != CONTEXT}
    extra = next((offered.pop(key) for key in list(offered) if parameters[key].kind is _VAR_KEYWORD), None)
    builder = _Builder(name, {key: parameters[key].default for key in offered}, offered, strict)
    return FunctionSchema(
        name=name,
        json=builder.json(description_of(function)),
        context_hint=hints.get(CONTEXT),
        returns=hints["return"],
        validate=_Validator(
            builder.adapter(),
            _extra_adapter(name, extra, strict) if extra is not None else None,
            # An argument that a partial binds counts as known and is not accepted: `**parameters` does not let it in.
            frozenset(offered) | bound_by_partials(function),
            builder.null_is_default,
        ),
    )


def ready_schema(
    function: Callable[..., Any], *, name: str, description: str, parameters: Mapping[str, Any]
) -> FunctionSchema:
    """The schema of a function whose parameters are described already. Arguments are passed on as they are."""
    offered = {"name": _checked_name(name, function), "description": description, "parameters": parameters}
    _refuse_generator(function, name)
    try:
        taken = signature_of(function).parameters
    except (TypeError, ValueError):  # a builtin without a signature
        hints: dict[str, Any] = {"return": EMPTY}
    else:
        hints = resolve_hints(function, {CONTEXT: taken[CONTEXT]} if CONTEXT in taken else {})
    return FunctionSchema(
        name=name,
        json={"type": "function", "function": offered},
        context_hint=hints.get(CONTEXT),
        returns=hints["return"],
        validate=_without_context,
    )


def _without_context(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in arguments.items() if key != CONTEXT}


def _checked_name(name: str, function: Callable[..., Any]) -> str:
    if _FUNCTION_NAME.fullmatch(name):
        return name
    if not _LOCAL_NAME.fullmatch(name):
        raise ConfigurationError(
            f"function {name!r} cannot be offered to the model: the API takes names of 1 to 64 letters, digits, _ and -"
        )
    warn_of(
        function,
        f"function {name!r}: OpenAI refuses names with letters beyond ASCII, and other servers may take them; "
        "use @tool(name=...) for a name that all of them take",
    )
    return name


def _refuse_generator(function: Any, name: str) -> None:
    if has_code_flag(function, inspect.CO_GENERATOR):
        raise ConfigurationError(
            f"function {name!r} is a generator function, and the model would not see its items; "
            "return the whole result, for example a list, or make it an `async def` that yields Progress(...) and its "
            "result last"
        )


_VAR_KEYWORD = inspect.Parameter.VAR_KEYWORD
_REFUSED_KINDS = {
    inspect.Parameter.VAR_POSITIONAL: "a *parameter",
    inspect.Parameter.POSITIONAL_ONLY: "a positional-only parameter",
}


def description_of(function: object) -> str:
    """The whole docstring without its indentation: of a partial if it was set, of the function behind it, of `__call__`."""
    described = with_attribute(function, "__doc__")
    if described is behind_partials(function) and not hasattr(described, "__name__"):
        kind: Any = type(described)  # pyright: ignore[reportUnknownVariableType]
        described = kind.__call__ if callable(described) and kind.__call__.__doc__ else kind
    return inspect.cleandoc(getattr(described, "__doc__", None) or "")


def _parameters(function: Callable[..., Any], name: str) -> dict[str, inspect.Parameter]:
    try:
        parameters = dict(signature_of(without_attributes(function)).parameters)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"function {name!r} has no signature that can be read: {error}") from error
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


class _Builder:
    """Builds the schema of one function's parameters and the adapter that validates them, from the same hints."""

    def __init__(self, name: str, defaults: Mapping[str, Any], hints: Mapping[str, Any], strict: bool) -> None:
        self._name = name
        self._defaults = defaults
        self._strict = strict
        self._hints = {
            key: _describable(_with_description(modern(hint)), f"function {name!r}: parameter {key!r}")
            for key, hint in hints.items()
        }
        self._required = [key for key, default in defaults.items() if default is EMPTY]

    @property
    def null_is_default(self) -> frozenset[str]:
        """Parameters for which null means "not given": in strict mode the model must send all of them."""
        optional = set(self._hints) - set(self._required)
        return frozenset(key for key in optional if self._strict and not _admits_none(self._hints[key]))

    def adapter(self) -> TypeAdapter[dict[str, Any]]:
        fields = {key: self._accepted(key) for key in self._hints}
        return _adapter(fields, {**_LAX, "extra": "forbid"})

    def _accepted(self, key: str) -> Any:
        hint = self._hints[key]
        if self._defaults[key] is EMPTY:
            return hint
        # A default of None says that None is accepted, whatever the hint says.
        return NotRequired[Union[hint, None] if self._defaults[key] is None and hint is not Any else hint]  # noqa: UP007 - not every hint has |

    def json(self, description: str) -> dict[str, Any]:
        fields = {key: hint if key in self._required else NotRequired[hint] for key, hint in self._hints.items()}
        schema = without_titles(_adapter(fields, _LAX).json_schema())
        if aliased := fields.keys() - schema["properties"].keys():
            raise ConfigurationError(
                f"function {self._name!r}: parameter {min(aliased)!r} has an alias; rename the parameter instead"
            )
        properties = {key: _as_swarm(self._hints[key], schema["properties"][key]) for key in fields}
        parameters: dict[str, Any] = {"type": "object", "properties": properties, "required": self._required}
        if "$defs" in schema:
            parameters["$defs"] = schema["$defs"]
        function: dict[str, Any] = {"name": self._name, "description": description, "parameters": parameters}
        if self._strict:
            function["strict"] = True
            function["parameters"] = strict_parameters(self._name, parameters, set(self._required))
        return {"type": "function", "function": function}


def _extra_adapter(name: str, hint: Any, strict: bool) -> TypeAdapter[dict[str, Any]]:
    if strict:
        raise ConfigurationError(
            f"function {name!r}: strict mode cannot express **parameters; give each parameter a name"
        )
    values: Any = _describable(hint, f"function {name!r}: **parameter")
    extra: Any = dict[str, values]
    return TypeAdapter(extra, config=_LAX)


def _adapter(fields: Mapping[str, Any], config: ConfigDict) -> TypeAdapter[dict[str, Any]]:
    # A TypedDict, because a key may have any name that a parameter has; a model's field may not.
    make: Any = TypedDict  # its fields are known only at run time, which type checkers do not accept
    arguments: Any = make("arguments", dict(fields))
    arguments.__pydantic_config__ = config
    return TypeAdapter(arguments)


def _with_description(hint: Any) -> Any:
    """`Annotated[int, "text"]` describes the parameter, like `Annotated[int, Field(description="text")]`."""
    if get_origin(hint) in (Union, types.UnionType):
        return Union[tuple(map(_with_description, get_args(hint)))]  # noqa: UP007 - the options are known only at run time
    if get_origin(hint) is not Annotated:
        return hint
    base, *metadata = get_args(hint)
    described = tuple(Field(description=item) if isinstance(item, str) else item for item in metadata)
    return Annotated[(base, *described)]


def _describable(hint: Any, place: str) -> Any:
    """The hint, or Any where pydantic has no JSON schema for it, because no JSON value becomes such an object."""
    if isinstance(hint, type) and hint in (str, int, float, bool):
        return hint
    if hint is Any or not _is_hint(hint):
        return Any
    try:
        _adapter({"value": hint}, _LAX).json_schema()
    except PydanticUserError as error:
        if error.code == "typed-dict-version":
            raise ConfigurationError(f"{place}: {error.message}") from error
        return Any
    except SchemaError as error:
        raise ConfigurationError(f"{place} has a constraint that cannot be used: {error}") from error
    except (TypeError, ValueError, NameError):
        return Any
    return hint


def _is_hint(hint: Any) -> bool:
    # The function `any`, a number, the constructor of a lock: pydantic would accept them with a warning of its own.
    return isinstance(hint, type) or get_origin(hint) is not None or type(hint).__module__.startswith("typing")


def _admits_none(hint: Any) -> bool:
    if get_origin(hint) is Annotated:
        return _admits_none(get_args(hint)[0])
    if get_origin(hint) in (Union, types.UnionType):
        return any(_admits_none(option) for option in get_args(hint))
    return hint in (None, type(None), Any)


def _as_swarm(hint: Any, schema: dict[str, Any]) -> dict[str, Any]:
    """The schema in Swarm's form: no `items` for a list without a hint, "string" where the type is not known."""
    base = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    if base in (list, dict):
        return {key: value for key, value in schema.items() if key not in ("items", "additionalProperties")}
    if base in (Any, object) or not _TYPE_KEYWORDS & schema.keys():
        return {"type": "string", **schema}
    return schema


def without_titles(schema: Any, *, named: bool = False) -> Any:
    """`schema` without pydantic's titles; with `named`, its keys are names of parameters or models, not keywords."""
    if is_array(schema):
        return [without_titles(item) for item in schema]
    if not is_object(schema):
        return schema
    return {
        key: value if key in ("default", "examples", "enum", "const") and not named
        else without_titles(value, named=not named and key in ("properties", "$defs"))
        for key, value in schema.items()
        if named or key != "title"
    }  # fmt: skip
