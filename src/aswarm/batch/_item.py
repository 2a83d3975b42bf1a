"""`Item` and the outcomes: what goes into a batch, and what comes out of it.

Decides what counts as an item. Whether its messages are valid is checked by the run.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeGuard, cast

from aswarm._agent import Agent, Response, UnknownCall, as_response
from aswarm._decisions import Decisions
from aswarm._errors import ConfigurationError
from aswarm._json import is_array, shown
from aswarm._run.options import Messages
from aswarm._usage import Usage

_SHOWN = 80  # how many characters of a value an error message shows


@dataclass(frozen=True, slots=True)
class Item:
    """One conversation of a batch.

    `messages`: as for `AsyncSwarm.run`. `id`: the caller's name for the item; by default its place in the batch, from
    0. `agent`: used in place of the batch's agent. `context_variables`: laid over those of the batch, key by key.
    `metadata`: any object; the outcome has it too. `resume`: the decisions about the calls that are open at the end of
    `messages`, as for `AsyncSwarm.run`.
    """

    messages: Messages
    id: str | int | None = None
    agent: Agent | None = None
    context_variables: Mapping[str, Any] | None = None
    metadata: Any = None
    resume: bool | Decisions = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one item ended: `Completed` has a `response`, `Failed` has an `error`, and the other one of the two is None.

    `id`: the id of the item, as text. `index`: its place in the batch, from 0. `error`: what `AsyncSwarm.run` would
    have raised; its `.response` is the partial response, or None if no run had begun. `duration`: seconds from the
    first step of the item to the last, with all waits for retries and limits. `attempts`: 1, plus 1 for each retry of a
    completion; rate limit rejections (429, Retry-After) do not count. It is 0 if nothing ran: the item was not a
    conversation, or the journal had its response. `usage`: tokens of the completions that arrived, as far as the
    provider reports them, without those of failed attempts. `metadata`: that of the item.

    A batch gives `Completed | Failed`, so a type checker knows that there is a `response` where `outcome.error is None`.
    """

    id: str
    index: int
    response: Response | None = None
    error: Exception | None = None
    duration: float = 0.0
    attempts: int = 0
    usage: Usage = field(default_factory=Usage)
    metadata: Any = None

    @property
    def unknown_calls(self) -> list[UnknownCall]:
        """The `unknown_calls` of the response, or of the partial response of the error."""
        known = response_of(self.response, self.error)
        return [] if known is None else known.unknown_calls


@dataclass(frozen=True, slots=True)
class Completed(Outcome):
    """The outcome of an item whose run has ended by itself: see `response.stop`.

    It is "answer", "max_turns", or "waiting": then `Item(..., resume=...)` with the stored history continues.
    """

    response: Response  # pyright: ignore[reportGeneralTypeIssues] - the default of the base class is not for it
    error: None = None


@dataclass(frozen=True, slots=True)
class Failed(Outcome):
    """The outcome of an item whose run has failed, or that is not a conversation. `error` is passed by name."""

    response: None = None
    error: Exception = field(kw_only=True)


AnyOutcome: TypeAlias = Completed | Failed


def response_of(response: Response | None, error: Exception | None) -> Response | None:
    """The response, or the partial response of the error; None if no run had begun."""
    return as_response(response if error is None else getattr(error, "response", None))


def as_item(given: Any) -> Item:
    """The `Item` for what the caller gave: an `Item`, messages, or a pair of id and messages.

    Raises ConfigurationError for any other value.
    """
    if isinstance(given, Item):
        return given
    if _is_pair(given):
        return Item(given[1], given[0])
    if isinstance(given, str) or is_array(given):
        return Item(given)
    raise ConfigurationError(
        f"an item of a batch must be a str, a list of messages, (id, messages) or an Item, not {shown(given, _SHOWN)}"
    )


def _is_pair(given: object) -> TypeGuard[tuple[str | int, Any]]:
    if not isinstance(given, tuple):
        return False
    parts = cast("tuple[object, ...]", given)
    return len(parts) == 2 and isinstance(parts[0], str | int)  # noqa: PLR2004
