"""The messages of one run, as recorded and as sent.

The wire form of the history only grows, so that the provider can reuse its prompt cache. An agent with a `history` function
chooses its own messages. This module also knows which agents have a tool result in the history. It does no I/O.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from aswarm._values.agent import Agent
from aswarm._values.errors import ConfigurationError
from aswarm._values.json import is_array, shown
from aswarm._values.messages import WAITING, Message, MessageBlock, match_answers, message_blocks, normalize
from aswarm._values.wire_messages import to_wire, wire_blocks
from aswarm._wire.request import is_chat
from aswarm._wire.responses_request import KnownHistory

# Every assistant message has these keys, in this order.
_FIRST_KEYS: Message = {"role": None, "content": None, "sender": None, "tool_calls": None}
_SHOWN = 80  # the length of a value in an error text


class History:
    """The history of one run: the messages before the run, and the messages of the run.

    `messages`: the messages of the run. `unsent`: messages that the user has sent during the run, not yet in `messages`.
    """

    def __init__(
        self, before: list[Message], settled: int, empty_content: str | None, *, is_plain: bool = False
    ) -> None:
        """Start a run after the messages `before`. In the first `settled` messages, each tool call has an answer.

        `is_plain`: the messages passed `are_plain`.
        """
        self.messages: list[Message] = []
        self.unsent: list[Message] = []
        self._before = before
        self._empty_content = empty_content
        self._pending = before[settled:]  # messages that are sent after their calls are answered
        self._wire = [*map(dict, before)] if is_plain else to_wire(before[:settled], empty_content=empty_content)
        self._known = KnownHistory(is_plain or is_chat(self._wire))
        self._chosen: SentHistory | None = None  # created for the first reader of blocks

    @property
    def settled(self) -> list[Message]:
        """A copy of the history in its wire form, without messages that have unanswered calls."""
        return self._wire.copy()

    @property
    def has_results(self) -> bool:
        """Whether a message is the result of a tool."""
        return any(message["role"] == "tool" for message in (*self._before, *self.messages))

    def sent_to(self, agent: Agent) -> tuple[list[Message], KnownHistory]:
        """Return the messages of the agent's next request, with their `KnownHistory`. All calls must be answered."""
        if (function := agent.history) is None:
            return self._wire, self._known
        return self._in_blocks().of(agent, function)

    @property
    def blocks(self) -> list[MessageBlock]:
        """The recorded history in blocks, as a new list."""
        return self._in_blocks().blocks()

    def _in_blocks(self) -> SentHistory:
        self._chosen = self._chosen or SentHistory(self._before, self.messages, self._empty_content)
        return self._chosen

    def record(self, message: Message) -> None:
        """Record a message of the model. The next `settle` adds it to the wire form of the history."""
        self.messages.append(message)
        self._pending = [message]

    def settle(self, messages: list[Message]) -> None:
        """Record messages that follow the last message of the model, such as the tool messages that answer all its calls."""
        self.messages += messages
        sent = [*wire_blocks([*self._pending, *messages], self._empty_content)]
        if self._known.is_chat:
            self._known.is_chat = is_chat(sent)
        self._wire += sent
        self._pending = []

    def send(self, messages: object) -> None:
        """Store messages of the user until `settle_unsent`. Raises ConfigurationError for messages with another role."""
        sent = normalize(messages)
        if wrong := [message["role"] for message in sent if message["role"] != "user"]:
            raise ConfigurationError(f"send takes messages with the role 'user', not {wrong[0]!r}")
        self.unsent += sent

    def settle_unsent(self) -> None:
        """Record the messages that the user has sent during the run."""
        messages, self.unsent = self.unsent, []
        self.settle(messages)


def recorded_form(message: Message, sender: str) -> Message:
    """Return an assistant message in its recorded form: four keys that every message has, then keys of the provider."""
    return {**_FIRST_KEYS, **message, "sender": sender}


class AgentsWithResults:
    """The agents that got a tool result since the last message of the user.

    Their forced `tool_choice` no longer applies. Otherwise the model would have to call tools without end.
    """

    def __init__(self, history: Sequence[Message], default: str) -> None:
        """Read the history. `default`: the sender of a message that names no sender."""
        self._own: dict[int, Agent] = {}  # by id(); the value keeps the agent alive, so Python does not reuse its id
        self._names = set[str]()  # the names of agents in earlier runs
        if history and history[-1]["role"] != "user":
            start = next((at for at in range(len(history), 0, -1) if history[at - 1]["role"] == "user"), 0)
            for head, answers in message_blocks(history[start:]):
                if any(match_answers(head.get("tool_calls") or [], answers)):
                    self._names.add(sender if isinstance(sender := head.get("sender"), str) else default)

    def __contains__(self, agent: Agent) -> bool:
        return id(agent) in self._own or agent.name in self._names

    def add(self, agent: Agent) -> None:
        """Add an agent of this run."""
        self._own[id(agent)] = agent

    def clear(self) -> None:
        """Remove all agents, because the user has sent a message."""
        self._own.clear()
        self._names.clear()


# --- agents with a `history` function ---------------------------------------------------------------------------------


class SentHistory:
    """The history of one run in blocks, for agents with a `history` function.

    `before`: the messages before the run. `recorded`: the messages of the run, a list that grows.
    """

    def __init__(self, before: Sequence[Message], recorded: list[Message], empty_content: str | None) -> None:
        self._blocks = _blocks_of([*before, *recorded])
        self._recorded = recorded
        self._read = len(recorded)
        self._empty_content = empty_content
        # By the id of an agent: the agent and the `KnownHistory` of its last request.
        self._known: dict[int, tuple[Agent, KnownHistory]] = {}

    def of(self, agent: Agent, function: Callable[..., Any]) -> tuple[list[Message], KnownHistory]:
        """Return the messages of the agent's next request, with the `KnownHistory` of its last request.

        All calls must be answered. Raises ConfigurationError if the function returns something that cannot be sent.
        """
        name = getattr(function, "__qualname__", None) or repr(function)
        where = f"the history function {name} of the agent {agent.name!r}"
        blocks = self._checked(_chosen(function, self.blocks(), agent, where), where)
        try:
            messages = list(chain.from_iterable(_on_wire(block, self._empty_content) for block in blocks))
        except ConfigurationError as error:
            raise ConfigurationError(f"{where} returned a block that cannot be sent: {error}") from error
        _, known = self._known.get(id(agent), (agent, None))
        known = replace(known, is_chat=is_chat(messages)) if known else KnownHistory(is_chat(messages))
        self._known[id(agent)] = agent, known
        return messages, known

    def blocks(self) -> list[MessageBlock]:
        self._blocks += _blocks_of(self._recorded[self._read :])
        self._read = len(self._recorded)
        return self._blocks.copy()

    def _checked(self, chosen: object, where: str) -> list[MessageBlock]:
        if not (is_array(chosen) and all(isinstance(block, MessageBlock) for block in chosen)):
            if inspect.iscoroutine(chosen):
                chosen.close()  # without it, Python warns that the coroutine was never awaited
            raise ConfigurationError(
                f"{where} returned {shown(chosen, _SHOWN)}; it must be a plain function that returns a list of the blocks that "
                "it got, or of blocks that are made from them"
            )
        last = next((block.message for block in reversed(self._blocks) if block.role == "user"), None)
        if last is not None and not any(block.message is last or block.message == last for block in reversed(chosen)):
            raise ConfigurationError(
                f"{where} left out the last message of the user, or changed it; return the last block whose role is 'user' "
                f"unchanged: {shown(last.get('content'), _SHOWN)}"
            )
        return list(chosen)


def _chosen(function: Callable[..., Any], blocks: list[MessageBlock], agent: Agent, where: str) -> object:
    try:
        return function(blocks, agent)
    except TypeError as error:
        if error.__traceback__ is None or error.__traceback__.tb_next:
            raise
        # The function was not entered, because its parameters do not fit.
        raise ConfigurationError(
            f"{where} cannot be called: {error}; it gets a list of blocks, and the agent"
        ) from error


def _blocks_of(messages: Sequence[Message]) -> list[MessageBlock]:
    marks: dict[int, list[Message]] = {}
    blocks = [MessageBlock(head, answers) for head, answers in message_blocks(messages, marks) if head]
    return [_with_marks(block, marks.get(id(block.message), ())) for block in blocks] if marks else blocks


def _with_marks(block: MessageBlock, marks: Iterable[Message]) -> MessageBlock:
    """Return the block with the entries of all its waiting calls. `marks`: tool messages that contain only such entries."""
    marks_of_block = block.message.get(WAITING)
    entries = [
        *(marks_of_block if is_array(marks_of_block) else ()),
        *(entry for message in marks for entry in message[WAITING]),
    ]
    return replace(block, message={**block.message, WAITING: entries}) if entries else block


def _on_wire(block: MessageBlock, empty_content: str | None) -> list[Message]:
    """Return the wire form of a block, cached in the block. Raises ConfigurationError for a block that cannot be sent."""
    cached: tuple[str | None, list[Message]] | None = vars(block).get("_wire")
    if cached is None or cached[0] != empty_content:
        if not (isinstance(block.message, Mapping) and is_array(block.answers)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError("a MessageBlock has a message (a dict), and a list of tool messages")
        messages = normalize([block.message, *block.answers])
        cached = vars(block)["_wire"] = (empty_content, to_wire(messages, empty_content=empty_content))
    return cached[1]
