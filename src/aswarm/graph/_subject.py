"""The plain Python function behind whatever was offered as one, and what the names in it stand for.

Looks only: nothing is called, no property, no `__getattr__`. What it cannot see is `MISSING`.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from aswarm._tools.hints import signature_of
from aswarm._tools.tool import Tool

MISSING: Final = object()


@dataclass(frozen=True, slots=True)
class Subject:
    """A `types.FunctionType`, and the values that its parameters already have: of partials, defaults, and `self`."""

    function: Any  # type checkers would bind it like a method
    bound: dict[str, Any]

    @property
    def code(self) -> types.CodeType:
        """Its code."""
        code: types.CodeType = self.function.__code__
        return code

    def value(self, name: str) -> Any:
        """What a name in the function stands for now; MISSING for a local one, and for one that does not exist yet."""
        if name in self.bound:
            return self.bound[name]
        if name in self.code.co_varnames or name in self.code.co_cellvars:
            return MISSING
        if name in self.code.co_freevars:
            return self._cell(name)
        return self.function.__globals__.get(name, self.function.__builtins__.get(name, MISSING))

    def _cell(self, name: str) -> Any:
        cells = self.function.__closure__ or ()
        with suppress(ValueError):  # not assigned yet: functions that hand over to each other
            return cells[self.code.co_freevars.index(name)].cell_contents
        return MISSING


def subject_of(function: Any) -> Subject | None:
    """The function behind partials, tools, methods, wrappers and callable objects; None for classes and builtins."""
    args: tuple[Any, ...] = ()
    named: dict[str, Any] = {}
    for inner, more, more_named in _layers(function):
        function = inner
        args, named = (*more, *args), {**more_named, **named}
    if not isinstance(function, types.FunctionType):
        return None
    return Subject(function, _bound(function, args, named))


def _layers(function: Any) -> Iterator[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """From the outside in: what is inside, and the arguments that this layer adds."""
    seen: set[int] = set()
    while id(function) not in seen:  # a wrapper may say that it wraps itself
        seen.add(id(function))
        layer = _layer(function)
        if layer is not None:
            yield layer
            function = layer[0]


def _layer(function: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]] | None:
    match function:
        case functools.partial():
            partial = typing.cast("Any", function)
            return partial.func, partial.args, partial.keywords
        case types.MethodType():
            return function.__func__, (function.__self__,), {}
        case Tool() | Computed() | staticmethod() | types.FunctionType():
            inside = _inside(function)
            return None if inside is None else (inside, (), {})
        case type():
            return None
        case _:
            call = inspect.getattr_static(typing.cast("Any", type(function)), "__call__", None)
            return (call, (function,), {}) if isinstance(call, types.FunctionType) else None


def _inside(function: Any) -> Any:
    match function:
        case Tool():
            return typing.cast("Any", function).function
        case Computed():
            return function.method
        case staticmethod():
            return typing.cast("Any", function).__func__
        case _:
            return getattr(function, "__wrapped__", None)


def _bound(function: types.FunctionType, args: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    signature = signature_of(function, follow_wrapped=False)
    try:
        arguments = signature.bind_partial(*args, **named)
    except TypeError:  # it could not be called like this either
        return {}
    arguments.apply_defaults()
    return arguments.arguments


@dataclass(frozen=True, slots=True)
class Computed:
    """What a property gives is told by nobody but its function: `method`, bound to the object."""

    method: types.MethodType


def member(holder: Any, name: str) -> Any:
    """An attribute, without running a descriptor or `__getattr__`; a method comes bound."""
    found = inspect.getattr_static(holder, name, MISSING)
    if isinstance(found, types.MemberDescriptorType):  # a slot: reading it runs nothing of anybody's
        with suppress(AttributeError):
            return found.__get__(holder)
        return MISSING
    if isinstance(found, classmethod):
        owner = holder if isinstance(holder, type) else type(holder)
        return types.MethodType(typing.cast("Any", found).__func__, owner)
    if isinstance(holder, types.ModuleType | type):
        return found
    return _bound_member(holder, found)


def _bound_member(holder: Any, found: Any) -> Any:
    if isinstance(found, types.FunctionType):
        return types.MethodType(found, holder)
    if isinstance(found, property | functools.cached_property):
        getter: Any = found.fget if isinstance(found, property) else typing.cast("Any", found).func
        return Computed(types.MethodType(getter, holder))
    return found


def has_members(value: Any) -> bool:
    """Whether agents may be found among its attributes."""
    return isinstance(value, types.ModuleType | type) or not isinstance(value, _PLAIN)


_PLAIN = (str, bytes, int, float, complex, types.NoneType, types.FunctionType, types.BuiltinFunctionType)


def contents(value: Any, depth: int = 3) -> Iterable[Any]:
    """The value, and what is in it where it is a container of Python's own; at most the first thousand of each."""
    yield value
    if depth:
        for item in _items(value):
            yield from contents(item, depth - 1)


def _items(value: Any) -> list[Any]:
    for kind, read in _READ:
        if isinstance(value, kind):
            return [item for item, _ in zip(read(value), range(1000), strict=False)]
    return []


# Python's own methods, whatever a subclass has made of them. An agent cannot be in a set: it has no hash.
_READ: tuple[tuple[type, Callable[[Any], Iterable[Any]]], ...] = (
    (dict, dict[Any, Any].values),
    (list, list[Any].__iter__),
    (tuple, tuple[Any, ...].__iter__),
)
