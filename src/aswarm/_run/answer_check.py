"""The `check` of an `Output`: its parameters and its call."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import Any, TypeAlias, cast

from aswarm._tools.filled import Filled, filled_parameters
from aswarm._tools.hints import cached_by_function, has_code_flag, name_of, signature_of
from aswarm._tools.tool import is_async
from aswarm._values.errors import ConfigurationError, ToolArgumentsError, ToolError

from .filling import read_arguments

Reading: TypeAlias = "Generator[Callable[[], Awaitable[object]], None, bool]"
"""Reads an answer, and returns whether it is the answer of the run. It yields the call of each async check, which its caller
awaits. If this call raises ValueError, the caller throws it into the generator."""


def check_parameters(check: Callable[..., object]) -> Filled | None:
    """Return the parameters of the check that the run fills; None if there is none. The result is cached.

    Raises ConfigurationError for a generator, and for a parameter that nothing fills.
    """
    return cached_by_function(check, ("check of an answer",), functools.partial(_check_parameters, check))


def _check_parameters(check: Callable[..., object]) -> Filled | None:
    name = f"check {name_of(check)!r} of an Output"
    if has_code_flag(check, inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR):
        raise ConfigurationError(f"{name} must be a function without `yield`")
    after_answer = functools.partial(check, None)
    filled = filled_parameters(after_answer)
    names = {} if filled is None else dict.fromkeys(each.name for each in filled.resources)
    if filled is not None and filled.context is not None:
        names[filled.context] = None
    try:
        signature_of(check).bind(None, **names)
    except TypeError as error:
        remedy = "it gets the answer, `context_variables`, and each parameter with the hint Resource[...]"
        raise ConfigurationError(f"{name} cannot be called: {error}; {remedy}") from error
    except ValueError:  # a builtin without a signature
        return None
    return filled


def run_check(
    check: Callable[..., object], value: object, context: Mapping[str, Any], resources: Mapping[str, object]
) -> Generator[Callable[[], Awaitable[object]], None, None]:
    """Call the check with the answer. Raises ToolArgumentsError with the text of a ValueError or a ToolError.

    The generator yields an async function, and does not call it: the coroutine would never be awaited if the run is closed now.
    """
    filled = check_parameters(check)
    own = {} if filled is None else read_arguments(filled, context, resources)
    call = cast("Callable[[], Any]", functools.partial(check, value, **own))
    try:
        if is_async(check):
            yield functools.partial(_finished, check, value, call)
        elif inspect.isawaitable(returned := call()):
            try:
                yield functools.partial(_finished, check, value, lambda: returned)
            finally:
                if inspect.iscoroutine(returned):
                    returned.close()
        else:
            _refuse_result(check, value, returned)
    except (ValueError, ToolError) as error:
        raise ToolArgumentsError(str(error) or "the answer was refused") from error


async def _finished(check: Callable[..., object], value: object, call: Callable[[], Awaitable[object]]) -> None:
    try:
        _refuse_result(check, value, await call())
    except ToolError as error:
        raise ValueError(str(error)) from error


def _refuse_result(check: Callable[..., object], value: object, returned: object) -> None:
    """Refuse the result of a check in the style of another library: without the error, the run would ignore the result."""
    name = f"check {name_of(check)!r} of an Output"
    if returned is False and value is not False:
        raise ConfigurationError(
            f"{name} returned False; for a wrong answer, raise ValueError with a text for the model"
        )
    if returned is not value and type(returned) is type(value) and returned != value:
        raise ConfigurationError(
            f"{name} returned another answer; it cannot change the answer: let the type convert it"
        )
