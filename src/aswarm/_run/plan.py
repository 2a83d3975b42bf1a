"""The plan of a turn: the groups of calls that may run together.

The rule: after the turn, the context, the active agent and the history must be the same as if the calls had run one after
another, in call order. This module decides only; it runs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter

from aswarm._tools.effects import Effects

from .call import Call

# A turn may have thousands of calls, and `attrgetter` calls no function of Python.
_RUNS_TOGETHER, _MAY_HAND_OFF = attrgetter("runs_together"), attrgetter("may_hand_off")
_WRITES_CONTEXT, _MUST_SEE_ORDER = attrgetter("writes_context"), attrgetter("must_see_order")


def plan(calls: Sequence[Call], *, concurrent: bool = True, may_hold: bool = False) -> list[list[Call]]:
    """Return the calls in groups. The groups run one after another; the calls of one group run together.

    `may_hold`: whether a middleware of the run may raise Hold for any call, so that the call waits for a decision.
    """
    if len(calls) == 1:
        return [[*calls]]
    groups: list[list[Call]] = []
    # `together`: the effects of all tools of the last group. `waiting`: of the tools whose calls in this group may wait for a
    # decision. A dict contains each tool once, so a turn with thousands of calls takes linear time.
    together: dict[int, Effects] = {}
    waiting: dict[int, Effects] = {}
    keys: set[tuple[str, str]] = set()  # the id and name of each call that may wait, even without a tool
    for call in calls:
        effects = None if call.tool is None else call.tool.effects
        joins = groups and concurrent and _fits(effects, together.values())
        # A call without a tool may be for a tool that the client executes. A guard may change the arguments of a decided call
        # once more, and then the call waits for another decision.
        may_wait = (
            may_hold
            or effects is None
            or effects.may_wait
            or (call.decision is not None and call.decision.seen is not None)
        )
        # Calls with equal id and name never share a group. The answer of the later call would close the earlier, waiting call.
        if not joins or (
            keys and ((call.id, call.name) in keys or not _may_pass(call, waiting.values(), may_wait=may_wait))
        ):
            groups.append([])
            together.clear()
            waiting.clear()
            keys.clear()
        groups[-1].append(call)
        if effects is not None:
            together[id(effects)] = effects
        if call.hold is not None or (may_wait and call.outcome is None):
            keys.add((call.id, call.name))
            if effects is not None:
                waiting[id(effects)] = effects
    return groups


def _may_pass(call: Call, waiting: Iterable[Effects], *, may_wait: bool) -> bool:
    """Return whether a call may run while earlier calls wait for a decision.

    `waiting`: the effects of the tools of these earlier calls. `may_wait`: whether this call may wait too. Return False if this
    call or a waiting call may hand off, because a handoff closes waiting calls. Also return False if one of the two calls may
    change context variables that the other call uses.
    """
    tool = call.tool
    # A handoff to an agent closes no waiting calls: it runs again after their decisions, see `reopened` in `call`.
    if tool is None or call.outcome is not None or tool.is_handoff:
        return True
    effects = tool.effects
    if effects.may_hand_off or (may_wait and any(map(_MAY_HAND_OFF, waiting))):
        return False
    if effects.writes_context:
        return not any(other.takes_context or other.may_return_result for other in waiting)
    return not (effects.must_see_order and any(map(_WRITES_CONTEXT, waiting)))


def _fits(effects: Effects | None, together: Iterable[Effects]) -> bool:
    """Return whether a call may run together with earlier calls. `effects`: None for a call without a tool."""
    if effects is None:  # the call runs no function
        return all(map(_RUNS_TOGETHER, together))
    if not effects.runs_together or not all(map(_RUNS_TOGETHER, together)):
        return False
    if effects.must_see_order:
        return not any(other.may_return_result or other.writes_context for other in together)
    return not (effects.writes_context and any(map(_MUST_SEE_ORDER, together)))
