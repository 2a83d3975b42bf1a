"""The state of a chat: its history, its active agent, and its questions about waiting calls.

A session uses no terminal and no files, and never waits. It returns the runs to start.

Only a line of the user is a decision. So a history, for example in a loaded file, cannot decide for the user.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from aswarm._values.agent import Agent, Response
from aswarm._values.context import check_context, copy_containers
from aswarm._values.decisions import (
    Approve,
    Decision,
    Deny,
    OpenCall,
    Reply,
    Resume,
    open_calls,
    waiting_calls,
    waiting_entries,
)
from aswarm._values.errors import ConfigurationError, ToolArgumentsError
from aswarm._values.json import is_object
from aswarm._values.messages import Message, call_name, unanswered_calls
from aswarm._values.text import counted, one_line
from aswarm._values.usage import Usage
from aswarm.extensions import AgentDirectory, Tool, tools_of

from ._display import formatted

if TYPE_CHECKING:
    from aswarm.conversations import Stored


_CHOICES = {
    "y": "y: run it",
    "n": "n [REASON]: deny it",
    "e": "e {ARGUMENTS}: run it with other arguments",
    "a": "a TEXT: answer it",
}
_WORDS = {"yes": "y", "no": "n", "edit": "e", "answer": "a"}
_PROMPTS = {"e": "The arguments, as a JSON object:", "a": "The answer:"}
_SHOWN = 600  # characters of the data of a question


class OpenQuestions:
    """Asks the user about the waiting calls, one after another. `decisions`: the decisions so far, by the index of the call."""

    def __init__(
        self, calls: Sequence[OpenCall], approvals: Collection[int], tools: Mapping[str, Tool[..., Any]]
    ) -> None:
        """`approvals`: the indexes of the calls that wait for an approval; the other calls wait for an answer."""
        self.decisions: dict[int, Decision] = {}
        self._calls = calls
        self._approvals = approvals
        self._tools = tools
        self._choice = ""  # "e" or "a" if the user typed this letter alone: the next line is its argument

    @property
    def is_done(self) -> bool:
        return len(self.decisions) == len(self._calls)

    @property
    def text(self) -> str:
        """The current question."""
        if self._choice:
            return _PROMPTS[self._choice]
        call = self._call
        shown_call = f"{call.agent}: {one_line(call.name)}({formatted(call.arguments)})"
        lines = [f"{shown_call} waits: {one_line(call.reason or '', _SHOWN)}"]
        if call.data is not None:
            lines.append(f"  {one_line(json.dumps(call.data, ensure_ascii=False), _SHOWN)}")
        if call.answer is not None:
            lines.append(f"  answered: {one_line(json.dumps(call.answer, ensure_ascii=False), _SHOWN)}")
        choices = ", ".join(_CHOICES[choice] for choice in self._choices)
        return "\n".join([*lines, f"{choices} (Ctrl-C leaves it open)"])

    def take(self, line: str) -> str | None:
        """Read the decision from a line of the user. Returns the text of an error in the line, or None."""
        word, _, argument = line.strip().partition(" ")
        choice = self._choice or _WORDS.get(word.lower(), word.lower())
        argument = line.strip() if self._choice else argument.strip()
        if choice not in self._choices:
            return f"Type one of {', '.join(self._choices)}."
        if choice == "y" and argument:
            return "Type y alone to run the call as it is, or e {ARGUMENTS} to run it with other arguments."
        self._choice = "" if argument or choice not in _PROMPTS else choice
        if self._choice:
            return None
        decide: dict[str, Callable[[str], Decision]] = {"n": Deny, "e": self._edited, "a": self._answered}
        try:
            self.decisions[self._call.index] = Approve() if choice == "y" else decide[choice](argument)
        except (ValueError, ToolArgumentsError) as error:
            return str(error)
        return None

    @property
    def _call(self) -> OpenCall:
        return self._calls[len(self.decisions)]

    @property
    def _tool(self) -> Tool[..., Any] | None:
        return self._tools.get(self._call.name)

    @property
    def _choices(self) -> Sequence[str]:
        return ("n", "a") if self._tool is None or self._tool.is_external else tuple(_CHOICES)

    def _edited(self, text: str) -> Decision:
        try:
            arguments = json.loads(text)
        except (ValueError, RecursionError):
            arguments = None
        if not is_object(arguments):
            raise ValueError('The arguments must be a JSON object, such as {"order": 7}.')
        self._tools[self._call.name].validate(dict(arguments))
        return Approve(arguments)

    def _answered(self, text: str) -> Decision:
        # A text does not approve a call that waits for an approval: the model gets the text, and the function does not run.
        return text if self._tool is None or self._call.index in self._approvals else Reply(text)


Content: TypeAlias = str | list[dict[str, Any]]
STOPPED = "[stopped by the user]"  # added to an answer that was not read to its end


@dataclass(frozen=True, slots=True)
class StartRun:
    """Run the agent. `new_message`: the content of the last of the `messages`, if it is a new message of the user; otherwise None.

    `resume`: the decisions about the calls that are open at the end of `messages`; True first runs the calls that need no decision.
    """

    agent: Agent
    messages: list[Message]
    context: dict[str, Any]
    new_message: Content | None = None
    resume: Resume = False


@dataclass
class Session:
    """One conversation. `reset` returns to `starting_agent` and `starting_context`.

    `history`: always valid for a request. `context`: the session's own copy of the context variables. `usage`: the sum of all
    runs. `failed_message`: a message that is not in the history, because its run failed at once. `has_store`: whether the
    conversation is in a store; then `/save` and `/load` use ids, otherwise files.

    Raises ConfigurationError if the agent or the context has the wrong type.
    """

    starting_agent: Agent
    starting_context: Mapping[str, Any] | None = None
    agent: Agent = field(init=False)
    context: dict[str, Any] = field(init=False)
    history: list[Message] = field(init=False)
    failed_message: Content | None = field(init=False)
    usage: Usage = field(init=False, default_factory=Usage)
    has_store: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        if not isinstance(self.starting_agent, Agent):  # pyright: ignore[reportUnnecessaryIsInstance] - a caller's value
            raise ConfigurationError(f"starting_agent must be an Agent, not {type(self.starting_agent).__name__}")
        check_context(self.starting_context)
        # A copy, because later changes of the caller's dict must not change this conversation.
        self.starting_context = copy_containers(self.starting_context or {})
        self._met: dict[str, Agent] = {}
        self.reset()

    def reset(self) -> None:
        self.agent = self.starting_agent
        self.context = copy_containers(self.starting_context)
        self.history = []
        self.failed_message = None

    @property
    def agents(self) -> dict[str, Agent]:
        """The known agents by name: all agents that a stored conversation may continue with, and all agents that were active."""
        return {**self._met, **AgentDirectory((self.starting_agent,)).known}

    @property
    def open_calls(self) -> list[Message]:
        """The calls without an answer at the end of the history."""
        return unanswered_calls(self.history)

    @property
    def open_calls_hint(self) -> str:
        """A hint for the user about the open calls. Empty if no call is open."""
        names = ", ".join(call_name(call) for call in self.open_calls)
        does = "runs" if self.questions.is_done else "asks about"
        return names and f"Not run yet: {names}. /resume {does} these calls, another message skips them."

    @property
    def questions(self) -> OpenQuestions:
        """The questions about the calls that wait for a decision."""
        try:
            tools = tools_of(self.agent)
        except ConfigurationError:  # the next run raises the error again, and then the chat shows it
            tools = {}
        entries = waiting_entries(self.history) or {}
        approvals = {index for index, entry in entries.items() if entry.get("approval")}
        return OpenQuestions(waiting_calls(open_calls(self.history)), approvals, tools)

    # --- runs ---

    def send(self, content: Content) -> StartRun:
        """Start a run with a new message of the user."""
        return StartRun(self.agent, [*self.history, {"role": "user", "content": content}], self.context, content)

    def resume(self) -> StartRun | None:
        """Return the run that continues: send the failed message, run the open calls, or repeat the last request.

        Returns None if the last message is a whole answer, or if there is no message.
        """
        if self.failed_message is not None:
            return self.send(self.failed_message)
        if self.open_calls:
            return self.decide(True)
        messages = self.history[:-1] if self.is_stopped else self.history
        can_ask = bool(messages) and messages[-1]["role"] != "assistant"
        return StartRun(self.agent, messages, self.context) if can_ask else None

    @property
    def is_stopped(self) -> bool:
        """Whether the last message is an answer that the user stopped."""
        last: Message = self.history[-1] if self.history else {"role": ""}
        return last["role"] == "assistant" and str(last.get("content")).endswith(STOPPED)

    def decide(self, decisions: Resume) -> StartRun:
        return StartRun(self.agent, self.history, self.context, resume=decisions)

    def end_run(self, start: StartRun, response: Response, *, failed: bool, partial: str = "") -> None:
        """Keep the messages of a run, however it ended. `partial`: the part of a stopped answer that the user has read.

        A stopped answer is kept with a mark, because the user has seen it. Without a text, the mark alone answers a message of
        the user, so that two messages of the user never follow each other. If the run of a new message failed at once, the
        message is removed. The provider may have rejected this message, and would then reject each later request too.
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

    def load(self, stored: Stored) -> str:
        """Continue a stored conversation. Returns a text for the user. The open calls run only after `resume`."""
        known = self.agents.get(stored.agent)
        self.reset()
        self.agent = known or self.agent
        self.context = stored.context_variables
        self.history = stored.messages
        texts = [f"{counted(len(self.history), 'message')} loaded. The active agent is {self.agent.name}."]
        if stored.agent and known is None:
            texts.insert(0, f"There is no agent {stored.agent!r} here.")
        return " ".join([*texts, self.open_calls_hint]).rstrip()
