"""What goes into a batch and what comes out of it: `Item` and `Outcome`.

Decides what counts as an item. Whether its messages are messages is for the run to say.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard, cast

from aswarm._agent import Agent, Response
from aswarm._errors import ConfigurationError
from aswarm._json import is_array, shown
from aswarm._run.options import Messages
from aswarm._usage import Usage

_LINE = 80  # how much of a value an error message shows


@dataclass(frozen=True, slots=True)
class Item:
    """One conversation of a batch.

    `messages`: as for `AsyncSwarm.run`. `id`: the caller's name for it; its place in the batch, from 0, where it has
    none. `agent`: in place of the batch's. `context_variables`: laid over the batch's, key by key. `metadata`: anything;
    comes back on the outcome.
    """

    messages: Messages
    id: str | int | None = None
    agent: Agent | None = None
    context_variables: Mapping[str, Any] | None = None
    metadata: Any = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one item ended: with a `response`, or with an `error`.

    `id`: the item's, as text. `index`: its place in the batch, from 0. `error`: what `AsyncSwarm.run` would have raised;
    its `.response` is what had happened until then, or None where the run had not begun. `duration`: seconds from the
    item's first step to its last, waits for another attempt and for limits included. `attempts`: 1, and one more
    whenever a completion that had failed was asked for again; refusals for the rate (429, Retry-After) are not counted.
    0 where nothing was run, because the item was no conversation or the journal had its response. `usage`: tokens of the
    completions that came, as far as the provider told; what it may count for attempts that failed is not in it.
    `metadata`: the item's.
    """

    id: str
    index: int
    response: Response | None = None
    error: Exception | None = None
    duration: float = 0.0
    attempts: int = 0
    usage: Usage = field(default_factory=Usage)
    metadata: Any = None


def as_item(given: Any) -> Item:
    """The item that the caller means: an `Item`, messages, or a pair of id and messages.

    Raises ConfigurationError for anything else.
    """
    if isinstance(given, Item):
        return given
    if _is_pair(given):
        return Item(given[1], given[0])
    if isinstance(given, str) or is_array(given):
        return Item(given)
    raise ConfigurationError(
        f"an item of a batch is a str, a list of messages, (id, messages) or an Item, not {shown(given, _LINE)}"
    )


def _is_pair(given: object) -> TypeGuard[tuple[str | int, Any]]:
    if not isinstance(given, tuple):
        return False
    parts = cast("tuple[object, ...]", given)
    return len(parts) == 2 and isinstance(parts[0], str | int)  # noqa: PLR2004
