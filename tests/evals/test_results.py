"""The results file: each evaluation appends a whole record, also if it is interrupted."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, ConfigurationError, Response
from aswarm.evals import Case, evaluate
from aswarm.testing import Request, ScriptedModel, Step
from tests.support.evals.evaluated import desk, swarm_that

HI = Case("Hi", function=None)


def read(path: Path) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return records


@pytest.mark.parametrize("before", ['[{"id": "swarm\'s"}]', '{"id": "swarm\'s"}', ""])
async def test_the_records_of_the_file_stay(tmp_path: Path, before: str) -> None:
    """A list of Swarm's results stays; a single record becomes the first of a list; an empty file has no records."""
    path = tmp_path / "results.json"
    path.write_text(before, encoding="utf-8")
    await evaluate(desk, [HI], swarm=swarm_that({"Hi": "Hello"}), results=str(path))
    assert [record["id"] for record in read(path)][:-1] == (["swarm's"] if before else [])


@pytest.mark.parametrize("text", ["notes", "[" * 100_000], ids=["text", "nested"])
async def test_a_file_that_is_not_json_is_refused_before_anything_is_sent(tmp_path: Path, text: str) -> None:
    """A file that is not JSON stays as it is."""
    path = tmp_path / "results.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError, match="is not a results file"):
        await evaluate(desk, [HI], swarm=AsyncSwarm(ScriptedModel([]).client()), results=path)
    assert path.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("place", ["file/results.json", ".", "pipe"])
async def test_a_place_that_cannot_be_written_is_refused_before_anything_is_sent(tmp_path: Path, place: str) -> None:
    """A folder, a pipe, and a path in a file are errors, and no file is made."""
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigurationError, match="cannot be written"):
        await evaluate(desk, [HI], swarm=AsyncSwarm(ScriptedModel([]).client()), results=tmp_path / place)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "pipe"]


def stuck_after(answers: int) -> tuple[AsyncSwarm, anyio.Event]:
    """Return a swarm whose model answers so many times, then sets the event and waits."""
    stuck = anyio.Event()

    class Stuck(ScriptedModel):
        async def _respond(self, request: Request) -> Any:
            if len(self.requests) == answers:
                stuck.set()
                await anyio.sleep_forever()
            return await super()._respond(request)

    return AsyncSwarm(Stuck(lambda _: "Hello").client()), stuck


@pytest.mark.parametrize("is_writable", [True, False])
async def test_a_cancelled_evaluation_keeps_finished_attempts(tmp_path: Path, is_writable: bool) -> None:
    """The cancellation leaves as itself, with the report, also if the results cannot be written."""
    path = tmp_path / "results.json"
    swarm, stuck = stuck_after(3)
    raised: list[Any] = []

    async def run() -> None:
        try:
            await evaluate(desk, [HI, HI], swarm=swarm, repeats=2, concurrency=1, results=path)
        except BaseException as error:
            raised.append(error)
            raise

    with anyio.fail_after(120):
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await stuck.wait()
            if not is_writable:
                path.write_text("no JSON")
            group.cancel_scope.cancel()
    assert isinstance(raised[0], anyio.get_cancelled_exc_class())
    report = raised[0].report
    assert report.interrupted
    assert (report.passed, report.total) == (3, 3)
    assert [case.total for case in report.cases] == [2, 1]
    if is_writable:
        [record] = read(path)
        assert (record["interrupted"], record["total_evals"]) == (True, 3)


CTRL_C = """
import asyncio, os, signal, sys
from aswarm import Agent, AsyncSwarm
from aswarm.evals import Case, evaluate
from aswarm.testing import ScriptedModel

def script(request):
    if len(model.requests) == 3:
        signal.raise_signal(signal.SIGINT)
    return "Hello"

model = ScriptedModel(script)
cases = [Case("Hi", function=None)]
swarm = AsyncSwarm(model.client())
try:
    asyncio.run(evaluate(Agent(), cases, swarm=swarm, repeats=99, concurrency=1, results=sys.argv[1]))
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.processes
def test_ctrl_c_keeps_finished_attempts(tmp_path: Path) -> None:
    """Ctrl-C raises KeyboardInterrupt, writes nothing to stderr, and keeps the finished attempts."""
    path = tmp_path / "results.json"
    command = [sys.executable, "-W", "error", "-c", CTRL_C, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert (done.stdout, done.stderr) == ("interrupted\n", "")
    [record] = read(path)
    assert record["interrupted"] is True
    assert 2 <= record["total_evals"] < 99


def test_code_that_exits_stops_the_evaluation(tmp_path: Path) -> None:
    """`exit()` in a check stops the evaluation, and finished attempts are kept."""
    path = tmp_path / "results.json"

    def check(response: Response) -> bool:
        if response.text == "Bye":
            raise SystemExit(3)
        return True

    steps: list[Step] = ["Hello", "Hello", "Bye"]
    swarm = AsyncSwarm(ScriptedModel(steps).client())
    with pytest.raises(SystemExit):
        asyncio.run(evaluate(desk, [Case("Hi", check=check)], swarm=swarm, repeats=5, concurrency=1, results=path))
    [record] = read(path)
    assert (record["correct_evals"], record["interrupted"]) == (2, True)


@pytest.mark.asyncio
async def test_a_report_that_cannot_be_written_is_not_lost(tmp_path: Path) -> None:
    """The error has the report, because its attempts have cost money."""
    folder = tmp_path / "results"

    def check(_: object) -> bool:
        folder.rmdir()
        return True

    swarm = AsyncSwarm(ScriptedModel(["Hello"]).client())
    with pytest.raises(OSError, match="No such file or directory") as caught:
        await evaluate(Agent(), [Case("Hi", check=check)], swarm=swarm, results=folder / "all.json")
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    assert caught.value.report.passed == 1  # type: ignore[attr-defined]
