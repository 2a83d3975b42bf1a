"""The wire of AG-UI: the events of known runs, one by one."""

from __future__ import annotations

import json
from typing import Any

from aswarm.runs import Entry
from aswarm.serve.wires.agui.encoder import AGUIWire
from aswarm.testing import ScriptedAnswer as Scripted
from aswarm.testing import call
from tests.support.runs.run_logs import closed
from tests.support.serve.wire_checks import data_of, log_of

Json = dict[str, Any]


def events(log: list[Entry], **options: Any) -> list[Json]:
    wire = AGUIWire(**options)
    return [json.loads(text) for entry in log for text in data_of(wire.encode(entry))]


def brief(event: Json) -> str:
    keys = ("messageId", "toolCallId", "stepName", "name", "delta", "content")
    return " ".join([event["type"], *(str(event[key]) for key in keys if key in event)])


def test_a_run_with_a_call_and_a_handoff_has_these_events() -> None:
    """The events have reasoning, text, a call, its result, the handoff as CUSTOM, and the answer of the next agent."""
    thinking = Scripted("I look.", [call("look", call_id="c1", n=1)], {"reasoning_content": "Hm."})
    log = log_of(thinking, call("transfer_to_b", call_id="c1"), "Done.")
    found = events(log)
    assert [brief(event) for event in found] == [
        "RUN_STARTED",
        "STATE_SNAPSHOT",
        "STEP_STARTED A 1",
        "REASONING_START run0-a1-r",
        "REASONING_MESSAGE_START run0-a1-r",
        "REASONING_MESSAGE_CONTENT run0-a1-r Hm.",
        "REASONING_MESSAGE_END run0-a1-r",
        "REASONING_END run0-a1-r",
        "TEXT_MESSAGE_START run0-a1 A",
        "TEXT_MESSAGE_CONTENT run0-a1 I look.",
        "TOOL_CALL_START c1",
        'TOOL_CALL_ARGS c1 {"n": 1}',
        "TOOL_CALL_END c1",
        "TEXT_MESSAGE_END run0-a1",
        "CUSTOM aswarm.tool_started",
        "TOOL_CALL_RESULT run0-t-c1 c1 found 1",
        "STEP_FINISHED A 1",
        "STEP_STARTED A 2",
        "TEXT_MESSAGE_START run0-a2 A",
        "TOOL_CALL_START c1~2",
        "TOOL_CALL_ARGS c1~2 {}",
        "TOOL_CALL_END c1~2",
        "TEXT_MESSAGE_END run0-a2",
        "CUSTOM aswarm.tool_started",
        'TOOL_CALL_RESULT run0-t-c1~2 c1~2 {"assistant": "B"}',
        "CUSTOM aswarm.handoff",
        "STEP_FINISHED A 2",
        "STEP_STARTED B 3",
        "TEXT_MESSAGE_START run0-a3 B",
        "TEXT_MESSAGE_CONTENT run0-a3 Done.",
        "TEXT_MESSAGE_END run0-a3",
        "STEP_FINISHED B 3",
        "RUN_FINISHED",
    ]
    ids = {"threadId": "chat", "runId": "run0"}
    assert found[0] | {"timestamp": 0} == {"type": "RUN_STARTED", **ids, "protocolVersion": "1.0", "timestamp": 0}
    assert found[-1]["result"] == {"stop": "answer"}
    assert found[-1]["outcome"] == {"type": "success"}
    assert found[-1]["usage"] == [{"inputTokens": 30, "outputTokens": 15, "totalTokens": 45}]
    handoff = next(event for event in found if event.get("name") == "aswarm.handoff")
    assert handoff["value"] == {"source": "A", "target": "B"}


def test_a_failed_call_is_marked_and_progress_is_custom() -> None:
    """`metadata.error` marks the content as an error."""
    found = events(log_of([call("fail", call_id="c1", n=1), call("report", call_id="c2", n=2)], "Done."))
    (failed, done) = [event for event in found if event["type"] == "TOOL_CALL_RESULT"]
    assert (failed["content"], failed["metadata"]) == ("no 1", {"error": True})
    assert "metadata" not in done
    (progress,) = [event["value"] for event in found if event.get("name") == "aswarm.tool_progress"]
    assert progress == {"toolCallId": "c2", "value": {"done": 2}}


def test_a_change_of_the_context_is_a_patch() -> None:
    """Keys are escaped according to RFC 6901."""
    log = log_of("Done.")
    change = {"agent": "A", "changes": {"a/b~c": 1}, "removed": ["kept"], "by": []}
    (event,) = AGUIWire().events(Entry(9, 0, "ContextChanged", change))
    assert event["delta"] == [{"op": "remove", "path": "/kept"}, {"op": "add", "path": "/a~1b~0c", "value": 1}]
    without = Entry(0, 0, "RunStarted", {**log[0].fields, "context_variables": {}})
    assert [event["type"] for event in AGUIWire().events(without)] == ["RUN_STARTED"]


def test_an_approval_and_a_question_are_interrupts() -> None:
    """Each has an id with its run, its reason and its call; an approval has the form of its answer."""
    log = log_of([call("ask", call_id="c1", n=1), call("look", call_id="c2", n=1), call("question", call_id="c3", n=3)])
    last = events(log)[-1]
    assert last["result"] == {"stop": "waiting"}
    (approval,) = last["outcome"]["interrupts"]
    assert approval["responseSchema"]["required"] == ["approved"]
    del approval["responseSchema"]
    assert approval == {"id": "run0/c1", "reason": "tool_call", "message": "needs approval", "toolCallId": "c1"}
    (question,) = events(log_of(call("question", call_id="c3", n=3)))[-1]["outcome"]["interrupts"]
    expected = {"id": "run0/c3", "reason": "input_required", "message": "Which one?", "toolCallId": "c3"}
    assert question == {**expected, "metadata": {"data": {"n": 3}}}


def test_calls_of_the_client_are_pending_for_clients_that_know_them() -> None:
    """An older client would drop the whole stream, and finds them itself."""
    log = log_of(call("page_open", call_id="c1", n=1))
    assert events(log)[-1]["outcome"] == {"type": "success", "pendingToolCallIds": ["c1"]}
    assert events(log, protocol_version=None)[-1]["outcome"] == {"type": "success"}
    assert events(log, protocol_version="0.1.0")[-1]["outcome"] == {"type": "success"}


def test_a_run_that_was_stopped_is_cancelled() -> None:
    """A stopped run is a success only for clients that do not know "cancelled"; the reason is in the result."""
    log = closed(log_of("Done.")[:3], "RunStopped")
    last = events(log)[-1]
    assert (last["outcome"], last["result"]) == ({"type": "cancelled"}, {"stop": "cancelled", "reason": "cancelled"})
    assert "outcome" not in events(log, protocol_version=None)[-1]


def test_an_id_that_cannot_be_encoded_does_not_end_the_stream() -> None:
    """JSON can hold half of a surrogate pair, and no encoding can."""
    assert events(log_of("Done."), thread_id="t\ud800")[0]["threadId"] == "t?"


def test_a_refusal_is_marked_text() -> None:
    """`metadata.refusal` marks the text of a refusal."""
    found = events(log_of(Scripted(None, extra={"refusal": "I will not."})))
    (content,) = [event for event in found if event["type"] == "TEXT_MESSAGE_CONTENT"]
    assert (content["delta"], content["metadata"]) == ("I will not.", {"refusal": True})
    assert AGUIWire().events(Entry(0, 0, "RequestSent", {})) == []


def closed_by_a_handoff(*entries: tuple[str, Json], **options: Any) -> list[str]:
    """The results of the calls of a run that resumes a call, and hands off."""
    call_0 = {"index": 0, "id": "c0", "name": "f", **options}
    log = [
        ("RunStarted", {"run_id": "r", "conversation": "t", "agent": "A", "messages": [], "calls": [call_0]}),
        *entries,
    ]
    log.append(("HandedOff", {"source": "A", "target": "B"}))
    found = events([Entry(seq, 0, kind, fields) for seq, (kind, fields) in enumerate(log)])
    return [event["content"] for event in found if event["type"] == "TOOL_CALL_RESULT"]


STARTED = ("ToolCallStarted", {"index": 0, "id": "c0", "name": "f"})


def test_a_call_that_is_closed_by_a_handoff() -> None:
    """Readers get the result of the history, which depends on whether a function has started in the call, or inside of it."""
    waits = ("CallWaiting", {"index": 0, "id": "c0", "name": "f", "reason": "?", "data": None})
    withdrawn = ("ToolCallWithdrawn", {"index": 0, "id": "c0", "name": "f"})
    unknown = "cancelled; its outcome is unknown"
    assert closed_by_a_handoff() == ["not run: interrupted"]
    assert closed_by_a_handoff(STARTED) == [unknown]
    assert closed_by_a_handoff(STARTED, waits) == closed_by_a_handoff(STARTED, withdrawn) == ["not run: interrupted"]
    assert closed_by_a_handoff(started_inside=True) == [unknown]
    assert closed_by_a_handoff(STARTED, waits, started_inside=True) == [unknown]


def test_a_run_that_died_before_its_first_entry() -> None:
    """RUN_STARTED still comes first, because a client takes no other first event."""
    stopped = Entry(0, 0, "RunStopped", {"reason": "died", "message": "its process died"})
    found = events([stopped], thread_id="t", run_id="r")
    assert [event["type"] for event in found] == ["RUN_STARTED", "RUN_FINISHED"]
    assert [(event["threadId"], event["runId"]) for event in found] == [("t", "r")] * 2
