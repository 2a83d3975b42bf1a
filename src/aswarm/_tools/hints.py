"""Reads a function: its name, its signature, and its type hints as types.

Decides how hints that are strings, or that name classes defined later, are resolved. Knows nothing of schemas.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import types
import typing
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

EMPTY = inspect.Parameter.empty

if sys.version_info >= (3, 14):
    import annotationlib

    # Hints are evaluated when they are read (PEP 649). A name that does not exist, because only the type checker imports
    # it, comes as a ForwardRef instead of a NameError, and is handled in `_resolve` like a hint that is a string.
    signature_of = functools.partial(inspect.signature, annotation_format=annotationlib.Format.FORWARDREF)
else:
    signature_of = inspect.signature


def partials_of(function: Any) -> Iterator[functools.partial[Any]]:
    """The partials around a function, the outermost first."""
    while isinstance(function, functools.partial):
        yield function
        function = typing.cast("Any", function.func)


def behind_partials(function: Any) -> Any:
    """The function that partials were made of."""
    for partial in partials_of(function):
        function = partial.func
    return function


def has_code_flag(function: object, flag: int) -> bool:
    """Whether the code that calling the function runs has this flag of `inspect`, such as CO_ASYNC_GENERATOR."""
    called: Any = behind_partials(function)
    call = None if isinstance(called, type) else getattr(called, "__call__", None)  # noqa: B004 - what calling it gives
    # `inspect.isgeneratorfunction` would evaluate the hints of a callable object, which may name a class defined later.
    codes = (getattr(each, "__code__", None) for each in (called, call))
    return any(code is not None and code.co_flags & flag for code in codes)


def bound_by_partials(function: object) -> set[str]:
    """The names of the parameters that partials bind. The developer has chosen their values."""
    return {name for partial in partials_of(function) for name in partial.keywords}


def without_attributes(function: Any) -> Any:
    """The same partial without attributes: `inspect.signature` would follow a `__wrapped__`, and miss what is bound."""
    if not isinstance(function, functools.partial):
        return function
    partial: Any = function  # pyright: ignore[reportUnknownVariableType]
    return functools.partial(without_attributes(partial.func), *partial.args, **partial.keywords)


def with_attribute(function: Any, name: str) -> Any:
    """The partial on which the attribute was set, the outermost first, or else the function behind the partials."""
    return next((partial for partial in partials_of(function) if name in vars(partial)), behind_partials(function))


def name_of(function: object) -> str:
    """The name that the model sees: that of a partial if it was set, of the function behind it, or of the class."""
    return str(
        getattr(with_attribute(function, "__name__"), "__name__", None) or type(behind_partials(function)).__name__
    )


def annotations_of(function: object) -> dict[str, Any]:
    """The attributes that hold a function's hints, without evaluating them: a hint may name a class defined later."""
    annotate = getattr(function, "__annotate__", None)  # Python 3.14; None where the hints are strings
    if annotate is not None:
        return {"__annotate__": annotate}
    return {"__annotations__": function.__annotations__} if hasattr(function, "__annotations__") else {}


def resolve_hints(function: Callable[..., Any], parameters: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    """The hint of each parameter and of "return"; Any for a parameter without a hint, `empty` for a missing return.

    A hint that cannot be resolved counts as missing, with a warning.
    """
    raw = {key: parameter.annotation for key, parameter in parameters.items()}
    raw["return"] = signature_of(function).return_annotation
    hints: dict[str, Any] = {}
    for key, hint in raw.items():
        if hint is EMPTY:
            hints[key] = Any if key != "return" else EMPTY
        else:
            hints[key] = _resolve(function, key, hint)
    return hints


def _resolve(function: Callable[..., Any], key: str, hint: Any) -> Any:
    # get_type_hints also resolves strings inside hints. It is called for one hint at a time, so that a name that cannot
    # be resolved costs one parameter its type, not all of them.
    innermost = _innermost(function)
    namespace: dict[str, Any] = getattr(innermost, "__globals__", {})
    holder = types.SimpleNamespace(__annotations__={key: hint})
    try:
        return typing.get_type_hints(holder, namespace, _closure(innermost), include_extras=True)[key]
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        consequence = "" if key in ("return", "context_variables") else "; the model is asked for a string"
        warn_of(
            function, f"function {name_of(function)!r}: the hint of {key!r} cannot be resolved ({error}){consequence}"
        )
        return Any if key != "return" else EMPTY


def warn_of(function: Callable[..., Any], text: str) -> None:
    """Warn with the place of the function: its schema is made later, by a line that says nothing of it."""
    innermost = _innermost(function)
    if not inspect.isfunction(innermost):  # a class, or a builtin
        warnings.warn(text, UserWarning, stacklevel=3)
        return
    registry = innermost.__globals__.setdefault("__warningregistry__", {})
    code = innermost.__code__
    warnings.warn_explicit(
        text, UserWarning, code.co_filename, code.co_firstlineno, innermost.__module__, registry=registry
    )


def _closure(function: Any) -> dict[str, Any]:
    names: Any = function.__code__.co_freevars if inspect.isfunction(function) else ()
    closure: dict[str, Any] = {}
    for name, cell in zip(names, getattr(function, "__closure__", None) or (), strict=False):
        with contextlib.suppress(ValueError):  # has no value yet: functions that hand over to each other
            closure[name] = cell.cell_contents
    return closure


def _innermost(function: Any) -> Any:
    function = inspect.unwrap(behind_partials(function))
    function = getattr(function, "__func__", function)
    return (
        function
        if inspect.isroutine(function)
        else getattr(type(function).__call__, "__func__", type(function).__call__)
    )
