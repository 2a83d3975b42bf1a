"""The plain Python function behind a tool, partial, method or callable object, and the values of the names in it.

Nothing is called to find them, also no property and no `__getattr__`. A value that cannot be found is `MISSING`.
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
class InspectedFunction:
    """A `types.FunctionType`, and the values that its parameters already have: from partials, defaults, and `self`."""

    function: Any  # a `types.FunctionType`, which type checkers would bind like a method
    bound: dict[str, Any]

    @property
    def code(self) -> types.CodeType:
        """The code object of the function."""
        code: types.CodeType = self.function.__code__
        return code

    def value(self, name: str) -> Any:
        """The present value of a name in the function; MISSING for a local variable and for a name without a value yet."""
        if name in self.bound:
            return self.bound[name]
        if name in self.code.co_varnames or name in self.code.co_cellvars:
            return MISSING
        if name in self.code.co_freevars:
            return self._cell(name)
        return self.function.__globals__.get(name, self.function.__builtins__.get(name, MISSING))

    def _cell(self, name: str) -> Any:
        cells = self.function.__closure__ or ()
        with suppress(ValueError):  # not assigned yet, as where two functions refer to each other
            return cells[self.code.co_freevars.index(name)].cell_contents
        return MISSING


def inspect_function(function: Any) -> InspectedFunction | None:
    """The function behind partials, tools, methods, wrappers and callable objects; None for classes and builtins."""
    args: tuple[Any, ...] = ()
    named: dict[str, Any] = {}
    for inner, more, more_named in _layers(function):
        function = inner
        args, named = (*more, *args), {**more_named, **named}
    if not isinstance(function, types.FunctionType):
        return None
    return InspectedFunction(function, _bound(function, args, named))


def _layers(function: Any) -> Iterator[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """The layers around a function, the outermost first: the callable inside, and the arguments that the layer adds."""
    seen: set[int] = set()
    while id(function) not in seen:  # the `__wrapped__` of a wrapper may be the wrapper itself
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
        case Tool() | PropertyValue() | staticmethod() | types.FunctionType():
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
        case PropertyValue():
            return function.method
        case staticmethod():
            return typing.cast("Any", function).__func__
        case _:
            return getattr(function, "__wrapped__", None)


def _bound(function: types.FunctionType, args: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    signature = signature_of(function, follow_wrapped=False)
    try:
        arguments = signature.bind_partial(*args, **named)
    except TypeError:  # these arguments do not fit, so a call would fail too
        return {}
    arguments.apply_defaults()
    return arguments.arguments


@dataclass(frozen=True, slots=True)
class PropertyValue:
    """The value of a property, which is known only after a call. `method`: its getter, bound to the object."""

    method: types.MethodType


def member(holder: Any, name: str) -> Any:
    """An attribute, found without running a descriptor or `__getattr__`; a method is bound to `holder`."""
    found = inspect.getattr_static(holder, name, MISSING)
    if isinstance(found, types.MemberDescriptorType):  # a slot: reading it runs no code of the user
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
        return PropertyValue(types.MethodType(getter, holder))
    return found


def has_members(value: Any) -> bool:
    """Whether the attributes of a value may be agents."""
    return isinstance(value, types.ModuleType | type) or not isinstance(value, _PLAIN)


_PLAIN = (str, bytes, int, float, complex, types.NoneType, types.FunctionType, types.BuiltinFunctionType)


def contents(value: Any, depth: int = 3) -> Iterable[Any]:
    """The value, and for a dict, list or tuple the items in it; at most the first thousand of each container."""
    yield value
    if depth:
        for item in _items(value):
            yield from contents(item, depth - 1)


def _items(value: Any) -> list[Any]:
    for kind, read in _READ:
        if isinstance(value, kind):
            return [item for item, _ in zip(read(value), range(1000), strict=False)]
    return []


# The methods of Python's own types: those of a subclass would run its code. A set holds no agents: they have no hash.
_READ: tuple[tuple[type, Callable[[Any], Iterable[Any]]], ...] = (
    (dict, dict[Any, Any].values),
    (list, list[Any].__iter__),
    (tuple, tuple[Any, ...].__iter__),
)
