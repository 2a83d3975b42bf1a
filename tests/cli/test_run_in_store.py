"""`aswarm run --store FILE --conversation ID`: questions of one conversation, which is kept as it happens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from aswarm.conversations import SQLiteStore, Stored
from aswarm.testing import ScriptedAnswer, call, check_history
from tests.support.cli.cli_runs import AGENTS, invoke, model, refused

CLERK = '''
from aswarm import tool

@tool(approve=True)
async def refund(order: int) -> str:
    """Refund an order."""
    return f"refunded {order}"

clerk = Agent(name="Clerk", functions=[refund])
'''
KEPT = ("--store", "chats.sqlite", "--conversation", "ann")


@pytest.fixture(autouse=True)
def project(folder: Path) -> None:
    """A module `agents` in the current directory."""
    (folder / "agents.py").write_text(AGENTS + CLERK, encoding="utf-8")


def stored() -> Stored | None:
    """What the store has."""

    async def load() -> Stored | None:
        async with SQLiteStore("chats.sqlite") as store:
            return await store.load("ann")

    found = anyio.run(load)
    if found is not None:
        check_history(found.messages, allow_open=True)
    return found


def texts() -> list[Any]:
    """The contents of the messages in the store."""
    found = stored()
    return [] if found is None else [message.get("content") for message in found.messages]


@pytest.mark.parametrize("option", ["--stream", "--no-stream"])
def test_a_question_after_another(option: str) -> None:
    """The second one continues with the agent, the context and the messages of the first one."""
    with model(call("transfer_to_orders"), "Which one?", call("look_up", order_id=7), "On its way.") as server:
        first = invoke("run", option, "agents:triage", "Where?", *KEPT, "-c", "user=Ann", server=server)
        second = invoke("run", option, "agents:triage", "7", *KEPT, server=server)
    assert (first.exit_code, first.stdout, second.exit_code, second.stdout) == (0, "Which one?\n", 0, "On its way.\n")
    assert texts()[4:] == ["7", None, "Order 7 of Ann", "On its way."]
    assert [bool(request.get("stream")) for request in server.requests] == [option == "--stream"] * 4


def test_calls_that_wait_are_decided_later() -> None:
    """Exit code 3, the open calls as JSON, and `--resume` without files of the conversation."""
    with model(call("refund", call_id="c1", order=7), "Refunded.") as server:
        asked = invoke("run", "agents:clerk", "Refund 7", *KEPT, server=server)
        decided = invoke("run", "agents:clerk", *KEPT, "--resume", "-", server=server, stdin='{"c1": true}')
    assert (asked.exit_code, json.loads(asked.stdout)[0]["id"]) == (3, "c1")
    assert "the conversation can be continued with --resume DECISIONS" in asked.stderr
    assert (decided.exit_code, decided.stdout) == (0, "Refunded.\n")
    assert texts()[2:] == ["refunded 7", "Refunded."]


@pytest.mark.parametrize("option", ["--stream", "--no-stream"])
def test_a_failure_leaves_the_question_in_the_store(option: str) -> None:
    """The last line says what failed, and `--resume` with true asks the model again."""
    with model(refused("400 Bad Request", "no"), "Hi.") as server:
        failed = invoke("run", option, "agents:orders", "Hello", *KEPT, "--json", server=server)
        assert texts() == ["Hello"]
        again = invoke("run", "agents:orders", *KEPT, "--resume", "-", server=server, stdin="true")
    assert (failed.exit_code, json.loads(failed.stdout.splitlines()[-1])["type"]) == (1, "RunFailed")
    assert (again.exit_code, texts()) == (0, ["Hello", "Hi."])


def test_ctrl_c_in_a_tool() -> None:
    """What has happened until then is in the store, with a call whose outcome is unknown."""
    with model(ScriptedAnswer("One moment.", [call("stop")])) as server:
        result = invoke("run", "agents:triage", "Hello", *KEPT, "--json", server=server)
    assert (result.exit_code, json.loads(result.stdout.splitlines()[-1])["type"]) == (130, "RunStopped")
    assert "the outcome of these calls is unknown: stop" in result.stderr
    assert texts()[:2] == ["Hello", "One moment."]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["Hi", "--conversation", "x"], "--conversation needs --store"),
        (["Hi", *KEPT, "--save", "a.sqlite"], "use one of them"),
        (["Hi", *KEPT, "--load", "a.sqlite"], "use one of them"),
        (["Hi", *KEPT, "--resume", "-"], "takes no QUESTION"),
        ([*KEPT, "--resume", "-"], "has nothing to resume"),
        (["Hi", "--store", "agents.py", "--conversation", "x"], "the store agents.py cannot be opened"),
    ],
)
def test_options_that_do_not_fit(arguments: list[str], text: str) -> None:
    """Exit code 2, and a line that says what is wrong; nothing is asked."""
    with model() as server:
        result = invoke("run", "agents:triage", *arguments, server=server, stdin="true")
    assert (result.exit_code, server.requests) == (2, [])
    assert text in result.stderr


def test_a_missing_key_is_reported_before_the_question_is_written() -> None:
    """Exit code 2, and the conversation is not there."""
    result = invoke("run", "agents:triage", "Hello", *KEPT)
    assert (result.exit_code, stored()) == (2, None)
    assert "OPENAI_API_KEY" in result.stderr
