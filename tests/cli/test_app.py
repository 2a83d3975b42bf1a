"""The command line as a whole: help, version, exit codes, output and the demo."""

from __future__ import annotations

import asyncio
import io
import os
import re
import runpy
import sys
import tomllib
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import click
import pytest

import aswarm
import aswarm.cli
from aswarm.cli import demo_agents
from tests.support.cli.cli_runs import environment, invoke, model, runner_result

COMMANDS = ["run", "chat", "batch", "graph", "eval", "serve", "mcp", "worker", "runs", "demo"]
RUNS = [f"runs {name}" for name in ("list", "show", "cancel", "answer", "release", "purge")]
WITH_HELP = [*(name for name in COMMANDS if name != "runs"), *RUNS]  # `runs` is a group of commands
ROOT = Path(__file__).parents[2]


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


class Full(io.StringIO):
    """A stream that raises an error at each write."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self._error = error

    def write(self, _: str, /) -> int:
        raise self._error


def run_main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["aswarm", *arguments])
    with pytest.raises(SystemExit) as caught:
        aswarm.cli.main()
    return caught.value.code


def test_the_commands() -> None:
    """The help lists each command."""
    for shown, names in (
        (invoke("-h"), COMMANDS),
        (invoke("runs", "-h"), [name.removeprefix("runs ") for name in RUNS]),
    ):
        assert sorted(re.findall(r"^  ([a-z]\w*)  ", shown.stdout.partition("Commands:")[2], re.MULTILINE)) == sorted(
            names
        )


OWN_CODES = {"run": [3, 5], "batch": [3, 5, 143], "eval": [4]}


def codes_of(command: str) -> dict[int, str]:
    """Return the exit codes in the help of a command, with their meaning."""
    shown = re.findall(r"^    (\d+) +(.+)$", invoke(*command.split(), "-h").stdout, re.MULTILINE)
    return {int(code): meaning for code, meaning in shown}


@pytest.mark.parametrize("command", WITH_HELP)
def test_help_has_the_exit_codes_of_the_command(command: str) -> None:
    """The help of a command has all its exit codes, and no others."""
    assert list(codes_of(command)) == sorted([0, 1, 2, 130, 141, *OWN_CODES.get(command, [])])


def test_the_documentation_has_the_exit_codes() -> None:
    """The table in the documentation agrees with the help of each command, and with the help of the group."""
    page = (ROOT / "docs/guides/command-line.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| (.+) \| (.+) \|$", page.replace("`", ""), re.MULTILINE)
    assert {int(code): meaning for code, meaning, _ in rows} == codes_of("")
    for command in WITH_HELP:
        named = {int(code): meaning for code, meaning, by in rows if by == "all" or command in by.split(", ")}
        assert named == codes_of(command)


@pytest.mark.parametrize("command", WITH_HELP)
def test_every_command_can_print_tracebacks(command: str) -> None:
    """`--traceback` is an option of each command."""
    assert "--traceback" in invoke(*command.split(), "-h").stdout


def test_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo shows a whole conversation with its scripted model, and how to use a real model."""
    monkeypatch.setattr("aswarm.cli.demo_agents._refunded", set())
    result = invoke("demo")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "The model of this demo is a script" in result.stdout
    shown = result.stdout.partition("You: ")[2].partition("\n(")[0]
    assert shown.splitlines()[1:] == [
        "Triage: transfer_to_refunds()",
        '  transfer_to_refunds: {"assistant": "Refunds"}',
        "Triage -> Refunds",
        "Refunds: I am sorry to hear that. Let me look at the order.",
        "Refunds: look_up_order(order_id=4711)",
        "  look_up_order: Order 4711: a lamp for 39.90 EUR, delivered.",
        'Refunds: refund_order(order_id=4711, reason="arrived broken")',
        "  refund_order: Refunded 39.90 EUR for order 4711.",
        "Refunds: You get 39.90 EUR back for the broken lamp of order 4711. Is there anything else?",
    ]


def test_the_demo_in_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """The script answers each conversation from its start, and its last answer names its end."""
    served: list[Any] = []
    monkeypatch.setattr("aswarm.cli.commands.demo.serve_until_stopped", lambda *args, **_: served.extend(args))
    assert invoke("demo", "--serve").exit_code == 0
    swarm, [triage] = served

    async def talk(*questions: str) -> list[str]:
        agent, messages = triage, list[Any]()
        for question in questions:
            messages.append({"role": "user", "content": question})
            response = await swarm.run(agent, messages)
            agent, messages = response.agent, [*messages, *response.messages]
        return [message["content"] for message in messages if message["role"] == "assistant" and message["content"]]

    monkeypatch.setattr(demo_agents, "_refunded", set())  # another test may have refunded the order
    first, again = asyncio.run(talk("Hello", "Thanks")), asyncio.run(talk("My lamp!"))
    assert first[0] == again[0] and "39.90 EUR" in first[1]
    assert "it ends here" in first[2] and "it ends here" in again[1]  # the lamp is refunded once in a process


def test_the_shop_of_the_demo() -> None:
    """The shop answers any call of a real model, and refunds a known order once."""
    assert demo_agents.transfer_to_triage() is demo_agents.triage

    async def asked() -> list[str]:
        refunds = [await demo_agents.refund_order(815, "x"), await demo_agents.refund_order(815, "x")]
        return [*refunds, await demo_agents.look_up_order(815), await demo_agents.look_up_order(1)]

    assert asyncio.run(asked()) == [
        "Refunded 5.00 EUR for order 815.",
        "Order 815 cannot be refunded.",
        "Order 815: a lamp for 5.00 EUR, delivered, refunded.",
        "There is no order 1.",
    ]


def test_the_commands_that_the_demo_names(folder: Path) -> None:
    """The commands work without changes, with the model that agents have by default."""
    printed = invoke("demo").stdout
    named = re.findall(r"^  aswarm (.*)$", printed, re.MULTILINE)
    assert re.findall(r"--model (\S+)", printed) == ["gpt-6-luna"]
    with model("Welcome!") as server:
        for line in named:
            result = invoke(*line.split(), server=server, stdin="Hello\n")
            assert result.exit_code == 0
    assert len(named) == 2


BROKEN = """
import sys
from aswarm import Agent

def divide(_):
    1 / 0

def leave(_):
    sys.exit(7)

divides, leaves = Agent(instructions=divide), Agent(instructions=leave)
"""


@pytest.mark.parametrize("options", [(), ("--traceback",)])
def test_an_error_is_one_line(folder: Path, options: tuple[str, ...]) -> None:
    """An unexpected error is one line and exit code 1, and `--traceback` prints its traceback before the line."""
    (folder / "broken.py").write_text(BROKEN)
    with model() as server:
        result = runner_result("run", "broken:divides", "?", *options, server=server)
    *trace, line = result.stderr.splitlines()
    assert result.exit_code == 1
    assert line.startswith("Error: ") and "division by zero" in line
    assert ("Traceback (most recent call last):" in trace) is bool(options)
    assert any('broken.py", line 6' in each for each in trace) is bool(options)


def test_a_function_may_exit(folder: Path) -> None:
    """The code of `sys.exit` in a function is the exit code of the command."""
    (folder / "broken.py").write_text(BROKEN)
    with model() as server:
        assert invoke("run", "broken:leaves", "?", server=server).exit_code == 7


def test_a_model_cannot_control_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal gets symbols for control characters, and a pipe gets the text unchanged."""
    text = "\x1b]0;title\x07a\tb\nc\r\x9b1m"
    with model(text, text) as server:
        assert invoke("run", "agents:triage", "?", server=server).stdout_bytes.decode() == f"{text}\n"
        for name, value in environment(server).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "stdout", terminal := Terminal())
        run_main(monkeypatch, "run", "agents:triage", "?")
    assert terminal.getvalue() == "␛]0;title␇a\tb\nc\ufffd1m\n"


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (
            OSError(28, "No space left on device"),
            1,
            "Error: standard output cannot be written: No space left on device\n",
        ),
        (OSError("no number"), 1, "Error: standard output cannot be written: no number\n"),
        (BrokenPipeError(), 141, ""),
    ],
)
def test_stdout_that_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: OSError, code: int, text: str
) -> None:
    """An error of stdout is a failure with its reason, and a broken pipe has its own exit code."""
    monkeypatch.setattr(sys, "stdout", Full(error))
    assert run_main(monkeypatch, "demo") == code
    assert capsys.readouterr().err.endswith(text)


def test_a_png_in_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A PNG is not written to a terminal."""
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert run_main(monkeypatch, "graph", "agents:triage", "-f", "png") == 2
    assert "a terminal cannot show a PNG" in capsys.readouterr().err


# --- the entry point ---


def test_the_script_of_the_package() -> None:
    """The script of the package is the entry point of pyproject.toml."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["scripts"] == {"aswarm": f"{aswarm.cli.__name__}:{aswarm.cli.main.__name__}"}


def test_main(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The entry point runs the command of `sys.argv`."""
    assert run_main(monkeypatch, "--version") == 0
    assert sys.stdout.errors == "backslashreplace"
    assert capsys.readouterr().out == f"aswarm {aswarm.__version__}\n"
    with redirect_stdout(io.StringIO()) as out:
        assert run_main(monkeypatch, "--version") == 0
    assert out.getvalue() == f"aswarm {aswarm.__version__}\n"


def test_main_with_stdout_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a stdout, the output is discarded."""
    monkeypatch.setattr(sys, "stdout", None)
    assert run_main(monkeypatch, "--version") == 0
    assert sys.stdout.name == os.devnull
    sys.stdout.close()


class FullDisk(io.BytesIO):
    """A file on a full disk."""

    def write(self, _: object, /) -> int:
        raise OSError(28, "No space left on device")


def test_main_with_stderr_on_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Notes that cannot be written are dropped."""
    stderr = io.TextIOWrapper(FullDisk(), "utf-8")
    monkeypatch.setattr(sys, "stderr", stderr)
    with redirect_stdout(io.StringIO()):
        assert run_main(monkeypatch, "run") == 2
    sys.stderr.write("a note\n")
    sys.stderr.flush()


def test_python_m(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`python -m aswarm` runs the same command line."""
    monkeypatch.setattr(sys, "argv", ["aswarm", "--version"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_module("aswarm", run_name="__main__")
    assert capsys.readouterr().out == f"aswarm {aswarm.__version__}\n"


def test_main_without_click(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The error of a missing click names the extra, and another missing module is raised."""
    monkeypatch.delitem(sys.modules, "aswarm.cli._app")
    monkeypatch.setitem(sys.modules, "click", None)
    assert run_main(monkeypatch, "--version") == 2
    assert capsys.readouterr().err.startswith('aswarm: the command line needs click: install the extra "cli"')
    monkeypatch.setitem(sys.modules, "click", click)
    monkeypatch.setitem(sys.modules, "aswarm.cli.commands.chat", None)
    with pytest.raises(ModuleNotFoundError):
        aswarm.cli.main()
