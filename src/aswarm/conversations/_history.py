"""Ready functions for `Agent(history=...)`: what an agent is sent of a long history.

Decide which blocks are sent. Each is a pure function of the blocks, and cuts rarely and much at a time: between two cuts a
request begins with the very messages of the request before, so the provider's cache of prompts is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from aswarm._agent import Agent
from aswarm._blocks import MessageBlock
from aswarm._errors import ConfigurationError

HistoryFunction: TypeAlias = Callable[[list[MessageBlock], Agent], Sequence[MessageBlock]]
"""What `Agent(history=...)` takes: it gets the blocks of the whole history and the agent, and returns the blocks to send."""
_INSTRUCTIONS = ("system", "developer")


def last(n: int, *, step: int | None = None) -> HistoryFunction:
    """A history function that sends at most the last `n` blocks.

    Once there are more, it leaves out the oldest `step` at a time: half of `n` by default. So it sends between
    `n - step + 1` and `n` blocks, and besides them the user's message that the first of them belongs to, and the system
    messages that the history begins with. Raises ConfigurationError for numbers below 1, and for a step above `n`.
    """
    _check("last(n)", n)
    size = max(1, n // 2) if step is None else step
    _check("last(step=...)", size)
    if size > n:
        raise ConfigurationError(f"last({n}, step={size}) would leave out more than it keeps; use a step up to {n}")
    return _Last(n, size)


@dataclass(frozen=True, slots=True)
class _Last:
    n: int
    step: int

    def __call__(self, blocks: list[MessageBlock], agent: Agent) -> list[MessageBlock]:  # noqa: ARG002 - the form of each such function
        leading = _leading(blocks)
        more = len(blocks) - leading - self.n
        if more <= 0:
            return blocks
        start = leading - (-more // self.step) * self.step  # rounded up to whole steps
        asked = next((at for at in range(start, leading - 1, -1) if blocks[at].role == "user"), start)
        return [*blocks[:leading], *([] if asked == start else [blocks[asked]]), *blocks[start:]]


def since_handoff(blocks: list[MessageBlock], agent: Agent) -> list[MessageBlock]:
    """A history function that sends what came after the last message of another agent: since this agent has taken over.

    Besides that, it sends the messages of the user that the other agent had not answered, and the system messages that the
    history begins with. It cuts only at a handoff. Agents are told apart by their names.
    """
    others = (at for at in range(len(blocks) - 1, -1, -1) if _is_written(blocks[at]) and not _is_own(blocks[at], agent))
    if (other := next(others, None)) is None:
        return blocks
    since = blocks[other + 1 :]
    asked: list[MessageBlock] = []
    begins_with = next((block.role for block in since if not _is_instruction(block)), None)
    if _has_calls(blocks[other]) or begins_with != "user":
        end = next((at for at in range(other, -1, -1) if blocks[at].role == "user"), -1) + 1
        start = next((at for at in range(end, 0, -1) if blocks[at - 1].role != "user"), 0)
        asked = blocks[start:end]
    return [*blocks[: _leading(blocks)], *asked, *since]


def own_turns(blocks: list[MessageBlock], agent: Agent) -> list[MessageBlock]:
    """A history function that sends the messages of this agent alone, with the results of its calls, and the user's messages.

    A message of the user is left out if another agent has answered it, and this one had no part in that. Agents are told
    apart by their names. While an agent runs, nothing is cut.
    """
    turns = list(_turns(blocks))
    newest = max((at for at, (asked, _) in enumerate(turns) if any(each.role == "user" for each in asked)), default=0)
    sent: list[MessageBlock] = []
    for position, (asked, written) in enumerate(turns):
        own = [block for block in written if _is_own(block, agent)]
        answered_by_another = not own and not all(map(_has_calls, written))
        sent += asked if position == newest or not answered_by_another else filter(_is_instruction, asked)
        sent += own
    return sent


def without_tool_results(keep: int = 3, *, step: int = 5) -> HistoryFunction:
    """A history function that sends the results of the last `keep` turns with calls; a note stands in place of older ones.

    Once there are more, the results of the oldest `step` turns are left out together, so between `keep` and
    `keep + step - 1` turns have theirs. Calls and all other messages stay. A result that is shorter than the note stays too.
    Raises ConfigurationError for numbers below 1.
    """
    _check("without_tool_results(keep)", keep)
    _check("without_tool_results(step=...)", step)
    return _WithoutToolResults(keep, step)


@dataclass(frozen=True, slots=True)
class _WithoutToolResults:
    keep: int
    step: int

    def __call__(self, blocks: list[MessageBlock], agent: Agent) -> list[MessageBlock]:  # noqa: ARG002 - as above
        with_results = [at for at, block in enumerate(blocks) if block.answers]
        left_out = max(0, len(with_results) - self.keep) // self.step * self.step
        for at in with_results[:left_out]:
            blocks[at] = blocks[at].without_results
        return blocks


def _check(what: str, number: object) -> None:
    if type(number) is not int or number < 1:
        raise ConfigurationError(f"{what} takes a whole number from 1, not {number!r}")


def _is_instruction(block: MessageBlock) -> bool:
    return block.role in _INSTRUCTIONS


def _is_written(block: MessageBlock) -> bool:
    return block.role == "assistant"


def _is_own(block: MessageBlock, agent: Agent) -> bool:
    return block.sender in (None, agent.name)


def _leading(blocks: Sequence[MessageBlock]) -> int:
    """How many system messages the history begins with."""
    return next((at for at, block in enumerate(blocks) if not _is_instruction(block)), len(blocks))


def _has_calls(block: MessageBlock) -> bool:
    return bool(block.message.get("tool_calls"))


def _turns(blocks: list[MessageBlock]) -> Iterator[tuple[list[MessageBlock], list[MessageBlock]]]:
    """What was asked (messages of the user and the system), and what agents wrote after it."""
    asked: list[MessageBlock] = []
    written: list[MessageBlock] = []
    for block in blocks:
        if written and not _is_written(block):
            yield asked, written
            asked, written = [], []
        (written if _is_written(block) else asked).append(block)
    yield asked, written
