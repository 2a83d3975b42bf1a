"""Functions for `Agent(history=...)`, which select the blocks of a long history for an agent.

A block is a message, together with the results of its calls. Each function here is pure. It omits many blocks at a time, so
that the start of the requests rarely changes. Between two changes, each request starts with the messages of the previous
request, and the provider can use its prompt cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from aswarm._values.agent import Agent
from aswarm._values.errors import ConfigurationError, check_count
from aswarm._values.messages import MessageBlock

HistoryFunction: TypeAlias = Callable[[list[MessageBlock], Agent], Sequence[MessageBlock]]
"""A function for `Agent(history=...)`: it gets the blocks of the whole history and the agent, and returns the blocks to send."""
_INSTRUCTIONS = ("system", "developer")


def last(n: int, *, step: int | None = None) -> HistoryFunction:
    """Return a history function that sends at most the last `n` blocks.

    If there are more blocks, the function omits the oldest blocks, `step` at a time (by default, half of `n`). So it sends
    between `n - step + 1` and `n` blocks. It also sends the system messages at the start of the history. If the first of these
    blocks is not a user message, it also sends the last user message before them. Raises ConfigurationError for a number below
    1, or for a step above `n`.
    """
    check_count("last(n)", n)
    size = max(1, n // 2) if step is None else step
    check_count("last(step=...)", size)
    if size > n:
        raise ConfigurationError(f"last({n}, step={size}) would omit more than it keeps; use a step up to {n}")
    return _Last(n, size)


@dataclass(frozen=True, slots=True)
class _Last:
    n: int
    step: int

    def __call__(self, blocks: list[MessageBlock], agent: Agent) -> list[MessageBlock]:  # noqa: ARG002 - the signature of a HistoryFunction
        leading = _leading(blocks)
        more = len(blocks) - leading - self.n
        if more <= 0:
            return blocks
        start = leading - (-more // self.step) * self.step  # rounded up to whole steps
        user = next((at for at in range(start, leading - 1, -1) if blocks[at].role == "user"), start)
        return [*blocks[:leading], *([] if user == start else [blocks[user]]), *blocks[start:]]


def since_handoff(blocks: list[MessageBlock], agent: Agent) -> list[MessageBlock]:
    """Return the blocks since the handoff to this agent: the blocks after the last message of another agent.

    The function also returns the user messages that the other agent did not answer, and the system messages at the start of the
    history. It omits more blocks only at the next handoff. Agents are identified by name.
    """
    others = (
        at for at in range(len(blocks) - 1, -1, -1) if blocks[at].role == "assistant" and not _is_own(blocks[at], agent)
    )
    if (other := next(others, None)) is None:
        return blocks
    since = blocks[other + 1 :]
    unanswered: list[MessageBlock] = []
    first_role = next((block.role for block in since if not _is_instruction(block)), None)
    if _has_calls(blocks[other]) or first_role != "user":
        end = next((at for at in range(other, -1, -1) if blocks[at].role == "user"), -1) + 1
        start = next((at for at in range(end, 0, -1) if blocks[at - 1].role != "user"), 0)
        unanswered = blocks[start:end]
    return [*blocks[: _leading(blocks)], *unanswered, *since]


def own_turns(blocks: list[MessageBlock], agent: Agent) -> list[MessageBlock]:
    """Return only the messages of this agent, the results of its calls, and the user messages.

    The function omits a user message that other agents answered without this agent. While an agent is running, it omits no more
    blocks. Agents are identified by name.
    """
    turns = list(_turns(blocks))
    newest = max((at for at, (asked, _) in enumerate(turns) if any(block.role == "user" for block in asked)), default=0)
    sent: list[MessageBlock] = []
    for position, (asked, written) in enumerate(turns):
        own_blocks = [block for block in written if _is_own(block, agent)]
        answered_by_another = not own_blocks and not all(map(_has_calls, written))
        sent += asked if position == newest or not answered_by_another else filter(_is_instruction, asked)
        sent += own_blocks
    return sent


def without_tool_results(keep: int = 3, *, step: int = 5) -> HistoryFunction:
    """Return a history function that sends only the newest results of tools. A short note replaces each older result.

    If more than `keep` turns have calls, it omits the results of the oldest turns, `step` turns at a time. So between `keep`
    and `keep + step - 1` turns have results. Calls, all other messages, and results that are shorter than the note stay. Raises
    ConfigurationError for numbers below 1.
    """
    check_count("without_tool_results(keep)", keep)
    check_count("without_tool_results(step=...)", step)
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


def _is_instruction(block: MessageBlock) -> bool:
    return block.role in _INSTRUCTIONS


def _is_own(block: MessageBlock, agent: Agent) -> bool:
    return block.sender in (None, agent.name)


def _leading(blocks: Sequence[MessageBlock]) -> int:
    return next((at for at, block in enumerate(blocks) if not _is_instruction(block)), len(blocks))


def _has_calls(block: MessageBlock) -> bool:
    return bool(block.message.get("tool_calls"))


def _turns(blocks: list[MessageBlock]) -> Iterator[tuple[list[MessageBlock], list[MessageBlock]]]:
    """Yield pairs: consecutive user and system messages, and the messages that agents wrote after them."""
    asked: list[MessageBlock] = []
    written: list[MessageBlock] = []
    for block in blocks:
        is_written = block.role == "assistant"
        if written and not is_written:
            yield asked, written
            asked, written = [], []
        (written if is_written else asked).append(block)
    yield asked, written
