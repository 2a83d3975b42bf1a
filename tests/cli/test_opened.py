"""`aswarm serve --open FILE` shows the runs of a file, such as the file of a failed simulation, in the playground."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
from cli_runs import AGENTS, invoke
from cli_server import running

from aswarm import Agent, AswarmError, AsyncSwarm
from aswarm.cli._exits import SetupError
from aswarm.cli._opened import read_logs, show_logs, shown_agents, shown_swarm
from aswarm.runs import LocalRuns, Run
from aswarm.testing import Failure, call
from aswarm.testing.simulate import Provider, SimulationError, World, simulate


@pytest.fixture
def failed(tmp_path: Path) -> str:
    """The path of the file of a failed universe with three runs: answered, failed, and left by its reader."""

    def look_up(order: int) -> str:
        return f"order {order}"

    @simulate(runs=1, folder=tmp_path)
    async def program(world: World) -> None:
        agent = Agent(name="shop", functions=[look_up])
        await world.run(
            world.swarm(Provider(world, [call("look_up", order=7), "It is on its way."])), agent, "Where is 7?"
        )
        with pytest.raises(AswarmError):
            await world.run(world.swarm(Provider(world, [Failure(400)])), agent, "Nothing")
        world.draw = lambda name, below: 1  # type: ignore[method-assign]
        await world.run(world.swarm(Provider(world, ["Never read."])), agent, "Left", may_leave=True)
        raise ValueError("planted")

    with pytest.raises(SimulationError) as caught:
        program()
    path = str(tmp_path / "program-0.jsonl")
    assert f"aswarm serve --open {path}" in str(caught.value)
    return path


@pytest.mark.anyio
async def test_a_file_has_the_runs_of_a_failed_universe(failed: str) -> None:
    """They are listed with their ends, the messages are in conversations, and their agents have names only."""
    logs = read_logs(failed)
    assert [agent.name for agent in shown_agents(logs)] == ["shop"]
    async with LocalRuns(shown_swarm(), agents=shown_agents(logs)) as runs:
        await show_logs(runs, "local", logs)
        records = await runs.list(user="local")
        assert {record.conversation: record.status for record in records} == {
            "seed 0 run 1": "finished",
            "seed 0 run 2": "failed",
            "seed 0 run 3": "stopped",
        }
        end = await Run(runs, next(record for record in records if record.status == "finished")).result()
        stored = await runs.store.load("local/seed 0 run 1")
        assert stored is not None
        assert end.response["text"] == "It is on its way."
        assert [message["role"] for message in stored.messages] == ["user", "assistant", "tool", "assistant"]


def test_a_run_without_an_end_died_with_its_process(tmp_path: Path) -> None:
    """A crash leaves such a log."""
    path = tmp_path / "runs.jsonl"
    first = {"run": "1", "seq": 0, "at": 5, "type": "RunStarted", "conversation": "", "agent": "a", "messages": []}
    path.write_text(json.dumps(first))
    (entries,) = read_logs(str(path)).values()
    assert [entry.type for entry in entries] == ["RunStarted", "RunStopped"]
    assert entries[-1].fields["reason"] == "process_died"


@pytest.mark.parametrize(
    ("content", "text"),
    [(None, "cannot be read"), ("[1]", "has no runs"), ('{"run": "1", "seq": 1, "at": 1, "type": "X"}', "RunStarted")],
)
def test_another_file_is_refused(tmp_path: Path, content: str | None, text: str) -> None:
    """The error names the file and what is missing."""
    path = tmp_path / "runs.jsonl"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SetupError, match=text):
        read_logs(str(path))


@pytest.mark.parametrize("agents", [[], ["agents:triage"]])
def test_an_address_is_checked_with_a_file_too(failed: str, folder: Path, agents: list[str]) -> None:
    """With agents of the user and without."""
    (folder / "agents.py").write_text(AGENTS, encoding="utf-8")
    result = invoke("serve", *agents, "--open", failed, "--host", "no host", "--token", "t")
    assert "cannot listen at no host" in result.stderr


def test_without_a_file_an_agent_is_needed() -> None:
    """As before."""
    assert "Missing argument 'AGENT...'" in invoke("serve").stderr


@pytest.mark.processes
@pytest.mark.slow
def test_the_playground_shows_the_file(failed: str) -> None:
    """Its routes list the conversation, the run and its entries, and a new message gets an answer that names the command."""
    with running("serve", "--open", failed) as (_, url), httpx.Client(base_url=url, timeout=30) as browser:
        listed = browser.get("/conversations").json()["conversations"]
        assert "Where is 7?" in [each["title"] for each in listed]
        assert '"type":"RunFinished"' in browser.get("/runs/seed%200%20run%201/events").text
        sent = browser.post("/conversations/1/runs", json={"text": "Hi"}, headers={"accept": "text/event-stream"})
        assert "no model answers" in sent.text


@pytest.mark.anyio
async def test_agents_of_the_user_go_on_with_a_file(failed: str) -> None:
    """Their names need not be in the file."""
    logs = read_logs(failed)
    async with LocalRuns(AsyncSwarm(Provider(World(0), [])), agents=Agent(name="another")) as runs:
        await show_logs(runs, "local", logs)
        assert len(await runs.list(user="local")) == 3
