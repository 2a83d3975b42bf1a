"""`aswarm eval`: the report, the exit codes and the options."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aswarm.testing import call
from tests.support.cli.cli_runs import AGENTS, invoke, model, refused

CASES = [
    {"conversation": "Where is my order?", "function": "transfer_to_orders"},
    {"conversation": "Hello", "function": "None"},
]

REMOVES_RESULTS = """
def remove(_: object) -> str:
    import shutil

    shutil.rmtree("results", ignore_errors=True)
    return "You help."

remover = Agent(instructions=remove, functions=[orders])
"""


@pytest.fixture(autouse=True)
def cases(project: Path) -> None:
    """A file of cases for the module `agents`."""
    write(project / "cases.json", {"agent": "agents:triage", "cases": CASES})


def write(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data), encoding="utf-8")


@pytest.mark.parametrize("api", ["auto", "responses"])
def test_the_report_is_on_stdout(api: str) -> None:
    """The report is on stdout, and passed cases are exit code 0."""
    with model(call("transfer_to_orders"), "Hello!") as server:
        result = invoke("eval", "cases.json", "--concurrency", "1", "--threshold", "1", "--api", api, server=server)
    assert all(("input" in request) is (api == "responses") for request in server.requests)
    assert result.exit_code == 0
    assert "2/2" in result.stdout
    assert result.stderr == ""


def test_budget(project: Path) -> None:
    """The budget holds for every attempt."""
    case = {"conversation": "Where is it?", "function": ["look_up", "look_up"], "run": "whole"}
    write(project / "budget.json", {"agent": "agents:orders", "cases": [case]})
    with model(call("look_up", order_id=1)) as server:
        result = invoke("eval", "budget.json", "-c", "user=x", "--budget", "turns=1", server=server)
    assert result.exit_code == 0
    assert "was stopped by its budget" in result.stdout


def test_context_variables_of_every_case(project: Path) -> None:
    """The variables of a case override those of the command."""
    module = "from aswarm import Agent\nshown = Agent(instructions=lambda context: f\"{context['user']}\")\n"
    (project / "shown.py").write_text(module, encoding="utf-8")
    cases = [{"conversation": "Hi", "function": "None"}, {**CASES[1], "context_variables": {"user": "Bob"}}]
    write(project / "shown.json", {"agent": "shown:shown", "cases": cases})
    with model("Hello!", "Hello!") as server:
        result = invoke("eval", "shown.json", "-c", "user=Ann", "--concurrency", "1", server=server)
    assert result.exit_code == 0
    assert [request["messages"][0]["content"] for request in server.requests] == ["Ann", "Bob"]


def test_below_the_threshold() -> None:
    """An accuracy below the threshold is exit code 4."""
    with model("No idea", "Hello!") as server:
        result = invoke("eval", "cases.json", "--concurrency", "1", "--threshold", "0.9", server=server)
    assert result.exit_code == 4
    assert "1/2" in result.stdout
    assert result.stderr == "Below the threshold: 50.0%, and 90.0% are required\n"


def test_a_function_that_no_agent_has(project: Path) -> None:
    """A note and the report have the nearest name of an unknown function, and the cases run."""
    write(project / "cases.json", {"agent": "agents:triage", "cases": [{**CASES[0], "function": "transfer_to_order"}]})
    with model("No idea") as server:
        result = invoke("eval", "cases.json", server=server)
    hint = "aswarm.graph finds no agent with the function 'transfer_to_order'; did you mean 'transfer_to_orders'?"
    assert result.exit_code == 0
    assert result.stderr == f"Note: the case 'Where is my order?' expects 'transfer_to_order'; {hint}\n"
    assert hint in result.stdout


def test_a_provider_that_fails() -> None:
    """If every attempt is an error, the exit code is 1, and the report has the reasons."""
    with model(*[refused("400 Bad Request", "no such model")] * 2) as server:
        result = invoke("eval", "cases.json", "--threshold", "0.5", server=server)
    assert result.exit_code == 1
    assert "no such model" in result.stdout
    assert result.stderr == "Error: every attempt ended in an error\n"


def test_options(project: Path) -> None:
    """--agent, -n, -m and --results reach the evaluation."""
    (project / "elsewhere").mkdir()
    write(project / "elsewhere" / "cases.json", {"agent": "nowhere:agent", "cases": CASES[1:]})
    arguments = ["--agent", "agents.py:orders", "-n", "3", "-m", "tiny", "--results", "results.json"]
    with model(*["Hello"] * 3) as server:
        result = invoke("eval", "elsewhere/cases.json", *arguments, server=server)
    assert result.exit_code == 0
    assert [request["model"] for request in server.requests] == ["tiny"] * 3
    assert server.requests[0]["tools"][0]["function"]["name"] == "look_up"
    [record] = json.loads((project / "results.json").read_text(encoding="utf-8"))
    assert record["total_evals"] == 3


def test_results_that_cannot_be_written_in_the_end(project: Path) -> None:
    """The report is printed if its results cannot be written, and the exit code is 1."""
    folder = project / "results"
    (project / "agents.py").write_text(AGENTS + REMOVES_RESULTS, encoding="utf-8")
    with model("Hello!", "Hello!") as server:
        arguments = ["--agent", "agents:remover", "--results", "results/x.json"]
        result = invoke("eval", "cases.json", *arguments, server=server)
    assert not folder.exists()
    assert result.exit_code == 1
    assert "1/2" in result.stdout
    assert result.stderr == "Error: results/x.json cannot be written: No such file or directory\n"


def test_results_that_are_spoiled_in_the_meantime(project: Path) -> None:
    """The report is printed if the results file is no longer JSON, and the exit code is 2."""
    spoils = "\nimport pathlib\n\ndef spoil(_):\n    pathlib.Path('x.json').write_text('{')\n    return ''\n\nspoiler = Agent(instructions=spoil)\n"
    (project / "agents.py").write_text(AGENTS + spoils, encoding="utf-8")
    with model("Hello!", "Hello!") as server:
        result = invoke("eval", "cases.json", "--agent", "agents:spoiler", "--results", "x.json", server=server)
    assert result.exit_code == 2
    assert "1/2" in result.stdout
    assert "x.json is not a results file" in result.stderr


def test_an_error_of_the_system_that_is_not_of_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the system without --results is an ordinary error, and stdout stays empty."""
    monkeypatch.setenv("SSL_CERT_FILE", "/nonexistent")
    with model() as server:
        result = invoke("eval", "cases.json", server=server)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("Error: FileNotFoundError: [Errno 2] No such file or directory")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ([], "expected a list of cases"),
        (
            [{"conversation": "Hello", "function": "None", "agent": "agents:nobody"}],
            "there is no agent 'agents:nobody'",
        ),
    ],
)
def test_cases_that_cannot_be_run(project: Path, data: Any, text: str) -> None:
    """Cases that cannot be used are a usage error, and nothing is sent."""
    write(project / "cases.json", data)
    result = invoke("eval", "cases.json", "--base-url", "http://127.0.0.1:9/v1")
    assert result.exit_code == 2
    assert text in result.stderr
