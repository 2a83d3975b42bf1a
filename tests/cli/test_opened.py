"""`aswarm serve --open FILE` shows the runs of a file, such as the file of a failed simulation, in the playground."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from aswarm import Agent, AswarmError, AsyncSwarm
from aswarm.cli._exits import SetupError
from aswarm.cli._opened import read_logs, show_logs, shown_agents, shown_swarm
from aswarm.runs import LocalRuns, Run
from aswarm.serve._run_as_test import run_as_test
from aswarm.testing import Failure, call
from aswarm.testing.simulate import Provider, SimulationError, World, simulate
from tests.support.cli.cli_runs import AGENTS, invoke
from tests.support.cli.cli_server import running


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
        end = await Run(runs, next(record for record in records if record.status == "finished")).last_entry()
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


SEPARATORS = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\rh"


@pytest.mark.anyio
async def test_a_text_may_have_separators_of_lines_and_pairs(tmp_path: Path) -> None:
    """Only a line feed ends a line of the file. A byte order mark, empty lines and CRLF are no fault."""
    path = tmp_path / "runs.jsonl"
    asked = {**FIRST, "messages": [{"role": "user", "content": SEPARATORS}]}
    lines = [asked, {**AT[1], "type": "TextDelta", "text": "half \ud800"}]
    data = b"\r\n\n".join(json.dumps(line, ensure_ascii=False).encode("utf-8", "surrogatepass") for line in lines)
    path.write_bytes(b"\xef\xbb\xbf" + data + b"\n")
    logs = read_logs(str(path))
    async with LocalRuns(shown_swarm(), agents=shown_agents(logs)) as runs:
        await show_logs(runs, "local", logs)
        stored = await runs.store.load("local/1")
        assert stored is not None
        assert stored.messages[0]["content"] == SEPARATORS


@pytest.mark.parametrize("arguments", [{}, {"arguments": None}, {"arguments": 7}, {"arguments": {"a": 1}}])
def test_a_call_without_arguments_as_text_can_be_copied_as_a_test(tmp_path: Path, arguments: dict[str, Any]) -> None:
    """The page shows such a run, so its button has an answer too: the arguments are the text that they were in the file."""
    path = tmp_path / "runs.jsonl"
    made = {"id": "c", "type": "function", "function": {"name": "look", **arguments}}
    message = {"role": "assistant", "content": None, "tool_calls": [made]}
    path.write_text(
        "\n".join(map(json.dumps, [FIRST, {**AT[1], "type": "CompletionFinished", "message": message, "usage": {}}]))
    )
    (entries,) = read_logs(str(path)).values()
    assert "call('look'" in run_as_test(entries, [])


FIRST = {"run": "1", "seq": 0, "at": 5, "type": "RunStarted", "conversation": "", "agent": "a", "messages": []}
AT: list[dict[str, Any]] = [{"run": "1", "seq": seq, "at": 5} for seq in range(4)]
CALL = {"index": 0, "id": "c", "name": "f"}
FAULTY: dict[str, tuple[object, str]] = {
    "empty": (b"", "line 1 must be an entry"),
    "only spaces": (b" \n\n", "line 1 must be an entry"),
    "binary": (bytes(range(256)), "line 1: not JSON"),
    "an image": (b"\x89PNG\r\n\x1a\n", "line 1: not UTF-8"),
    "latin-1": (json.dumps(FIRST).encode() + b"\ncaf\xe9", "line 2: not UTF-8"),
    "utf-16": (json.dumps(FIRST).encode("utf-16"), "line 1: not UTF-8"),
    "cut": (json.dumps(FIRST).encode()[:-9], "line 1: not JSON: .* (column "),
    "text": (b"The run failed.", "line 1: not JSON"),
    "two on a line": (json.dumps(FIRST).encode() * 2, "line 1: not JSON: Extra data"),
    "nested": (b"[" * 100_000, "line 1: nested too deep"),
    "long number": (b'{"run": ' + b"1" * 5000 + b"}", "line 1: "),
    "list": ([[1]], "line 1: expected an entry of a log, a JSON object"),
    "null": ([None], "line 1: expected an entry"),
    "no run": ([{"seq": 0}], "line 1: 'run' must be the id of a run, not None"),
    "run of another type": ([{**FIRST, "run": 1}], "line 1: 'run' must be"),
    "run with a slash": ([{**FIRST, "run": "a/b"}], "line 1: 'run' must be"),
    "no type": ([{**AT[0]}], "line 1: the entry has no 'type'"),
    "no time": ([{key: FIRST[key] for key in FIRST if key != "at"}], "line 1: the entry has no 'at'"),
    "time of another type": ([{**FIRST, "at": "now"}], "line 1: 'at' has the value 'now'"),
    "huge time": ([{**FIRST, "at": 10**30}], "line 1: 'at' has the value"),
    "flag as a number": ([{**FIRST, "seq": True}], "line 1: 'seq' has the value True"),
    "no first entry": ([{**AT[1], "type": "TurnStarted", "agent": "a"}], "line 1: .* RunStarted"),
    "two first entries": ([FIRST, {**FIRST, "seq": 1}], "line 2: .* RunStarted"),
    "number twice": ([FIRST, {**AT[0], "type": "X"}], "line 2: the entry 0 cannot follow the entry 0"),
    "after the end": (
        [FIRST, {**AT[1], "type": "RunStopped", "reason": "x"}, {**AT[2], "type": "X"}],
        "line 3: the entry 2 cannot follow",
    ),
    "messages of another type": ([{**FIRST, "messages": "Hi"}], "line 1: 'messages' has the value 'Hi'"),
    "a message that is none": ([{**FIRST, "messages": [{"role": "nobody"}]}], "line 1: the entry RunStarted is not"),
    "calls of another type": ([{**FIRST, "calls": [1]}], "line 1: the entry RunStarted is not valid"),
    "context of another type": ([{**FIRST, "context_variables": 1}], "line 1: the entry RunStarted is not valid"),
    "a call without index": ([FIRST, {**AT[1], "type": "ToolCallStarted"}], "line 2: the entry has no 'index'"),
    "a call without content": ([FIRST, {**AT[1], **CALL, "type": "ToolCallFinished"}], "line 2: .* no 'content'"),
    "a call without data": (
        [FIRST, {**AT[1], **CALL, "type": "CallWaiting", "reason": ""}],
        "line 2: the entry CallWaiting is not valid: 'data'",
    ),
    "a piece of another type": (
        [FIRST, {**AT[1], **CALL, "type": "ToolCallDelta", "arguments": 1}],
        "line 2: 'arguments' has the value 1",
    ),
    "no message": ([FIRST, {**AT[1], "type": "CompletionFinished", "usage": {}}], "line 2: .* no 'message'"),
    "a text of another type": ([FIRST, {**AT[1], "type": "TextDelta", "text": 1}], "line 2: 'text' has the value 1"),
    "no stop": ([FIRST, {**AT[1], "type": "RunFinished", "response": {}}], "line 2: 'response' has the value {}"),
    "a stop of another type": (
        [FIRST, {**AT[1], "type": "RunFinished", "response": {"stop": 1}}],
        "line 2: 'response' has the value",
    ),
    "an error of another type": ([FIRST, {**AT[1], "type": "RunFailed", "error": {}}], "line 2: 'error' has the value"),
    "an agent of another type": ([{**FIRST, "agent": []}], r"line 1: 'agent' has the value \[\]"),
}


@pytest.mark.parametrize("name", FAULTY)
def test_a_faulty_file_is_one_line_with_the_file_the_line_and_the_fault(tmp_path: Path, name: str) -> None:
    """The exit code is that of a usage error, and nothing listens."""
    content, fault = FAULTY[name]
    path = tmp_path / "runs.jsonl"
    data = content if isinstance(content, bytes) else "\n".join(map(json.dumps, content)).encode()  # type: ignore[call-overload]
    path.write_bytes(data)
    result = invoke("serve", "--open", str(path))
    assert result.exit_code == 2
    [line] = result.stderr.splitlines()
    assert str(path) in line
    assert re.search(fault.replace("(", r"\(").replace("{", r"\{"), line), line


def test_a_folder_and_a_file_that_does_not_exist_are_named(tmp_path: Path) -> None:
    """As for a faulty file."""
    for path in (tmp_path, tmp_path / "none.jsonl"):
        result = invoke("serve", "--open", str(path))
        [line] = result.stderr.splitlines()
        assert (result.exit_code, f"{path} cannot be read" in line) == (2, True)


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
