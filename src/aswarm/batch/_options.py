"""What the caller chose for a batch, checked before anything is sent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from aswarm._agent import Agent
from aswarm._errors import ConfigurationError
from aswarm._json import is_object
from aswarm._run.options import RunOptions
from aswarm._tools.toolbox import toolbox

from ._item import Item


@dataclass(frozen=True, slots=True)
class Options:
    """The arguments of `AsyncSwarm.batch` but for the items. Raises ConfigurationError for what cannot be."""

    agent: Agent
    concurrency: int | Literal["auto"] = 10
    ordered: bool = False
    on_error: Literal["keep", "stop"] = "keep"
    attempts: int = 3
    context_variables: Mapping[str, Any] | None = None
    model_override: str | None = None
    max_turns: float = math.inf

    def __post_init__(self) -> None:
        # What is wrong with the batch would else be paid for as an error of every item.
        self.run_options(Item(""))
        toolbox(self.agent)
        if not (self.context_variables is None or is_object(self.context_variables)):
            raise ConfigurationError(f"context_variables must be a dict, not {type(self.context_variables).__name__}")
        if not (self.concurrency == "auto" or _is_count(self.concurrency)):
            raise ConfigurationError(f'concurrency is at least 1, or "auto", not {self.concurrency!r}')
        if not _is_count(self.attempts):
            raise ConfigurationError(f"attempts is at least 1, not {self.attempts!r}")
        if self.on_error not in ("keep", "stop"):
            raise ConfigurationError(f'on_error is "keep" or "stop", not {self.on_error!r}')

    @property
    def fingerprint(self) -> Mapping[str, str]:
        """What tells this batch from others, for its journal. Instructions that are made anew are compared when asked."""
        instructions = self.agent.instructions
        return {
            "agent": self.agent.name,
            "model": self.model_override or self.agent.model,
            "instructions": instructions if isinstance(instructions, str) else "",
            "functions": ", ".join(toolbox(self.agent).tools),
        }

    def run_options(self, item: Item) -> RunOptions:
        """What is asked of the run of one item. Raises ConfigurationError for an agent that is none."""
        agent = self.agent if item.agent is None else item.agent
        if not isinstance(agent, Agent):  # pyright: ignore[reportUnnecessaryIsInstance] - whatever the caller passed
            raise ConfigurationError(f"agent must be an Agent, not {type(agent).__name__}")
        return RunOptions(
            agent,
            item.messages,
            self._context(item),
            self.model_override,
            max_turns=self.max_turns,
        )

    def _context(self, item: Item) -> Mapping[str, Any] | None:
        if self.context_variables is None or not is_object(item.context_variables):
            return self.context_variables if item.context_variables is None else item.context_variables
        return {**self.context_variables, **item.context_variables}


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
