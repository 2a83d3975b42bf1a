"""Tools and the context: which tools take it, read it or write it, and run beside their neighbours."""

from __future__ import annotations

import functools
import types
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping
from typing import Annotated, Any, Literal, NewType, Protocol, TypeVar

import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict

from aswarm import Agent, Result, Tool, tool
from aswarm._run.filling import filled_arguments
from aswarm._tools.filled import Filled
from aswarm._tools.tool import (
    as_tool,
    may_return_result,
    reads_context,
    runs_together,
    takes_context,
    writes_context,
)
from tests.support.tools import annotated_functions
from tests.support.tools.sample_functions import Slotted, find, look

T = TypeVar("T")


def _taking_context(hint: Any, *, is_coroutine: bool = True) -> Tool[..., Any]:
    async def coroutine(context_variables: Any) -> str:
        return ""

    def plain(context_variables: Any) -> str:
        return ""

    function: Callable[..., Any] = coroutine if is_coroutine else plain
    function.__annotations__["context_variables"] = hint
    return as_tool(function)


def _filled(hint: Any) -> Filled:
    filled = _taking_context(hint)._schema.filled
    assert filled is not None
    return filled


@pytest.mark.parametrize(
    ("hint", "reads"),
    [
        (Mapping, True),
        (Mapping[str, Any], True),
        ("Mapping[str, Any]", True),
        (Annotated[Mapping[str, Any], "shared"], True),
        (types.MappingProxyType, True),
        (dict, False),
        (dict[str, Any], False),
        (defaultdict, False),
        (MutableMapping, False),
        (Any, False),
        (object, False),
        (Mapping[str, Any] | None, False),
    ],
    ids=str,
)
def test_only_a_mapping_reads(hint: Any, reads: bool) -> None:
    """Who asks for a `Mapping` promises to read; who asks for anything else may write, and runs alone."""
    made = _taking_context(hint)
    assert takes_context(made)
    assert (reads_context(made), writes_context(made), runs_together(made)) == (reads, not reads, reads)


def test_unannotated_context_may_be_written_to() -> None:
    """Swarm's functions have no annotation; they may write."""

    async def f(context_variables) -> str:  # type: ignore[no-untyped-def]
        return ""

    assert writes_context(as_tool(f))


def test_without_the_parameter_the_context_is_not_wanted() -> None:
    """A local variable of that name is no parameter (Swarm's `co_varnames` thought so)."""

    def f(city: str) -> str:
        context_variables = {"city": city}
        return str(context_variables)

    made = as_tool(f)
    assert (takes_context(made), reads_context(made), writes_context(made)) == (False, False, False)
    assert made._schema.filled is None


def test_string_annotations_of_the_context_are_understood() -> None:
    """`from __future__ import annotations` makes no difference."""
    assert reads_context(as_tool(annotated_functions.read_only))
    assert writes_context(as_tool(annotated_functions.writing))


def test_who_reads_gets_a_live_view_that_cannot_be_written() -> None:
    """The view shows the run's context; writing to it fails."""
    context: dict[str, Any] = {"user": "Ada"}
    with filled_arguments(_filled(Mapping), {}, context, {}) as filled:
        view = filled["context_variables"]
    assert dict(view) == context
    with pytest.raises(TypeError):
        view["user"] = "Eve"


def test_who_writes_gets_the_runs_own_dict() -> None:
    """Writing to it changes the run's context, as in Swarm; the model's arguments are not changed."""
    context: dict[str, Any] = {}
    arguments = {"city": "Paris"}
    with filled_arguments(_filled(dict), arguments, context, {}) as filled:
        assert filled["context_variables"] is context
    assert arguments == {"city": "Paris"}


@pytest.mark.parametrize(
    ("made", "together"),
    [
        (as_tool(find), True),
        (as_tool(look), False),
        (tool(concurrent=True)(look), True),
        (tool(concurrent=False)(find), False),
        (_taking_context(Mapping, is_coroutine=False), False),
        (_taking_context(dict, is_coroutine=False), False),
        (tool(concurrent=True)(_taking_context(dict).function), True),
        (as_tool(functools.partial(find)), True),
        (as_tool(Slotted()), True),
        (tool(thread=False)(look), False),
    ],
)
def test_what_runs_beside_its_neighbours(made: Tool[..., Any], together: bool) -> None:
    """The concurrency table: coroutine functions that do not write, and tools that declare it."""
    assert runs_together(made) is together


class _Closable(Protocol):
    name: str


class _Sub(Result):
    pass


class _Shape(TypedDict):
    a: int


class _Base(BaseModel):
    pass


_UserId = NewType("_UserId", str)
_UNSAID = object()


@pytest.mark.parametrize(
    ("hint", "may"),
    [
        (_UNSAID, True),
        (Any, True),
        (object, True),
        (Result, True),
        (_Sub, True),
        (BaseModel, True),
        ("Result", True),
        (Result | str, True),
        (str | Result | None, True),
        (Annotated[Result, "x"], True),
        (Awaitable[Result], True),
        (Coroutine[Any, Any, Result], True),
        (Awaitable[str | Result], True),
        (T, True),
        (_UserId, True),
        (_Closable, True),
        ("Missing", True),
        (str, False),
        (int, False),
        (None, False),
        (str | None, False),
        (dict[str, Any], False),
        (list[str], False),
        (Agent, False),
        (Agent | str, False),
        (Annotated[str, "x"], False),
        (Literal["a", "b"], False),
        (Awaitable[str], False),
        (_Base, False),
        (_Shape, False),
        (bytes, False),
    ],
    ids=lambda value: "unsaid" if value is _UNSAID else str(value),
)
@pytest.mark.filterwarnings("ignore:function 'f'")
def test_which_return_hints_admit_a_result(hint: Any, may: bool) -> None:
    """Only a hint that rules `Result` out promises that the context stays; a function without a hint may return one."""

    def f():  # type: ignore[no-untyped-def]
        ...

    if hint is not _UNSAID:
        f.__annotations__["return"] = hint
    assert may_return_result(as_tool(f)) is may


def test_string_return_hints_are_understood() -> None:
    """`-> Result` and `-> Agent` as strings."""
    assert may_return_result(as_tool(annotated_functions.writing))
    assert not may_return_result(as_tool(annotated_functions.hand_over))
    assert not may_return_result(as_tool(annotated_functions.read_only))
