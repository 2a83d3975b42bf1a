"""Tools: what `@tool` makes, which tools an agent has, how they may run, what goes in and what comes out."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import functools
import gc
import json
import types
import weakref
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping
from datetime import date
from typing import Annotated, Any, Literal, NewType, Protocol, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from typing_extensions import TypedDict

import annotated_functions
from aswarm import Agent, ConfigurationError, Result, Tool, function_to_json, tool
from aswarm._schema import ArgumentsError
from aswarm._toolbox import toolbox
from aswarm._tools import (
    as_tool,
    is_async,
    may_return_result,
    reads_context,
    runs_together,
    takes_context,
    writes_context,
)
from aswarm._values import as_result, bind_context, parse_arguments, to_text

T = TypeVar("T")
API_NAME = r"[a-zA-Z0-9_-]{1,64}"


def look(city: str) -> str:
    """Look around."""
    return city


async def find(city: str) -> str:
    """Find something."""
    return city


class Service:
    def bare(self, city: str) -> str:
        """Bare."""
        return f"bare {city}"

    @tool
    def plain(self, city: str) -> str:
        """Plain."""
        return f"plain {city}"

    @tool(timeout=3, name="renamed")
    async def slow(self, city: str) -> str:
        """Slow."""
        return f"slow {city}"

    @tool
    @classmethod
    def made(cls, city: str) -> str:
        """Of the class."""
        return f"{cls.__name__} {city}"

    @tool
    @staticmethod
    async def fixed(city: str) -> str:
        """Of nobody."""
        return f"fixed {city}"


class Unhashable:
    __hash__ = None  # type: ignore[assignment]

    def __call__(self, city: str) -> str:
        """Call it."""
        return city


class Slotted:
    __slots__ = ()

    async def __call__(self, city: str) -> str:
        """Call it."""
        return city


def names_of(*functions: Any) -> list[str]:
    return list(toolbox(Agent(functions=list(functions))))


# --- @tool ------------------------------------------------------------------------------------------------------------


def test_without_options_a_tool_is_the_function() -> None:
    """`@tool` and `@tool()` make the same tool, offered as the bare function is."""
    bare, empty = tool(look), tool()(look)
    assert function_to_json(bare) == function_to_json(empty) == function_to_json(look)
    for made in (bare, empty):
        assert (made.concurrent, made.limiter, made.timeout, made.thread) == (None, None, None, True)
        assert (made.abandon_on_cancel, made.strict, made.name) == (False, False, None)


def test_a_tool_is_called_like_the_function() -> None:
    """Tests and other code call it with nothing added, plain or async."""
    assert tool(look)("Paris") == "Paris"
    assert tool(look)(city="Paris") == "Paris"
    assert asyncio.run(tool(find)("Paris")) == "Paris"


def test_options_are_kept() -> None:
    """Each option is what it was given as."""
    limiter: Any = object()
    made = tool(
        concurrent=False, limiter=limiter, timeout=2.5, thread=False, abandon_on_cancel=True, strict=True, name="other"
    )(look)
    assert (made.concurrent, made.limiter, made.timeout, made.thread) == (False, limiter, 2.5, False)
    assert (made.abandon_on_cancel, made.strict, made.name) == (True, True, "other")
    assert made.schema.name == "other"
    assert made.schema.json["function"]["strict"] is True


def test_a_second_tool_adds_to_the_first() -> None:
    """Options of the outer `@tool` win; what it does not mention stays."""
    made = tool(timeout=5)(tool(timeout=1, name="other")(look))
    assert (made.timeout, made.name, made.function) == (5, "other", look)


def test_a_tool_cannot_be_changed() -> None:
    """One tool serves all runs."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        tool(look).timeout = 5  # type: ignore[misc]


def test_tools_are_told_apart_by_identity() -> None:
    """Two tools of one function are two tools, usable as keys."""
    first, second = tool(look), tool(look)
    assert first == first
    assert first != second
    assert len({first, second}) == 2


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), "5", [1]])
def test_a_timeout_that_is_no_positive_number_is_refused(timeout: Any) -> None:
    """It is the developer's mistake, found where it is made."""
    with pytest.raises(ConfigurationError) as caught:
        tool(timeout=timeout)
    assert repr(timeout) in str(caught.value)


def test_an_unknown_option_is_refused_where_the_tool_is_made() -> None:
    """A misspelled option is an error, not ignored."""
    with pytest.raises(TypeError):
        tool(time_out=3)(look)  # type: ignore[call-overload]


@pytest.mark.parametrize("thing", ["look", 5, Agent()])
def test_a_tool_of_something_that_is_no_function_is_refused(thing: Any) -> None:
    """`@tool("name")`, as other libraries have it, is a ConfigurationError, not a puzzle at the first call."""
    with pytest.raises(ConfigurationError):
        tool(thing)


@pytest.mark.parametrize(
    ("made", "result"),
    [
        (Service().plain, "plain Paris"),
        (Service().made, "Service Paris"),
        (Service.made, "Service Paris"),
        (Service().bare, "bare Paris"),
    ],
)
def test_tools_of_a_class_bind_like_methods(made: Any, result: str) -> None:
    """Looked up on an instance (or, for a class method, on the class), a tool is bound, and can be called and offered."""
    assert made("Paris") == result
    assert made(city="Paris") == result
    assert function_to_json(made)["function"]["parameters"]["required"] == ["city"]


def test_async_tools_of_a_class_bind_like_methods() -> None:
    """So are coroutine methods and static methods."""
    service = Service()
    assert asyncio.run(service.slow("Paris")) == "slow Paris"
    assert asyncio.run(service.fixed("Paris")) == "fixed Paris"
    assert asyncio.run(Service.fixed("Paris")) == "fixed Paris"
    assert (service.slow.timeout, service.slow.schema.name) == (3, "renamed")


def test_a_tool_looked_up_on_the_class_is_unbound() -> None:
    """As with a method, `self` comes first."""
    assert Service.plain(Service(), "Paris") == "plain Paris"


def test_a_bound_tool_does_not_outlive_its_instance() -> None:
    """No registry holds the instance."""
    service = Service()
    reference = weakref.ref(service)
    toolbox(Agent(functions=[service.plain, service.slow, service.bare]))
    del service
    gc.collect()
    assert reference() is None


# --- is it async ------------------------------------------------------------------------------------------------------


async def _coroutine_with_context(context_variables: Mapping[str, Any]) -> None: ...


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (look, False),
        (find, True),
        (tool(find), True),
        (tool(look), False),
        (functools.partial(find), True),
        (functools.partial(tool(find)), True),
        (tool(functools.partial(find)), True),
        (functools.partial(look), False),
        (Slotted(), True),
        (functools.partial(Slotted()), True),
        (tool(Slotted()), True),
        (Unhashable(), False),
        (Service().slow, True),
        (Service().fixed, True),
        (Service.fixed, True),
        (Service().plain, False),
        (lambda: None, False),
        (len, False),
        (dict, False),
        (Slotted, False),
    ],
)
def test_whether_calling_gives_a_coroutine(function: Any, expected: bool) -> None:
    """Seen through tools, partials, methods and callable objects; a class gives an instance, never a coroutine."""
    assert is_async(function) is expected
    if isinstance(function, Tool):
        assert function.is_async is expected


# --- the tools of an agent --------------------------------------------------------------------------------------------


def test_the_tools_of_an_agent_are_in_the_order_of_its_functions() -> None:
    """By name, as listed."""
    assert names_of(find, look, Service().slow) == ["find", "look", "renamed"]


def test_an_agent_without_functions_has_no_tools() -> None:
    """Nothing is offered."""
    assert toolbox(Agent()) == {}


def test_a_tool_is_the_one_that_was_listed() -> None:
    """A tool made by `@tool` is used as it is; a function becomes one that calls it."""
    made = tool(look)
    assert toolbox(Agent(functions=[made]))["look"] is made
    assert toolbox(Agent(functions=[look]))["look"].function is look


service = Service()
unhashable = Unhashable()
slotted = Slotted()
made_once = tool(look)
partial_once = functools.partial(look)


@pytest.mark.parametrize(
    "functions",
    [
        lambda: [look, look],
        lambda: [made_once, made_once],
        lambda: [partial_once, partial_once],
        lambda: [service.bare, service.bare],
        lambda: [service.plain, service.plain],
        lambda: [service.slow, service.slow],
        lambda: [service.made, service.made],
        lambda: [Service.made, Service.made],
        lambda: [unhashable, unhashable],
        lambda: [slotted, slotted],
    ],
    ids=[
        "function",
        "tool",
        "partial",
        "method",
        "tool_method",
        "async_tool_method",
        "class_method",
        "class_method_of_class",
        "unhashable",
        "slots",
    ],
)
def test_a_function_listed_twice_counts_once(functions: Callable[[], list[Any]]) -> None:
    """Also a method, which is a new object each time it is looked up."""
    assert len(toolbox(Agent(functions=functions()))) == 1


def test_an_agent_listed_twice_counts_once() -> None:
    """One handoff to it is offered."""
    other = Agent(name="Sales")
    assert names_of(other, other) == ["transfer_to_sales"]


def _another_look() -> Callable[..., Any]:
    def look(city: str) -> str:
        """Another one."""
        return city

    return look


@pytest.mark.parametrize(
    "functions",
    [
        [look, _another_look()],
        [look, tool(name="look")(find)],
        [Service().bare, Service().bare],
        [Unhashable(), Unhashable()],
        [Agent(name="Sales Team"), Agent(name="sales team")],
        [Agent(name="Sales"), tool(name="transfer_to_sales")(look)],
    ],
    ids=["functions", "renamed", "methods of two objects", "callables", "agents", "agent and function"],
)
def test_two_different_functions_of_one_name_are_refused(functions: list[Any]) -> None:
    """The model could not tell them apart: the error names agent and function."""
    with pytest.raises(ConfigurationError) as caught:
        toolbox(Agent(name="Desk", functions=functions))
    assert "'Desk'" in str(caught.value)
    assert repr(_as_name(functions[0])) in str(caught.value)


def _as_name(function: Any) -> str:
    return names_of(function)[0]


@pytest.mark.parametrize("thing", [None, "look", 5, {"type": "function"}])
def test_what_is_no_function_is_refused(thing: object) -> None:
    """The error shows what it was."""
    with pytest.raises(ConfigurationError, match="cannot be offered"):
        toolbox(Agent(functions=[thing]))


def test_functions_may_be_added_after_construction() -> None:
    """The toolbox is what the agent has now, as Swarm's examples need."""
    agent = Agent(functions=[look])
    toolbox(agent)
    agent.functions.append(find)
    assert list(toolbox(agent)) == ["look", "find"]


# --- handoffs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("agent_name", "tool_name"),
    [
        ("Sales", "transfer_to_sales"),
        ("Sales Agent", "transfer_to_sales_agent"),
        ("sales-agent_2", "transfer_to_sales-agent_2"),
        ("Flüge & Hotels!", "transfer_to_fl_ge_hotels"),
        ("  Sales  ", "transfer_to_sales"),
        ("日本語", "transfer_to_1"),
        ("", "transfer_to_1"),
        ("x" * 100, "transfer_to_" + "x" * 52),
    ],
)
def test_a_handoff_is_named_after_its_agent(agent_name: str, tool_name: str) -> None:
    """Lowercased, illegal runs as one `_`, at most 64 characters, numbered where nothing is left."""
    assert names_of(Agent(name=agent_name)) == [tool_name]


@given(st.text(max_size=100))
def test_any_agent_name_gives_a_name_that_the_api_takes(agent_name: str) -> None:
    """Whatever an agent is called, its handoff can be offered, and hands over to it."""
    agent = Agent(name=agent_name)
    ((name, made),) = toolbox(Agent(functions=[agent])).items()
    assert name.startswith("transfer_to_")
    assert all(char.isascii() and (char.isalnum() or char in "_-") for char in name)
    assert len(name) <= 64
    assert made() is agent


def test_nameless_agents_are_numbered() -> None:
    """Several agents of whose names nothing is left are offered, each under its number."""
    assert names_of(Agent(name="日本"), look, Agent(name="中国")) == ["transfer_to_1", "look", "transfer_to_2"]


def test_a_number_does_not_meet_an_agent_that_is_called_so() -> None:
    """Numbering finds a free number: an agent named "1" is no reason to refuse."""
    assert len(names_of(Agent(name="1"), Agent(name="日本"))) == 2


def test_a_handoff_says_to_whom_and_takes_nothing() -> None:
    """The description names the agent; there are no parameters."""
    made = toolbox(Agent(functions=[Agent(name="Sales Agent")]))["transfer_to_sales_agent"].schema.json["function"]
    assert "Sales Agent" in made["description"]
    assert made["parameters"] == {"type": "object", "properties": {}, "required": []}


def test_a_handoff_runs_beside_its_neighbours_without_a_thread() -> None:
    """It only gives back its agent, and changes no context."""
    made = toolbox(Agent(functions=[Agent(name="Sales")]))["transfer_to_sales"]
    assert runs_together(made)
    assert not made.thread
    assert not takes_context(made)


def test_agents_may_hand_over_to_each_other() -> None:
    """Each has the other among its functions; toolboxes end."""
    a, b = Agent(name="A"), Agent(name="B")
    a.functions.append(b)
    b.functions.append(a)
    assert list(toolbox(a)) == ["transfer_to_b"]
    assert toolbox(a)["transfer_to_b"]() is b
    assert toolbox(b)["transfer_to_a"]() is a


def test_an_agent_is_not_kept_alive_by_having_been_offered() -> None:
    """The schema of a handoff is remembered, its agent is not."""
    target = Agent(name="Sales")
    reference = weakref.ref(target)
    toolbox(Agent(functions=[target]))
    del target
    gc.collect()
    assert reference() is None


# --- the context ------------------------------------------------------------------------------------------------------


def _taking_context(hint: Any, *, is_coroutine: bool = True) -> Tool[..., Any]:
    async def coroutine(context_variables: Any) -> str:
        return ""

    def plain(context_variables: Any) -> str:
        return ""

    function: Callable[..., Any] = coroutine if is_coroutine else plain
    function.__annotations__["context_variables"] = hint
    return as_tool(function)


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
    assert bind_context(made, {"city": "Paris"}, {"secret": 1}) == {"city": "Paris"}


def test_string_annotations_of_the_context_are_understood() -> None:
    """`from __future__ import annotations` makes no difference."""
    assert reads_context(as_tool(annotated_functions.read_only))
    assert writes_context(as_tool(annotated_functions.writing))


def test_who_reads_gets_a_live_view_that_cannot_be_written() -> None:
    """The view shows the run's context; writing to it fails."""
    context: dict[str, Any] = {"user": "Ada"}
    view = bind_context(_taking_context(Mapping), {}, context)["context_variables"]
    assert dict(view) == context
    with pytest.raises(TypeError):
        view["user"] = "Eve"


def test_who_writes_gets_the_runs_own_dict() -> None:
    """Writing to it changes the run's context, as in Swarm; the model's arguments are not changed."""
    context: dict[str, Any] = {}
    arguments = {"city": "Paris"}
    bound = bind_context(_taking_context(dict), arguments, context)
    assert bound["context_variables"] is context
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
    """The concurrency table: coroutine functions that do not write, and what says so itself."""
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
        (_Shape, True),
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
        (bytes, False),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:function 'f'")
def test_which_return_hints_admit_a_result(hint: Any, may: bool) -> None:
    """Only a hint that rules `Result` out promises that the context stays; what says nothing may."""

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


# --- arguments --------------------------------------------------------------------------------------------------------

json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), json_values), st.booleans())
def test_arguments_are_the_json_object_that_was_sent(arguments: dict[str, Any], ascii_only: bool) -> None:
    """Whatever the model writes as JSON arrives equal."""
    assert parse_arguments(json.dumps(arguments, ensure_ascii=ascii_only)) == arguments


@given(st.text())
def test_any_text_is_arguments_or_an_arguments_error(text: str) -> None:
    """Nothing that a model writes raises anything else."""
    try:
        assert isinstance(parse_arguments(text), dict)
    except ArgumentsError as error:
        assert str(error)  # noqa: PT017


@pytest.mark.parametrize("text", ["", " ", "\n", "\t \r\n", "{}", " {} "])
def test_empty_arguments_are_no_arguments(text: str) -> None:
    """Several servers send "" for a call without arguments."""
    assert parse_arguments(text) == {}


@pytest.mark.parametrize("text", ['{"city": "Par', "{'city': 'Paris'}", "{city: 1}", '{"a": 1} extra', "{", "[" * 5000])
def test_what_is_no_json_is_told_with_the_parsers_reason(text: str) -> None:
    """The reason names the place, so that the model can mend it."""
    with pytest.raises(ArgumentsError, match=r"not JSON: .+ at line \d+ column \d+"):
        parse_arguments(text)


@pytest.mark.parametrize("text", ["null", "[]", "5", '"city"', "true", '[{"city": "Paris"}]'])
def test_what_is_no_object_is_told(text: str) -> None:
    """Arguments have names."""
    with pytest.raises(ArgumentsError, match="object"):
        parse_arguments(text)


# --- results ----------------------------------------------------------------------------------------------------------


class Shade(enum.Enum):
    RED = "red"


class StrShade(str, enum.Enum):  # noqa: UP042 - as people wrote it before StrEnum
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    when: date


class City(BaseModel):
    name: str
    founded: date | None = None


class Word(str):  # noqa: SLOT000 - only its __str__ matters
    def __str__(self) -> str:
        return "something else"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("text", "text"),
        ("", ""),
        ("grüße", "grüße"),
        (StrShade.RED, "red"),
        (Word("kept"), "kept"),
        (None, "None"),
        (True, "True"),
        (7, "7"),
        (7.5, "7.5"),
        ((1, 2), "(1, 2)"),
        (b"x", "b'x'"),
        (date(2025, 1, 2), "2025-01-02"),
        (Shade.RED, "Shade.RED"),
        ({"a": None, "b": True, "c": [1, 1.5]}, '{"a": null, "b": true, "c": [1, 1.5]}'),
        ({"ü": "é日"}, '{"ü": "é日"}'),
        ({1: date(2025, 1, 2)}, '{"1": "2025-01-02"}'),
        ([], "[]"),
        ([1, "a", None], '[1, "a", null]'),
        ([Point(1, date(2025, 1, 2))], '[{"x": 1, "when": "2025-01-02"}]'),
        (Point(1, date(2025, 1, 2)), '{"x": 1, "when": "2025-01-02"}'),
        (City(name="Zürich"), '{"name": "Zürich", "founded": null}'),
        ({"city": City(name="Bern")}, '{"city": {"name": "Bern", "founded": null}}'),
        (Counter("aab"), '{"a": 2, "b": 1}'),
        (defaultdict(list, a=[1]), '{"a": [1]}'),
        ({"shade": Shade.RED, "set": {1}}, '{"shade": "red", "set": [1]}'),
        (Point, str(Point)),
        (City, str(City)),
    ],
    ids=repr,
)
def test_a_result_as_text(value: object, text: str) -> None:
    """A str as it is; dicts, lists, dataclasses and models as JSON, not ASCII-escaped; everything else `str()`."""
    assert to_text(value) == text
    assert type(to_text(value)) is str


def test_what_json_does_not_know_is_told_as_a_str() -> None:
    """An object inside a dict does not fail the call."""
    assert json.loads(to_text({"what": object})) == {"what": str(object)}


@given(st.one_of(st.dictionaries(st.text(), json_values), st.lists(json_values)))
def test_data_can_be_read_back(value: object) -> None:
    """The text of a dict or a list is JSON that says the same."""
    assert json.loads(to_text(value)) == value


def test_what_cannot_be_turned_into_text_raises() -> None:
    """The caller tells it to the model as the tool's error: cycles, bytes that are no text, a failing `__str__`."""

    class Broken:
        def __str__(self) -> str:
            raise RuntimeError("no")

    cycle: list[Any] = []
    cycle.append(cycle)
    for value in (cycle, {"b": b"\xff"}, Broken(), Result(value=cycle)):
        with pytest.raises((ValueError, RuntimeError)):
            as_result(value)


def test_a_plain_value_is_a_result_with_that_text() -> None:
    """No agent, no context."""
    result = as_result({"a": 1})
    assert (result.value, result.agent, result.context_variables) == ('{"a": 1}', None, {})


def test_an_agent_is_a_handoff() -> None:
    """Swarm's text, with the very agent that was returned."""
    agent = Agent(name="Zürich")
    result = as_result(agent)
    assert result.value == '{"assistant": "Zürich"}'
    assert result.agent is agent


def test_a_result_keeps_agent_and_context_and_its_value_becomes_text() -> None:
    """The function's own Result is not changed; agent and objects of the context are the very ones."""
    agent, client = Agent(), object()
    returned = Result(value={"a": [1]}, agent=agent, context_variables={"client": client})
    result = as_result(returned)
    assert (result.value, result.agent) == ('{"a": [1]}', agent)
    assert result.agent is agent
    assert result.context_variables["client"] is client
    assert returned.value == {"a": [1]}


def test_a_result_without_a_value_says_nothing() -> None:
    """Swarm's default is the empty text."""
    assert as_result(Result()).value == ""
