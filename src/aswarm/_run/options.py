"""The options of one run, as an immutable value.

`RunOptions` checks its values. `RunState` checks the messages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

from aswarm._values.agent import Agent
from aswarm._values.budget import Budget, checked_budget
from aswarm._values.decisions import AllApproved, Resume
from aswarm._values.errors import ConfigurationError
from aswarm._values.output import Output

from .spending import Spending

Messages = str | list[Any] | tuple[Any, ...]
"""The messages of a run: a str for one message of the user, or a list of messages."""


class ItemKeywords(TypedDict, total=False):
    """Keywords of a run that a batch accepts for each of its items.

    `budget`: the limits of this run together with the runs inside its tools; by default the budget of the swarm.
    `resources`: clients and connections for the parameters of functions with the hint `Resource[T]`, by their names. They are
    added to the resources of the swarm, with priority. They are neither copied nor recorded.
    """

    budget: Budget | None
    resources: Mapping[str, object] | None


class NewRunKeywords(ItemKeywords, total=False):
    """Keywords of a single run.

    `run_id`: the id of this run in the `Response`, for middleware and in log records; by default a new id.
    """

    run_id: str | None


class RunKeywords(NewRunKeywords, total=False):
    """Keywords of `run`, `run_and_stream` and `stream`. `RunOptions` has their defaults.

    `resume=True`: first run the open calls at the end of `messages`, except calls that need a decision: these stay open.
    `resume={id: decision}`: the decisions on open calls, see `aswarm.waiting`. A call without a decision stays open.
    `resume=Approve.all()`: run all open calls. Use it only for a history from storage that you trust.
    """

    resume: Resume


class InnerRunKeywords(RunKeywords, total=False):
    """Keywords of `RunInfo.start`: those of a run. By default, they have the values of the outer run.

    `model_override`, `max_turns`, `debug`: as for `run`.
    """

    model_override: str | None
    max_turns: float
    debug: bool


_CONTEXT = "pass a dict as context_variables=..."
_MESSAGES = "pass the earlier messages and the new one as messages=[...]"
_OUTPUT = "pass the type of the answer as output=..."
_TURNS = "pass the largest number of completions as max_turns=..."
_KEYWORDS_OF_OTHER_LIBRARIES = {
    "context": _CONTEXT,
    "deps": f"{_CONTEXT}, and clients and connections as resources={{...}}",
    "history": _MESSAGES,
    "input": _MESSAGES,
    "message_history": _MESSAGES,
    "output_type": _OUTPUT,
    "response_format": _OUTPUT,
    "max_iterations": _TURNS,
    "max_steps": _TURNS,
    "model": "pass the model of all agents as model_override=...",
    "model_settings": "give them to the agent: Agent(model_settings={...})",
    "session": "use store.conversation(...) of aswarm.conversations",
    "tools": "give functions to the agent: Agent(functions=[...])",
    "usage_limits": "pass budget=Budget(...)",
}


def check_keywords(method: str, keywords: Mapping[str, Any], kind: type) -> None:
    """Raise TypeError, with Python's own text, for a keyword of `method` that the TypedDict `kind` does not have."""
    for name in keywords:
        if name not in kind.__annotations__:
            remedy = _KEYWORDS_OF_OTHER_LIBRARIES.get(name)
            hint = f"; {remedy}" if remedy else ""
            raise TypeError(f"{method}() got an unexpected keyword argument {name!r}{hint}")


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The arguments of `run`, `run_and_stream` or `stream`. `max_turns` counts completions.

    `around`: the spending of the outer run, if this run does not start in a tool call of that run.
    """

    agent: Agent
    messages: Messages
    context_variables: Mapping[str, Any] | None = None
    model_override: str | None = None
    debug: bool = False
    max_turns: float = math.inf
    execute_tools: bool = True
    resume: Resume = False
    run_id: str | None = None
    budget: Budget | None = None
    output: Output[Any] | None = None
    around: Spending | None = None
    resources: Mapping[str, object] | None = None

    def __post_init__(self) -> None:
        if not (isinstance(self.max_turns, int | float) and self.max_turns >= 0):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"max_turns counts completions and cannot be {self.max_turns!r}; leave it out for no limit"
            )
        if not isinstance(self.resume, bool | Mapping | AllApproved):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                "resume must be True, a dict of decisions by call id, such as {'call_1': True}, or Approve.all(), not "
                f"{self.resume!r}"
            )
        checked_budget(self.budget)
        if self.run_id is not None and not (isinstance(self.run_id, str) and self.run_id):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"run_id must be a str that is not empty, not {self.run_id!r}; leave it out for a new id"
            )
