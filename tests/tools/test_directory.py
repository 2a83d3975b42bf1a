"""`AgentDirectory` finds agents that are values of functions. Agents in `functions`: see `test_toolbox`."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

from aswarm import Agent, agent_tool, tool
from aswarm._tools.directory import AgentDirectory
from aswarm._values.errors import CallerMistake, ConfigurationError

sales = Agent(name="Sales")
BY_KEY = {"stock": Agent(name="Stock")}
LISTED = [Agent(name="Returns")]
DEEP = {"shops": [Agent(name="Deep")]}


def to_sales() -> Agent:
    """As in Swarm: a global agent."""
    return sales


def to_any(key: str) -> Any:
    """The source shows no agent."""
    return globals()[key]


def first_of(first: Any, second: Any) -> Any:
    return first or second


class Shop:
    """Agents as attributes of an object, of its class, and in a slot."""

    front = Agent(name="Front")

    def __init__(self) -> None:
        self.back = Agent(name="Back")
        self.others = [Agent(name="Cellar")]

    def leave(self) -> Agent:
        return self.back

    @classmethod
    def enter(cls) -> Agent:
        return cls.front

    @property
    def broken(self) -> Agent:
        raise AssertionError("the search runs no property")

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


class Slots:
    __slots__ = ("agent", "empty")

    def __init__(self) -> None:
        self.agent = Agent(name="Slot")

    def __call__(self) -> Agent:
        return self.agent


def in_closure() -> Callable[..., Any]:
    inner = Agent(name="Inner")

    def leave() -> Agent:
        return inner

    return leave


def with_defaults() -> Callable[..., Any]:
    def leave(first: Any = Agent(name="Default"), *, second: Any = (Agent(name="Keyword"),)) -> Any:  # noqa: B008
        return first or second

    return leave


def decorated() -> Callable[..., Any]:
    function = in_closure()

    @functools.wraps(function)
    def around() -> Any:
        return function()

    return around


def names(*functions: Any) -> set[str]:
    """The names that are found from an agent with these functions, without the globals of this module."""
    own = {"Sales", "Stock", "Returns"}
    return set(AgentDirectory([Agent(name="First", functions=list(functions))]).known) - own - {"First"}


def test_a_global_agent_is_found() -> None:
    """Also inside a list or a dict, but not deeper, and whatever the source of the function looks like."""
    for function in (to_sales, to_any):
        directory = AgentDirectory([Agent(name="First", functions=[function])])
        assert directory.find("Sales") is sales
        assert directory.find("Stock") is BY_KEY["stock"]
        assert directory.find("Returns") is LISTED[0]
        assert directory.find("Deep") is None


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (in_closure, {"Inner"}),
        (with_defaults, {"Default", "Keyword"}),
        (decorated, {"Inner"}),
        (lambda: functools.cache(in_closure()), {"Inner"}),
        (lambda: Shop().leave, {"Back", "Cellar", "Front"}),
        (lambda: Shop.enter, {"Front"}),
        (Slots, {"Slot"}),
        (lambda: tool(in_closure()), {"Inner"}),
        (lambda: functools.partial(first_of, Agent(name="Bound"), second=Agent(name="Named")), {"Bound", "Named"}),
        (lambda: agent_tool(Agent(name="Asked")), {"Asked"}),
        (lambda: Agent, set[str]()),
        (lambda: Agent(name="Method").model_copy, {"Method"}),
        (lambda: len, set[str]()),
    ],
    ids=[
        "closure",
        "defaults",
        "decorated",
        "cached",
        "method",
        "classmethod",
        "slots",
        "tool",
        "partial",
        "agent_tool",
        "class",
        "method of an agent",
        "builtin",
    ],
)
def test_agents_that_are_values_of_a_function_are_found(make: Callable[[], Any], found: set[str]) -> None:
    """No function is called, and no property runs."""
    assert names(make()) == found


def test_a_function_without_its_source_is_enough() -> None:
    """A frozen program has none. The agents of found agents are found too."""
    module = types.ModuleType("without_source")
    code = "def leave():\n    return far\n"
    exec(compile(code, "<nowhere>", "exec"), module.__dict__)
    module.__dict__["far"] = Agent(name="Far", functions=[in_closure()])
    assert names(module.__dict__["leave"]) == {"Far", "Inner"}


def test_a_closure_without_a_value_yet_is_no_error() -> None:
    def make() -> Any:
        def leave() -> Any:
            return later

        directory = AgentDirectory([Agent(name="First", functions=[leave])])
        assert directory.find("Later") is None
        later = Agent(name="Later")
        return directory.find("Later")

    assert make() is not None


class Proxy:
    """A proxy that is not bound, as of a web framework: each access raises."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise RuntimeError("working outside of a request")


def test_a_proxy_among_the_globals_is_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "proxy", Proxy(), raising=False)
    assert AgentDirectory([Agent(name="First", functions=[to_sales])]).find("Sales") is sales


def test_an_agent_in_functions_comes_before_an_agent_that_is_only_a_value() -> None:
    """Another global of its name may not be in use. If it takes over nevertheless, the run is refused."""
    own = Agent(name="Sales")
    directory = AgentDirectory([Agent(name="First", functions=[to_sales, own])])
    assert directory.find("Sales") is own
    with pytest.raises(CallerMistake, match=r"to 'Sales'.*another agent of this name .*\(functions of 'First'\)"):
        directory.check(sales, "to_sales handed off to")


def test_an_ambiguous_value_is_refused_with_its_places() -> None:
    """The text names the variables, and the argument that decides."""

    def leave(other: Any = Agent(name="Sales")) -> Any:  # noqa: B008
        return other

    first = Agent(name="First", functions=[leave])
    text = rf"more than one agent of this name .*\(a default of .*leave, {__name__}\.sales\).*agents=\[sales\]"
    with pytest.raises(ConfigurationError, match=text):
        AgentDirectory([first]).get("Sales", "the run is with")
    assert AgentDirectory([first, sales]).get("Sales", "the run is with") is sales


def test_only_agents_in_functions_are_declared_handoffs() -> None:
    """`serve_agents` serves these agents: a client may start them."""
    last = Agent(name="Last")
    between = Agent(name="Between", functions=[last])
    first = Agent(name="First", functions=[to_sales, between])
    last.functions.append(first)
    assert AgentDirectory([first]).in_functions == [first, between, last]
