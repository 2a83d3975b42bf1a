"""`tool_search`: the index, the tools of requests, the readings of a call, and the refused agents."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aswarm import Agent, ConfigurationError, tool
from aswarm._tools.tool_search import SearchIndex
from aswarm._tools.toolbox import toolbox
from aswarm._values.found_tools import CALL_TOOL, definitions_in
from aswarm._values.messages import call_arguments, call_input, call_name
from aswarm.code import code_tool
from aswarm.extensions import offered_tools, tools_of
from aswarm.tools import external_tool, function_tool, tool_search
from tests.support.tools.deferred import FUNCTIONS, create_issue, read_clock, tracker

NOTHING = {"type": "object", "properties": {}}
BOTH: Any = "both"


def function(name: str, description: str = "", **parameters: str) -> dict[str, Any]:
    properties = {key: {"type": "string", "description": about} for key, about in parameters.items()}
    return {"name": name, "description": description, "parameters": {"type": "object", "properties": properties}}


INDEX = [
    function("github_create_issue", "Open a ticket in a repository.", title="The first line", body="Markdown"),
    function("github_list_repositories", "List what a user owns."),
    function("sendMail", "Send a message to somebody's inbox.", recipient="The address"),
    function(
        "jira_create_issue",
        "Create an issue in a project of Jira, with many words about it, and about other things too.",
    ),
    function("天気予報", "指定した都市の天気予報を取得します"),
    {"name": "bare", "description": "No parameters at all.", "parameters": {"type": "object"}},
    {"name": "odd", "description": "", "parameters": {"type": "object", "properties": {"flag": True}}},
]


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("open a ticket", "github_create_issue"),
        ("Issues in JIRA", "jira_create_issue"),
        ("list repository", "github_list_repositories"),
        ("mail", "sendMail"),
        ("recipients", "sendMail"),
        ("address", "sendMail"),
        ("天気を調べる", "天気予報"),
        ("github", "github_list_repositories"),
        ("BARE", "bare"),
        ("flags", "odd"),
        ("", None),
        ("!?", None),
        ("weather", None),
        ("気", None),
    ],
)
def test_a_search_finds_the_function_with_the_rarest_words(query: str, first: str | None) -> None:
    """Words of names, descriptions and parameters count, without the ending of the plural; a name counts most."""
    found = [INDEX[at]["name"] for at in SearchIndex(INDEX).best(query, 5)]
    assert (found[:1] or [None]) == [first]


@given(st.lists(st.text(max_size=30), max_size=6), st.text(max_size=40))
def test_any_text_can_be_searched(names: list[str], query: str) -> None:
    """The index raises for no text, finds only functions with a word of the query, and finds each once."""
    functions = [function(name, query if at == 0 else "") for at, name in enumerate(names)]
    found = SearchIndex(functions).best(query, 3)
    assert len(found) == len(set(found)) <= min(3, len(names))
    assert len(SearchIndex([]).best(query, 3)) == 0


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.text(min_size=1), st.dictionaries(st.text(), JSON, max_size=3), st.sampled_from(["object", "text", "beside"]))
def test_a_call_of_a_found_tool_is_read_as_a_call_of_this_tool(name: str, arguments: dict[str, Any], form: str) -> None:
    """Models write the arguments as an object, as a JSON text, or beside the name."""
    arguments = {key: value for key, value in arguments.items() if key not in ("name", "arguments")}
    sent: dict[str, Any] = {"name": name}
    sent |= arguments if form == "beside" else {"arguments": json.dumps(arguments) if form == "text" else arguments}
    made = {"id": "1", "type": "function", "function": {"name": CALL_TOOL, "arguments": json.dumps(sent)}}
    assert call_name(made) == name
    assert json.loads(call_arguments(made)) == json.loads(call_input(made)) == arguments


@given(st.text() | JSON.map(json.dumps))
def test_an_unreadable_call_of_a_found_tool_keeps_its_own_name(text: str) -> None:
    """Nothing raises, and only an object with the text of a name is a call of another tool."""
    made = {"id": "1", "type": "function", "function": {"name": CALL_TOOL, "arguments": text}}
    try:
        sent = json.loads(text)
    except ValueError:
        sent = None
    named = isinstance(sent, dict) and isinstance(sent.get("name"), str) and sent["name"]
    assert call_name(made) == (named or CALL_TOOL)
    assert call_arguments(made) == text or named
    assert list(definitions_in(text)) == []


def test_only_whole_definitions_are_read_from_a_result() -> None:
    """A middleware may have cut the text, and a history from a browser may contain anything: no other key is taken."""
    whole = {**INDEX[0], "strict": True, "type": "computer", "defer_loading": False}
    lines = [
        json.dumps(whole),
        json.dumps(whole)[:-4],
        "[... 7 of 9 left out ...]",
        json.dumps({"name": "x"}),
        "{}",
        "[1]",
    ]
    assert list(definitions_in("\n".join(lines))) == [{**INDEX[0], "strict": True}]


def test_the_requests_have_the_search_in_place_of_deferred_tools() -> None:
    """`tools_of` still has exactly the functions of the agent, and code gets all of them."""
    agent = tracker()
    assert list(offered_tools(agent)) == ["read_clock", "search_tools", "call_tool"]
    assert list(tools_of(agent)) == ["create_issue", "delete_issue", "remember", "read_clock"]
    assert list(offered_tools(tracker(tool_search("append")))) == ["read_clock", "search_tools"]
    assert list(offered_tools(Agent(functions=[read_clock]))) == ["read_clock"]
    about = offered_tools(tracker(tool_search(description="Find GitHub.")))["search_tools"].schema["function"]
    assert about["description"] == "Find GitHub."
    assert "create_issue" in code_tool(*FUNCTIONS).schema["function"]["description"]
    assert toolbox(Agent(functions=[read_clock])).search is None


def test_every_kind_of_tool_can_be_deferred() -> None:
    """An external tool and a tool with an own schema are deferred too, and a second @tool adds the option."""
    own = function_tool(read_clock, name="own", description="", parameters=NOTHING, defer=True)
    external = tool(defer=True)(external_tool(name="page", description="", parameters=NOTHING))
    assert list(offered_tools(Agent(functions=[own, external]))) == ["search_tools", "call_tool"]


def search_tools() -> str:
    """Search."""
    return ""


def call_tool() -> str:
    """Call."""
    return ""


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: toolbox(tracker(search_tools)), "function named 'search_tools', which is reserved"),
        (lambda: toolbox(Agent(functions=[call_tool])), "function named 'call_tool', which is reserved"),
        (lambda: tool_search(BOTH), '"auto", "call" and "append", not \'both\''),
        (lambda: tool(private=True)(create_issue), "private=True cannot have defer=True"),
        (
            lambda: toolbox(tracker(tool_search("call"), tool_search("append"))),
            "two different functions named 'search_tools'",
        ),
    ],
)
def test_agents_that_cannot_search_are_refused(make: Any, text: str) -> None:
    """The errors name the function or the option. An own `search_tools` is fine without deferred tools."""
    with pytest.raises(ConfigurationError) as caught:
        make()
    assert text in str(caught.value)
    assert list(offered_tools(Agent(functions=[search_tools]))) == ["search_tools"]
