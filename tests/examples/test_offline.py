"""`examples/offline.py` runs an example against its scripted model, and leaves nothing running."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples.transcripts import EXAMPLES, environment

SCRIPT = """
from aswarm.testing import ScriptedAnswer, ScriptedModel

def script():
    late, broken = ScriptedAnswer("late", delay=100), ScriptedAnswer("broken off", break_after=2)
    answers = {"wait": late, "break": broken}
    return ScriptedModel(lambda request: answers.get(text := request.messages[-1]["content"], f"You said {text}."), cut=3)
"""
RUN = """
import asyncio, os, sys
from aswarm import Agent, AsyncSwarm

async def main(*texts):
    print(os.getpid(), flush=True)
    async with AsyncSwarm() as swarm:
        for response in await asyncio.gather(*(swarm.run(Agent(), text) for text in texts)):
            print(response.text)
        async for event in swarm.run(Agent(), texts[0], stream=True):
            print(event.get("content"), end="|")

asyncio.run(main(*sys.argv[1:]))
sys.exit(7)
"""


@pytest.fixture
def offline(tmp_path: Path) -> list[str]:
    """The command of a copy of offline.py beside one small example, `say`."""
    (tmp_path / "say").mkdir()
    (tmp_path / "say" / "script.py").write_text(SCRIPT, encoding="utf-8")
    (tmp_path / "say" / "run.py").write_text(RUN, encoding="utf-8")
    shutil.copy(EXAMPLES / "offline.py", tmp_path)
    return [sys.executable, str(tmp_path / "offline.py"), "say"]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment())


def test_whole_and_streamed_answers_arrive_and_the_exit_code_is_that_of_the_example(offline: list[str]) -> None:
    """Concurrent whole answers, a streamed one in pieces, arguments passed on, exit code 7."""
    done = run(*offline, "a", "b")
    _, *lines = done.stdout.splitlines()
    assert lines == ["You said a.", "You said b.", "None|None|You| sa|id |a.|None|None|"], done
    assert (done.returncode, done.stderr) == (7, "")


def test_a_break_of_the_script_is_a_broken_connection(offline: list[str]) -> None:
    """The example gets the error of a broken connection."""
    assert "CompletionError" in run(*offline, "break").stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_example_too(offline: list[str], number: signal.Signals) -> None:
    """Ctrl-C and SIGTERM stop the process of the example, and the exit code names the signal."""
    process = subprocess.Popen(
        [*offline, "wait"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert process.stdout
    example = int(process.stdout.readline())
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (128 + number, "")
    with pytest.raises(ProcessLookupError):
        os.kill(example, 0)
