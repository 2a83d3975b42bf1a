"""Tool search: an agent's deferred tools, their index, and the functions with which the model finds and calls them.

A deferred tool (`@tool(defer=True)`) is not in the requests of its agent. The requests have `search_tools` instead, and
`call_tool` or the tools that were found. No I/O.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Field

from aswarm._values.errors import ConfigurationError, ToolArgumentsError
from aswarm._values.found_tools import CALL_TOOL, SEARCH_TOOLS, definitions_in
from aswarm._values.json import is_array, is_object
from aswarm._values.messages import Message, call_name, text_of
from aswarm._values.wire_messages import OUTPUT_ITEMS

from .tool import Tool, function_tool

_WEIGHT_OF_NAME = 3
_K1, _B = 1.2, 0.75  # the usual constants of BM25
_WORD, _HUMP = re.compile(r"[^\W_]+"), re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SHORT = 3  # the length of words that keep their ending


class SearchIndex:
    """The words of functions: of their names, their descriptions, and their parameters."""

    def __init__(self, functions: Sequence[Mapping[str, Any]]) -> None:
        self._documents = [Counter(_words_of(function)) for function in functions]
        self._average = sum(document.total() for document in self._documents) / max(1, len(functions))

    def best(self, query: str, most: int) -> list[int]:
        """Return the positions of the functions with a word of the query, at most this number; the best first."""
        scores = self._scores(query)
        return sorted(scores, key=lambda at: (-scores[at], at))[:most]

    def _scores(self, query: str) -> dict[int, float]:
        scores: dict[int, float] = {}
        for word in dict.fromkeys(_words(query)):
            having = [(at, document[word]) for at, document in enumerate(self._documents) if word in document]
            rarity = math.log(1 + (len(self._documents) - len(having) + 0.5) / (len(having) + 0.5))
            for at, count in having:
                length = 1 - _B + _B * self._documents[at].total() / self._average
                scores[at] = scores.get(at, 0.0) + rarity * count * (_K1 + 1) / (count + _K1 * length)
        return scores


def _words_of(function: Mapping[str, Any]) -> Iterator[str]:
    yield from [*_words(function["name"])] * _WEIGHT_OF_NAME
    yield from _words(function["description"])
    properties = function["parameters"].get("properties")
    for name, schema in properties.items() if is_object(properties) else ():
        yield from _words(name)
        yield from _words(str(schema.get("description") or "")) if is_object(schema) else ()


def _words(text: str) -> Iterator[str]:
    """Yield the words in lower case, English words without the ending of the plural, and `createIssue` as two words."""
    for word in _WORD.findall(_HUMP.sub(" ", text).lower()):
        if not word.isascii():  # some languages have no spaces between words: pairs of characters
            yield from map("".join, pairwise(word)) if len(word) > 1 else (word,)
        elif len(word) <= _SHORT or not word.endswith("s") or word.endswith("ss"):
            yield word
        else:
            yield f"{word[:-3]}y" if word.endswith("ies") else word[:-1]


# No `from __future__ import annotations`: see `tool`.


ToolSearchMode: TypeAlias = Literal["auto", "call", "append"]
"""How the model gets a tool that it has found; see `tool_search`."""
Tools: TypeAlias = Mapping[str, Tool[..., Any]]

_HITS = 5
_Query = Annotated[str, Field(description="A few words about the task, such as: create issue.")]
_DESCRIPTION = (
    "Find more functions: only some of them are listed here. Search before you say that you cannot do something. Returns the "
    f"{_HITS} functions that fit best, as JSON."
)


@dataclass(frozen=True, eq=False)
class SearchTool(Tool[..., Any]):
    """The tool `search_tools`. `mode`: see `tool_search`."""

    mode: ToolSearchMode = "auto"
    is_search: ClassVar[bool] = True


def tool_search(mode: ToolSearchMode = "auto", *, description: str = _DESCRIPTION) -> Tool[..., Any]:
    """Return the tool `search_tools`, with which the model finds the deferred tools of its agent.

    An agent with deferred tools has it anyway; put it into the functions of an agent to change its options:

        Agent(functions=[tool_search("append"), *tools])

    Args:
        mode: How the model gets a tool that it has found. "auto": at OpenAI's Responses API, the models that know client-executed
            tool search get the definition at the place of the search. Everywhere else as with "call". "call": the model calls
            the tool with `call_tool(name, arguments)`, and the tools of the requests never change, so the prompt cache keeps
            the whole history. "append": the tools that were found are added at the end of the tools of the next request. Providers
            render tools before messages, so each search that finds another tool costs the cached prompt once.
        description: The description of `search_tools` for the model, for example with the names of the programs whose functions
            can be found.

    Raises:
        ConfigurationError: For an unknown mode.
    """
    if mode not in ("auto", "call", "append"):
        raise ConfigurationError(f'tool_search has the modes "auto", "call" and "append", not {mode!r}')
    return SearchTool(_FunctionSearch(()).search_tools, description=description, repeatable=True, mode=mode)


async def _without_name(**_: Any) -> str:
    raise ToolArgumentsError(
        f'{CALL_TOOL} needs "name", the name of a function that {SEARCH_TOOLS} has found, and "arguments", an object'
    )


@functools.cache
def _call_tool() -> Tool[..., Any]:
    """Return the tool. Its function runs only for a call without a readable name: any other call is a call of the named tool."""
    name = {"type": "string", "description": "The name of the function."}
    arguments = {"type": "object", "description": "Its arguments, by its parameters."}
    return function_tool(
        _without_name,
        name=CALL_TOOL,
        description=f"Call a function that {SEARCH_TOOLS} has found.",
        parameters={
            "type": "object",
            "properties": {"name": name, "arguments": arguments},
            "required": ["name", "arguments"],
        },
    )


class _FunctionSearch:
    """The search in these tools. The first search makes the index."""

    def __init__(self, tools: Iterable[Tool[..., Any]]) -> None:
        self._functions = [tool.schema["function"] for tool in tools]

    async def search_tools(self, query: _Query) -> str:
        """Find more functions."""
        found = [json.dumps(self._functions[at], ensure_ascii=False) for at in self._index.best(query, _HITS)]
        return (
            "\n".join(found)
            or "No function fits. Search again with other words, such as the verb or the object of the task."
        )

    @functools.cached_property
    def _index(self) -> SearchIndex:
        return SearchIndex(self._functions)


class ToolSearch:
    """The tool search of an agent. `tools`: its tools by name, at least one of which is deferred."""

    def __init__(self, tools: Tools) -> None:
        self._deferred = {name: tool for name, tool in tools.items() if tool.defer}
        chosen = tools.get(SEARCH_TOOLS)
        own: Any = tool_search() if chosen is None else chosen
        if not isinstance(own, SearchTool):
            raise ConfigurationError(
                f"an agent with deferred tools has a function named {SEARCH_TOOLS!r}, which is reserved for the search; rename it"
            )
        self._bound: SearchTool = replace(own, function=_FunctionSearch(self._deferred.values()).search_tools)
        self.mode: ToolSearchMode = own.mode

    def added_to(self, tools: Tools) -> dict[str, Tool[..., Any]]:
        """Return all tools of the agent, with `search_tools` and `call_tool` at the end."""
        added: dict[str, Tool[..., Any]] = {SEARCH_TOOLS: self._bound}
        if self.mode != "append":
            added[CALL_TOOL] = _call_tool()
        return {**{name: tool for name, tool in tools.items() if not tool.is_search}, **added}

    def offered(self, tools: Tools, messages: Sequence[Message]) -> list[Tool[..., Any]]:
        """Return the tools of the next request. `messages`: the whole history."""
        offered = [tool for name, tool in tools.items() if name not in self._deferred]
        return offered if self.mode != "append" else [*offered, *map(tools.__getitem__, self._loaded(messages))]

    def check_choice(self, choice: Any) -> None:
        """Raise ConfigurationError if a `tool_choice` names a deferred tool, which the request does not have."""
        if is_object(choice) and (name := call_name(choice)) in self._deferred:
            raise ConfigurationError(f"tool_choice names {name!r}, which is deferred; remove defer=True from this tool")

    def _loaded(self, messages: Iterable[Message]) -> dict[str, None]:
        """Return the names of the tools that were found or called, in order of their first appearance."""
        return dict.fromkeys(name for name in _named_in(messages) if name in self._deferred)


def _named_in(messages: Iterable[Message]) -> Iterator[str]:
    searches: set[Any] = set()
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] in searches:
                yield from (found["name"] for found in definitions_in(text_of(message["content"])))
        elif calls := message.get("tool_calls"):
            yield from (name for item in message.get(OUTPUT_ITEMS) or () for name in _found_by_provider(item))
            yield from map(call_name, calls)
            searches = {call["id"] for call in calls if call_name(call) == SEARCH_TOOLS}


def _found_by_provider(item: Any) -> Iterator[str]:
    """Yield the names of the functions that a search of the provider has found."""
    tools = item.get("tools") if is_object(item) and item.get("type") == "tool_search_output" else None
    for found in tools if is_array(tools) else ():
        if is_object(found) and isinstance(name := found.get("name"), str):
            yield name
