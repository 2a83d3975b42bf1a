"""The command line as a process: broken pipes, Ctrl-C, encodings, and imports."""

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
from tests.support.cli.cli_runs import ended, environment, model, started, until
from tests.support.providers.loopback import LoopbackServer, Reply, sse

pytestmark = pytest.mark.processes

STALLS = Reply(sse(ScriptedAnswer("Hello, world"), cut=5).pieces[:3], end="stall")


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


@pytest.mark.parametrize("command", FEW_COMMANDS)
def test_a_pipe_that_is_closed(project: Path, command: str) -> None:
    """A pipe without a reader is exit code 141, and nothing is on stderr."""
    (project / "cases.json").write_text('[{"conversation": "a", "function": "None", "agent": "agents:triage"}]')
    with model("Hello") as server:
        done = in_shell(f"aswarm {command} < /dev/null | true; exit ${{PIPESTATUS[0]}}", server)
    assert (done.returncode, done.stderr) == (141, "")


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


EXTRAS = ["rich", "prompt_toolkit", "yaml"]


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
