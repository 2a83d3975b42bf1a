"""A conversation as plain decisions: its history, its active agent, and what is kept of a run.

A session knows no terminal, reads and writes no file and never waits. It returns what is to be done as an `Action`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from aswarm._agent import Agent, Response
from aswarm._context import copy_containers
from aswarm._decisions import Decisions, waiting, waiting_entries
from aswarm._errors import ConfigurationError
from aswarm._json import is_object
from aswarm._messages import Message, call_name, open_calls
from aswarm._text import counted
from aswarm._tools.toolbox import tools_of
from aswarm._usage import Usage
from aswarm.graph import agent_graph

from ._questions import OpenQuestions
from ._saved import SavedConversation

STOPPED = "[stopped by the user]"  # the end of an answer that was not read to its end


@dataclass(frozen=True, slots=True)
class StartRun:
    """Run the agent. `new_message` is the user's new message, the last one of `messages`; None if there is no new one.

    `resume`: the decisions about the calls that are open at the end of `messages`; True runs them first.
    """

    agent: Agent
    messages: list[Message]
    context: dict[str, Any]
    new_message: str | None = None
    resume: bool | Decisions = False


@dataclass(frozen=True, slots=True)
class ShowText:
    """Show a text."""

    text: str


@dataclass(frozen=True, slots=True)
class ShowError:
    """Show on one line what is wrong."""

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
    """Read a conversation from a file and pass it to `Session.load`."""

    path: str


@dataclass(frozen=True, slots=True)
class CopyTo:
    """Copy the conversation to another id of its store. `replaces`: also over another conversation."""

    conversation_id: str
    replaces: bool = False


@dataclass(frozen=True, slots=True)
class ContinueWith:
    """Continue with the conversation that its store has under this id."""

    conversation_id: str


@dataclass(frozen=True, slots=True)
class Quit:
    """End the chat."""


@dataclass(frozen=True, slots=True)
class AskDecisions:
    """Ask the user about the calls that wait for a decision."""


StoreAction: TypeAlias = CopyTo | ContinueWith
Action: TypeAlias = (
    StartRun | AskDecisions | ShowText | ShowError | ShowHistory | WriteFile | ReadFile | StoreAction | Quit
)


@dataclass
class Session:
    """One conversation. `reset` returns to `starting_agent` and `starting_context`.

    `history` is valid for a request at any time, `context` is the session's own copy, `usage` is the sum of all runs.
    `failed_message` is a message whose run failed at once; the history is without it. `has_store`: the conversation is in a
    store, where `/save` and `/load` use other ids; otherwise they use files.
    Raises ConfigurationError for an agent or context that no run would take.
    """

    starting_agent: Agent
    starting_context: Mapping[str, Any] | None = None
    agent: Agent = field(init=False)
    context: dict[str, Any] = field(init=False)
    history: list[Message] = field(init=False)
    failed_message: str | None = field(init=False)
    usage: Usage = field(init=False, default_factory=Usage)
    has_store: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        if not isinstance(self.starting_agent, Agent):  # pyright: ignore[reportUnnecessaryIsInstance] - a caller's value
            raise ConfigurationError(f"starting_agent must be an Agent, not {type(self.starting_agent).__name__}")
        if not (self.starting_context is None or is_object(self.starting_context)):
            raise ConfigurationError(f"context_variables must be a dict, not {type(self.starting_context).__name__}")
        # Copied now, because later changes of the caller's dict must not change this conversation.
        self.starting_context = copy_containers(self.starting_context or {})
        self._met: dict[str, Agent] = {}
        self.reset()

    def reset(self) -> None:
        """Start the conversation again."""
        self.agent = self.starting_agent
        self.context = copy_containers(self.starting_context)
        self.history = []
        self.failed_message = None

    @property
    def agents(self) -> dict[str, Agent]:
        """The known agents by name: those that `aswarm.graph` finds from the first one, and all that were active."""
        return {**self._met, **agents_from(self.starting_agent)}

    @property
    def open_calls(self) -> list[Message]:
        """The calls at the end of the history that have no answer."""
        return open_calls(self.history)

    @property
    def open_calls_hint(self) -> str:
        """What the user can do about the open calls; empty if there are none."""
        names = ", ".join(call_name(call) for call in self.open_calls)
        does = "asks about" if self.questions else "runs"
        return names and f"Not run yet: {names}. /resume {does} these calls, another message skips them."

    @property
    def questions(self) -> OpenQuestions | None:
        """What to ask about the calls that wait for a decision; None if there are none."""
        asking = [call for call in waiting(self.history) if call.reason is not None]
        try:
            tools = tools_of(self.agent)
        except ConfigurationError:  # a run raises it again, and then the user sees it
            tools = {}
        entries = waiting_entries(self.history) or {}
        approvals = {index for index, entry in entries.items() if entry.get("approval")}
        return OpenQuestions(asking, approvals, tools) if asking else None

    # --- runs ---

    def send(self, text: str) -> StartRun:
        """A new message of the user."""
        return self._start([*self.history, {"role": "user", "content": text}], new_message=text)

    def resume(self) -> StartRun | AskDecisions | None:
        """Continue: send the failed message, run the open calls, or ask about them, or ask the model again.

        None if nothing was stopped.
        """
        if self.failed_message is not None:
            return self.send(self.failed_message)
        if self.open_calls:
            return AskDecisions() if self.questions else self.decide(True)
        asked = self.history[:-1] if self._is_stopped else self.history
        return self._start(asked) if asked and asked[-1]["role"] != "assistant" else None

    @property
    def _is_stopped(self) -> bool:
        """Whether the last message is an answer that the user has stopped."""
        last: Message = self.history[-1] if self.history else {"role": ""}
        return last["role"] == "assistant" and str(last.get("content")).endswith(STOPPED)

    def decide(self, decisions: bool | Decisions) -> StartRun:
        """Run the open calls with these decisions."""
        return self._start(self.history, resume=decisions)

    def _start(
        self, messages: list[Message], *, new_message: str | None = None, resume: bool | Decisions = False
    ) -> StartRun:
        return StartRun(self.agent, messages, self.context, new_message, resume)

    def end_run(self, start: StartRun, response: Response, *, failed: bool, partial: str = "") -> None:
        """Keep what a run has left, however it ended. `partial`: what was read of an answer that the user has stopped.

        A stopped answer is kept with a mark: the user has seen it, and two messages of the user must not follow each other.
        A new message whose run failed at once is removed again: it may be the reason why the provider rejects the
        request, and then every later request would be rejected too.
        """
        is_lost = failed and not response.messages
        self.failed_message = start.new_message if is_lost else None
        self.history = self.history if is_lost else [*start.messages, *response.messages]
        self.agent = response.agent
        if response.stop == "cancelled" and (partial or self.history[-1]["role"] == "user"):
            text = f"{partial.rstrip()}\n{STOPPED}".lstrip()
            self.history.append({"role": "assistant", "content": text, "sender": self.agent.name})
        self._met[self.agent.name] = self.agent
        self.context = response.context_variables
        self.usage += response.usage

    # --- files ---

    def save(self) -> SavedConversation:
        """What a file keeps."""
        return SavedConversation(self.agent.name, self.context, self.history)

    def load(self, saved: SavedConversation) -> str:
        """Continue a saved conversation; returns a text about it. Only `resume` runs the calls that are open in it."""
        known = self.agents.get(saved.agent)
        self.reset()
        self.agent = known or self.agent
        self.context |= saved.context
        self.history = saved.messages
        texts = [f"{counted(len(self.history), 'message')} loaded. The active agent is {self.agent.name}."]
        if saved.agent and known is None:
            texts.insert(0, f"There is no agent {saved.agent!r} here.")
        return " ".join([*texts, self.open_calls_hint]).rstrip()


def agents_from(agent: Agent) -> dict[str, Agent]:
    """The agent and all that can be reached from it, by name; of two with one name, the nearer one."""
    agents = {agent.name: agent}
    try:
        reached = [node.agent for node in agent_graph(agent).agents]
    except ConfigurationError:  # a run raises it again, and then the user sees it
        reached = []
    for known in reached:
        agents.setdefault(known.name, known)
    return agents
