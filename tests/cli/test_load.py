"""Finding the agent of a command, and the messages where there is none."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import pytest

from aswarm import Agent
from aswarm.cli._exits import SetupError
from aswarm.cli._load import load_agent
from tests.support.cli.cli_runs import AGENTS


@pytest.fixture(autouse=True)
def project(folder: Path) -> Path:
    """A module, a package, and modules that cannot be loaded, in the current directory."""
    (folder / "agents.py").write_text(AGENTS, encoding="utf-8")
    package = folder / "shop" / "desk"
    package.mkdir(parents=True)
    (folder / "shop" / "__init__.py").touch()
    (package / "__init__.py").write_text("from .team import lead\n", encoding="utf-8")
    (package / "team.py").write_text("from ..names import NAME\nfrom aswarm import Agent\nlead = Agent(name=NAME)\n")
    (folder / "shop" / "names.py").write_text("NAME = 'Lead'\n")
    return folder


def wrong(target: str) -> str:
    """The message for a target that cannot be used."""
    with pytest.raises(SetupError) as caught:
        load_agent(target)
    assert caught.value.exit_code == 2
    return caught.value.message


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
    """A module from the current directory on, a file, an attribute of an attribute, a factory."""
    assert load_agent(target).name == name


def test_a_file_somewhere_else(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file can import the modules beside it."""
    (project / "prices.py").write_text("NAME = 'Prices'\n")
    (project / "my-agents.v2.py").write_text(
        "from prices import NAME\nfrom aswarm import Agent\na = Agent(name=NAME)\n"
    )
    elsewhere = project / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert load_agent("../my-agents.v2.py:a").name == "Prices"
    assert load_agent(f"{project}/my-agents.v2.py:a").name == "Prices"


def test_a_file_with_the_name_of_another_module(project: Path) -> None:
    """`json.py` is this file, and json stays json."""
    import json

    (project / "json.py").write_text("from aswarm import Agent\nagent = Agent(name='Mine')\n")
    (project / "sys.py").write_text("from aswarm import Agent\nagent = Agent(name='Also mine')\n")
    assert load_agent("json.py:agent").name == "Mine"
    assert load_agent("sys.py:agent").name == "Also mine"
    assert sys.modules["json"] is json


def test_a_module_is_loaded_once() -> None:
    """By module or by file, the same name gives the same agent."""
    assert load_agent("shop/desk/team.py:lead") is load_agent("shop.desk.team:lead")
    assert load_agent("shop/desk/__init__.py:lead") is load_agent("shop.desk:lead")
    assert load_agent("agents:triage") is load_agent("./agents.py:triage")


def test_a_module_without_the_name_of_an_agent(project: Path) -> None:
    """The module is loaded; the message lists its agents, and shows what to type."""
    assert wrong("agents") == (
        "agents is a module; name one of its agents: agents:orders, agents:triage (aswarm run agents:orders ...)"
    )
    assert wrong("agents.py").startswith("agents.py is a module; name one of its agents: agents.py:orders, ")
    assert wrong("shop.names") == "shop.names is a module without agents; expected module:attribute"
    assert wrong("agent").startswith("there is no module 'agent'; did you mean 'agents'?")
    for command, shown in [
        ("graph", "aswarm graph agents:orders ..."),
        ("eval", "aswarm eval --agent agents:orders ..."),
    ]:
        with click.Context(click.Command(command), info_name=command):
            assert wrong("agents").endswith(f"({shown})")


@pytest.mark.parametrize("target", ["agents:", ":triage", "what is this", "agents:AGENTS['orders']", "C:\\a.py"])
def test_malformed_targets(target: str) -> None:
    """The message shows the form."""
    assert wrong(target) == f"expected module:attribute or path/to/file.py:attribute, not {target!r}"


def test_a_module_that_is_not_there(project: Path) -> None:
    """The message has the nearest name, and where it was looked for."""
    assert wrong("agent:triage").startswith(
        f"there is no module 'agent'; did you mean 'agents'? (looked for in {project} "
    )
    assert wrong("nowhere:x").startswith("there is no module 'nowhere' (looked for in")
    assert wrong("shop.till:x").startswith("there is no module 'shop.till' (looked for in")


def test_a_file_that_is_not_there() -> None:
    """The message has the nearest name in the folder."""
    assert wrong("agent.py:x") == "there is no file 'agent.py'; did you mean 'agents.py'?"
    assert wrong("nowhere/agents.py:x") == "there is no file 'nowhere/agents.py'"


def test_an_attribute_that_is_not_there() -> None:
    """The message has the nearest name, or the agents of the module."""
    assert wrong("agents:triag") == "agents has no attribute 'triag'; did you mean 'triage'?"
    assert wrong("agents:xyz") == "agents has no attribute 'xyz'; its agents: orders, triage"
    assert wrong("shop.names:xyz") == "shop.names has no attribute 'xyz'; it has no agents"


def test_values_that_are_not_agents(project: Path) -> None:
    """The message shows the value."""
    (project / "odd.py").write_text("def one(name): ...\ndef none(): ...\nraw = 'x'\nnew = type\n")
    expected = "must be an Agent, or a function without parameters that returns one; it"
    assert wrong("odd:raw") == f"odd:raw {expected} is 'x'"
    assert wrong("odd:one") == f"odd:one {expected} needs arguments"
    assert wrong("odd:new") == f"odd:new {expected} needs arguments"
    assert wrong("odd:none") == "odd:none() must return an Agent; it returned None"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import not_installed_here", "bad:x needs the module 'not_installed_here', which is not installed"),
        ("import sys; sys.exit(3)", "loading bad:x ended the process; put the code that the module runs under"),
        ("1 / 0", "bad:x cannot be loaded: ZeroDivisionError: division by zero ("),
        ("def", "bad:x cannot be loaded: SyntaxError: invalid syntax"),
        ("def x(): raise OSError('no disk')", "bad:x cannot be loaded: OSError: no disk ("),
        ("def __getattr__(name): raise OSError('no disk')", "bad:x cannot be loaded: OSError: no disk ("),
    ],
)
def test_a_module_that_cannot_be_loaded(project: Path, text: str, said: str) -> None:
    """Its exception becomes one line, with the place."""
    (project / "bad.py").write_text(text)
    assert wrong("bad:x").startswith(said)
    assert wrong("bad.py:x").startswith(said.replace("bad:x", "bad.py:x"))


def test_what_a_module_prints_goes_to_stderr(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """stdout is reserved for the command."""
    (project / "loud.py").write_text("print('loading')\nfrom aswarm import Agent\nagent = Agent()\n")
    assert isinstance(load_agent("loud:agent"), Agent)
    assert capsys.readouterr() == ("", "loading\n")
