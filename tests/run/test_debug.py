"""`debug=True` prints what Swarm prints, and logs the same to the logger `aswarm`."""

from __future__ import annotations

import logging
import re
import sys
from typing import Any

import pytest

from aswarm import Agent, AsyncSwarm, tool
from aswarm.testing import ScriptedModel, call
from tests.support.run.ways_to_run import FACES, consume

# Swarm's own line: the time and the text, in its colours.
LINE = re.compile(r"\033\[97m\[\033\[90m\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\033\[97m\]\033\[90m (.*)\033\[0m")


def look(what: str) -> str:
    return f"{what} seen"


async def play(face: str, **options: Any) -> None:
    model = ScriptedModel([[call("look", what="x"), call("nobody"), call("look", "{")], "Done"])
    await consume(AsyncSwarm(client=model.client()), Agent(functions=[look]), face, [], **options)


def stdout_is(monkeypatch: pytest.MonkeyPatch, *, terminal: bool, no_color: str) -> None:
    """Make stdout a terminal or a pipe, and set NO_COLOR."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    monkeypatch.setenv("NO_COLOR", no_color)


@pytest.mark.parametrize("face", FACES)
async def test_the_printed_lines(
    face: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every step of a run is one line, in Swarm's words and colours, and the log has the same texts."""
    stdout_is(monkeypatch, terminal=True, no_color="")
    with caplog.at_level(logging.DEBUG, logger="aswarm"):
        await play(face, debug=True)
    out, err = capsys.readouterr()
    texts = LINE.findall(out)
    assert len(texts) == len(out.splitlines()) and err == ""
    begins = [
        "Getting chat completion for...: [{'role': 'system', 'content': 'You are a helpful agent.'}, {'role': 'user', ",
        "Received completion: {'role': 'assistant', 'content': None, 'sender': 'Agent', 'tool_calls': [{'id': ",
        "Processing tool call: look with arguments {'what': 'x'}",
        "Tool nobody not found in function map.",
        "Processing tool call: look with arguments {",
        "Getting chat completion for...: [{'role': 'system', ",
        "Received completion: {'role': 'assistant', 'content': 'Done', ",
        "Ending turn.",
    ]
    assert [text[: len(begin)] for text, begin in zip(texts, begins, strict=True)] == begins
    logged = [record.getMessage() for record in caplog.records if record.levelno == logging.DEBUG]
    assert logged == texts
    assert {record.name for record in caplog.records} == {"aswarm"}


@pytest.mark.parametrize("face", FACES)
async def test_nothing_is_printed_without_it(face: str, capsys: pytest.CaptureFixture[str]) -> None:
    await play(face)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("terminal", "no_color"), [(True, "1"), (False, "")])
async def test_no_colours(
    terminal: bool, no_color: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """NO_COLOR or a pipe switches the colours off; Swarm's words stay."""
    stdout_is(monkeypatch, terminal=terminal, no_color=no_color)
    await play("run", debug=True)
    out = capsys.readouterr().out
    assert re.match(r"\[[-\d]+ [:\d]+\] Getting chat completion for...: ", out)
    assert "\033" not in out


async def test_a_process_without_stdout(monkeypatch: pytest.MonkeyPatch) -> None:
    """`sys.stdout` may be None, and the run does not fail."""
    monkeypatch.setattr(sys, "stdout", None)
    await play("run", debug=True)


async def test_a_call_that_waits_is_printed_before_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    """A call that waits is printed like every other call, and again when the run is resumed."""

    @tool(approve=True)
    async def refund(order: int) -> str:
        return f"refunded {order}"

    model = ScriptedModel([call("refund", call_id="c1", order=7), "Done"])
    swarm, agent = AsyncSwarm(client=model.client()), Agent(functions=[refund])
    first = await swarm.run(agent, "Go", debug=True)
    texts = [line[22:] for line in capsys.readouterr().out.splitlines()]
    assert texts[2:] == ["Processing tool call: refund with arguments {'order': 7}"]
    history = [{"role": "user", "content": "Go"}, *first.messages]
    await swarm.run(agent, history, resume={"c1": True}, debug=True)
    texts = [line[22:] for line in capsys.readouterr().out.splitlines()]
    assert texts[0] == "Processing tool call: refund with arguments {'order': 7}"
    assert "waiting" not in texts[1]  # the messages that are sent
    assert texts[-1] == "Ending turn."
