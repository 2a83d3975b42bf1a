"""Hints that Python alone cannot resolve: names of the place of a definition, and each `typing.TypedDict` on Python 3.11.

With `from __future__ import annotations`, Python keeps each hint as a text. A class that is defined inside of a function is then
neither a global name nor, usually, a variable of the closure. But while that function still runs, its frame has the name.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
import types
import typing
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Annotated, Any, Literal, NotRequired, Required, Union, cast, get_args, get_origin

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


_KEPT = "_aswarm_local_names"  # on the function, so that the names live as long as the function
_LOCALS = ".<locals>"
_NAME = re.compile(r"[^\W\d]\w*")


def keep_local_names(function: Any) -> None:
    """Keep the names that the string hints of a function need, if the functions around its definition still run."""
    function = innermost(function)
    if not inspect.isfunction(function) or _LOCALS not in function.__qualname__:
        return
    if variables := dict(_names_of_frames(function, _missing_names(function))):
        function.__dict__[_KEPT] = {**function.__dict__.get(_KEPT, {}), **variables}


def innermost(function: Any) -> Any:
    """Return the function that a call runs: inside partials, decorators and methods, or the `__call__` of an object."""
    while isinstance(function, functools.partial):
        function = cast("Any", function.func)
    function = inspect.unwrap(function)
    function = getattr(function, "__func__", function)
    kind = cast("Any", type(function))
    called = function if inspect.isroutine(function) else getattr(kind, "__call__", None)  # noqa: B004
    return getattr(called, "__func__", called)


def local_names(function: Any, owner: Any = None) -> dict[str, Any]:
    """Return names for the string hints of a function. `owner`: the class that has the function as a method, or None."""
    keep_local_names(function)
    names: dict[str, Any] = function.__dict__.get(_KEPT, {})
    kind = _class_of(function, owner)
    return names if kind is None else {**names, **vars(kind)}


def is_local(function: Any, name: str | None) -> bool:
    """Return whether the name is a variable of a function or a class around the definition of this function."""
    scope: Any = function.__globals__
    for part in function.__qualname__.replace(_LOCALS, "").split(".")[:-1]:
        scope = _inside(scope, part)
        if isinstance(scope, CodeType) and name in (*scope.co_varnames, *scope.co_cellvars, *scope.co_names):
            return True
        if not isinstance(scope, type | CodeType):
            return False
    return False


def _inside(scope: Any, part: str) -> Any:
    """Return the class, or the code of the function, with this name in a module, a class or a code; or else None."""
    if isinstance(scope, CodeType):
        codes = (constant for constant in scope.co_consts if isinstance(constant, CodeType))
        return next((code for code in codes if code.co_name == part), None)
    names = cast("dict[str, Any]", scope if isinstance(scope, dict) else vars(scope))
    inner = names.get(part)
    return getattr(inspect.unwrap(inner), "__code__", inner) if callable(inner) else None


def _missing_names(function: Any) -> set[str]:
    if getattr(function, "__annotate__", None) is not None:
        return set()  # Python 3.14 finds the names itself, if the hints are no texts
    hints: dict[str, Any] = function.__annotations__
    names: set[str] = {name for hint in hints.values() if isinstance(hint, str) for name in _NAME.findall(hint)}
    return names.difference(function.__globals__, function.__code__.co_freevars)


def _names_of_frames(function: Any, names: set[str]) -> Iterator[tuple[str, Any]]:
    around, path = list[str](), function.__qualname__
    while "." in path:
        path = path.rpartition(".")[0].removesuffix(_LOCALS)
        around.append(path)
    frame: FrameType | None = sys._getframe() if names else None
    while frame is not None and names:
        if frame.f_globals is function.__globals__ and frame.f_code.co_qualname in around:
            present = names.intersection(frame.f_locals)  # in Python 3.13, keys() of it is a list
            yield from ((name, frame.f_locals[name]) for name in present)
            names = names - present
        frame = frame.f_back


def _class_of(function: Any, owner: Any) -> Any:
    """Return the class in whose body the function is defined, or None."""
    name, path = function.__name__, function.__qualname__.rpartition(".")[0]
    for kind in getattr(owner, "__mro__", ()):
        if kind.__qualname__ == path and name in vars(kind):
            return kind
    scope: Any = function.__globals__
    for part in path.split("."):
        scope = _inside(scope, part)
        if not isinstance(scope, type):
            return None
    return scope
