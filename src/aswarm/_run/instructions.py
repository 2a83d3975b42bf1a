"""The instructions of an agent, a text or a function of the user that returns the text."""

from __future__ import annotations

import functools
import inspect
from collections import defaultdict
from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Any

import anyio

from aswarm._runtime.backend import BackgroundTask, raise_if_own
from aswarm._runtime.threads import FunctionRunner, enter_tool
from aswarm._tools.filled import CONTEXT, filled_parameters
from aswarm._tools.hints import bound_by_partials, signature_of
from aswarm._tools.tool import is_async
from aswarm._values.agent import Agent
from aswarm._values.context import copy_containers
from aswarm._values.errors import ConfigurationError, RunError

from .filling import NO_RESOURCES, read_arguments


async def resolve_instructions(
    agent: Agent,
    context: dict[str, Any],
    function_runner: Callable[[], FunctionRunner],
    resources: Mapping[str, object] = NO_RESOURCES,
) -> Any:
    """Return the instructions as text. A plain function runs in a worker thread, like a plain tool, because it may block."""
    instructions = agent.instructions
    if not callable(instructions):
        return instructions
    work = _with_context(instructions, context, resources)
    try:
        value = (
            work()
            if is_async(instructions)
            else await BackgroundTask(functools.partial(_run_in_slot, function_runner(), work)).result()
        )
        return await value if inspect.isawaitable(value) else value
    except TypeError as error:
        if fault := _misfit(work):
            text = f"the instructions of {agent.name!r} cannot be called: {fault}; their function takes `context_variables`, and"
            raise ConfigurationError(f"{text} parameters with the hint Resource[...]") from error
        raise
    except anyio.get_cancelled_exc_class() as error:
        await raise_if_own(error)
        raise RunError(f"the instructions of {agent.name!r} were cancelled, but not by their run") from error


async def _run_in_slot(function_runner: FunctionRunner, work: Callable[[], Any]) -> Any:
    slot = await function_runner.acquire()
    enter_tool()  # a function for instructions may start runs, like a tool
    try:
        return await slot.run(work)
    finally:
        slot.release()


def _with_context(
    function: Callable[..., Any], context: dict[str, Any], resources: Mapping[str, object]
) -> Callable[[], Any]:
    """Return the function without arguments. If it has parameters for the context variables or resources, bind them."""
    filled = filled_parameters(function, 0)
    if filled is not None and filled.is_typed:
        return functools.partial(function, **read_arguments(filled, context, resources, _with_defaults))
    if _takes_positional(function):
        return functools.partial(function, _with_defaults(context))
    if CONTEXT in signature_of(function).parameters and CONTEXT not in bound_by_partials(function):
        return functools.partial(function, context_variables=_with_defaults(context))
    return function


def _misfit(work: Callable[..., Any]) -> str:
    """Return the reason why Python cannot call the function with its bound arguments; empty if it can."""
    bound: functools.partial[Any] = functools.partial(work)  # of a partial: one partial with its arguments
    try:
        inspect.signature(bound.func, follow_wrapped=False).bind(*bound.args, **bound.keywords)
    except (TypeError, ValueError) as error:  # ValueError: a builtin without a signature
        return str(error)
    return ""


def _with_defaults(context: Mapping[str, Any]) -> defaultdict[str, Any]:
    return defaultdict(str, copy_containers(context))


def _takes_positional(function: Callable[..., Any]) -> bool:
    try:
        parameters = signature_of(function).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature
        return True
    return any(parameter.kind not in (Parameter.KEYWORD_ONLY, Parameter.VAR_KEYWORD) for parameter in parameters)
