"""`aswarm run` with a call that waits: its output, its file, and its decisions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from aswarm.conversations import Change, SQLiteStore
from aswarm.testing import ScriptedAnswer, call
from tests.support.cli.cli_runs import AGENTS, invoke, model, refused, stored, texts
from tests.support.sampling import listed

CASHIER = '''
from aswarm import Hold, current_call, tool

@tool(approve=True)
async def refund(order: int) -> str:
    """Refund an order."""
    print("refunding", order)
    return f"refunded {order}"

@tool(may_wait=True)
async def ask(what: str) -> str:
    """Ask a person."""
    if current_call().answer is None:
        raise Hold(f"Which {what}?", data={"of": what})
    return str(current_call().answer)

cashier = Agent(name="Cashier", functions=[refund, ask])
desk = Agent(name="Desk", functions=[cashier])
'''
OPEN = [
    {"index": 0, "id": "c1", "name": "refund", "arguments": '{"order": 7}', "agent": "Cashier", "reason": "needs approval", "data": None, "answer": None},
    {"index": 1, "id": "c2", "name": "ask", "arguments": '{"what": "account"}', "agent": "Cashier", "reason": "Which account?", "data": {"of": "account"}, "answer": None},
]  # fmt: skip


@pytest.fixture(autouse=True)
def cashier(project: Path) -> None:
    """Agents with calls that wait."""
    (project / "agents.py").write_text(AGENTS + CASHIER, encoding="utf-8")


def asks() -> ScriptedAnswer:
    """Return a text with both calls."""
    return ScriptedAnswer(
        "One moment.", [call("refund", call_id="c1", order=7), call("ask", call_id="c2", what="account")]
    )


def decided(decisions: Any) -> str:
    """Write a file of decisions."""
    Path("decisions.json").write_text(json.dumps(decisions), encoding="utf-8")
    return "decisions.json"


def keep(file: str, messages: list[dict[str, Any]], agent: str) -> None:
    """Write a conversation with this agent to the file."""

    async def write() -> None:
        async with SQLiteStore(file) as store:
            await store.write("conversation", Change("", "1", 0, messages, agent, {}))

    anyio.run(write)


CONTINUE = ("run", "agents:desk", "--store", "talk.sqlite", "--resume")


@pytest.mark.parametrize("option", listed(["--stream", "--no-stream"], ["--stream"]))
def test_a_question_whose_calls_wait_and_the_decisions(option: str) -> None:
    """Open calls are a line of JSON and exit code 3, and each decision continues the conversation."""
    with model(call("transfer_to_cashier"), asks()) as server:
        result = invoke("run", option, "agents:desk", "Refund!", "--store", "talk.sqlite", server=server)
    text, line = result.stdout.splitlines()
    assert (result.exit_code, text, json.loads(line)) == (3, "One moment.", OPEN)
    assert (
        "waiting for a decision on refund (c1), ask (c2); the conversation can be continued with --resume DECISIONS"
        in result.stderr
    )
    with model() as server:
        result = invoke(*CONTINUE, decided({"c1": {"deny": "too late"}}), server=server)
    assert (result.exit_code, json.loads(result.stdout)) == (3, OPEN[1:])
    with model("All done.") as server:
        result = invoke(*CONTINUE, "-", option, server=server, stdin=json.dumps({"c2": {"answer": "the second"}}))
    assert (result.exit_code, result.stdout) == (0, "All done.\n")
    answers = [message["content"] for message in server.requests[0]["messages"] if message["role"] == "tool"]
    assert answers[1:] == ["not run: denied by the user: too late", "the second"]
    assert stored("talk.sqlite", "conversation") is not None


def test_the_json_events_have_the_open_calls() -> None:
    """With --json each open call has an event, and the last line has all of them."""
    with model(asks()) as server:
        result = invoke("run", "--json", "agents:cashier", "Refund!", server=server)
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert (result.exit_code, lines[-1]["type"], lines[-1]["response"]["waiting"]) == (3, "RunFinished", OPEN)
    assert [line["id"] for line in lines if line["type"] == "CallWaiting"] == ["c1", "c2"]
    assert "can be continued if you keep it with --store FILE" in result.stderr


def test_a_failure_after_an_approved_call_is_kept() -> None:
    """The file has the result of an approved call whose run failed, so the next run does not run it again."""
    with model(call("refund", call_id="c1", order=7)) as server:
        invoke("run", "agents:cashier", "Refund!", "--store", "talk.sqlite", server=server)
    with model() as server:
        result = invoke(*CONTINUE, decided(True), server=server)  # the call needs a decision, so it stays open
    assert (result.exit_code, result.stderr.count("refunding 7")) == (3, 0)
    with model(refused("400 Bad Request", "no")) as server:
        result = invoke(*CONTINUE, decided("approve_all"), server=server)
    assert (result.exit_code, result.stderr.count("refunding 7")) == (1, 1)
    assert texts("talk.sqlite", "conversation")[-1] == "refunded 7"
    result = invoke(*CONTINUE, decided({"c1": True}), server=server)
    assert (result.exit_code, "messages have no open calls" in result.stderr) == (2, True)
    with model("Done.") as server:
        result = invoke(*CONTINUE, decided(True), server=server)
    assert (result.stdout, "refunding" in result.stderr) == ("Done.\n", False)


def test_another_question_continues_a_stored_conversation() -> None:
    """A question is a new message, and open calls are answered as interrupted."""
    with model(asks()) as server:
        invoke("run", "agents:cashier", "Refund!", "--store", "talk.sqlite", server=server)
    with model("Never mind.") as server:
        result = invoke("run", "agents:cashier", "Stop", "--store", "talk.sqlite", server=server)
    assert (result.exit_code, result.stdout) == (0, "Never mind.\n")
    roles = [message["role"] for message in server.requests[0]["messages"][1:]]
    assert roles == ["user", "assistant", "tool", "tool", "user"]
    assert len(texts("talk.sqlite", "conversation")) == 6


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "there is no QUESTION"),
        (["--resume", "decisions.json"], "--resume needs --store"),
        (["Hi", "--conversation", "ann"], "--conversation needs --store"),
        (["Hi", "--store", "talk.sqlite", "--resume", "decisions.json"], "takes no QUESTION"),
        (["--store", "talk.sqlite", "--resume", "missing.json"], "missing.json cannot be read: No such file"),
        (["--store", "talk.sqlite", "--resume", "bad.json"], "bad.json is not JSON"),
        (["--store", "talk.sqlite", "--resume", "list.json"], 'list.json must be true, "approve_all", or an object of decisions by call id'),
        (["--store", "talk.sqlite", "--resume", "decisions.json"], "resume names 'c9', but no open call has this id"),
        (["--store", "list.json", "--resume", "decisions.json"], "the store list.json cannot be opened"),
        (["--store", "other.sqlite", "--resume", "decisions.json"], "is with the agent 'Nobody'. An agent is recorded by its name, and no agent of this name can be found from 'Cashier'"),
    ],
    ids=["nothing", "no store", "no store for the id", "question", "missing", "not JSON", "list", "id", "foreign", "agent"],
)  # fmt: skip
def test_decisions_that_cannot_be_used(arguments: list[str], text: str) -> None:
    """Wrong decisions are a usage error, nothing is sent, and no file is changed."""
    made = {"id": "c1", "type": "function", "function": {"name": "refund", "arguments": '{"order": 7}'}}
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": [made]}]
    keep("talk.sqlite", messages, "Cashier")
    keep("other.sqlite", messages, "Nobody")
    Path("decisions.json").write_text('{"c9": true}', encoding="utf-8")
    Path("list.json").write_text("[1]", encoding="utf-8")
    Path("bad.json").write_text("{", encoding="utf-8")
    before = stored("talk.sqlite", "conversation")
    with model() as server:
        result = invoke("run", "agents:cashier", *arguments, server=server)
    assert (result.exit_code, server.requests) == (2, [])
    assert text in result.stderr
    assert stored("talk.sqlite", "conversation") == before


def test_a_chat_continues_the_conversation_of_a_question() -> None:
    """Without `--conversation`, run and chat use the same conversation of a store."""
    with model("Hello.", "Bye.") as server:
        invoke("run", "agents:cashier", "Hi", "--store", "talk.sqlite", server=server)
        chat = invoke("chat", "agents:cashier", "--store", "talk.sqlite", server=server, stdin="Bye\n")
    assert "2 messages loaded." in chat.stdout
    assert texts("talk.sqlite", "conversation") == ["Hi", "Hello.", "Bye", "Bye."]
