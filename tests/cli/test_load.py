"""The agent of a command by its name, and the errors of wrong names."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.cli.cli_runs import invoke


@pytest.fixture(autouse=True)
def package(project: Path) -> None:
    """A package in the current directory."""
    folder = project
    package = folder / "shop" / "desk"
    package.mkdir(parents=True)
    (folder / "shop" / "__init__.py").touch()
    (package / "__init__.py").write_text("from .team import lead\n", encoding="utf-8")
    (package / "team.py").write_text("from ..names import NAME\nfrom aswarm import Agent\nlead = Agent(name=NAME)\n")
    (folder / "shop" / "names.py").write_text("NAME = 'Lead'\n")


def name_of(target: str) -> str:
    """Return the name of the agent in the drawing of its graph."""
    return invoke("graph", target).stdout.partition('a1["<b>')[2].partition("</b>")[0]


def wrong(target: str) -> str:
    """Return the error of a target that cannot be used."""
    result = invoke("graph", target)
    assert (result.exit_code, result.stdout) == (2, "")
    return result.stderr.removeprefix("Error: ").removesuffix("\n")


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("agents:triage", "Triage"),
        ("agents:make", "Made"),
        ("agents.py:orders", "Orders"),
        ("./agents.py:orders", "Orders"),
        ("shop.desk.team:lead", "Lead"),
        ("shop.desk:team.lead", "Lead"),
        ("shop/desk/team.py:lead", "Lead"),
        ("shop/desk/__init__.py:lead", "Lead"),
    ],
)
def test_ways_to_name_an_agent(target: str, name: str) -> None:
    """A target is a module or a file, with an attribute, an attribute of an attribute, or a factory."""
    assert name_of(target) == name


def test_a_file_somewhere_else(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file can import the modules beside it."""
    (project / "prices.py").write_text("NAME = 'Prices'\n")
    (project / "my-agents.v2.py").write_text(
        "from prices import NAME\nfrom aswarm import Agent\na = Agent(name=NAME)\n"
    )
    elsewhere = project / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert name_of("../my-agents.v2.py:a") == "Prices"
    assert name_of(f"{project}/my-agents.v2.py:a") == "Prices"


def test_a_file_with_the_name_of_another_module(project: Path) -> None:
    """A file may have the name of a module of Python, which stays the same."""
    import json

    (project / "json.py").write_text("from aswarm import Agent\nagent = Agent(name='Mine')\n")
    (project / "sys.py").write_text("from aswarm import Agent\nagent = Agent(name='Also mine')\n")
    assert name_of("json.py:agent") == "Mine"
    assert name_of("sys.py:agent") == "Also mine"
    assert sys.modules["json"] is json


def test_a_module_is_loaded_once() -> None:
    """A file and its module give the same agent, so a service accepts both names."""
    targets = ["shop/desk/team.py:lead", "shop.desk.team:lead", "shop/desk/__init__.py:lead", "shop.desk:lead"]
    for same in (targets, ["agents:triage", "./agents.py:triage"]):
        result = invoke("serve", *same, "--host", "no host", "--token", "t", "--base-url", "http://127.0.0.1:9/v1")
        assert "cannot listen at no host" in result.stderr


def test_a_module_without_the_name_of_an_agent(project: Path) -> None:
    """The error lists the agents of the module, and a command with one of them."""
    assert wrong("agents") == (
        "agents is a module; name one of its agents: agents:orders, agents:triage (aswarm graph agents:orders ...)"
    )
    assert wrong("agents.py").startswith("agents.py is a module; name one of its agents: agents.py:orders, ")
    assert wrong("shop.names") == "shop.names is a module without agents; expected module:attribute"
    assert wrong("agent").startswith("there is no module 'agent'; did you mean 'agents'?")
    Path("cases.json").write_text("[]", encoding="utf-8")
    result = invoke("eval", "cases.json", "--agent", "agents", "--base-url", "http://127.0.0.1:9/v1")
    assert result.stderr.endswith("(aswarm eval --agent agents:orders ...)\n")


@pytest.mark.parametrize("target", ["agents:", ":triage", "what is this", "agents:AGENTS['orders']", "C:\\a.py"])
def test_malformed_targets(target: str) -> None:
    """The error has the form of a target."""
    assert wrong(target) == f"expected module:attribute or path/to/file.py:attribute, not {target!r}"


def test_a_module_that_is_not_there(project: Path) -> None:
    """The error has the nearest name, and the searched places."""
    assert wrong("agent:triage").startswith(
        f"there is no module 'agent'; did you mean 'agents'? (looked for in {project} "
    )
    assert wrong("nowhere:x").startswith("there is no module 'nowhere' (looked for in")
    assert wrong("shop.till:x").startswith("there is no module 'shop.till' (looked for in")


def test_a_file_that_is_not_there() -> None:
    """The error has the nearest name in the folder."""
    assert wrong("agent.py:x") == "there is no file 'agent.py'; did you mean 'agents.py'?"
    assert wrong("nowhere/agents.py:x") == "there is no file 'nowhere/agents.py'"


def test_an_attribute_that_is_not_there() -> None:
    """The error has the nearest name, or the agents of the module."""
    assert wrong("agents:triag") == "agents has no attribute 'triag'; did you mean 'triage'?"
    assert wrong("agents:xyz") == "agents has no attribute 'xyz'; its agents: orders, triage"
    assert wrong("shop.names:xyz") == "shop.names has no attribute 'xyz'; it has no agents"


def test_values_that_are_not_agents(project: Path) -> None:
    """The error shows the value."""
    (project / "odd.py").write_text("def one(name): ...\ndef none(): ...\nraw = 'x'\nnew = type\n")
    expected = "must be an Agent, or a function without parameters that returns one; it"
    assert wrong("odd:raw") == f"odd:raw {expected} is 'x'"
    assert wrong("odd:one") == f"odd:one {expected} needs arguments"
    assert wrong("odd:new") == f"odd:new {expected} needs arguments"
    assert wrong("odd:none") == "odd:none() must return an Agent; it returned None"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("import not_installed_here", "bad:x needs the module 'not_installed_here', which is not installed"),
        ("import sys; sys.exit(3)", "loading bad:x ended the process; put the code that the module runs under"),
        ("1 / 0", "bad:x cannot be loaded: ZeroDivisionError: division by zero ("),
        ("def", "bad:x cannot be loaded: SyntaxError: invalid syntax"),
        ("def x(): raise OSError('no disk')", "bad:x cannot be loaded: OSError: no disk ("),
        ("def __getattr__(name): raise OSError('no disk')", "bad:x cannot be loaded: OSError: no disk ("),
    ],
)
def test_a_module_that_cannot_be_loaded(project: Path, text: str, error: str) -> None:
    """The exception of a module is one line, with its place."""
    (project / "bad.py").write_text(text)
    assert wrong("bad:x").startswith(error)
    assert wrong("bad.py:x").startswith(error.replace("bad:x", "bad.py:x"))


def test_the_output_of_a_module_goes_to_stderr(project: Path) -> None:
    """The output of a module goes to stderr, because stdout is for the command."""
    (project / "loud.py").write_text("print('loading')\nfrom aswarm import Agent\nagent = Agent()\n")
    result = invoke("graph", "loud:agent")
    assert (result.stdout[:9], result.stderr[:8]) == ("flowchart", "loading\n")
