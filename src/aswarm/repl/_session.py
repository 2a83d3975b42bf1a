"""A conversation in a terminal, as plain decisions: what is in the history, who is active, what a turn leaves.

It knows no terminal, reads and writes no file and never waits. What is to be done it returns, as one of the effects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from aswarm._agent import Agent, Response
from aswarm._context import copy_containers
from aswarm._errors import ConfigurationError
from aswarm._json import is_object
from aswarm._messages import Message, call_name, open_calls
from aswarm._usage import Usage

from ._agents import agents_from
from ._saved import Saved
from ._text import counted


@dataclass(frozen=True, slots=True)
class Turn:
    """Ask the model. `said` is the user's new message, which is the last of `messages`; None where there is none.

    `resume`: run the calls that are open at the end of `messages` first; the user has said so.
    """

    agent: Agent
    messages: list[Message]
    context: dict[str, Any]
    said: str | None = None
    resume: bool = False


@dataclass(frozen=True, slots=True)
class Say:
    """Show a text."""

    text: str


@dataclass(frozen=True, slots=True)
class Complain:
    """Show what is wrong, on one line."""

    text: str


@dataclass(frozen=True, slots=True)
class ShowHistory:
    """Show these messages."""

    messages: list[Message]


@dataclass(frozen=True, slots=True)
class WriteFile:
    """Write a conversation to a file; then show `done`."""

    path: str
    text: str
    done: str


@dataclass(frozen=True, slots=True)
class ReadFile:
    """Read a conversation from a file, and hand it to `Session.load`."""

    path: str


@dataclass(frozen=True, slots=True)
class Leave:
    """End the loop."""


Deed: TypeAlias = Say | Complain | ShowHistory | WriteFile | ReadFile | Leave
Effect: TypeAlias = Turn | Deed


@dataclass
class Session:
    """One conversation. `starting_agent` and `starting_context` are what `reset` goes back to.

    `history` can be sent on at any time, `context` is the session's own copy, `usage` counts all runs. `unsent` is a
    message that the provider has refused before anything came of it; it is in no history.
    Raises ConfigurationError for an agent or context that no run would take.
    """

    starting_agent: Agent
    starting_context: Mapping[str, Any] | None = None
    agent: Agent = field(init=False)
    context: dict[str, Any] = field(init=False)
    history: list[Message] = field(init=False)
    unsent: str | None = field(init=False)
    usage: Usage = field(init=False, default_factory=Usage)

    def __post_init__(self) -> None:
        if not isinstance(self.starting_agent, Agent):  # pyright: ignore[reportUnnecessaryIsInstance] - whatever came in
            raise ConfigurationError(f"starting_agent must be an Agent, not {type(self.starting_agent).__name__}")
        if not (self.starting_context is None or is_object(self.starting_context)):
            raise ConfigurationError(f"context_variables must be a dict, not {type(self.starting_context).__name__}")
        # Copied now: what a caller changes later is none of this conversation.
        self.starting_context = copy_containers(self.starting_context or {})
        self._seen: dict[str, Agent] = {}
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        self.agent = self.starting_agent
        self.context = copy_containers(self.starting_context)
        self.history = []
        self.unsent = None

    @property
    def agents(self) -> dict[str, Agent]:
        """The agents that are known, by name: those that can be seen from the first one, and those met since."""
        return {**self._seen, **agents_from(self.starting_agent)}

    @property
    def open_calls(self) -> list[Message]:
        """The calls at the end of the history that have no answer."""
        return open_calls(self.history)

    @property
    def undone(self) -> list[str]:
        """A sentence about the open calls, where there are any."""
        names = ", ".join(call_name(call) for call in self.open_calls)
        return [f"Not yet run: {names}. /resume runs what is open, another message leaves it undone."] if names else []

    # --- turns ---

    def say(self, text: str) -> Turn:
        """The user says something."""
        return self._turn([*self.history, {"role": "user", "content": text}], said=text)

    def resume(self) -> Turn | None:
        """Go on where it stopped: send the unsent message, run open calls, or ask again. None where nothing stopped."""
        if self.unsent is not None:
            return self.say(self.unsent)
        if self.open_calls:
            return self._turn(self.history, resume=True)
        waits = bool(self.history) and self.history[-1]["role"] != "assistant"
        return self._turn(self.history) if waits else None

    def _turn(self, messages: list[Message], *, said: str | None = None, resume: bool = False) -> Turn:
        return Turn(self.agent, messages, self.context, said, resume)

    def end_turn(self, turn: Turn, response: Response, *, failed: bool) -> None:
        """Keep what a turn has left, however it ended.

        A message that has failed before anything came of it is taken out again: it may be what the provider refuses,
        and would be refused with every message to come.
        """
        is_lost = failed and not response.messages
        self.unsent = turn.said if is_lost else None
        self.history = self.history if is_lost else [*turn.messages, *response.messages]
        self.agent = response.agent or turn.agent
        self._seen[self.agent.name] = self.agent
        self.context = response.context_variables
        self.usage += response.usage

    # --- files ---

    def save(self) -> Saved:
        """What a file keeps."""
        return Saved(self.agent.name, self.context, self.history)

    def load(self, saved: Saved) -> Say:
        """Take over a saved conversation. Its messages are data: calls that are open in it are run by `resume` only."""
        known = self.agents.get(saved.agent)
        self.reset()
        self.agent = known or self.agent
        self.context |= saved.context
        self.history = saved.messages
        told = [f"{counted(len(self.history), 'message')}; {self.agent.name} is active."]
        if saved.agent and known is None:
            told.insert(0, f"No agent {saved.agent!r} is known here.")
        return Say(" ".join([*told, *self.undone]))
