"""Guards: checks of inputs, of calls and their results, and of answers, as middleware.

    async def no_homework(checked: CheckedInput) -> Block | None:
        return Block("homework") if "homework" in checked.text else None

    swarm = AsyncSwarm(middleware=[guard_input(no_homework)])

A check is a plain or async function. It returns None to let pass, `Block(reason)`, `Say(text)` or `Replace(value)`; for a
call also `Halt(reason)` and `aswarm.Hold(reason)`. A check that fails blocks. Blocked content is neither shown to a reader
nor kept in the history. `judge(agent)` makes a check from an agent.
"""

from aswarm._values import public as _public

from ._answer import hold_answer
from ._checked import Checked, CheckedAnswer, CheckedCall, CheckedInput, CheckedResult
from ._input import guard_input
from ._judge import Judgement, judge
from ._tool import guard_tool
from ._verdicts import Block, Blocked, Halt, Replace, Say

__all__ = [
    "Block",
    "Blocked",
    "Checked",
    "CheckedAnswer",
    "CheckedCall",
    "CheckedInput",
    "CheckedResult",
    "Halt",
    "Judgement",
    "Replace",
    "Say",
    "guard_input",
    "guard_tool",
    "hold_answer",
    "judge",
]

_public.publish(globals())
