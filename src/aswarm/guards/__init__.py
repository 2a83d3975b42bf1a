"""Guards: checks of what is sent, of calls and their results, and of answers, as middleware.

    async def no_homework(checked: CheckedInput) -> Block | None:
        return Block("homework") if "homework" in checked.text else None

    swarm = AsyncSwarm(middleware=[guard_input(no_homework)])

Decides when a check is asked, and what follows from its verdict. A check is plain or async. It returns None to let pass,
`Block(reason)`, `Say(text)` or `Replace(value)`; for a call also `Halt(reason)` and `aswarm.Hold(reason)`. A check that fails
blocks. Blocked content is neither shown to a reader nor kept in the history. `judge(agent)` makes a check of an agent.

It never changes the loop, and a run without guards imports nothing of it.
"""

from aswarm import _public

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
