"""The options of one run, as an immutable value, and the owner of a run.

`RunOptions` checks its values. `RunState` checks the messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from aswarm._values.agent import Agent
from aswarm._values.budget import OF_A_RUN, Budget, checked_budget, checked_max_turns
from aswarm._values.decisions import AllApproved, Resume
from aswarm._values.errors import ConfigurationError
from aswarm._values.output import Output
from aswarm._values.run_keywords import Messages

from .budget import Spending


@runtime_checkable
class ResultStore(Protocol):
    """Protocol of a place for long results of tools, see `aswarm.middleware.spill_results`. Each text has an owner and a handle.

    The owner is "conversation:" and the id of the conversation in its store, or "run:" and the id of a run without a conversation.
    For an item of a batch with a journal, it is "run:", the id of the journal, "/" and the id of the item.
    The included stores of conversations copy the texts when a conversation is forked, and delete them with it, in the same
    transaction. For a place of your own, your program does both: aswarm only calls these three methods. Texts that are not deleted
    belong to the next conversation with the same id.
    """

    async def put(self, owner: str, handle: str, parts: Sequence[str], /) -> None:
        """Store a text in parts, all or none of them. If the owner has this handle already, do nothing.

        When it returns, the text is stored as safely as the history that will have the handle.
        """
        ...

    async def read(self, owner: str, handle: str, part: int, /) -> str | None:
        """Return a part of a text, by its number from 0; None if the owner has no such text, or the text has no such part."""
        ...

    async def handles(self, owner: str, /) -> Sequence[str]:
        """Return the handles of the owner, the newest first."""
        ...


@dataclass(frozen=True, slots=True)
class RunOwner:
    """The owner of a run. `key`: as a `ResultStore` gets it. `results`: the place for results in the store of its conversation."""

    key: str
    user: str | None = None
    conversation: str | None = None
    results: ResultStore | None = None


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
