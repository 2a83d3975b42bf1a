"""Typed answers on the command line: `aswarm run --output`, and the lines of `aswarm batch`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aswarm.testing import call
from tests.support.cli.cli_runs import invoke, model

TRIPS = """
from pydantic import BaseModel
from aswarm import Agent

class Trip(BaseModel):
    city: str
    days: int = 1

def look() -> str:
    return "seen"

plain = Agent()
typed = Agent(functions=[look], output=Trip)
"""
ROME = '{"city": "Rome"}'


@pytest.fixture(autouse=True)
def trips(folder: Path) -> None:
    """A module with a type and two agents in the current directory."""
    (folder / "trips.py").write_text(TRIPS, encoding="utf-8")


@pytest.mark.parametrize("option", ["--stream", "--no-stream"])
@pytest.mark.parametrize(
    ("arguments", "step"),
    [(["--output", "trips:Trip", "trips:plain"], ROME), (["trips:typed"], call("final_answer", city="Rome"))],
    ids=["of the run", "of the agent"],
)
def test_an_answer_with_a_type_is_printed_as_json(option: str, arguments: list[str], step: Any) -> None:
    """stdout has only the valid answer, as JSON."""
    with model("Rome!", step) as server:
        result = invoke("run", option, *arguments, "Go", server=server)
    assert (result.exit_code, result.stdout) == (0, '{"city": "Rome", "days": 1}\n')
    assert "empty" not in result.stderr


def test_no_answer_of_the_type_is_a_failure() -> None:
    """Without a valid answer the exit code is 1, and stderr has the reason."""
    with model("no", "no") as server:
        result = invoke("run", "--output", "trips:Trip", "trips:plain", "Go", server=server)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "gave no answer of the type Trip" in result.stderr


def test_the_lines_of_a_batch_have_the_answer() -> None:
    """A line of a typed agent has `output`, and a line of another agent has no such key."""
    Path("in.jsonl").write_text('{"id": "1", "input": "Go"}\n', encoding="utf-8")
    lines = []
    for agent, step in (("trips:typed", call("final_answer", city="Rome")), ("trips:plain", "Hi")):
        with model(step) as server:
            lines.append(json.loads(invoke("batch", agent, "in.jsonl", server=server).stdout))
    assert lines[0]["output"] == {"city": "Rome", "days": 1}
    assert "output" not in lines[1]
