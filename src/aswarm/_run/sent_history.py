"""What an agent with a `history` function is sent of the history.

Decides the messages of its requests. The record of the run stays whole. A run whose agents have no such function does not
use this module.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from aswarm._agent import Agent
from aswarm._blocks import MessageBlock
from aswarm._errors import ConfigurationError
from aswarm._json import is_array, shown
from aswarm._messages import Message, message_blocks
from aswarm._wire.chat_request import is_chat
from aswarm._wire.responses_input import KnownHistory

_SHOWN = 80


class SentHistory:
    """The history of one run in blocks. `before`: the messages that the run got; `recorded`: those it makes, which grow."""

    def __init__(self, before: Sequence[Message], recorded: list[Message], empty_content: str | None) -> None:
        self._blocks = _blocks_of([*before, *recorded])
        self._recorded = recorded
        self._taken = len(recorded)
        self._empty_content = empty_content
        # What the last request made of the messages that it sent, by the agent.
        self._known: dict[int, tuple[Agent, KnownHistory]] = {}

    def of(self, agent: Agent, function: Callable[..., Any]) -> tuple[list[Message], KnownHistory]:
        """The messages of the next request of the agent, and what an earlier one of this agent has made of them.

        All calls must be settled. Raises ConfigurationError for a result of the function that cannot be sent.
        """
        self._blocks += _blocks_of(self._recorded[self._taken :])
        self._taken = len(self._recorded)
        where = f"the history function {_name_of(function)} of the agent {agent.name!r}"
        blocks = self._checked(function(self._blocks.copy(), agent), where)
        try:
            messages = list(chain.from_iterable(block.on_wire(self._empty_content) for block in blocks))
        except ConfigurationError as error:
            raise ConfigurationError(f"{where} returned a block that cannot be sent: {error}") from error
        _, known = self._known.get(id(agent), (agent, None))
        known = KnownHistory(is_chat(messages), known.input if known else None)
        self._known[id(agent)] = agent, known
        return messages, known

    def _checked(self, chosen: object, where: str) -> list[MessageBlock]:
        if not (is_array(chosen) and all(isinstance(block, MessageBlock) for block in chosen)):
            if inspect.iscoroutine(chosen):
                chosen.close()  # else Python warns that it was never awaited
            raise ConfigurationError(
                f"{where} returned {shown(chosen, _SHOWN)}; it must be a plain function that returns a list of the blocks that "
                "it got, or of blocks that are made from them"
            )
        asked = next((block.message for block in reversed(self._blocks) if block.role == "user"), None)
        if asked is not None and not any(
            block.message is asked or block.message == asked for block in reversed(chosen)
        ):
            raise ConfigurationError(
                f"{where} left out the last message of the user, or changed it; return the last block whose role is 'user' as it "
                f"is: {shown(asked.get('content'), _SHOWN)}"
            )
        return list(chosen)


def _blocks_of(messages: Sequence[Message]) -> list[MessageBlock]:
    return [MessageBlock(head, answers) for head, answers in message_blocks(messages) if head]


def _name_of(function: object) -> str:
    return str(getattr(function, "__qualname__", None) or repr(function))
