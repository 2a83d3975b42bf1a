"""Reads the name, the signature and the type hints of a function.

The module also resolves hints that are strings, and hints with names of classes that are defined later.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import sys
import types
import typing
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, cast

from aswarm._values.errors import ConfigurationError
from aswarm._values.hints import innermost, is_local, local_names

T = TypeVar("T")
EMPTY = inspect.Parameter.empty
_CONSEQUENCES = {"return": "", "context_variables": "; the function gets a dict"}

if sys.version_info >= (3, 14):
    import annotationlib

    # Python 3.14 evaluates hints on access (PEP 649). A name that is imported only for type checkers would raise a NameError.
    # FORWARDREF returns a ForwardRef instead, and `_resolve` handles it like a hint that is a string.
    signature_of = functools.partial(inspect.signature, annotation_format=annotationlib.Format.FORWARDREF)
else:
    signature_of = inspect.signature


def partials_of(function: Any) -> Iterator[functools.partial[Any]]:
    """Yield the partials around a function, the outermost first."""
    while isinstance(function, functools.partial):
        yield function
        function = typing.cast("Any", function.func)


def behind_partials(function: Any) -> Any:
    for partial in partials_of(function):
        function = partial.func
    return function


def has_code_flag(function: object, flag: int) -> bool:
    """Return whether the code that a call runs has this flag of `inspect`, such as CO_ASYNC_GENERATOR."""
    called: Any = behind_partials(function)
    call = None if isinstance(called, type) else getattr(called, "__call__", None)  # noqa: B004 - the method is needed
    # `inspect.isgeneratorfunction` is not used: it would evaluate the hints of a callable object, and a hint may name a class
    # that is defined later.
    codes = (getattr(candidate, "__code__", None) for candidate in (called, call))
    return any(code is not None and code.co_flags & flag for code in codes)


def bound_by_partials(function: object) -> set[str]:
    """Return the names of the parameters that partials have bound. The model must not set them."""
    return {name for partial in partials_of(function) for name in partial.keywords}


def without_attributes(function: Any) -> Any:
    """Return the partial without attributes: `inspect.signature` would follow `__wrapped__`, and ignore bound arguments."""
    if not isinstance(function, functools.partial):
        return function
    partial: Any = function  # pyright: ignore[reportUnknownVariableType]
    return functools.partial(without_attributes(partial.func), *partial.args, **partial.keywords)


def with_attribute(function: Any, name: str) -> Any:
    """Return the outermost partial that has this attribute, or the function inside the partials if none has it."""
    return next((partial for partial in partials_of(function) if name in vars(partial)), behind_partials(function))


def cached_by_function(function: Any, arguments: tuple[object, ...], make: Callable[[], T]) -> T:
    """Return `make()`, cached for these arguments as long as the function exists. The result must not refer to it."""
    # Each access to a bound method creates a new object, but its function is always the same object.
    owner: Any = function.__func__ if inspect.ismethod(function) else function
    key = (id(owner), owner is function, *arguments)
    cached = _cached.get(key)
    if cached is not None and cached[0]() is owner:
        return cast("T", cached[1])
    value = make()
    with contextlib.suppress(TypeError):  # an instance with __slots__ and no __weakref__
        _cached[key] = (weakref.ref(owner, lambda _: _cached.pop(key, None)), value)
    return value


# Weak references, so that a value is freed together with its function. The keys contain the id(), because a callable may be
# unhashable.
_cached: dict[object, tuple[weakref.ref[Any], object]] = {}


def name_of(function: object) -> str:
    """Return the name for the model: `__name__` of a partial if it was set, otherwise the name of the function or class."""
    name = getattr(with_attribute(function, "__name__"), "__name__", None)
    return str(name or type(behind_partials(function)).__name__)


def annotations_of(function: object) -> dict[str, Any]:
    """Return the attributes with a function's hints, unevaluated: a hint may name a class that is defined later."""
    annotate = getattr(function, "__annotate__", None)  # Python 3.14; None if the hints are strings
    if annotate is not None:
        return {"__annotate__": annotate}
    return {"__annotations__": function.__annotations__} if hasattr(function, "__annotations__") else {}


def resolve_hints(function: Callable[..., Any], parameters: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    """Return the hints of the parameters, and of "return".

    A missing hint is Any for a parameter, and `empty` for "return". A hint that cannot be resolved causes a warning, and counts
    as missing.
    """
    raw = {key: parameter.annotation for key, parameter in parameters.items()}
    raw["return"] = signature_of(function).return_annotation
    return {key: _missing(key) if hint is EMPTY else _resolve(function, key, hint) for key, hint in raw.items()}


def _missing(key: str) -> Any:
    return EMPTY if key == "return" else Any


def _resolve(function: Callable[..., Any], key: str, hint: Any) -> Any:
    # get_type_hints also resolves strings inside hints. It is called for one hint at a time, so that an unknown name affects
    # only one parameter.
    inner = innermost(function)
    namespace: dict[str, Any] = getattr(inner, "__globals__", {})
    holder = types.SimpleNamespace(__annotations__={key: hint})
    try:
        try:
            return typing.get_type_hints(holder, namespace, closure_of(inner), include_extras=True)[key]
        except NameError:
            names = {**closure_of(inner), **_local_names(function, inner)}
            return typing.get_type_hints(holder, namespace, names, include_extras=True)[key]
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        fault = f"function {name_of(function)!r}: the hint of {key!r} cannot be resolved ({error})"
        is_parameter = inspect.isfunction(inner) and key != "return"
        if is_parameter and isinstance(error, NameError) and is_local(inner, error.name):
            raise ConfigurationError(
                f"{fault}; define the class at the top level of its module, or make the tool inside of the function that "
                "defines the class"
            ) from error
        if re.search(r"\bResource\b", str(hint)):  # the model must not be asked for a resource
            raise ConfigurationError(f"{fault}; import the class at run time, not only for type checkers") from error
        consequence = _CONSEQUENCES.get(key, "; the model is asked for a string")
        warn_of(function, f"{fault}{consequence}")
        return _missing(key)


def warn_of(function: Callable[..., Any], text: str) -> None:
    """Emit a warning at the location of the function. The stack would show the code that first needs the schema."""
    inner = innermost(function)
    if not inspect.isfunction(inner):  # a class, or a builtin
        warnings.warn(text, UserWarning, stacklevel=3)
        return
    registry = inner.__globals__.setdefault("__warningregistry__", {})
    place = inner.__code__.co_filename, inner.__code__.co_firstlineno, inner.__module__
    warnings.warn_explicit(text, UserWarning, *place, registry=registry)


def _local_names(function: Any, inner: Any) -> dict[str, Any]:
    if not inspect.isfunction(inner):
        return {}
    called = behind_partials(function)
    bound = getattr(called, "__self__", None if inspect.isroutine(called) else called)
    return local_names(inner, bound if isinstance(bound, type) else type(bound))


def closure_of(function: Any) -> dict[str, Any]:
    """Return the variables of the closure of a function that have a value."""
    names: Any = function.__code__.co_freevars if inspect.isfunction(function) else ()
    closure: dict[str, Any] = {}
    for name, cell in zip(names, getattr(function, "__closure__", None) or (), strict=False):
        with contextlib.suppress(ValueError):  # no value yet, for example if two functions refer to each other
            closure[name] = cell.cell_contents
    return closure
