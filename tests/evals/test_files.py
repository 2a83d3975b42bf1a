"""Cases from files, such as the files of Swarm, and agents by name."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from aswarm import Agent, ConfigurationError
from aswarm.evals import Case, evaluate, load_cases
from tests.support.evals.evaluated import desk, swarm_that

SWARMS = [
    {"conversation": [{"role": "user", "content": "My bag is lost!"}], "function": "transfer_to_lost_baggage"},
    {"conversation": [{"role": "user", "content": "What is life?"}], "function": "None"},
]
MODULE = "tests.support.evals.evaluated"
YAML = """
agent: evaluated:desk
cases:
  - conversation: Is it warm?
    function: ~
  - name: dates stay text
    conversation:
      - {role: user, content: Book Rome}
    function: [book]
    arguments: {city: Rome, nights: 2, day: 2026-05-01, flexible: true, at: 12:30, mode: 010, n: -7, x: 1.5}
    context_variables: {name: Ada}
  - conversation: Goodbye
    judge: Is the answer polite?
    agent: evaluated:sales
"""


def write(folder: Path, name: str, text: object) -> Path:
    path = folder / name
    path.write_text(text if isinstance(text, str) else json.dumps(text), encoding="utf-8")
    return path


def test_swarms_files_are_read_as_they_are(tmp_path: Path) -> None:
    """A file of Swarm is a JSON list of conversation and function, and "None" expects no call."""
    cases = load_cases(write(tmp_path, "cases.json", SWARMS))
    assert cases == [Case(**case) for case in SWARMS]
    assert [case.calls_nothing for case in cases] == [False, True]


@pytest.mark.parametrize("ending", [".yaml", ".yml", ".YAML"])
def test_yaml(tmp_path: Path, ending: str) -> None:
    """A date, a time and an octal number of YAML stay the text that a model would write."""
    first, second, third = load_cases(str(write(tmp_path, f"cases{ending}", YAML)))
    assert first == Case("Is it warm?", function=None, agent="evaluated:desk")
    assert second == Case(
        [{"role": "user", "content": "Book Rome"}],
        function=["book"],
        arguments={"city": "Rome", "nights": 2, "day": "2026-05-01", "flexible": True}
        | {"at": "12:30", "mode": "010", "n": -7, "x": 1.5},
        agent="evaluated:desk",
        context_variables={"name": "Ada"},
        name="dates stay text",
    )
    assert third == Case("Goodbye", judge="Is the answer polite?", agent="evaluated:sales")


def test_keys_beside_cases_are_defaults_for_all_cases(tmp_path: Path) -> None:
    """A file may have defaults for any field of its cases."""
    data = {"run": "whole", "function": "f", "cases": [{"conversation": "a"}, {"conversation": "b", "function": "g"}]}
    cases = load_cases(write(tmp_path, "cases.json", data))
    assert cases == [Case("a", function="f", run="whole"), Case("b", function="g", run="whole")]


@pytest.mark.parametrize("agent", [desk, "evaluated:desk"])
def test_the_agents_of_a_file_can_be_overridden(tmp_path: Path, agent: Agent | str) -> None:
    """The given agent replaces the agent of the file and the agents of its cases."""
    cases = load_cases(write(tmp_path, "cases.yaml", YAML), agent=agent)
    assert [case.agent for case in cases] == [agent] * 3


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("cases.toml", "", "cases.toml: a file of cases must end with .json, .yaml, .yml"),
        ("cases.json", "[", "cases.json cannot be parsed: Expecting value"),
        ("cases.yaml", "a: [", "cases.yaml cannot be parsed: while parsing"),
        ("cases.yaml", "!!python/object/apply:os.getcwd []", "could not determine a constructor"),
        ("cases.json", "[]", "expected a list of cases, or an object with this list as 'cases'"),
        ("cases.json", "{}", "expected a list of cases"),
        ("cases.json", "3", "expected a list of cases"),
        ("cases.json", "[3]", "case 1: a case must be an object with a conversation, not 3"),
        ("cases.json", [*SWARMS, {"conversation": "Hi"}], "case 3: the case expects nothing"),
        ("cases.json", {"model": "x", "cases": SWARMS}, "case 1: a case has no 'model'"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, name: str, text: object, error: str) -> None:
    """The error names the file, the case and the fault, and YAML makes no objects."""
    path = write(tmp_path, name, text)
    with pytest.raises(ConfigurationError) as caught:
        load_cases(path)
    assert error in str(caught.value)
    assert str(path) in str(caught.value)


def test_without_pyyaml_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of YAML needs the extra, and a file of JSON does not."""
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ConfigurationError, match='install the extra "evals"'):
        load_cases(write(tmp_path, "cases.yaml", YAML))
    assert load_cases(write(tmp_path, "cases.json", SWARMS))


@pytest.mark.parametrize(
    ("reference", "error"),
    [
        ("evaluated", "must be named as module:attribute, not 'evaluated'"),
        (":desk", "named as module:attribute"),
        ("evaluated:", "named as module:attribute"),
        ("no_such_module:desk", "there is no agent 'no_such_module:desk': ModuleNotFoundError: No module named"),
        (f"{MODULE}:nobody", f"there is no agent '{MODULE}:nobody': AttributeError"),
        (f"{MODULE}:book", f"'{MODULE}:book' must be an Agent, not <function book"),
    ],
)
async def test_a_reference_without_an_agent(reference: str, error: str) -> None:
    """The error names the reference and the fault."""
    with pytest.raises(ConfigurationError) as caught:
        await evaluate(reference, [Case("Hi", function=None)], swarm=swarm_that({}))
    assert error in str(caught.value)


async def test_an_agent_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name may lead to an attribute of an attribute."""
    monkeypatch.setattr(Agent, "of_tests", desk, raising=False)
    report = await evaluate("aswarm:Agent.of_tests", [Case("Hi", function=None)], swarm=swarm_that({"Hi": "Hello"}))
    assert report.cases[0].agent == "Desk"
