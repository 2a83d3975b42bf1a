"""Effects of a tool: which of its calls may run together with other calls, and what a call may change.

The signature, the hints and the options of the tool declare its effects. No source and no bytecode is read.
"""

from __future__ import annotations

import types
from collections.abc import AsyncIterable, Awaitable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from typing_extensions import is_typeddict

from aswarm._values.agent import Agent, Result

from .filled import Filled
from .hints import EMPTY


@dataclass(frozen=True, slots=True)
class Effects:
    """Effects of the calls of a tool, for the plan of a turn. `Tool.effects` has them.

    Args:
        runs_together: Whether a call may run together with the calls before and after it.
        takes_context: Whether the function gets the context variables.
        reads_context: Whether it gets them to read only: as a `Mapping`, or in a read-only type.
        writes_context: Whether it gets them, and may write to them.
        may_return_result: Whether it may return a `Result`: the return hint allows it, or is missing.
        may_hand_off: Whether it may return an agent or a `Result`: the return hint allows it, or is missing.
        must_see_order: Whether a call, or the `approve` of the tool, needs the context changes of the calls before it.
        may_wait: Whether a call may wait for a decision: the function declares it, or each call of the tool may wait.
    """

    runs_together: bool
    takes_context: bool
    reads_context: bool
    writes_context: bool
    may_return_result: bool
    may_hand_off: bool
    must_see_order: bool
    may_wait: bool


def effects_of(
    returns: object, filled: Filled | None, *, is_async: bool, concurrent: bool | None, approves: bool, may_wait: bool
) -> Effects:
    """Return the effects of a tool.

    `returns`: the return hint. `filled`: the parameters that the run fills. `concurrent`: the option of the tool. `approves`:
    whether its `approve` is a function.
    """
    takes_context = filled is not None and filled.context is not None
    reads_context = filled is not None and filled.is_read_only
    writes_context = takes_context and not reads_context
    may_return_result = _admits(returns, Result)
    return Effects(
        runs_together=is_async and not writes_context if concurrent is None else concurrent,
        takes_context=takes_context,
        reads_context=reads_context,
        writes_context=writes_context,
        may_return_result=may_return_result,
        may_hand_off=may_return_result or _admits(returns, Agent),
        # @tool(concurrent=True) declares that the function does not need them.
        must_see_order=concurrent is None and (reads_context or approves),
        may_wait=may_wait,
    )


def _admits(hint: Any, kind: type) -> bool:
    origin = get_origin(hint)
    if origin is Annotated:
        return _admits(get_args(hint)[0], kind)
    if origin in (Union, types.UnionType) or (
        isinstance(origin, type) and issubclass(origin, Awaitable | AsyncIterable)
    ):
        return any(_admits(option, kind) for option in get_args(hint))
    if hint is None or origin is Literal or is_typeddict(hint):
        return False
    hint = get_origin(hint) or hint
    if hint is Any or hint is EMPTY or not isinstance(hint, type):
        return True  # no hint, or a hint without a class (a type variable, a NewType)
    try:
        return issubclass(kind, hint) or issubclass(hint, kind)
    except TypeError:  # issubclass does not support this protocol
        return True
