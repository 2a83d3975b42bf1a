"""`examples/model.py`: a rule-based model, for `nox -s model` and `nox -s demo -- --chat`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
from openai import AsyncOpenAI

from aswarm import Agent, AsyncSwarm
from tests.examples.transcripts import EXAMPLES

MODEL = [sys.executable, "-u", str(EXAMPLES / "model.py")]


@pytest.fixture
def url() -> Iterator[str]:
    """The base URL that the server prints."""
    with subprocess.Popen(MODEL, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield re.findall(r"http://\S+", process.stdout.readline())[0]
        process.terminate()


@pytest.mark.asyncio
async def test_a_program_with_functions_of_its_own(url: str) -> None:
    """Words choose the function, numbers and the message become arguments, and a missing argument is asked for."""

    def set_light(level: int, mode: str) -> str:
        """Set the light of the room."""
        return f"{level} {mode}"

    def lock(door: bool, names: list[str]) -> str:
        """Lock up."""
        return f"{door} {names}"

    agent = Agent(functions=[set_light, lock])
    async with AsyncOpenAI(base_url=url, api_key="x") as client:
        swarm = AsyncSwarm(client)
        texts = [(await swarm.run(agent, said)).text for said in ("Lights to 7!", "Lights!", "Lock up", "Hello")]
    assert texts[:3] == ["7 Lights to 7!", "To call set_light I need a number: level.", "True []"]
    assert "set_light, lock" in texts[3]


def test_a_chat() -> None:
    """The command uses the model of its environment, and its exit code is returned."""
    chat = ["-m", "aswarm", "chat", "aswarm.cli.demo_agents:triage"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("OPENAI_")}
    done = subprocess.run(
        [*MODEL, *chat],
        input="Refund order 815\n",
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "Refunded 5.00 EUR for order 815." in done.stdout
