"""The page of all public names: what it shows of classes, as a caller needs it."""

from __future__ import annotations

import re

import pytest
from _site import reference, signatures


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


def test_fields_that_are_given_by_name_stand_after_a_star(entries: dict[str, list[str]]) -> None:
    """Of the whole class, after a field, and of a single field; a field that is no parameter is left out."""
    assert entries["RateLimits"][0].startswith("- `class RateLimits(*, requests_per_minute:")
    assert entries["Item"][0].startswith("- `class Item(messages: Messages, *, id:")
    assert entries["ToolOutcome"][0].endswith("*, still_running: bool = False, unknown: bool = False)`")
    assert entries["RunKeywords"][0].startswith("- `class RunKeywords(*, budget: Budget | None,")


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
    assert "index: int" in entries["ToolCall"]


def test_a_setter_is_no_method_and_a_validator_is_no_hint(entries: dict[str, list[str]]) -> None:
    """`Swarm.client` is a property; the hint of `Response.agent` is Agent."""
    assert "client -> Any" in entries["Swarm"]
    assert "agent: Agent = None" in entries["Response"][0]
    assert "lambda" not in entries["Response"][0]
