"""`Item` and the outcomes: the input and the output of a batch.

The module checks the form of an item, and the run checks the messages. The items come from any plain or async iterable. They
are read one at a time, and the iterator is closed at the end.
"""

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Generator, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Generic, TypeAlias, TypeGuard, cast

import anyio

from aswarm._values.agent import Agent, Response, UnknownCall, as_response
from aswarm._values.decisions import Resume
from aswarm._values.errors import ConfigurationError
from aswarm._values.json import is_array, shown
from aswarm._values.output import T_co
from aswarm._values.run_keywords import Messages
from aswarm._values.usage import Usage

Items: TypeAlias = Iterable[Any] | AsyncIterable[Any]
_SHOWN = 80  # the length of a value in an error text
# The maximum of seconds that the end of a batch waits until the iterator of the items is closed.
CLOSE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Item:
    """One conversation of a batch.

    Args:
        messages: As for `AsyncSwarm.run`.
        id: A name for the item; by default its position in the batch, from 0.
        agent: The agent of this item; by default the agent of the batch.
        context_variables: Added to the context variables of the batch. For equal keys, they override the variables of the
            batch.
        metadata: Any object. The outcome of the item has the same object.
        resume: As for `AsyncSwarm.run`: what happens to the open calls at the end of `messages`.
    """

    messages: Messages
    _: KW_ONLY
    id: str | int | None = None
    agent: Agent | None = None
    context_variables: Mapping[str, Any] | None = None
    metadata: Any = None
    resume: Resume = False


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The outcome of one item: `Completed` with a `response`, or `Failed` with an `error`.

    A batch yields `Completed | Failed`. So if `outcome.error is None`, a type checker knows that `response` is not None.

    Args:
        id: The id of the item, as text.
        index: The position of the item in the batch, from 0.
        response: The response of a completed run.
        error: The exception that `AsyncSwarm.run` would raise. Its `.response` is the partial response, or None if no run had
            started.
        duration: The seconds from the start to the end of the item, including all waits for retries and limits.
        attempts: 1, plus the number of retries of completions. Rate limit rejections (429, Retry-After) do not count. 0 if
            nothing ran, because the item was not a conversation, or the journal had its response.
        usage: The tokens of the received completions, as the provider reports them. Failed attempts do not count.
        metadata: The metadata of the item.
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
        response = response_of(self.response, self.error)
        return [] if response is None else response.unknown_calls


@dataclass(frozen=True, slots=True)
class Completed(BatchResult, Generic[T_co]):
    """The outcome of an item whose run has finished. `response.stop` is the reason, such as "answer" or "max_turns".

    After the reason "waiting", continue with `Item(..., resume=...)` and the stored history.
    """

    response: Response[T_co]  # pyright: ignore[reportGeneralTypeIssues] - overrides a field with a default
    error: None = None


@dataclass(frozen=True, slots=True)
class Failed(BatchResult):
    """The outcome of an item whose run has failed, or that is not a conversation. `error` is keyword-only."""

    response: None = None
    error: Exception = field(kw_only=True)


AnyOutcome: TypeAlias = Completed[T_co] | Failed


def response_of(response: Response | None, error: Exception | None) -> Response | None:
    """Return the response, or the partial response of the error; None if no run had started."""
    return as_response(response if error is None else getattr(error, "response", None))


def as_item(value: Any) -> Item:
    """Return the `Item` for an `Item`, messages, or a pair of id and messages.

    Raises ConfigurationError for any other value.
    """
    if isinstance(value, Item):
        return value
    if _is_pair(value):
        return Item(value[1], id=value[0])
    if isinstance(value, str) or is_array(value):
        return Item(value)
    raise ConfigurationError(
        f"an item of a batch must be a str, a list of messages, (id, messages) or an Item, not {shown(value, _SHOWN)}"
    )


def _is_pair(value: object) -> TypeGuard[tuple[str | int, Any]]:
    if not isinstance(value, tuple):
        return False
    parts = cast("tuple[object, ...]", value)
    return len(parts) == 2 and isinstance(parts[0], str | int)  # noqa: PLR2004


def check_items(items: object) -> None:
    """Raise ConfigurationError if `items` is not an iterable of items. A str and a dict are errors too."""
    if isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable | AsyncIterable):
        hint = "; pass `.items()` for pairs of id and messages" if isinstance(items, Mapping) else ""
        raise ConfigurationError(
            f"items must be an iterable or async iterable of conversations, not {type(items).__name__}{hint}"  # pyright: ignore[reportUnknownArgumentType]
        )


async def read_items(items: Items, closing: anyio.CancelScope) -> AsyncGenerator[Any, None]:
    """Yield the items. At the end, close a plain generator, or an async iterator that has `aclose`.

    Read the items in one task, inside of the scope `closing`, which limits the time of the close. A new scope at the end would
    not work: a generator of the caller may have its own scopes open across a `yield`, and scopes must close in reverse order.
    """
    if isinstance(items, AsyncIterable):
        iterator = aiter(items)
        try:
            async for item in iterator:
                yield item
        finally:
            await _close(iterator, closing)
        return
    plain = iter(items)
    try:
        for item in plain:
            yield item
    finally:
        if isinstance(plain, Generator):
            plain.close()


async def _close(iterator: AsyncIterator[Any], closing: anyio.CancelScope) -> None:
    close: Any = getattr(iterator, "aclose", None)
    if close is not None:
        closing.deadline = anyio.current_time() + CLOSE_SECONDS
        closing.shield = True
        try:
            await close()
        except* GeneratorExit:  # a task group in the caller's generator wraps it in an exception group
            pass
