"""The wire of Vercel's UI messages: the parts of known runs, one by one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aswarm.runs import Entry
from aswarm.serve.wires.turns import json_object
from aswarm.serve.wires.vercel.encoder import VercelWire
from aswarm.testing import ScriptedAnswer as Scripted
from aswarm.testing import call
from tests.support.runs.run_logs import Scene, logged_now
from tests.support.serve.wire_checks import VercelReader, data_of, log_of

Json = dict[str, Any]


def parts(log: list[Entry]) -> list[Json]:
    wire, reader = VercelWire(), VercelReader()
    frames = [frame for entry in log for frame in wire.encode(entry)]
    reader.read(frames)
    assert reader.is_done
    return [json.loads(text) for text in data_of(frames)[:-1]]


def brief(part: Json) -> str:
    keys = ("id", "toolCallId", "delta", "inputTextDelta", "output", "errorText", "finishReason", "approvalId")
    return " ".join([part["type"], *(str(part[key]) for key in keys if key in part)])


def test_a_run_with_a_call_and_a_handoff_has_these_parts() -> None:
    """Each turn is a step, functions of the server are `providerExecuted` and dynamic, handoffs are data."""
    thinking = Scripted("I look.", [call("look", call_id="c1", n=1)], {"reasoning_content": "Hm."})
    found = parts(log_of(thinking, call("transfer_to_b", call_id="c2"), "Done."))
    assert [brief(part) for part in found] == [
        "start",
        "data-aswarm-context context",
        "start-step",
        "data-aswarm-agent",
        "reasoning-start run0-a1-r",
        "reasoning-delta run0-a1-r Hm.",
        "reasoning-end run0-a1-r",
        "text-start run0-a1",
        "text-delta run0-a1 I look.",
        "tool-input-start c1",
        'tool-input-delta c1 {"n": 1}',
        "tool-input-available c1",
        "text-end run0-a1",
        "tool-output-available c1 found 1",
        "finish-step",
        "start-step",
        "data-aswarm-agent",
        "tool-input-start c2",
        "tool-input-delta c2 {}",
        "tool-input-available c2",
        'tool-output-available c2 {"assistant": "B"}',
        "data-aswarm-handoff",
        "finish-step",
        "start-step",
        "data-aswarm-agent",
        "text-start run0-a3",
        "text-delta run0-a3 Done.",
        "text-end run0-a3",
        "finish-step",
        "finish stop",
    ]
    assert found[0] == {"type": "start", "messageId": "run0"}
    available = next(part for part in found if part["type"] == "tool-input-available")
    named = {"type": "tool-input-available", "toolCallId": "c1", "toolName": "look", "input": {"n": 1}}
    assert available == {**named, "dynamic": True, "providerExecuted": True}
    metadata = found[-1]["messageMetadata"]
    assert (metadata["stop"], metadata["agent"], metadata["usage"]["total_tokens"]) == ("answer", "B", 45)
    assert VercelWire().headers == {"x-vercel-ai-ui-message-stream": "v1"}


def test_reasons_to_finish() -> None:
    """The provider's reason counts for an answer; a limit is another reason."""
    assert parts(log_of(Scripted("The", finish_reason="length")))[-1]["finishReason"] == "length"
    assert parts(log_of(Scripted("The", finish_reason="content_filter")))[-1]["finishReason"] == "content-filter"
    assert parts(log_of(call("look", n=1), max_turns=1))[-1]["finishReason"] == "other"


def test_arguments_that_are_no_object_are_an_error_of_the_input() -> None:
    """The text of the arguments stays to be seen, and the answer of the call follows."""
    found = parts(log_of([call("look", "[1]", call_id="c1")], "Done."))
    (error,) = [part for part in found if part["type"] == "tool-input-error"]
    assert (error["input"], error["errorText"]) == ("[1]", "The arguments are not a JSON object.")
    assert [part["type"] for part in found if part["type"].startswith("tool-output")] == ["tool-output-error"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"n": NaN}', {"n": "nan"}),
        ('{"n": 1e999}', {"n": "inf"}),
        (r'{"n": "\ud800"}', {"n": "\ufffd"}),
        ('{"n": ' + "[" * 100_000, None),
        ('{"n": ' + "[" * 500 + "]" * 500 + "}", None),
    ],
)
def test_arguments_that_browsers_cannot_read_are_made_readable(arguments: str, expected: Any) -> None:
    """The stream is JSON for every client, for any arguments of a model; arguments that are nested too deeply are an error."""
    assert json_object(arguments) == expected


def test_an_approval_is_asked_for_and_calls_behind_it_do_not_hold_up_the_client() -> None:
    """A client sends approvals by itself once each call of the message has an answer of some kind."""
    log = log_of([call("ask", call_id="c1", n=1), call("note", call_id="c2", n=1)])
    found = parts(log)
    assert [brief(part) for part in found][-5:] == [
        "tool-approval-request c1 run0/c1",
        "data-aswarm-waiting waiting-c1",
        "tool-output-available c2 Not run yet: another call waits for a decision.",
        "finish-step",
        "finish tool-calls",
    ]
    named = {"toolCallId": "c1", "run": "run0", "kind": "approval"}
    assert found[-4]["data"] == {**named, "reason": "needs approval", "data": None}


def test_a_call_of_the_client_is_available_once_the_run_waits_for_it() -> None:
    """Earlier the client would run it while the server may still refuse its arguments; a question is a call of the client too."""
    found = parts(log_of([call("page_open", "[1]", call_id="c2"), call("page_open", call_id="c1", n=1)]))
    offered = [part for part in found if part["type"] == "tool-input-available"]
    assert [(part["toolCallId"], part["providerExecuted"]) for part in offered] == [("c1", False)]
    assert found.index(offered[0]) > found.index(next(part for part in found if part["type"] == "tool-output-error"))
    question = [part for part in parts(log_of(call("question", call_id="c1", n=1))) if "input" in part]
    assert [part["providerExecuted"] for part in question] == [True, False]


def test_a_resumed_run_continues_the_message_of_the_client() -> None:
    """No id in `start`, no step before the answers: the parts of the message before it change their state."""
    log = log_of(call("ask", call_id="c1", n=1), "Done.", decided={"ask": True})
    assert [brief(part) for part in parts(log)][:5] == [
        "start",
        "data-aswarm-context context",
        "tool-input-available c1",
        "tool-output-available c1 asked 1",
        "start-step",
    ]
    assert parts(log)[0] == {"type": "start"}
    denied = log_of(call("ask", call_id="c1", n=1), "Done.", decided={"ask": False})
    assert "tool-output-denied c1" in [brief(part) for part in parts(denied)]


def test_a_replay_of_a_message_has_the_runs_that_made_it() -> None:
    """One start and one end; the call that had waited has its answer."""
    first, second = logged_now(Scene([call("ask", call_id="c1", n=1), "Done."], decided={"ask": True}, cut=None)).logs
    found = [brief(part) for part in parts([*first[:-1], *second])]
    assert found == [
        "start",
        "data-aswarm-context context",
        "start-step",
        "data-aswarm-agent",
        "tool-input-start c1",
        'tool-input-delta c1 {"n": 1}',
        "tool-input-available c1",
        "tool-input-available c1",
        "tool-output-available c1 asked 1",
        "finish-step",
        "start-step",
        "data-aswarm-agent",
        "text-start run1-a1",
        "text-delta run1-a1 Done.",
        "text-end run1-a1",
        "finish-step",
        "finish stop",
    ]


def test_the_context_is_one_part_that_is_replaced() -> None:
    """Each change sends the whole context that readers may see, under one id."""
    changed = parts(log_of([call("note", n=1), call("drop", n=1)], "Done."))
    assert [part["data"] for part in changed if part.get("id") == "context"] == [
        {"kept": 1},
        {"kept": 1, "note": 1},
        {"note": 1},
    ]
    report = parts(log_of(call("report", call_id="c1", n=1), "Done."))
    (progress,) = [part for part in report if part["type"] == "data-aswarm-progress"]
    assert (progress["id"], progress["data"]) == ("progress-c1", {"toolCallId": "c1", "value": {"done": 1}})
    assert VercelWire().parts(Entry(0, 0, "MessagesRecorded", {})) == []
