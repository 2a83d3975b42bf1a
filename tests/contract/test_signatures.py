"""The page of all public names: what it shows of classes, as a caller needs it."""

from __future__ import annotations

import re

import pytest

from docs._site import reference, signatures
from tests.support.contract.stability import names_of


@pytest.fixture(scope="module")
def entries() -> dict[str, list[str]]:
    """The lines of each class, by its name."""
    found: dict[str, list[str]] = {}
    for line in signatures.listing().splitlines():
        if match := re.match(r"- `class (\w+)", line):
            found[match[1]] = [line]
        elif line.startswith("  - "):
            found[list(found)[-1]].append(line.strip("- `"))
    return found


@pytest.fixture(scope="module")
def names() -> dict[str, list[str]]:
    """The lines of each name, by its full name."""
    return names_of(f"\n{signatures.listing()}")


def test_the_page_has_each_public_name_and_a_type_or_a_value_of_each(names: dict[str, list[str]]) -> None:
    """The check of stability compares these lines."""
    assert not {*reference.entries()} - {*names}
    bare = [line for lines in names.values() for line in lines if re.fullmatch(r"`\w+`", line)]
    assert bare == []


def test_overloads_are_shown_instead_of_the_implementation(names: dict[str, list[str]]) -> None:
    """Of functions, methods and constructors."""
    assert names["aswarm.tool"][0] == "`def tool(function: Callable[P, R], /) -> Tool[P, R]`"
    assert names["aswarm.tool"][1].endswith("-> Callable[[Callable[P, R]], Tool[P, R]]`")
    assert [line.rpartition(" -> ")[2] for line in names["aswarm.durable.DurableRuns.start"]] == [
        "RunRecord`",
        "DurableRun`",
    ]
    assert len(names["aswarm.AsyncSwarm.run"]) == 5
    assert [line.partition(",")[0] for line in names["aswarm.Output"]] == [
        "`class Output(type: builtins.type[T]",
        "`class Output(type: Any",
        "subclass of `Generic[T]`",
    ]


def test_an_alias_has_its_value_with_the_names_of_public_aliases(names: dict[str, list[str]]) -> None:
    """Another module has a private `Step`."""
    assert names["aswarm.Decisions"] == ["`Decisions = Mapping[Any, Decision]`"]
    assert names["aswarm.testing.Step"][0].startswith("`Step = str | ScriptedCall | ")
    assert names["aswarm.runs.show_answers"] == ["`show_answers: Show = show_answers_with()`"]


def test_private_aliases_constants_and_options_are_replaced_by_their_values(names: dict[str, list[str]]) -> None:
    """Users cannot import them. A public TypedDict keeps its name, and shows that its keys are optional."""
    assert "api: Literal['auto', 'chat', 'responses'] = 'auto'" in names["aswarm.AsyncSwarm"][0]
    assert "max_turns: float = 100," in names["aswarm.AsyncSwarm.batch"][0]
    assert "*, agents:" in names["aswarm.serve.create_app"][0]
    assert (
        ", wires: Collection[Literal['agui', 'vercel', 'openai']] = ..., page: bool = ...,"
        in names["aswarm.serve.create_app"][0]
    )
    assert names["aswarm.conversations.Conversation.stream"][0].endswith(
        ", run_id: str | None = ...) -> ConversationStream`"
    )
    assert {*re.findall(r"Unpack\[\w+\]", str(names))} == {"Unpack[RunKeywords]"}


def test_a_class_shows_its_public_bases(names: dict[str, list[str]]) -> None:
    """Instead of a private base, the bases of this base; methods of a private base are those of the class."""
    assert names["aswarm.BudgetError"][1] == "subclass of `RunError`"
    assert names["aswarm.guards.Blocked"][1] == "subclass of `RunError`"
    assert names["aswarm.EventStream"] == ["`class EventStream`, made by aswarm", "subclass of `AsyncIterator[Event]`"]
    assert names["aswarm.durable.DurableRun"][1] == "subclass of `Run`"
    assert "aswarm.durable.DurableRun.result" not in names
    assert "aswarm.durable.DurableRuns.cancel" in names


def test_async_and_return_types_are_shown(names: dict[str, list[str]]) -> None:
    """Of methods, properties and async generators; and how a handler is called."""
    assert names["aswarm.runs.Run.result"] == ["`async def result() -> Response`"]
    assert names["aswarm.runs.Run.entries"] == ["`def entries(after: int = -1) -> AsyncGenerator[Entry, None]`"]
    assert names["aswarm.EventStream.response"] == ["`response -> Response`"]
    assert names["aswarm.middleware.ToolHandler.__call__"][0].endswith("-> Awaitable[ToolOutcome]`")


def test_fields_that_are_given_by_name_stand_after_a_star(entries: dict[str, list[str]]) -> None:
    """Of the whole class, after a field, and of a single field; a field that is no parameter is left out."""
    assert entries["RateLimits"][0].startswith("- `class RateLimits(*, requests_per_minute:")
    assert entries["Item"][0].startswith("- `class Item(messages: Messages, *, id:")
    assert entries["ToolOutcome"][0].endswith("*, still_running: bool = False, unknown: bool = False)`")
    assert entries["RunKeywords"][0].startswith("- `class RunKeywords(*, budget: Budget | None = ...,")


def test_public_attributes_are_shown(entries: dict[str, list[str]]) -> None:
    """Those that a constructor sets, with the hint of the parameter, and those of the class; private ones are not."""
    assert "requests: list[Request]" in entries["ScriptedModel"]
    assert "status_code: int | None" in entries["CompletionError"]
    assert "response: Response | None" in entries["AswarmError"]
    assert "functions: list[Tool[..., Any]]" in entries["MCPServer"]
    assert not [line for lines in entries.values() for line in lines if line.startswith("_")]


def test_a_class_that_only_aswarm_makes_has_no_constructor(entries: dict[str, list[str]]) -> None:
    """Its fields are attributes; each name of the list is a public class."""
    for name in reference.MADE_BY_ASWARM:
        assert entries[name][0] == f"- `class {name}`, made by aswarm"
    assert "index -> int" in entries["ToolCall"]


def test_a_setter_is_no_method_and_a_validator_is_no_hint(entries: dict[str, list[str]]) -> None:
    """`Swarm.client` is a property; the hint of `Response.agent` is Agent."""
    assert "client -> Any" in entries["Swarm"]
    assert "agent: Agent = None" in entries["Response"][0]
    assert "lambda" not in entries["Response"][0]
