"""The command line as a process: broken pipes, Ctrl-C, encodings, and missing extras."""

from __future__ import annotations

import os
import re
import select
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from aswarm.testing import ScriptedAnswer, call
from tests.support.cli.cli_runs import AGENTS, ended, environment, model, started, until
from tests.support.providers.loopback import LoopbackServer, Reply, sse

pytestmark = pytest.mark.processes

MORE = """
import time

def wait() -> str:
    print("waiting")
    time.sleep(60)
    return "waited"

waiter = Agent(functions=[wait])
"""
STALLS = Reply(sse(ScriptedAnswer("Hello, world"), cut=5).pieces[:3], end="stall")


@pytest.fixture(autouse=True)
def waiter(project: Path) -> None:
    """An agent whose function waits."""
    (project / "agents.py").write_text(AGENTS + MORE, encoding="utf-8")


def read_some(process: subprocess.Popen[bytes], stream: str, text: bytes) -> None:
    """Wait until the process has written this text."""
    pipe = getattr(process, stream)
    seen = b""
    while text not in seen:
        assert select.select([pipe], [], [], 30)[0], f"only {seen!r} was written"
        piece = os.read(pipe.fileno(), 4096)
        assert piece, f"only {seen!r} was written"
        seen += piece


def left(server: LoopbackServer) -> bool:
    """Return whether the client has closed its connection before the end of the answer."""
    return bool(server.closed_at) and not server.open_now


def test_a_run_in_any_encoding() -> None:
    """Characters that the encoding of stdout lacks are written as escapes."""
    with model(call("transfer_to_orders"), "Grüße 🎉") as server:
        process = started("run", "agents:triage", "?", server=server, PYTHONIOENCODING="ascii")
        assert ended(process) == (0, "Gr\\xfc\\xdfe \\U0001f389\n", "")


@pytest.mark.heavy
def test_a_broken_pipe_stops_the_run() -> None:
    """`aswarm run ... | head -1` closes the stream of the model, and is exit code 141."""
    with model(sse(ScriptedAnswer("a line of text\n" * 5000), cut=15, pause=0.002)) as server:
        process = started("run", "agents:triage", "?", server=server)
        head = subprocess.run(["head", "-1"], stdin=process.stdout, capture_output=True, check=True, timeout=240)
        assert head.stdout == b"a line of text\n"
        assert process.stdout is not None
        process.stdout.close()
        process.stdout = None
        assert ended(process) == (141, "", "")
        until(lambda: left(server))


COMMANDS = ["run agents:triage ?", "chat agents:triage", "eval cases.json", "graph agents:triage", "demo", "--help"]
# Each is a process of a second or more.
FEW_COMMANDS = COMMANDS[:1] + [pytest.param(command, marks=pytest.mark.heavy) for command in COMMANDS[1:]]


def in_shell(command: str, server: LoopbackServer | None = None) -> subprocess.CompletedProcess[str]:
    """Run a line of the shell, in which `aswarm` is the command."""
    line = re.sub(r"\baswarm\b", lambda _: f"{shlex.quote(sys.executable)} -m aswarm", command)
    known = {**os.environ, **environment(server)}
    return subprocess.run(["bash", "-c", line], env=known, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.heavy
@pytest.mark.parametrize("command", FEW_COMMANDS)
def test_a_disk_that_is_full(project: Path, command: str) -> None:
    """A result that cannot be written is one line on stderr, and exit code 1."""
    (project / "cases.json").write_text('[{"conversation": "a", "function": "None", "agent": "agents:triage"}]')
    with model("Hello") as server:
        done = in_shell(f"aswarm {command} > /dev/full < /dev/null", server)
    assert (done.returncode, done.stderr) == (
        1,
        "Error: standard output cannot be written: No space left on device\n",
    )


@pytest.mark.parametrize("command", FEW_COMMANDS)
def test_a_pipe_that_is_closed(project: Path, command: str) -> None:
    """A pipe without a reader is exit code 141, and nothing is on stderr."""
    (project / "cases.json").write_text('[{"conversation": "a", "function": "None", "agent": "agents:triage"}]')
    with model("Hello") as server:
        done = in_shell(f"aswarm {command} < /dev/null | true; exit ${{PIPESTATUS[0]}}", server)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.heavy
@pytest.mark.parametrize("command", ["run agents:triage ? -v", "batch agents:triage in.jsonl"])
def test_notes_that_cannot_be_written(project: Path, command: str) -> None:
    """A command succeeds if only stderr is on a full disk."""
    (project / "in.jsonl").write_text('{"input": "Hello"}\n')
    with model("It is here.") as server:
        done = in_shell(f"aswarm {command} 2> /dev/full", server)
    assert done.returncode == 0
    assert "It is here." in done.stdout


@pytest.mark.heavy
def test_ctrl_c_in_a_stream() -> None:
    """Ctrl-C closes the response, finishes the line, and is exit code 130."""
    with model(STALLS) as server:
        process = started("run", "agents:triage", "?", server=server)
        read_some(process, "stdout", b"wor")
        process.send_signal(signal.SIGINT)
        assert ended(process) == (130, "\n", "\n")
        until(lambda: left(server))


@pytest.mark.heavy
def test_ctrl_c_in_a_function() -> None:
    """Ctrl-C interrupts a plain function, and a warning names the call."""
    with model(call("wait")) as server:
        process = started("run", "agents:waiter", "?", server=server, PYTHONUNBUFFERED="1")
        read_some(process, "stderr", b"waiting\n")
        process.send_signal(signal.SIGINT)
        assert ended(process) == (130, "", "Warning: the outcome of these calls is unknown: wait\n\n")


@pytest.mark.heavy
def test_ctrl_c_in_evals(project: Path) -> None:
    """Ctrl-C in evals prints the report of the finished attempts."""
    cases = '[{"conversation": "a", "function": "None"}, {"conversation": "b", "function": "None"}]'
    (project / "cases.json").write_text(cases)
    with model("Hello", Reply([], silent=True)) as server:
        options = ["--agent", "agents:triage", "--concurrency", "1"]
        process = started("eval", "cases.json", *options, server=server)
        until(lambda: len(server.requests) == 2)
        process.send_signal(signal.SIGINT)
        code, stdout, stderr = ended(process)
    assert code == 130
    assert "1/1" in stdout
    assert stderr == "\n"


@pytest.mark.heavy
def test_a_graph_is_utf_8_in_any_encoding(project: Path) -> None:
    """A drawing is UTF-8 in every locale."""
    (project / "more.py").write_text("from aswarm import Agent\na = Agent(name='Grüße 🎉')\n", encoding="utf-8")
    code, stdout, stderr = ended(started("graph", "more:a", PYTHONIOENCODING="ascii"))
    assert (code, stderr) == (0, "")
    assert "Grüße 🎉" in stdout


def test_stdout_that_is_closed() -> None:
    """With `>&-` the output is discarded, without an error."""
    command = ["sh", "-c", f"exec {shlex.quote(sys.executable)} -m aswarm graph agents:triage >&-"]
    done = subprocess.run(command, capture_output=True, timeout=240, check=False)
    assert done.returncode == 0
    assert all(line.startswith(b"Note: ") for line in done.stderr.splitlines())


WITHOUT = """
import sys
for name in {names}:
    sys.modules[name] = None
from aswarm.cli import main
sys.argv = {arguments}
main()
"""


def without(names: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command without these modules."""
    code = WITHOUT.format(names=names, arguments=["aswarm", *arguments])
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False)


EXTRAS = ["rich", "prompt_toolkit", "yaml"]


@pytest.mark.heavy
def test_without_the_extra() -> None:
    """Without click the error names the extra, and the exit code is 2."""
    done = without(["click", *EXTRAS], "run", "agents:triage", "?")
    assert done.returncode == 2
    assert done.stderr.startswith('aswarm: the command line needs click: install the extra "cli"')
    assert done.stderr.count("\n") == 1


@pytest.mark.heavy
def test_with_click_alone(project: Path) -> None:
    """With click alone some commands work, and the error of another command names its package."""
    (project / "cases.yaml").write_text("- conversation: Hello\n  function: null\n")
    assert without(EXTRAS, "graph", "agents:triage").returncode == 0
    done = without(EXTRAS, "eval", "cases.yaml", "--agent", "agents:triage")
    assert done.returncode == 2
    assert "pip install" in done.stderr


IMPORTS = f"""
import sys
import aswarm.cli
print("click" in sys.modules)
for arguments in (["--version"], ["graph", "agents:triage"], ["run", "agents:nobody", "?"]):
    sys.argv = ["aswarm", *arguments]
    try:
        aswarm.cli.main()
    except SystemExit:
        pass
print([name for name in {["openai", "httpx", "httpx2", *EXTRAS]} if name in sys.modules])
"""


def test_imports_of_the_commands() -> None:
    """Commands without a run import neither the SDK nor the extras."""
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True, timeout=240)
    lines = done.stdout.splitlines()
    assert (lines[0], lines[-1]) == ("False", "[]")
