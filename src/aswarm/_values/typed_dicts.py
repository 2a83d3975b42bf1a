"""Hints of TypedDicts and dataclasses, and each `typing.TypedDict` in a form that pydantic accepts on Python 3.11."""

from __future__ import annotations

import sys
import types
import typing
from typing import Annotated, Any, Literal, NotRequired, Required, Union, get_args, get_origin

from typing_extensions import TypedDict


def readable_hints(kind: Any) -> dict[str, Any]:
    """Return the resolved hints of a class by field, with `Annotated` and the qualifiers of a TypedDict."""
    return typing.get_type_hints(kind, include_extras=True)


def modern(hint: Any) -> Any:
    """Return the hint with each TypedDict of `typing` converted. A TypedDict that contains itself has Any at that place."""
    return _modern(hint, {}) if sys.version_info < (3, 12) else hint


def _modern(hint: Any, remade: dict[Any, Any]) -> Any:
    if typing.is_typeddict(hint) and type(hint).__module__ == "typing":
        return remade[hint] if hint in remade else _remake(hint, remade)
    arguments, origin = get_args(hint), get_origin(hint)
    if not arguments or origin is Literal:
        return hint
    if origin is Annotated:
        return Annotated[(_modern(arguments[0], remade), *arguments[1:])]
    modernized = tuple(_modern(argument, remade) for argument in arguments)
    if all(old is new for old, new in zip(arguments, modernized, strict=True)):
        return hint
    if origin in (Union, types.UnionType):
        return Union[modernized]  # noqa: UP007 - the options are known only at run time
    return hint.copy_with(modernized) if hasattr(hint, "copy_with") else origin[modernized]


def _remake(kind: Any, remade: dict[Any, Any]) -> Any:
    remade[kind] = Any
    fields: dict[str, Any] = {}
    for key, hint in readable_hints(kind).items():
        if get_origin(hint) in (Required, NotRequired):
            fields[key] = get_origin(hint)[_modern(get_args(hint)[0], remade)]
        else:
            needed: Any = Required if key in kind.__required_keys__ else NotRequired
            fields[key] = needed[_modern(hint, remade)]
    make: Any = TypedDict
    remade[kind] = make(kind.__name__, fields)
    remade[kind].__doc__, remade[kind].__module__ = kind.__doc__, kind.__module__
    return remade[kind]
