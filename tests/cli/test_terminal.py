"""`aswarm run` and `aswarm demo` at a terminal: the same display as in the chat."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest

from aswarm.cli import main
from aswarm.testing import ScriptedAnswer, call
from tests.support.cli.cli_runs import AGENTS, environment, model
from tests.support.providers.loopback import Reply, sse
from tests.support.repl.chats import Tty
from tests.support.repl.screen import Screen
from tests.support.repl.terminal import terminal

STEPS: list[Any] = [
    call("transfer_to_orders"),
    ScriptedAnswer("One **moment**.", [call("look_up", order_id=7)]),
    "- a\n- b",
]
ANSWERS = ["One moment.", "", " • a", " • b"]
DETAILS = [
    "Triage",
    "  → transfer_to_orders()",
    '  ← transfer_to_orders: {"assistant": "Orders"}',
    "  Triage ⇒ Orders",
    "",
    "Orders",
    "One moment.",
    "",
    "  → look_up(order_id=7)",
    "  ← look_up: Order 7 of Ann",
    "",
    " • a",
    " • b",
]


class AtTerminal:
    """Runs the command with a terminal as stdout. A call returns the lines on the screen, and what stdout got."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.stderr: io.StringIO = Tty()

    def __call__(self, *arguments: str, steps: list[Any], **variables: str) -> tuple[list[str], str]:
        stdout = Tty()
        self._monkeypatch.setattr(sys, "argv", ["aswarm", *arguments])
        self._monkeypatch.setattr(sys, "stdout", stdout)
        self._monkeypatch.setattr(sys, "stderr", self.stderr)
        with model(*steps) as server:
            for name, value in {**environment(server), "TERM": "xterm", "COLUMNS": "80", **variables}.items():
                self._monkeypatch.setenv(name, value)
            with pytest.raises(SystemExit):
                main()
        screen = Screen(80)
        screen.feed(stdout.getvalue().replace("\n", "\r\n"))
        return screen.text.splitlines(), stdout.getvalue()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> AtTerminal:
    monkeypatch.delenv("NO_COLOR", raising=False)
    return AtTerminal(monkeypatch)


RUN = ("run", "agents:triage", "?", "-c", "user=Ann")


def test_the_answers_are_markdown(run: AtTerminal) -> None:
    """A capable terminal shows Markdown, and with -v the details; a terminal without colours shows the same text."""
    assert run(*RUN, steps=STEPS)[0] == ANSWERS
    assert run(*RUN, "-v", steps=STEPS)[0] == DETAILS
    shown, written = run(*RUN, "-v", steps=STEPS, NO_COLOR="1")
    assert shown == DETAILS
    assert "\x1b[9" not in written


def test_the_lines_are_plain(run: AtTerminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without rich, at a simple terminal, and if the details go to a file, the answer is the text of the model."""
    plain = ["One **moment**.", "- a", "- b"]
    assert run(*RUN, steps=STEPS, TERM="dumb")[0] == plain
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "rich", None)
        assert run(*RUN, steps=STEPS)[0] == plain
    run.stderr = io.StringIO()
    assert run(*RUN, "-v", steps=STEPS, TERM="xterm")[0] == plain
    assert run.stderr.getvalue().endswith(
        "Orders: look_up(order_id=7)\nlooking up\n  look_up: Order 7 of Ann\nOrders:\n"
    )


@pytest.mark.parametrize("text", ["\x1b[31mred", "**\x1b]0;title\x07**"])
@pytest.mark.parametrize("options", [(), ("-v",), ("--no-stream",)])
def test_no_text_controls_the_terminal(run: AtTerminal, text: str, options: tuple[str, ...]) -> None:
    """A model writes no control characters to a terminal, with each display."""
    for terminal_name in ("xterm", "dumb"):
        _, written = run(*RUN, *options, steps=[text], TERM=terminal_name)
        assert text.strip("*") not in written
        assert "␛" in written


def test_a_call_that_waits(run: AtTerminal) -> None:
    """-v shows why a call waits, also without streaming, and the open calls follow the display on stdout."""
    code = "\nfrom aswarm import tool\n\n@tool(approve=True)\ndef pay() -> str:\n    return ''\n\npayer = Agent(name='Bot', functions=[pay])\n"
    Path("agents.py").write_text(AGENTS + code, encoding="utf-8")
    for options in ((), ("--no-stream",)):
        shown, _ = run("run", "agents:payer", "?", "-v", *options, steps=[call("pay", call_id="c1")])
        assert shown[:3] == ["Bot", "  → pay()", "  ← pay: waits: needs approval"]
        assert "".join(shown[3:]).startswith('[{"index": 0, "id": "c1", "name": "pay"')


def test_the_demo_at_a_terminal(run: AtTerminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo has the display of the chat."""
    monkeypatch.setattr("aswarm.cli.demo_agents._refunded", set())
    shown, _ = run("demo", steps=[])
    start = shown.index("Triage")
    assert shown[start : start + 4] == [
        "Triage",
        "  → transfer_to_refunds()",
        '  ← transfer_to_refunds: {"assistant": "Refunds"}',
        "  Triage ⇒ Refunds",
    ]


PROGRAM = """
import sys, termios
from aswarm.cli import main
sys.argv = ["aswarm", "run", "agents:triage", "?", "-v"]
try:
    main()
finally:
    print("echo", bool(termios.tcgetattr(0)[3] & termios.ECHO))
"""


IN_BACKGROUND = """
import os, sys
if child := os.fork():
    _, status = os.waitpid(child, os.WUNTRACED)
    print("stopped" if os.WIFSTOPPED(status) else "ended")
    os.WIFSTOPPED(status) and os.kill(child, 9)
else:
    os.setpgid(0, 0)
    from aswarm.cli import main
    sys.argv = ["aswarm", "run", "agents:triage", "?"]
    main()
"""


@pytest.mark.processes
def test_a_run_in_the_background_of_a_shell() -> None:
    """`aswarm run ... &` shows the answer, and the system does not stop the process."""
    with model("All is **well**.") as server, terminal(IN_BACKGROUND, **environment(server)) as screen:
        screen.until("ended")
        assert screen.end() == 0
        assert "All is well." in screen.screen.text


@pytest.mark.processes
def test_ctrl_c_restores_the_terminal() -> None:
    """Ctrl-C in an answer ends the command with code 130, keeps the shown text, and switches the echo on again."""
    stalls = Reply(sse(ScriptedAnswer("Hello, world"), cut=5).pieces[:3], end="stall")
    with model(stalls) as server, terminal(PROGRAM, **environment(server), NO_COLOR="1") as screen:
        screen.until("Hello")
        screen.type("\x03")
        screen.until("echo True")
        assert screen.end() == 130
        assert "Hello" in screen.screen.text
        assert "Traceback" not in screen.screen.text
