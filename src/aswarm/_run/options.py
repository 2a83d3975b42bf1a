"""What a caller asks of one run, as a value.

Checks what can be known without the history; `RunState` checks the rest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aswarm._agent import Agent
from aswarm._budget import Budget, checked_budget
from aswarm._decisions import Decisions
from aswarm._errors import ConfigurationError
from aswarm._output import Output

from .spending import Spending

# The limit where a caller gives none and does not watch each run: a batch, evals, the command line. A run that is not
# limited is logged once when it has made so many completions.
MAX_TURNS = 100

Messages = str | list[Any] | tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a caller passed to `run`, `run_and_stream` or `stream`. `max_turns` counts completions.

    `around`: what the run around this one has used, where that cannot be known from the call that this one begins in.
    """

    agent: Agent
    messages: Messages
    context_variables: Mapping[str, Any] | None = None
    model_override: str | None = None
    debug: bool = False
    max_turns: float = math.inf
    execute_tools: bool = True
    resume: bool | Decisions = False
    run_id: str | None = None
    budget: Budget | None = None
    output: Output[Any] | None = None
    around: Spending | None = None

    def __post_init__(self) -> None:
        if not (isinstance(self.max_turns, int | float) and self.max_turns >= 0):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"max_turns counts completions and cannot be {self.max_turns!r}; leave it out for no limit"
            )
        if not isinstance(self.resume, bool | Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"resume must be True, or decisions by the id of their call such as {{'call_1': True}}, not {self.resume!r}"
            )
        checked_budget(self.budget)
        if self.run_id is not None and not (isinstance(self.run_id, str) and self.run_id):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"run_id must be a str that is not empty, not {self.run_id!r}; leave it out for a new id"
            )
