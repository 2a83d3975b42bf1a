"""The plan of a turn: the groups of calls that may run together.

The rule: after the turn, the context, the active agent and the history must be the same as if the calls had run one after
another, in call order. This module decides only; it runs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from aswarm._tools.tool import (
    Tool,
    may_hand_off,
    may_return_result,
    reads_context,
    runs_together,
    takes_context,
    writes_context,
)

from .call import Call


def plan(calls: Sequence[Call], *, concurrent: bool = True, may_hold: bool = False) -> list[list[Call]]:
    """Return the calls in groups. The groups run one after another; the calls of one group run together.

    `may_hold`: whether a middleware of the run may raise Hold for any call, so that the call waits for a decision.
    """
    if len(calls) == 1:
        return [[*calls]]
    groups: list[list[Call]] = []
    # `tools`: all tools of the last group. `waiting`: the tools whose calls in this group may wait for a decision. A dict
    # contains each tool once, so a turn with thousands of calls takes linear time.
    tools: dict[int, Tool[..., Any]] = {}
    waiting: dict[int, Tool[..., Any]] = {}
    keys: set[tuple[str, str]] = set()  # the id and name of each call that may wait, even without a tool
    for call in calls:
        tool = call.tool
        joins = groups and concurrent and _fits(tool, tools.values())
        # A call without a tool may be for a tool that the client executes. A guard may change the arguments of a decided call
        # once more, and then the call waits for another decision.
        may_wait = (
            may_hold or tool is None or tool._may_wait or (call.decision is not None and call.decision.seen is not None)
        )
        # Calls with equal id and name never share a group. The answer of the later call would close the earlier, waiting call.
        if not joins or (
            keys and ((call.id, call.name) in keys or not _may_pass(call, waiting.values(), may_wait=may_wait))
        ):
            groups.append([])
            tools.clear()
            waiting.clear()
            keys.clear()
        groups[-1].append(call)
        if tool is not None:
            tools[id(tool)] = tool
        if call.hold is not None or (may_wait and call.outcome is None):
            keys.add((call.id, call.name))
            if tool is not None:
                waiting[id(tool)] = tool
    return groups


def _may_pass(call: Call, waiting: Iterable[Tool[..., Any]], *, may_wait: bool) -> bool:
    """Return whether a call may run while earlier calls wait for a decision.

    `waiting`: the tools of these earlier calls. `may_wait`: whether this call may wait too. Return False if this call or a waiting
    call may hand off, because a handoff closes waiting calls. Also return False if one of the two calls may change context
    variables that the other call uses.
    """
    tool = call.tool
    # A handoff to an agent closes no waiting calls: it runs again after their decisions, see `reopened` in `call`.
    if tool is None or call.outcome is not None or tool.is_handoff:
        return True
    if may_hand_off(tool) or (may_wait and any(map(may_hand_off, waiting))):
        return False
    if writes_context(tool):
        return not any(takes_context(other) or may_return_result(other) for other in waiting)
    return not (must_see_order(tool) and any(map(writes_context, waiting)))


def _fits(tool: Tool[..., Any] | None, tools: Iterable[Tool[..., Any]]) -> bool:
    """Return whether a call of the tool may run together with earlier calls of these tools."""
    if tool is None:  # the call runs no function
        return all(map(runs_together, tools))
    if not runs_together(tool) or not all(map(runs_together, tools)):
        return False
    if must_see_order(tool):
        return not any(may_return_result(other) or writes_context(other) for other in tools)
    return not (writes_context(tool) and any(map(must_see_order, tools)))


def must_see_order(tool: Tool[..., Any]) -> bool:
    """Return whether a call of this tool, or its `approve`, needs the context changes of the calls before it."""
    # @tool(concurrent=True) declares that the function does not need them.
    return tool.concurrent is None and (reads_context(tool) or callable(tool.approve))
