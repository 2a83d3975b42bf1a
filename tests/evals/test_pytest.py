"""`assert_case`: cases as tests, whose failures show what the model did."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from aswarm import AsyncSwarm
from aswarm.evals import Case, assert_case
from aswarm.testing import Failure, ScriptedModel, Step, call
from tests.support.evals.evaluated import desk, swarm_that

HI = Case("Hi", function="book")


@pytest.mark.anyio
async def test_a_case_that_passes_gives_its_report() -> None:
    """The report is returned."""
    report = await assert_case(desk, HI, swarm=swarm_that({"Hi": call("book", city="Rome")}), repeats=3)
    assert (report.accuracy, report.total) == (1, 3)


@pytest.mark.anyio
async def test_a_case_that_fails_shows_what_the_model_did() -> None:
    """The error has the number of each failure, and provider errors."""
    steps: list[Step] = ["Hello", call("book", city="Rome"), "Hello", Failure(500, "busy")]
    swarm = AsyncSwarm(ScriptedModel(steps).client())
    with pytest.raises(AssertionError) as caught:
        await assert_case(desk, {"conversation": "Hi", "function": "book"}, swarm=swarm, repeats=4, concurrency=1)
    told = str(caught.value)
    assert told.startswith("accuracy 25.0% is below 100.0%\n    1/4    25.0%  Hi\n")
    assert "2x failed: expected book; the model answered 'Hello'" in told
    assert "1x error: the provider failed" in told
    assert "busy" in told


@pytest.mark.anyio
@pytest.mark.parametrize(("threshold", "passes"), [(0.5, True), (0.51, False)])
async def test_the_threshold(threshold: float, passes: bool) -> None:
    """Accuracy at the threshold passes."""
    steps: list[Step] = ["Hello", call("book", city="Rome")]
    running = assert_case(desk, HI, swarm=AsyncSwarm(ScriptedModel(steps).client()), repeats=2, threshold=threshold)
    if passes:
        await running
    else:
        with pytest.raises(AssertionError):
            await running


TESTS = """
import asyncio
from pathlib import Path

import pytest
from aswarm import Agent, AsyncSwarm
from aswarm.evals import assert_case, load_cases
from aswarm.testing import ScriptedModel, call

def book(city: str): ...

agent = Agent(functions=[book])
swarm = AsyncSwarm(ScriptedModel(lambda _: call("book", city="Rome")).client())

@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest.mark.anyio
@pytest.mark.parametrize("case", load_cases(Path(__file__).with_name("cases.json")), ids=str)
async def test_desk(case):
    await assert_case(agent, case, swarm=swarm, results=Path(__file__).with_name("results.json"))

def test_plain():
    asyncio.run(assert_case(agent, {"conversation": "Hi", "function": "book"}, swarm=swarm))
"""


@pytest.mark.processes
@pytest.mark.heavy
def test_from_pytest(tmp_path: Path) -> None:
    """Cases are parameters, named by their user message; the traceback of a failure ends in the test, not inside aswarm."""
    cases = [{"conversation": "Rome!", "function": "book"}, {"conversation": "Hello", "function": "None"}]
    (tmp_path / "cases.json").write_text(json.dumps(cases), encoding="utf-8")
    (tmp_path / "test_desk.py").write_text(TESTS, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", str(tmp_path / "test_desk.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "::test_desk[Rome!" in done.stdout
    assert "::test_plain" in done.stdout
    assert "::test_desk[Hello" in done.stdout
    assert '1x failed: expected no call; the model called book({"city": "Rome"})' in done.stdout
    assert "1 failed, 2 passed" in done.stdout
    assert "_evaluate.py" not in done.stdout
    assert len(json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))) == 2
