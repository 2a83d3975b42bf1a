"""The options of one run, as an immutable value.

`RunOptions` checks its values. `RunState` checks the messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aswarm._values.agent import Agent
from aswarm._values.budget import Budget, checked_budget
from aswarm._values.decisions import AllApproved, Resume
from aswarm._values.errors import ConfigurationError
from aswarm._values.max_turns import OF_A_RUN, checked_max_turns
from aswarm._values.output import Output
from aswarm._values.run_keywords import Messages

from .budget import Spending
from .owner import RunOwner


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The arguments of `run`, `run_and_stream` or `stream`. For the fields, see `RunKeywords`.

    `around`: the spending of the outer run, if this run does not start in a tool call of that run. `owner`: None for a run that
    owns its results itself.
    """

    agent: Agent
    messages: Messages
    context_variables: Mapping[str, Any] | None = None
    model_override: str | None = None
    debug: bool = False
    max_turns: int | None = OF_A_RUN
    execute_tools: bool = True
    resume: Resume = False
    run_id: str | None = None
    budget: Budget | None = None
    output: Output[Any] | None = None
    around: Spending | None = None
    resources: Mapping[str, object] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: Mapping[str, Any] | None = None
    owner: RunOwner | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of all requests of the run, which override `model_settings`."""
        named = {"prompt_cache_key": self.prompt_cache_key, "prompt_cache_options": self.prompt_cache_options}
        return {name: value for name, value in named.items() if value is not None}

    def __post_init__(self) -> None:
        if self.max_turns is not None:
            checked_max_turns(self.max_turns)
        if not isinstance(self.resume, bool | Mapping | AllApproved):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                "resume must be True, a dict of decisions by call id, such as {'call_1': True}, or Approve.all(), not "
                f"{self.resume!r}"
            )
        checked_budget(self.budget)
        if not isinstance(self.prompt_cache_key, str | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"prompt_cache_key must be a str, not {self.prompt_cache_key!r}")
        if not isinstance(self.prompt_cache_options, Mapping | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"prompt_cache_options must be a dict, not {self.prompt_cache_options!r}")
        if self.run_id is not None and not (isinstance(self.run_id, str) and self.run_id):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"run_id must be a str that is not empty, not {self.run_id!r}; leave it out for a new id"
            )
