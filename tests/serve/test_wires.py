"""The wires over drawn runs: whole, cut anywhere, and joined for a replay. The readers are as strict as real clients."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aswarm.runs import Entry, fold
from aswarm.serve.wires.agui.encoder import AGUIWire
from aswarm.serve.wires.openai.encoder import OpenAIWire, whole_completion
from aswarm.serve.wires.vercel.encoder import VercelWire
from aswarm.testing import ScriptedAnswer, ScriptedCall
from tests.support.runs.run_logs import Scene, closed, logged_now, scenes
from tests.support.serve.wire_checks import AguiReader, ChatReader, VercelReader, joined

pytestmark = pytest.mark.slow
SECRET = "secret"
_ends = st.sampled_from(["RunFailed", "RunStopped"])
_is_default = settings().max_examples == settings.get_profile("aswarm").max_examples
_fewer = settings(max_examples=15) if _is_default else settings()  # for examples that take long


def call_id(fields: Mapping[str, Any]) -> str:
    """Return the public id of the call in these fields."""
    return str(fields.get("call_id") or fields["id"])


def agui(log: list[Entry]) -> AguiReader:
    reader, wire = AguiReader(call_id(each) for each in log[0].fields["calls"]), AGUIWire()
    for entry in log:
        reader.read(wire.encode(entry))
    return reader


def vercel(log: list[Entry]) -> VercelReader:
    reader, wire = VercelReader(), VercelWire()
    for entry in log:
        reader.read(wire.encode(entry))
    return reader


def chat(log: list[Entry], **options: Any) -> ChatReader:
    reader, wire = ChatReader(), OpenAIWire("A", **options)
    for entry in log:
        reader.read(wire.encode(entry))
    return reader


def texts_of(log: list[Entry]) -> list[str]:
    """The texts of the whole messages of a run."""
    messages = fold(log).response_messages
    return [each["content"] for each in messages if each["role"] == "assistant" and each.get("content")]


@given(scenes(concurrent=True), st.data())
def test_each_cut_of_a_run_is_closed_on_each_wire(scene: Scene, data: st.DataObject) -> None:
    """Everything open is closed at the end, clients accept each frame, and no reader sees the text of the error."""
    for log in logged_now(scene).logs:
        at = data.draw(st.integers(1, len(log) - 1))
        cut = closed(log[:at], data.draw(_ends), with_response=data.draw(st.booleans()))
        entries = joined(cut) if data.draw(st.booleans()) else cut
        is_error = cut[-1].type == "RunFailed"
        read = agui(entries)
        assert read.last is not None
        assert read.last["type"] == ("RUN_ERROR" if is_error else "RUN_FINISHED")
        assert is_error or read.last["outcome"] == {"type": "cancelled"}
        assert read.arguments.keys() - read.results.keys() <= _unfinished(cut)
        shown = vercel(entries)
        assert shown.last is not None
        assert shown.last["type"] == ("error" if is_error else "abort")
        assert {call["state"].partition("-")[0] for call in shown.calls.values()} <= {"output"}
        answer = chat(entries, include_usage=True, activity=True)
        assert (answer.error is not None) is is_error
        assert answer.is_done is not is_error
        assert SECRET not in json.dumps([read.events, shown.parts, answer.chunks, answer.error])


def _unfinished(log: list[Entry]) -> set[str]:
    """The ids of calls whose completion came to no end."""
    after = max((entry.seq for entry in log if entry.type == "CompletionFinished"), default=0)
    pieces = [entry for entry in log if entry.type == "ToolCallDelta" and entry.seq > after]
    return {call_id(entry.fields) for entry in pieces if entry.fields["id"]}


@_fewer
@given(scenes(concurrent=True))
def test_a_whole_run_reads_the_same_on_each_wire(scene: Scene) -> None:
    """Each wire has the texts, calls, answers and state of the run, live and joined."""
    found = logged_now(scene)
    for log, response in zip(found.logs, found.responses, strict=True):
        final = log[-1]
        for entries in (log, joined(log)):
            read, shown = agui(entries), vercel(entries)
            for call, content in read.results.items():
                # A handoff to a finished agent is open again if another call of its turn waits.
                output = shown.calls[call].get("output", content)
                assert output == content or not _is_answer(shown.calls[call])
            answers = {
                call for call, each in shown.calls.items() if each["state"] in ("output-available", "output-error")
            }
            assert {call for call in answers if _is_answer(shown.calls[call])} <= read.results.keys()
            assert read.state == fold(log).context
            if final.type == "RunFinished":
                left = {call_id(each) for each in final.response["waiting"]}
                assert read.arguments.keys() - read.results.keys() <= left
            if final.type == "RunFinished":
                assert not shown.would_send_again or response.stop == "waiting"
                assert [text for text in read.texts.values() if text] == _said(log)
                assert [text for key, text in shown.texts.items() if "-r" not in key.partition("-a")[2]] == _said(log)
            _check_waiting(log, read, shown)


def test_an_external_call_with_invalid_arguments_is_not_for_the_client_to_answer() -> None:
    """With an equal id, it stays open behind the waiting call. The run answers it with an error, so it has no kind."""
    calls = [ScriptedCall("page_open", '{"n": 0}', id="c1"), ScriptedCall("page_open", "[1]", id="c1")]
    scene = Scene([ScriptedAnswer(calls=calls), ScriptedAnswer("The end.")], {}, cut=None, max_turns=8, concurrent=True)
    log = logged_now(scene).logs[0]
    assert [each.get("kind") for each in log[-1].response["waiting"]] == ["external", None]
    _check_waiting(log, agui(log), vercel(log))


def _is_answer(call: dict[str, Any]) -> bool:
    return not str(call.get("output", "Not run yet")).startswith("Not run yet")


def _said(log: list[Entry]) -> list[str]:
    """The texts and refusals of the turns of a log."""
    turns: list[str] = []
    for entry in log:
        if entry.type == "TurnStarted":
            turns.append("")
        elif entry.type in ("TextDelta", "RefusalDelta"):
            turns[-1] += entry.fields["text"]
    return [turn for turn in turns if turn]


def _check_waiting(log: list[Entry], read: AguiReader, shown: VercelReader) -> None:
    assert read.last is not None
    waiting = log[-1].response.get("waiting", [])
    if log[-1].type != "RunFinished" or log[-1].response["stop"] != "waiting":
        return
    asked = [each for each in waiting if each.get("kind") in ("approval", "question")]
    outcome = read.last["outcome"]
    assert [each["toolCallId"] for each in outcome.get("interrupts", ())] == [call_id(each) for each in asked]
    if not asked:
        assert outcome["pendingToolCallIds"] == [call_id(each) for each in waiting if each.get("kind") == "external"]
    for each in waiting:
        state = shown.calls[call_id(each)]["state"]
        assert state == {"approval": "approval-requested", None: "output-available"}.get(
            each.get("kind"), "input-available"
        )
        assert (call_id(each) in shown.to_run) is (each.get("kind") in ("question", "external"))


@given(scenes(concurrent=True), st.booleans())
def test_a_stream_of_chat_completions_adds_up_to_the_whole_answer(scene: Scene, activity: bool) -> None:
    """The chunks of a stream add up to the whole completion, and calls of server-run functions are in neither."""
    for log in logged_now(scene).logs:
        options: dict[str, Any] = {"activity": activity, "client_tools": ["page_open"]}
        read, whole = chat(log, include_usage=True, **options), whole_completion(log, OpenAIWire("A", **options))
        if log[-1].type == "RunFailed":
            assert whole["error"] == read.error
            continue
        (choice,) = whole["choices"]
        message = choice["message"]
        assert (message["content"] or "") == read.content
        assert message.get("refusal", "") == read.refusal
        assert message.get("reasoning_content", "") == read.reasoning
        assert choice["finish_reason"] == read.finish_reason
        assert whole["usage"] == read.usage
        assert {each["function"]["name"] for each in read.tool_calls} <= {"page_open"}
        assert bool(read.tool_calls) is (read.finish_reason == "tool_calls")
        assert read.content.startswith("\n\n".join(texts_of(log)))


@given(scenes(concurrent=True))
def test_each_call_of_a_conversation_has_an_id_of_its_own(scene: Scene) -> None:
    """No reader of a conversation sees an id twice, although a provider may use it again."""
    seen: set[str] = set()
    for log in logged_now(scene).logs:
        read = agui(log)
        known = {call_id(each) for each in log[0].fields["calls"]}
        new = set(read.arguments) - known
        assert not new & seen
        assert not known - seen
        seen |= new


def test_a_call_without_id_and_arguments_gets_both() -> None:
    """The call has the id from the run, and its arguments are an empty object."""
    log = logged_now(Scene([[ScriptedCall("look", "", "")], "Done."], cut=None)).logs[-1]
    (made,) = fold(log).response_messages[0]["tool_calls"]
    read, shown = agui(log), vercel(log)
    assert read.arguments == {made["id"]: ""}
    assert read.results.keys() == shown.calls.keys() == {made["id"]}
    (available,) = [part for part in shown.parts if part["type"] == "tool-input-available"]
    assert available["input"] == {}
