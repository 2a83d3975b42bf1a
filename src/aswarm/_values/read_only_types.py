"""Whether nothing in a value of a type can be changed, as type checkers see it."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import fractions
import pathlib
import types
import typing
import uuid
from collections import abc
from collections.abc import Iterable
from typing import Annotated, Any, Literal, Required, Union, get_args, get_origin

import typing_extensions
from pydantic import BaseModel

from .typed_dicts import readable_hints

_SCALARS = (
    *(str, int, float, complex, bool, bytes, types.NoneType, decimal.Decimal, fractions.Fraction, uuid.UUID),
    *(dt.date, dt.time, dt.timedelta, dt.tzinfo, pathlib.PurePath, enum.Enum),
)
# Abstract containers have no method that writes.
_CONTAINERS = (tuple, frozenset, abc.Sequence, abc.Mapping, abc.Set, abc.Collection, abc.Iterable)
_UNIONS = (Union, types.UnionType)
_QUALIFIERS = (Required, typing_extensions.NotRequired, typing_extensions.ReadOnly, typing.Final, typing.ClassVar)


def is_read_only(hint: Any) -> bool:
    """Return whether nothing in a value of this type can be changed.

    True for scalars. Also true for `tuple`, `frozenset`, abstract containers, frozen dataclasses, frozen models, and TypedDicts
    with only `ReadOnly` items, if everything inside is read-only. False for `Any`, which may be a list.
    """
    return _is_read_only(hint, set())


def _is_read_only(hint: Any, outer_types: set[Any]) -> bool:
    hint = _inside(hint)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal or hint is None:
        return True
    if origin in (*_UNIONS, *_CONTAINERS):
        return _are_read_only((argument for argument in arguments if argument is not ...), outer_types)
    kind: Any = origin or hint
    if not isinstance(kind, type) or kind in outer_types:
        return kind in outer_types  # a type inside itself is decided by its other fields
    return issubclass(kind, _SCALARS) or _is_read_only_class(kind, {*outer_types, kind})


def _inside(hint: Any) -> Any:
    """Return the hint inside `Annotated`, qualifiers, aliases and new types."""
    while True:
        if get_origin(hint) in (Annotated, *_QUALIFIERS):
            hint = get_args(hint)[0]
        elif type(hint).__name__ == "TypeAliasType":  # of `typing`, or of typing_extensions
            hint = hint.__value__
        elif isinstance(hint, typing.NewType):
            hint = hint.__supertype__
        else:
            return hint


def _are_read_only(hints: Iterable[Any], outer_types: set[Any]) -> bool:
    return all(_is_read_only(hint, outer_types) for hint in hints)


def _is_read_only_class(kind: Any, outer_types: set[Any]) -> bool:
    parameters: Any = getattr(kind, "__dataclass_params__", None)
    if typing_extensions.is_typeddict(kind):
        hints = readable_hints(kind)
        return all(map(_is_read_only_item, hints.values())) and _are_read_only(hints.values(), outer_types)
    if issubclass(kind, BaseModel):
        frozen = bool(kind.model_config.get("frozen"))
        fields = kind.model_fields.values()
        return all(frozen or field.frozen for field in fields) and _are_read_only(
            (field.annotation for field in fields), outer_types
        )
    if parameters is not None:
        hints = readable_hints(kind)
        return bool(parameters.frozen) and _are_read_only(
            (hints[name] for name in kind.__dataclass_fields__), outer_types
        )
    return False


def _is_read_only_item(hint: Any) -> bool:
    while (origin := get_origin(hint)) in (Required, typing_extensions.NotRequired, Annotated):
        hint = get_args(hint)[0]
    return origin is typing_extensions.ReadOnly
