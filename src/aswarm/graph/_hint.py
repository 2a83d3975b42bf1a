"""What a function's return annotation says about handing off."""

from __future__ import annotations

import inspect
import types
import warnings
from collections.abc import Awaitable
from typing import Annotated, Any, Union, get_args, get_origin

from aswarm._agent import Agent, Result
from aswarm._tools.hints import resolve_hints


def says_handoff(function: Any) -> bool | None:
    """True: it names an agent or a `Result`; False: it leaves no room for one; None: it does not tell."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a hint that cannot be resolved is told when the function is offered
        try:
            return _admits(resolve_hints(function, {})["return"])
        except (TypeError, ValueError):  # a builtin without a signature
            return None


def _admits(hint: Any) -> bool | None:
    origin = get_origin(hint)
    if origin is Annotated:
        return _admits(get_args(hint)[0])
    if isinstance(origin, type) and issubclass(origin, Awaitable):
        return _admits(get_args(hint)[-1])
    if origin in (Union, types.UnionType):
        said = [_admits(arm) for arm in get_args(hint)]
        return True if True in said else None if None in said else False
    return _admits_kind(origin or hint)


def _admits_kind(kind: Any) -> bool | None:
    if kind in (Any, inspect.Parameter.empty) or not isinstance(kind, type):
        return None  # nothing is said, or something (a type variable, a NewType) that does not tell
    if issubclass(kind, Agent | Result):
        return True
    try:
        return None if issubclass(Agent, kind) else False
    except TypeError:  # a protocol that cannot be asked
        return None
