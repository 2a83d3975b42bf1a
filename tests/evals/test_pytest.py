"""`assert_case`: cases as tests. A failure shows the answer of the model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aswarm import AsyncSwarm
from aswarm.evals import Case, assert_case, evaluate
from aswarm.testing import Failure, ScriptedAnswer, ScriptedModel, Step, call
from tests.support.evals.evaluated import desk
from tests.support.providers.loopback import Reply, serve, whole

HI = Case("Hi", function="book")


async def test_a_case_that_fails_shows_the_answer() -> None:
    """The error has the number of each failure, and provider errors."""
    steps: list[Step] = ["Hello", call("book", city="Rome"), "Hello", Failure(500, "busy")]
    swarm = AsyncSwarm(ScriptedModel(steps).client())
    with pytest.raises(AssertionError) as caught:
        await assert_case(desk, {"conversation": "Hi", "function": "book"}, swarm=swarm, repeats=4, concurrency=1)
    text = str(caught.value)
    assert text.startswith("accuracy 25.0% is below 100.0%\n    1/4    25.0%  Hi\n")
    assert "2x failed: expected book; the model answered 'Hello'" in text
    assert "1x error: the provider failed" in text
    assert "busy" in text


@pytest.mark.parametrize(("threshold", "passes"), [(0.5, True), (0.51, False)])
async def test_the_threshold(threshold: float, passes: bool) -> None:
    """An accuracy at the threshold passes."""
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
from typing import Any

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
@pytest.mark.parametrize("case", load_cases(Path(__file__).with_name("cases.json")), ids=str)
async def test_desk(case):
    await assert_case(agent, case, swarm=swarm, results=Path(__file__).with_name("results.json"))

def test_plain():
    asyncio.run(assert_case(agent, {"conversation": "Hi", "function": "book"}, swarm=swarm))
"""


@pytest.mark.processes
@pytest.mark.heavy
def test_from_pytest(tmp_path: Path) -> None:
    """Cases are parameters with ids, and the traceback of a failure has no frames of aswarm."""
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


@pytest.mark.asyncio
async def test_a_real_server(monkeypatch: pytest.MonkeyPatch, nothing_left: list[dict[str, Any]]) -> None:
    """Without a `swarm`, the evaluation makes a swarm from the environment and closes it."""

    def reply(body: dict[str, Any]) -> Reply:
        asked = body["messages"][-1]["content"]
        if "Question:" in asked:
            return whole(ScriptedAnswer('{"reason": "ok", "value": true}'))
        return whole(ScriptedAnswer(calls=[call("book", city="Rome")]) if asked == "Book" else ScriptedAnswer("Hello!"))

    cases = [
        Case("Book", function="book", arguments={"city": "Rome"}),
        Case("Hi", judge="Is it polite?"),
        Case("Hi", function="book"),
    ]
    async with serve(reply) as server:
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        report = await evaluate(desk, cases, repeats=3)
    assert [case.accuracy for case in report.cases] == [1, 1, 0], report
    assert len(server.requests) == 12
    assert report.usage.requests == 12
