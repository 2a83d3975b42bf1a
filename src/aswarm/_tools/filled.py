"""Parameters that the run fills, and not the model: typed context variables, and `Resource[T]`.

The module finds them in the hints of a function, and decides whether a value suits a resource. It never calls the function.
"""

from __future__ import annotations

import functools
import inspect
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar, Union, get_args, get_origin

from aswarm._values.errors import ConfigurationError

from .hints import (
    EMPTY,
    bound_by_partials,
    cached_by_function,
    name_of,
    resolve_hints,
    signature_of,
    without_attributes,
)

if TYPE_CHECKING:
    from aswarm._values.context_types import ContextType

CONTEXT = "context_variables"
T = TypeVar("T")


class _ResourceMark:
    def __repr__(self) -> str:
        return "Resource"


_MARK = _ResourceMark()
Resource: TypeAlias = Annotated[T, _MARK]
"""Marks a parameter that the run fills from `resources=`, by the name of the parameter: `db: Resource[Database]`.

The model does not see the parameter. Type checkers read `Resource[Database]` as `Database`.
"""


@dataclass(frozen=True, slots=True)
class ResourceParameter:
    """A parameter with the hint `Resource[T]`. `kinds`: the classes that a value may have; None if any value suits."""

    name: str
    hint: Any
    kinds: tuple[type, ...] | None
    is_required: bool

    def fault(self, resources: Mapping[str, object]) -> str:
        """Return the reason why these resources do not suit the parameter; empty if they do."""
        if self.name not in resources:
            missing = f"the resource {self.name!r} is missing; pass resources={{{self.name!r}: ...}} to the run or to the swarm"
            return missing if self.is_required else ""
        value = resources[self.name]
        if self.kinds is None or isinstance(value, self.kinds):
            return ""
        kind = self.hint.__name__ if isinstance(self.hint, type) else str(self.hint)
        remedy = "pass one, or use a Protocol in the hint"
        return f"the resource {self.name!r} is of the class {type(value).__name__}, not {kind}; {remedy}"


@dataclass(frozen=True, slots=True)
class Filled:
    """The parameters of a function that the run fills.

    `context`: the parameter of the context variables, or None. `kind`: its `ContextType`, or None for a dict or a Mapping.
    `is_read_only`: whether the function gets the context variables, and only reads them.
    """

    context: str | None
    kind: ContextType | None
    resources: tuple[ResourceParameter, ...]
    is_read_only: bool

    @property
    def is_typed(self) -> bool:
        """Whether the function needs more than a dict or a Mapping of the context variables."""
        return self.kind is not None or bool(self.resources)

    def resources_of(self, resources: Mapping[str, object]) -> dict[str, object]:
        return {resource.name: resources[resource.name] for resource in self.resources if resource.name in resources}


def filled_by(function: Callable[..., Any], hints: Mapping[str, Any], context: str | None = CONTEXT) -> Filled | None:
    """Return the parameters that the run fills; None if there is none. `hints`: the resolved hints of the parameters.

    Raises ConfigurationError for a type that the context variables cannot have.
    """
    context_name = context if context in hints else None
    parameters: Mapping[str, inspect.Parameter] = {}
    if any(map(is_resource, hints.values())):
        parameters = signature_of(without_attributes(function)).parameters
    resources = tuple(
        ResourceParameter(key, inner := _inside(hints[key]), _classes(inner), parameters[key].default is EMPTY)
        for key in hints
        if key in parameters and is_resource(hints[key])
    )
    if context_name is None:
        return Filled(None, None, resources, is_read_only=False) if resources else None
    kind = _kind_of(hints[context_name], function)
    hint = _inside(hints[context_name])
    is_mapping = (get_origin(hint) or hint) in (Mapping, types.MappingProxyType)
    return Filled(context_name, kind, resources, is_mapping if kind is None else kind.is_read_only)


def _kind_of(hint: Any, function: Callable[..., Any]) -> ContextType | None:
    if hint in _SWARMS:
        return None
    from aswarm._values.context_types import context_type  # noqa: PLC0415 - only a run with a typed context needs it

    try:
        return context_type(hint)
    except ConfigurationError as error:
        raise ConfigurationError(f"function {name_of(function)!r}: {error}") from error


_SWARMS = (Any, EMPTY, dict, dict[str, Any], Mapping, Mapping[str, Any], Mapping[str, object])


def is_resource(hint: Any) -> bool:
    return get_origin(hint) is Annotated and any(argument is _MARK for argument in get_args(hint)[1:])


def may_be_resource(parameter: inspect.Parameter) -> bool:
    """Return whether the hint may be `Resource[...]`. Do not resolve the hint: a name in it may have no value yet."""
    hint = parameter.annotation
    return is_resource(hint) or "Resource" in str(hint)


def _inside(hint: Any) -> Any:
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    return hint


def _classes(hint: Any) -> tuple[type, ...] | None:
    """Return the classes for `isinstance`; None for a protocol, and for hints that `isinstance` cannot check."""
    if get_origin(hint) in (Union, types.UnionType):
        options = [_classes(_inside(option)) for option in get_args(hint)]
        return None if None in options else tuple(kind for option in options for kind in option or ())
    kind: Any = types.NoneType if hint is None else get_origin(hint) or hint
    if not isinstance(kind, type) or kind is Any or getattr(kind, "_is_protocol", False):
        return None
    try:
        isinstance(None, kind)
    except TypeError:
        return None
    return (kind,)


# --- functions that are not tools: instructions, `approve`, and checks of guards ----------------------------------------


def filled_parameters(function: Any, context: int | str = CONTEXT) -> Filled | None:
    """Return the parameters of a function that the run fills; None if there is none. The result is cached.

    `context`: the name of the parameter of the context variables, or its position. Raises ConfigurationError as `filled_by`.
    """
    return cached_by_function(function, ("filled", context), functools.partial(_filled_parameters, function, context))


def _filled_parameters(function: Any, context: int | str) -> Filled | None:
    try:
        parameters = dict(signature_of(without_attributes(function)).parameters)
    except (TypeError, ValueError):  # a builtin without a signature
        return None
    for bound in bound_by_partials(function):
        parameters.pop(bound, None)
    named = {key: parameter for key, parameter in parameters.items() if may_be_resource(parameter)}
    name = (
        _at(context, [item for key, item in parameters.items() if key not in named])
        if isinstance(context, int)
        else context
    )
    if name in parameters:
        named[name] = parameters[name]
    if not named:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a hint that cannot be resolved is not needed: the function gets a dict
        hints = resolve_hints(function, named)
    return filled_by(function, {key: hints[key] for key in named if key == name or is_resource(hints[key])}, name)


def _at(position: int, parameters: Sequence[inspect.Parameter]) -> str:
    """Return the name of the positional parameter at this position, or else the usual name."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [parameter.name for parameter in parameters if parameter.kind in kinds]
    return names[position] if position < len(names) else CONTEXT
