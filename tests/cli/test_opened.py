"""`aswarm serve --open FILE` shows the runs of a file, such as the file of a failed simulation, in the playground."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from aswarm import Agent, AswarmError
from aswarm.testing import Failure, call
from aswarm.testing.simulate import Provider, SimulationError, World, simulate
from tests.support.cli.cli_runs import invoke
from tests.support.cli.cli_server import running, served_here


@pytest.fixture
def failed(tmp_path: Path) -> str:
    """The file of a failed universe with three runs: a run is answered, a run fails, and a reader leaves a run."""

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


def shown(path: str, *urls: str) -> list[Any]:
    """Return the answers of the page of a file."""
    answers: list[Any] = []

    def ask(page: httpx.Client) -> None:
        for url in urls:
            text = page.get(url).text
            events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
            answers.append(events or json.loads(text))

    assert served_here("serve", "--open", path, ask=ask).exit_code == 130
    return answers


def test_a_file_has_the_runs_of_a_failed_universe(failed: str) -> None:
    """The page has the runs with their ends, their conversations, and agents with names only."""
    runs = [f"/runs/seed%200%20run%20{number}/events" for number in (1, 2, 3)]
    graph, conversation, *logs = shown(failed, "/graph", "/conversations/seed%200%20run%201", *runs)
    assert graph["agents"] == ["shop"]
    assert [message["role"] for message in conversation["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert [log[-1]["type"] for log in logs] == ["RunFinished", "RunFailed", "RunStopped"]
    assert logs[0][-1]["response"]["text"] == "It is on its way."


def write(path: Path, *entries: dict[str, Any]) -> str:
    """Write the entries to a file."""
    path.write_text("\n".join(map(json.dumps, entries)))
    return str(path)


def test_a_run_without_an_end_died_with_its_process(tmp_path: Path) -> None:
    """The page shows a run whose process crashed as stopped."""
    [entries] = shown(write(tmp_path / "runs.jsonl", FIRST), "/runs/1/events")
    assert [entry["type"] for entry in entries] == ["RunStarted", "RunStopped"]
    assert entries[-1]["reason"] == "process_died"


SEPARATORS = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\rh"


def test_a_text_may_have_separators_of_lines_and_pairs(tmp_path: Path) -> None:
    """Only a line feed ends a line of the file. A byte order mark, empty lines and CRLF are no fault."""
    path = tmp_path / "runs.jsonl"
    asked = {**FIRST, "messages": [{"role": "user", "content": SEPARATORS}]}
    lines = [asked, {**AT[1], "type": "TextDelta", "text": "half \ud800"}]
    data = b"\r\n\n".join(json.dumps(line, ensure_ascii=False).encode("utf-8", "surrogatepass") for line in lines)
    path.write_bytes(b"\xef\xbb\xbf" + data + b"\n")
    [conversation] = shown(str(path), "/conversations/1")
    assert conversation["messages"][0]["content"] == SEPARATORS


def test_a_call_without_arguments_as_text_can_be_copied_as_a_test(tmp_path: Path) -> None:
    """The test of such a run has the arguments that are in the file."""
    made = [
        {"id": f"c{number}", "type": "function", "function": {"name": f"look{number}", **arguments}}
        for number, arguments in enumerate(({}, {"arguments": None}, {"arguments": 7}, {"arguments": {"a": 1}}))
    ]
    finished = {"message": {"role": "assistant", "content": None, "tool_calls": made}, "usage": {}}
    path = write(tmp_path / "runs.jsonl", FIRST, {**AT[1], "type": "CompletionFinished", **finished})
    [answer] = shown(path, "/runs/1/test")
    assert all(f"call('look{number}'" in answer["test"] for number in range(4))


FIRST = {"run": "1", "seq": 0, "at": 5, "type": "RunStarted", "conversation": "", "agent": "a", "messages": []}
AT: list[dict[str, Any]] = [{"run": "1", "seq": seq, "at": 5} for seq in range(4)]
CALL = {"index": 0, "id": "c", "name": "f"}
FAULTY: dict[str, tuple[object, str]] = {
    "empty": (b"", "line 1 must be an entry"),
    "binary": (bytes(range(256)), "line 1: not JSON"),
    "latin-1": (json.dumps(FIRST).encode() + b"\ncaf\xe9", "line 2: not UTF-8"),
    "utf-16": (json.dumps(FIRST).encode("utf-16"), "line 1: not UTF-8"),
    "cut": (json.dumps(FIRST).encode()[:-9], "line 1: not JSON: .* (column "),
    "nested": (b"[" * 100_000, "line 1: nested too deep"),
    "long number": (b'{"run": ' + b"1" * 5000 + b"}", "line 1: "),
    "list": ([[1]], "line 1: expected an entry of a log, a JSON object"),
    "no run": ([{"seq": 0}], "line 1: 'run' must be the id of a run, not None"),
    "run with a slash": ([{**FIRST, "run": "a/b"}], "line 1: 'run' must be"),
    "no type": ([{**AT[0]}], "line 1: the entry has no 'type'"),
    "no time": ([{key: FIRST[key] for key in FIRST if key != "at"}], "line 1: the entry has no 'at'"),
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
    "a stop of another type": (
        [FIRST, {**AT[1], "type": "RunFinished", "response": {"stop": 1}}],
        "line 2: 'response' has the value",
    ),
    "an error of another type": ([FIRST, {**AT[1], "type": "RunFailed", "error": {}}], "line 2: 'error' has the value"),
    "an agent of another type": ([{**FIRST, "agent": []}], r"line 1: 'agent' has the value \[\]"),
}


@pytest.mark.parametrize("name", FAULTY)
def test_a_faulty_file_is_one_line_with_the_file_the_line_and_the_fault(tmp_path: Path, name: str) -> None:
    """A faulty file is a usage error before anything listens."""
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
    """A file that cannot be read is a usage error with its path."""
    for path in (tmp_path, tmp_path / "none.jsonl"):
        result = invoke("serve", "--open", str(path))
        [line] = result.stderr.splitlines()
        assert (result.exit_code, f"{path} cannot be read" in line) == (2, True)


@pytest.mark.parametrize("agents", [[], ["agents:triage"]])
def test_an_address_is_checked_with_a_file_too(failed: str, agents: list[str]) -> None:
    """The address is checked with agents of the user and without."""
    result = invoke("serve", *agents, "--open", failed, "--host", "no host", "--token", "t")
    assert "cannot listen at no host" in result.stderr


@pytest.mark.processes
@pytest.mark.slow
def test_the_playground_shows_the_file(failed: str) -> None:
    """A process shows the conversation and the entries, and answers a new message with the command for more."""
    with running("serve", "--open", failed) as (_, url), httpx.Client(base_url=url, timeout=30) as browser:
        listed = browser.get("/conversations").json()["conversations"]
        assert "Where is 7?" in [each["title"] for each in listed]
        assert '"type":"RunFinished"' in browser.get("/runs/seed%200%20run%201/events").text
        sent = browser.post("/conversations/1/runs", json={"text": "Hi"}, headers={"accept": "text/event-stream"})
        assert "no model answers" in sent.text


def test_agents_of_the_user_continue_with_a_file(failed: str) -> None:
    """The service has the runs of the file beside agents with other names."""
    listed: list[Any] = []
    command = ["serve", "agents:triage", "--open", failed, "--base-url", "http://127.0.0.1:9/v1"]
    served_here(*command, ask=lambda page: listed.extend(page.get("/conversations").json()["conversations"]))
    assert len(listed) == 3
