"""Hints that are evaluated only when they are read (Python 3.14), and may name what does not exist yet.

On an older Python, objects stand in for such functions: reading their `__annotations__` fails, and their signature has
the value of `inspect.signature` for a name that does not exist.
"""

# No `from __future__ import annotations`: the hints here are not strings.

import asyncio
import inspect
import sys
import textwrap
import typing
from typing import Any

import pytest

from aswarm import Agent, AsyncSwarm, tool
from aswarm.testing import ScriptedModel, call
from aswarm.tools import function_tool
from aswarm.util import function_to_json
from tests.support.tools.hint_schemas import parameters_of

lazily = pytest.mark.skipif(sys.version_info < (3, 14), reason="hints are evaluated when the function is defined")


def defined(source: str) -> dict[str, Any]:
    """The names of a module with this source."""
    namespace: dict[str, Any] = {"__name__": "shop", "tool": tool}
    exec(compile(textwrap.dedent(source), "shop.py", "exec", dont_inherit=True), namespace)
    return namespace


def answer(function: Any, **arguments: Any) -> Any:
    """Return the result of the function in a run."""
    name = function_to_json(function)["function"]["name"]
    swarm = AsyncSwarm(ScriptedModel([call(name, **arguments), "Done."]).client())
    return asyncio.run(swarm.run(Agent(functions=[function]), "Go", {"user": "Ada"})).messages[1]["content"]


def unresolved(caught: pytest.WarningsRecorder) -> list[str]:
    return sorted(str(warning.message).partition(" cannot be resolved")[0] for warning in caught)


class Lazy:
    """A function `go(where: Place)` as Python 3.14 shows it, where `Place` does not exist (yet)."""

    __name__ = "go"
    hint: Any = typing.ForwardRef("Place")

    def __call__(self, **_: Any) -> None: ...

    @property
    def __annotations__(self) -> dict[str, Any]:
        raise NameError("name 'Place' is not defined")

    def __annotate__(self, _format: int) -> dict[str, Any]:
        raise NameError("name 'Place' is not defined")

    @property
    def __signature__(self) -> inspect.Signature:
        where = inspect.Parameter("where", inspect.Parameter.KEYWORD_ONLY, annotation=self.hint)
        return inspect.Signature([where], return_annotation=typing.ForwardRef("Missing"))


def test_making_a_tool_evaluates_no_hint() -> None:
    """`@tool` stands above a function whose hint names a class further down."""
    function = Lazy()
    made = tool(function)
    assert made.__name__ == "go"
    assert made.__annotate__ == function.__annotate__  # type: ignore[attr-defined]


def test_a_hint_that_cannot_be_evaluated_is_a_string_with_a_warning() -> None:
    """A name that only the type checker imports costs one parameter its type."""
    function = tool(Lazy())
    with pytest.warns(UserWarning) as caught:  # noqa: PT030 - the texts are looked at below
        assert parameters_of(function)["properties"] == {"where": {"type": "string"}}
    assert unresolved(caught) == ["function 'go': the hint of 'return'", "function 'go': the hint of 'where'"]


def test_a_reference_to_a_name_that_exists_is_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reference is resolved where the function was written, when the schema is made."""
    monkeypatch.setattr(Lazy, "hint", typing.ForwardRef("Later"))
    with pytest.warns(UserWarning, match="'return'"):
        parameters = parameters_of(Lazy())
    assert parameters["$defs"]["Later"]["properties"] == {"city": {"type": "string"}}


class Later(typing.TypedDict):
    city: str


@lazily
def test_a_hint_may_name_a_class_further_down() -> None:
    """The function is offered with the schema of that class."""
    shop = defined("""
        import functools
        from dataclasses import dataclass

        @tool
        def go(where: Place, via: list[Place] | None = None) -> Place:
            return where.city

        class Desk:
            @tool
            def go(self, where: Place) -> Place:
                return where.city

            def __call__(self, where: Place, via: Place | None = None) -> Place:
                return where.city

        bound = functools.partial(Desk(), via=None)

        @dataclass
        class Place:
            city: str
    """)
    desk = shop["Desk"]()
    for function in (shop["go"], desk.go, desk, tool(desk), shop["bound"]):
        parameters = function_to_json(function)["function"]["parameters"]
        assert parameters["properties"]["where"] == {"$ref": "#/$defs/Place"}
        assert answer(function, where={"city": "Rome"}) == "Rome"
    assert typing.get_type_hints(shop["go"])["where"] is shop["Place"]


@lazily
def test_a_hint_may_name_a_class_beside_the_function() -> None:
    """A class that is defined later inside the same function is found."""

    def make() -> Any:
        @tool
        def go(where: Place) -> str: ...  # noqa: F821 - is defined below

        class Place(typing.TypedDict):
            city: str

        return go

    assert parameters_of(make())["$defs"]["Place"]["properties"] == {"city": {"type": "string"}}


@lazily
def test_a_function_tool_evaluates_only_the_hints_that_it_needs() -> None:
    """A hint of another parameter is of no interest, so there is no warning."""
    shop = defined("""
        def pay(amount: Decimal, context_variables: dict) -> str:
            return f"{amount} {context_variables['user']}"
    """)
    made = function_tool(shop["pay"], name="pay", description="", parameters={"type": "object"})
    assert answer(made, amount=1) == "1 Ada"


@lazily
@pytest.mark.asyncio
async def test_instructions_with_hints_that_only_the_type_checker_knows() -> None:
    """They get the context variables, positionally or by keyword: their hints are not evaluated."""
    shop = defined("""
        def positional(context_variables: Context) -> Text:
            return f"Help {context_variables['user']}."

        def by_keyword(*, context_variables: Context) -> Text:
            return positional(context_variables)
    """)
    for name in ("positional", "by_keyword"):
        model = ScriptedModel(["Hi"])
        await AsyncSwarm(model.client()).run(Agent(instructions=shop[name]), "Hi", {"user": "Ada"})
        assert model.requests[0].messages[0]["content"] == "Help Ada."
