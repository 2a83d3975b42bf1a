"""The command line as a whole: help, version, exits and the demo."""

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
from click.testing import CliRunner, Result

import aswarm
import aswarm.cli
from aswarm import ConfigurationError, RunError
from aswarm._values.text import how_to_install
from aswarm.cli import demo_agents
from aswarm.cli._app import app
from aswarm.cli._exits import CommandFailed, exits
from aswarm.cli._output import write, writing
from aswarm.cli.commands.eval import _evaluate
from aswarm.cli.commands.runs import runs
from aswarm.evals import load_cases
from tests.support.cli.cli_runs import AGENTS, environment, invoke, model
from tests.support.providers.loopback import Reply

COMMANDS = ["run", "chat", "batch", "graph", "eval", "serve", "mcp", "worker", "runs", "demo"]
RUNS = [f"runs {name}" for name in ("list", "show", "cancel", "answer", "release", "purge")]
WITH_HELP = [*(name for name in COMMANDS if name != "runs"), *RUNS]  # `runs` is a group of commands
ROOT = Path(__file__).parents[2]


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_the_commands() -> None:
    """The commands are those in the docstring, and no others."""
    assert sorted(app.commands) == sorted(COMMANDS)
    assert sorted(runs.commands) == sorted(name.removeprefix("runs ") for name in RUNS)
    named = re.findall(r"^    aswarm (\w+)", aswarm.cli.__doc__ or "", re.MULTILINE)
    assert list(dict.fromkeys(named)) == COMMANDS


OWN_CODES = {"run": [3, 5], "batch": [3, 5, 143], "eval": [4]}


def codes_of(command: str) -> dict[int, str]:
    """The exit codes that the help of a command shows, with their meaning."""
    shown = re.findall(r"^    (\d+) +(.+)$", invoke(*command.split(), "-h").stdout, re.MULTILINE)
    return {int(code): meaning for code, meaning in shown}


@pytest.mark.parametrize("command", WITH_HELP)
def test_help_has_the_exit_codes_of_the_command(command: str) -> None:
    """The help of a command has the codes that the command can return, and no others."""
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


def test_version() -> None:
    """The version of the library."""
    assert invoke("--version").stdout == f"aswarm {aswarm.__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["nothing"], ["run"], ["run", "a:b", "?", "--max-turns", "-1"]])
def test_usage_errors(arguments: list[str]) -> None:
    """A usage error is exit code 2."""
    assert invoke(*arguments).exit_code == 2


def test_the_demo() -> None:
    """It says that the model is a script, shows the whole conversation, and says how to use a real model."""
    result = invoke("demo")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "The model of this demo is a script" in result.stdout
    shown = result.stdout.partition("You: ")[2].partition("\n(")[0]
    assert shown.splitlines()[1:] == [
        "  Triage calls transfer_to_refunds({})",
        '  transfer_to_refunds: {"assistant": "Refunds"}',
        "  Triage hands over to Refunds",
        "Refunds: I am sorry to hear that. Let me look at the order.",
        '  Refunds calls look_up_order({"order_id": 4711})',
        "  look_up_order: Order 4711: a lamp for 39.90 EUR, delivered.",
        '  Refunds calls refund_order({"order_id": 4711, "reason": "arrived broken"})',
        "  refund_order: Refunded 39.90 EUR for order 4711.",
        "Refunds: You get 39.90 EUR back for the broken lamp of order 4711. Is there anything else?",
    ]


def test_the_demo_in_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """The script answers each conversation from its beginning, whatever the user says, and says where it ends."""
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
    """It answers any call of a real model: a known order is refunded once."""
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


# --- exits ---


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigurationError("change it"), 2),
        (RunError("it failed"), 1),
        (KeyboardInterrupt(), 130),
        (BrokenPipeError(), 141),
        (SystemExit(7), 7),
    ],
)
def test_exceptions_and_exit_codes(error: BaseException, code: int) -> None:
    """Each exception of a command has its exit code."""

    @click.command()
    def failing() -> None:
        with exits():
            raise error

    result = CliRunner().invoke(failing)
    assert result.exit_code == code
    assert result.stderr == (f"Error: {error}\n" if code in (1, 2) else "\n" if code == 130 else "")


def failed(folder: Path, *arguments: str) -> Result:
    """A command whose agent raises an error that nobody expects: its instructions divide by zero."""
    (folder / "broken.py").write_text("from aswarm import Agent\ndef f(_):\n    1 / 0\na = Agent(instructions=f)\n")
    with model() as server:
        return CliRunner().invoke(app, ["run", "broken:a", "?", *arguments], env=environment(server))


def test_an_error_is_one_line(folder: Path) -> None:
    """Also an error that is not expected; the line says how to see more."""
    result = failed(folder)
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("Error: ")
    assert "division by zero" in result.stderr


def test_a_traceback_that_is_asked_for(folder: Path) -> None:
    """With `--traceback` it comes before the line."""
    result = failed(folder, "--traceback")
    assert result.exit_code == 1
    assert "Traceback (most recent call last)" in result.stderr
    assert 'broken.py", line 3' in result.stderr
    assert result.stderr.splitlines()[-1].startswith("Error: ")


def test_an_unexpected_error_names_the_option() -> None:
    """An error that is not of aswarm: its type and text on one line, and how to see the place."""
    with pytest.raises(CommandFailed) as caught, exits():
        raise ZeroDivisionError("two\nlines")
    assert caught.value.message == "ZeroDivisionError: two lines (--traceback prints the traceback too)"


# --- output ---


def test_a_model_cannot_send_commands_to_a_terminal() -> None:
    """A terminal gets symbols for control characters; a pipe gets the text unchanged."""
    text = "\x1b]0;title\x07a\tb\nc\r\x9b1m"
    terminal, pipe = Terminal(), io.StringIO()
    write(terminal, text)
    write(pipe, text)
    assert terminal.getvalue() == "␛]0;title␇a\tb\nc\ufffd1m"
    assert pipe.getvalue() == text


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), OSError("no number")])
def test_stdout_that_cannot_be_written(error: OSError) -> None:
    """It ends the command as a failure, with the reason."""
    with pytest.raises(CommandFailed) as caught, writing(io.StringIO()):
        raise error
    assert caught.value.message == f"standard output cannot be written: {error.strerror or error}"


def test_a_pipe_that_breaks_is_no_failure_to_write() -> None:
    """It has an exit code of its own."""
    with pytest.raises(BrokenPipeError), writing(io.StringIO()):
        raise BrokenPipeError


def test_a_png_in_a_terminal(folder: Path) -> None:
    """A PNG is not written to a terminal."""
    with redirect_stdout(Terminal()), pytest.raises(click.ClickException, match="a terminal cannot show a PNG"):
        app.main(["graph", "agents:triage", "-f", "png"], standalone_mode=False)


@pytest.mark.asyncio
async def test_evals_that_are_stopped_print_their_report(folder: Path) -> None:
    """The report until then is on stdout."""
    (folder / "agents.py").write_text(AGENTS, encoding="utf-8")
    (folder / "cases.json").write_text('[{"conversation": "a", "function": "None", "agent": "agents:triage"}]')
    sys.path.insert(0, str(folder))
    stdout = io.StringIO()
    with model(Reply([], silent=True)) as server:
        from openai import AsyncOpenAI

        from aswarm import AsyncSwarm

        swarm = AsyncSwarm(AsyncOpenAI(base_url=server.base_url, api_key="x"))
        running = asyncio.ensure_future(_evaluate(load_cases("cases.json"), stdout, {"swarm": swarm}))
        while not (server.requests or running.done()):
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await swarm.client.close()
    assert "0/0" in stdout.getvalue()
    assert "(interrupted)" in stdout.getvalue()


# --- the entry point ---


def run_main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["aswarm", *arguments])
    with pytest.raises(SystemExit) as caught:
        aswarm.cli.main()
    return caught.value.code


def test_the_script_of_the_package() -> None:
    """pyproject.toml names this entry point."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["scripts"] == {"aswarm": f"{aswarm.cli.__name__}:{aswarm.cli.main.__name__}"}


def test_main(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The command of sys.argv, as a process would run it."""
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


class Full(io.BytesIO):
    """A file on a full disk."""

    def write(self, _: object, /) -> int:
        raise OSError(28, "No space left on device")


def test_main_with_stderr_on_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Notes that cannot be written are dropped."""
    stderr = io.TextIOWrapper(Full(), "utf-8")
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
    """The message says what to install; any other missing module is a bug, and is raised."""
    monkeypatch.delitem(sys.modules, "aswarm.cli._app")
    monkeypatch.setitem(sys.modules, "click", None)
    assert run_main(monkeypatch, "--version") == 2
    assert capsys.readouterr().err == f"aswarm: the command line needs click: {how_to_install('cli')}\n"
    monkeypatch.setitem(sys.modules, "click", click)
    monkeypatch.setitem(sys.modules, "aswarm.cli.commands.chat", None)
    with pytest.raises(ModuleNotFoundError):
        aswarm.cli.main()
