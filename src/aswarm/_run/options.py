"""What a caller asks of one run, as values: the arguments of `run` and of everything that runs in its way.

Checks what can be known without the history; `RunState` checks the rest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aswarm._agent import Agent
from aswarm._errors import ConfigurationError

Messages = str | list[Any] | tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Arguments:
    """What a caller passed to `run`, `run_and_stream` or `stream`."""

    agent: Agent
    messages: Messages
    context_variables: Mapping[str, Any] | None = None
    model_override: str | None = None
    debug: bool = False
    max_turns: float = math.inf
    execute_tools: bool = True
    resume: bool = False

    def __post_init__(self) -> None:
        if not (isinstance(self.max_turns, int | float) and self.max_turns >= 0):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"max_turns counts completions and cannot be {self.max_turns!r}; leave it out for no limit"
            )
