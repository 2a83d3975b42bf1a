"""The settings of a batch, checked before any request is sent, and the protocols of the parts that a swarm gives to it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, Generic, Literal, Protocol, Required, TypeAlias

from typing_extensions import TypeForm

from aswarm._values.agent import Agent, Response
from aswarm._values.budget import UNWATCHED
from aswarm._values.context import check_context
from aswarm._values.errors import ConfigurationError, check_count
from aswarm._values.json import is_count, is_object
from aswarm._values.output import Output, T, answer_type, as_output
from aswarm._values.run_keywords import Context, ItemKeywords
from aswarm.extensions import Middleware, tools_of

from ._item import Item

# Makes the options of one run from the arguments of `AsyncSwarm.run`, and checks them. A batch does not look into them.
MakeOptions: TypeAlias = Callable[..., Any]
# Runs one conversation to its end: its options, the recorder of a journal or None, and the retries.
RunToEnd: TypeAlias = Callable[[Any, Any, Middleware | None], Awaitable[Response]]


class ConcurrencyLimit(Protocol):
    """A limit for the items in memory, which may change."""

    @property
    def limit(self) -> int:
        """The limit now."""
        ...

    def watch(self, running: Callable[[], int], grown: Callable[[], object], /) -> None:
        """Set two callbacks. `running`: returns the number of runs. `grown`: called when the limit grows, in any thread."""
        ...


class LimitsOfSwarm(Protocol):
    """The rate limits of the swarm. `window`: the seconds in which an earlier request counts."""

    has_limits: bool
    window: float

    def in_use(self) -> AbstractContextManager[None]:
        """During the block, pause all requests after a rejection, even without limits."""
        ...

    def adaptive(self) -> AbstractContextManager[ConcurrencyLimit]:
        """Do the same, and yield a limit that adapts to the results of the requests."""
        ...

    def count_earlier(self, requests: Iterable[tuple[float, int]], /) -> None:
        """Count requests of an earlier process, by their age in seconds and their tokens."""
        ...


class _BatchKeywords(ItemKeywords, total=False):
    """Keywords of `AsyncSwarm.batch` without `output`."""

    concurrency: int | Literal["auto"]
    ordered: bool
    on_error: Literal["keep", "stop"]
    attempts: int
    journal: str | PathLike[str] | None
    agents: Iterable[Agent]
    context_variables: Context


class TypedBatch(_BatchKeywords, Generic[T], total=False):
    """Keywords of `AsyncSwarm.batch` with a type as `output`."""

    output: Required[TypeForm[T]]


class OutputBatch(_BatchKeywords, Generic[T], total=False):
    """Keywords of `AsyncSwarm.batch` with an `Output` as `output`."""

    output: Required[Output[T]]


class PlainBatch(_BatchKeywords, total=False):
    """Keywords of `AsyncSwarm.batch` whose agent has the type of the answers."""

    output: None


class AnyBatch(_BatchKeywords, total=False):
    """Keywords of `AsyncSwarm.batch`."""

    output: Any


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """The arguments of `AsyncSwarm.batch`, except `items` and `journal`. Raises ConfigurationError for invalid values."""

    agent: Agent
    make_options: MakeOptions
    concurrency: int | Literal["auto"] = 10
    ordered: bool = False
    on_error: Literal["keep", "stop"] = "keep"
    attempts: int = 3
    context_variables: Context = None
    agents: Collection[Agent] = ()  # agents that the journal can find by name
    output: Output[Any] | None = None
    keywords: ItemKeywords = field(default_factory=ItemKeywords)

    @classmethod
    def of(cls, agent: Agent, make_options: MakeOptions, arguments: dict[str, Any]) -> BatchSettings:
        """Return the settings for the keywords of `AsyncSwarm.batch`, without `journal`."""
        names = ItemKeywords.__annotations__
        keywords: Any = {"max_turns": UNWATCHED}
        keywords |= {key: arguments.pop(key) for key in [*arguments] if key in names}
        return cls(agent, make_options, **arguments, keywords=keywords)

    def __post_init__(self) -> None:
        # Check once, before the first item. Otherwise every item would fail for the same mistake, perhaps after a request.
        self.run_options(Item(""))
        tools_of(self.agent)
        if (output := self.output or as_output(self.agent.output)) is not None:
            answer_type(output)
        check_context(self.context_variables)
        if not (self.concurrency == "auto" or is_count(self.concurrency)):
            raise ConfigurationError(f'concurrency must be a whole number from 1, or "auto", not {self.concurrency!r}')
        check_count("attempts", self.attempts)
        if self.on_error not in ("keep", "stop"):
            raise ConfigurationError(f'on_error must be "keep" or "stop", not {self.on_error!r}')

    @property
    def fingerprint(self) -> Mapping[str, str]:
        """The identity of this batch, for its journal.

        If a function makes the instructions, they are omitted here, because the journal compares them with each request.
        """
        instructions = self.agent.instructions
        return {
            "agent": self.agent.name,
            "model": self.keywords.get("model_override") or self.agent.model,
            "instructions": instructions if isinstance(instructions, str) else "",
            "functions": ", ".join(tools_of(self.agent)),
        }

    def run_options(self, item: Item) -> Any:
        """Return the run options of one item. Raises ConfigurationError if its agent is not an Agent."""
        agent = self.agent if item.agent is None else item.agent
        if not isinstance(agent, Agent):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may pass anything
            raise ConfigurationError(f"agent must be an Agent, not {type(agent).__name__}")
        context, keywords = self._context(item), self.keywords
        return self.make_options(agent, item.messages, context, resume=item.resume, output=self.output, **keywords)

    def _context(self, item: Item) -> Mapping[str, Any] | None:
        if self.context_variables is None or not is_object(item.context_variables):
            return self.context_variables if item.context_variables is None else item.context_variables
        return {**self.context_variables, **item.context_variables}
