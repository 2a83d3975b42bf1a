"""What a function says about itself: its name, and its type hints as types.

Decides how string annotations are resolved. Knows nothing of schemas.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
import typing
import warnings
from collections.abc import Callable, Mapping
from typing import Any

EMPTY = inspect.Parameter.empty


def behind_partials(function: Any) -> Any:
    """The function that partials were made of."""
    while isinstance(function, functools.partial):
        function = typing.cast("Any", function.func)
    return function


def name_of(function: object) -> str:
    """The name a function has for the model: its own, that of the function behind a partial, or its class's."""
    function = behind_partials(function)
    return str(getattr(function, "__name__", None) or type(function).__name__)


def resolve_hints(function: Callable[..., Any], parameters: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    """The hint of every parameter and of "return"; Any where there is none, `empty` for a missing return hint."""
    signature = inspect.signature(function)
    raw = {key: parameter.annotation for key, parameter in parameters.items()}
    raw["return"] = signature.return_annotation
    hints: dict[str, Any] = {}
    for key, hint in raw.items():
        if hint is EMPTY:
            hints[key] = Any if key != "return" else EMPTY
        else:
            hints[key] = _resolve(function, key, hint)
    return hints


def _resolve(function: Callable[..., Any], key: str, hint: Any) -> Any:
    # get_type_hints resolves nested strings too, and one hint at a time: a name that exists only for the type checker
    # costs that one parameter its type, not all of them.
    plain = _innermost(function)
    namespace: dict[str, Any] = getattr(plain, "__globals__", {})
    holder = types.SimpleNamespace(__annotations__={key: hint})
    try:
        return typing.get_type_hints(holder, namespace, _closure(plain), include_extras=True)[key]
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        offered = "" if key in ("return", "context_variables") else "; it is offered as a string"
        warnings.warn(
            f"function {name_of(function)!r}: the hint of {key!r} cannot be resolved ({error}){offered}",
            UserWarning,
            stacklevel=2,
        )
        return Any if key != "return" else EMPTY


def _closure(function: Any) -> dict[str, Any]:
    names: Any = function.__code__.co_freevars if inspect.isfunction(function) else ()
    closure: dict[str, Any] = {}
    for name, cell in zip(names, getattr(function, "__closure__", None) or (), strict=False):
        with contextlib.suppress(ValueError):  # not assigned yet: functions that hand over to each other
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
