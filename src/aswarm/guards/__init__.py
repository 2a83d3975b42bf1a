"""Guards: checks of inputs, of calls and their results, and of answers, as middleware.

    async def no_homework(checked: CheckedInput) -> Block | None:
        return Block("homework") if "homework" in checked.text else None

    swarm = AsyncSwarm(middleware=[guard_input(no_homework)])

A check is a plain or async function. It returns a verdict: None to let the content pass, `Block(reason)`, `Say(text)` or
`Replace(value)`. For a call, it may also return `Halt(reason)` or `aswarm.Hold(reason)`. If the check itself fails, the content
is blocked. Blocked content is not shown, and is not in the history. `judge(agent)` creates a check from an agent.
"""

from aswarm._values import public_names as _public

from ._check import CheckFunction, judge
from ._checked import (
    Block,
    Blocked,
    Checked,
    CheckedAnswer,
    CheckedCall,
    CheckedInput,
    CheckedResult,
    Halt,
    Replace,
    Say,
)
from ._input import guard_input
from ._tool import guard_answer, guard_tool

__all__ = [
    "Block",
    "Blocked",
    "CheckFunction",
    "Checked",
    "CheckedAnswer",
    "CheckedCall",
    "CheckedInput",
    "CheckedResult",
    "Halt",
    "Replace",
    "Say",
    "guard_answer",
    "guard_input",
    "guard_tool",
    "judge",
]

_public.publish(globals())
