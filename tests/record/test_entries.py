"""Entries: the log of a run, and the ids of its calls."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from aswarm import Agent, Approve, AsyncSwarm, ConfigurationError, Response, Result, tool
from aswarm._record.entries import Entry, PublicIds, as_json, joined, now, public_ids
from aswarm._record.entry_maker import EntryMaker, withdrawal
from aswarm._record.facts import item_fingerprint
from aswarm._record.fold import Folded, fold
from aswarm._record.outcomes import recordable
from aswarm._runtime import clocks
from aswarm.middleware import CompletionRequest, Handlers
from aswarm.serve.wires.native.wire import NativeWire
from aswarm.serve.wires.turns import HEARTBEAT, RECONNECT
from aswarm.testing import ScriptedAnswer as Scripted
from aswarm.testing import ScriptedModel, call
from tests.support.runs.run_logs import USER, Scene, logged_now, unhurried

Json = dict[str, Any]


def log_of(*script: Any, **options: Any) -> list[Entry]:
    return logged_now(Scene(script, cut=None, **options)).logs[-1]


def logged_by(
    agent: Agent, script: list[Any], maker: EntryMaker | None = None, more: str | None = None, **options: Any
) -> list[Entry]:
    """Return the log of a run of this agent. `more`: a message that the run gets in its first turn."""
    log: list[Entry] = []

    async def run() -> None:
        own = maker or EntryMaker()
        log.append(own.started("run", "chat", agent, [USER]))
        async with (
            AsyncSwarm(client=ScriptedModel(script).client(), **options) as swarm,
            swarm.stream(agent, [USER]) as stream,
        ):
            async for event in stream:
                log.extend(own.event(event, stream._state))
                if more is not None and len(log) == 2:
                    stream.send(more)

    anyio.run(run)
    return log


def test_the_log_of_a_run_has_its_events_in_order() -> None:
    """RunStarted is first, RunFinished last, and the numbers have no gap."""
    log = log_of(call("look", call_id="c1", n=1), "Done.")
    call_types = ["ToolCallDelta", "ToolCallDelta", "CompletionFinished", "ToolCallStarted", "ToolCallFinished"]
    last_types = ["TurnFinished", "TurnStarted", "TextDelta", "CompletionFinished", "RunFinished"]
    assert [entry.type for entry in log] == ["RunStarted", "TurnStarted", *call_types, *last_types]
    assert [entry.seq for entry in log] == list(range(len(log)))
    assert [entry.is_last for entry in log] == [False] * (len(log) - 1) + [True]
    started: Json = {"seq": 0, "at": log[0].at_ms, "type": "RunStarted", "run_id": "run0", "conversation": "chat"}
    started |= {"agent": "A", "before": 0, "messages": [USER], "resume": False, "calls": []}
    assert log[0].to_dict() == {**started, "context_variables": {"kept": 1}}
    assert log[-1].response["text"] == "Done."
    assert log[-1].response["run_id"] == "run0"
    assert log[1].response == {}


def test_the_log_of_a_resumed_run_starts_with_its_open_calls_and_decisions() -> None:
    """Decisions are in their JSON form or as their fields; the calls have the ids of the run before."""
    twice = [call("ask", call_id="c1", n=1), call("ask", call_id="c1", n=2)]
    first = logged_now(Scene([twice, "Done."], decided={"ask": {"deny": "late"}}, cut=None))
    before, after = first.logs
    waiting = before[-1].response["waiting"]
    assert [(each["kind"], each["id"], each.get("call_id")) for each in waiting] == [
        ("approval", "c1", None),
        ("approval", "c1", "c1~2"),
    ]
    started = after[0].fields
    assert [(each["index"], each["name"], each.get("call_id")) for each in started["calls"]] == [
        (0, "ask", None),
        (1, "ask", "c1~2"),
    ]
    assert started["resume"] == {"0": {"deny": "late"}, "1": {"deny": "late"}}
    finished = [entry.fields for entry in after if entry.type == "ToolCallFinished"]
    assert [each.get("call_id") for each in finished] == [None, "c1~2"]


def test_waiting_calls_have_a_kind() -> None:
    """An approval, a question or an external tool; a call behind them asks nothing."""
    for name, kind in (("ask", "approval"), ("question", "question"), ("page_open", "external")):
        log = log_of([call(name, n=1), call("look", n=1)])
        (waits,) = [entry.fields for entry in log if entry.type == "CallWaiting"]
        assert waits["kind"] == kind
        assert [each.get("kind") for each in log[-1].response["waiting"]] == [kind, None]
    (completed,) = [entry for entry in log_of(call("page_open", n=1)) if entry.type == "CompletionFinished"]
    assert completed.fields["external"] == [0]


def test_a_change_of_the_context_names_the_calls_that_may_have_made_it() -> None:
    """Each change is an entry after the call that ended, with the keys that are gone."""
    log = log_of([call("note", call_id="c1", n=1), call("look", n=1), call("drop", call_id="c2", n=1)], "Done.")
    changes = [entry.fields for entry in log if entry.type == "ContextChanged"]
    assert changes == [
        {"agent": "A", "changes": {"note": 1}, "removed": [], "by": ["c1"]},
        {"agent": "A", "changes": {}, "removed": ["kept"], "by": ["c2"]},
    ]


def test_the_end_of_a_turn_has_the_messages_that_no_event_has() -> None:
    """Only the history has the note of a handoff that replaces another handoff. The other result is a reference."""
    b, c = Agent(name="B"), Agent(name="C")
    agent = Agent(name="A", functions=[b, c])
    calls = [call("transfer_to_b", call_id="c1"), call("transfer_to_c", call_id="c2")]
    log = logged_by(agent, [calls, "Done."], middleware=[unhurried], concurrent_tools=False)
    (ended,) = [entry for entry in log if entry.type == "TurnFinished"]
    text = '{"assistant": "C"} (replaces the handoff to B)'
    assert ended.fields == {"turn": 1, "answers": [0, {"index": 1, "content": text}]}
    assert [each.fields["handoff"] for each in log if each.type == "ToolCallFinished"] == ["B", "C"]
    folded = fold(log[:-1])
    assert folded.response_messages[2]["content"] == text
    assert folded.agent == "C"


def test_the_answer_of_a_cut_call_depends_on_its_tool() -> None:
    """A repeatable function stays open; one that was left alone may still be running."""

    @tool(repeatable=True)
    async def again() -> str:
        return "again"

    @tool(abandon_on_cancel=True)
    def left() -> str:
        return "left"

    log = logged_by(
        Agent(functions=[again, left]), [[call("again", call_id="c1"), call("left", call_id="c2")], "Done."]
    )
    starts = [at for at, entry in enumerate(log) if entry.type == "ToolCallStarted"]
    assert fold(log[: starts[0] + 1]).response_messages[1:] == []
    assert fold(log[: starts[1] + 1]).response_messages[2]["content"] == (
        "cancelled; its outcome is unknown; it may still be running"
    )


def test_a_request_as_sent_has_its_tools_only_when_they_change() -> None:
    """Model, instructions and settings each time."""
    agent = Agent(name="A", model="m", instructions="Be kind.", functions=[], model_settings={"temperature": 0})
    maker, found = EntryMaker(), list[Entry]()

    def watch(handlers: Handlers) -> Handlers:
        async def complete(request: CompletionRequest) -> AsyncGenerator[Any, None]:
            found.append(maker.request(request))
            async for chunk in handlers.complete(request):
                yield chunk

        return replace(handlers, complete=complete)

    async def look() -> Result:
        agent.functions = []
        return Result(value="looked")

    agent.functions = [look]
    logged_by(agent, [call("look"), call("look"), "Done."], maker, middleware=[watch])
    fields = ["instructions", "message_count", "model", "settings"]
    assert [sorted(entry.fields) for entry in found] == [[*fields, "tools"], [*fields, "tools"], fields]
    assert found[0].fields["instructions"] == "Be kind."
    assert found[0].fields["settings"]["temperature"] == 0
    assert found[0].fields["tools"][0]["function"]["name"] == "look"
    assert found[1].fields["tools"] == []


@pytest.mark.parametrize(
    ("error", "public"),
    [(ValueError("secret"), "The run ended with an error."), (ConfigurationError("secret"), "a mistake")],
)
def test_an_error_has_a_text_for_readers(error: Exception, public: str) -> None:
    """The log has the real text too; a run that had not started has no response."""
    own = isinstance(error, ConfigurationError)
    maker = EntryMaker(error_text=lambda _: public) if own else EntryMaker()
    agent = Agent(name="A")
    maker.started("run", "chat", agent)
    (entry,) = maker.failed(error)
    assert entry.type == "RunFailed"
    assert entry.fields == {"error": {"type": type(error).__name__, "message": "secret", "public_message": public}}
    assert maker.folded._ending is entry


def test_a_run_that_was_left_keeps_its_response(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last change of the context stands before the end."""
    monkeypatch.setattr(clocks, "time", lambda: 0.0075)
    maker = EntryMaker()
    agent = Agent(name="A")
    maker.started("run", "chat", agent, [USER])
    response: Response = Response(agent=agent, context_variables={"n": 1}, stop="cancelled", run_id="run")
    changed, last = maker.stopped("cancelled", response)
    assert changed.fields == {"agent": "A", "changes": {"n": 1}, "removed": [], "by": []}
    assert (last.type, last.at_ms, last.fields["reason"]) == ("RunStopped", 7, "cancelled")
    assert last.response["stop"] == "cancelled"
    (bare,) = EntryMaker().stopped("process_died")
    assert bare.fields["reason"] == "process_died"
    assert bare.fields["message"] == "The process of the run ended before the end of the run."
    (other,) = EntryMaker().stopped("enough")
    assert other.fields["message"] == "The run was stopped: enough."


def test_an_agent_whose_functions_cannot_be_offered_leaves_a_log() -> None:
    """The error of the run stays the error: looking for its tools again raises nothing."""

    def bad(*arguments: int) -> str:
        return ""

    broken = Agent(name="B", functions=[bad])
    asked = {"id": "c1", "type": "function", "function": {"name": "bad", "arguments": "{}"}}
    maker = EntryMaker([USER, {"role": "assistant", "content": None, "tool_calls": [asked]}])
    entry = maker.started("run", "chat", broken, resume=True)
    assert entry.fields["calls"] == [{"index": 0, "id": "c1", "name": "bad", "arguments": "{}"}]


RESUMED: list[tuple[Any, Any, str]] = [
    (False, False, "83c55f1aa42cb857"),
    (True, {}, "5e4b3423484e5c5c"),
    ({}, {}, "5e4b3423484e5c5c"),
    (Approve.all(), True, "c7f3c49e9782d7c4"),
    ({"c": True}, {"c": True}, "657a3f35ac5ae56a"),
]


@pytest.mark.parametrize(("resume", "recorded", "digest"), RESUMED, ids=str)
def test_a_record_of_an_older_version_keeps_its_decisions(resume: Any, recorded: Any, digest: str) -> None:
    """In older versions True approved all calls. It is recorded for `Approve.all()`; the hashes come from such a version."""
    asked = {"id": "c", "type": "function", "function": {"name": "pay", "arguments": "{}"}}
    history = [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": [asked]}]
    entry = EntryMaker(history).started("run", "chat", Agent(name="A"), resume=resume)
    assert entry.fields["resume"] == recorded
    assert type(entry.fields["resume"]) is type(recorded)
    assert item_fingerprint(Agent(name="A"), history, None, resume) == digest


def test_deltas_that_follow_each_other_are_joined() -> None:
    """The joined entry has the number of the last and the time of the first; another kind of delta starts another entry."""

    def delta(seq: int, text: str, kind: str = "TextDelta") -> Entry:
        return Entry(seq, seq * 10, kind, {"text": text})

    def piece(seq: int, index: int, call_id: str | None, arguments: str | None) -> Entry:
        fields = {"index": index, "id": call_id, "name": call_id and "f", "arguments": arguments}
        return Entry(seq, seq * 10, "ToolCallDelta", fields)

    entries = [delta(1, "a"), delta(2, "b"), delta(3, "c", "ReasoningDelta"), delta(4, "d"), piece(5, 0, "x", None)]
    entries += [piece(6, 0, None, "{"), piece(7, 0, None, "}"), piece(8, 1, "y", "{"), piece(9, 0, None, " ")]
    found = [
        (each.seq, each.at_ms, each.first, each.fields.get("text", each.fields.get("arguments")))
        for each in joined([*entries, Entry(10, 0, "X", {})])
    ]
    texts = [(2, 10, 1, "ab"), (3, 30, None, "c"), (4, 40, None, "d")]
    assert found == [*texts, (7, 50, 5, "{}"), (8, 80, None, "{"), (9, 90, None, " "), (10, 0, None, None)]
    again = list(joined([*joined(entries[:2]), delta(3, "c")]))
    assert [(each.seq, each.first, each.fields["text"]) for each in again] == [(3, 1, "abc")]
    assert list(joined([])) == []


def test_an_entry_is_one_line_of_json() -> None:
    """Reading it gives an equal entry; a joined entry has the number of its first delta."""
    entry = Entry(5, 7, "TextDelta", {"text": "ä\n\u2028"}, 3)
    assert entry.to_json() == '{"seq":5,"at":7,"type":"TextDelta","first":3,"text":"ä\\n\u2028"}'.encode()
    assert entry.to_json() is entry.to_json()  # the log and all readers share its bytes
    other = Entry.from_dict(entry.to_dict())
    assert other == entry
    assert repr(other) == repr(entry)
    assert NativeWire().encode(entry) == [b"id: 5\ndata: " + entry.to_json() + b"\n\n"]
    assert as_json({"a": [1, None]}) == b'{"a":[1,null]}'
    assert (HEARTBEAT, RECONNECT) == (b":\n\n", b"retry: 1000\n\n")
    assert abs(now() - 1_790_000_000_000) < 10**12


def test_public_ids_are_the_same_for_each_reader() -> None:
    """They depend on the order of the calls only, also where a provider sends an id that looks like one."""
    ids = PublicIds()
    assert [ids.take(each) for each in ("x", "x", "x~2", "y", "x")] == ["x", "x~2", "x~2~2", "y", "x~3"]
    calls = [{"id": each, "type": "function", "function": {"name": "f"}} for each in ("x", "x")]
    history: list[Json] = [
        USER,
        {"role": "assistant", "tool_calls": calls[:1]},
        {"role": "assistant", "tool_calls": calls},
    ]
    assert public_ids(history) == {"x~2": 0, "x~3": 1}
    assert public_ids([USER]) == {}


def test_a_log_without_its_start_is_folded() -> None:
    """An answer of an unknown call makes that call; an unknown type is ignored."""
    folded = Folded()
    folded.add(Entry(0, 0, "ToolCallFinished", {"index": 0, "id": "c1", "name": "f", "content": "x"}))
    folded.add(Entry(1, 0, "Later", {}))
    assert folded.messages == [{"role": "tool", "tool_call_id": "c1", "tool_name": "f", "content": "x"}]


def test_a_call_that_waits_in_a_resumed_run_is_marked_in_a_message_of_its_own() -> None:
    """The message that made it belongs to an earlier run, and no run changes it."""
    asked = {"index": 0, "id": "c1", "name": "ask", "arguments": "{}"}
    started = {"run_id": "r", "agent": "A", "messages": [], "calls": [asked]}
    waits = {**asked, "kind": "approval", "reason": "why", "data": None}
    log = [Entry(0, 0, "RunStarted", started), Entry(1, 0, "CallWaiting", waits)]
    (marked,) = fold(log).messages
    assert marked["waiting"] == [{"index": 0, "reason": "why", "approval": True}]
    assert (marked["role"], marked["tool_call_id"], marked["content"]) == ("tool", "c1", "why")


def test_messages_that_a_run_got_meanwhile_are_recorded() -> None:
    """They stand before the turn that they belong to."""
    log = logged_by(Agent(name="A"), ["One.", "Two."], more="More.")
    (recorded,) = [entry.fields for entry in log if entry.type == "MessagesRecorded"]
    assert recorded == {"start": 1, "messages": [{"role": "user", "content": "More."}]}
    assert [each["content"] for each in fold(log[:-1]).response_messages] == ["One.", "More.", "Two."]


def test_an_answer_cut_in_the_middle_is_partial() -> None:
    """The text of an unfinished completion is in no message."""
    log = log_of(Scripted("The end."))
    at = next(at for at, entry in enumerate(log) if entry.type == "TextDelta")
    assert (fold(log[: at + 1]).partial, fold(log[: at + 1]).response_messages) == ("The end.", [])
    assert fold(log).partial == ""


def test_a_withdrawn_call_inside_another_call_is_its_progress() -> None:
    """The entry names the outer call. Values that are not JSON are recorded as JSON data."""
    outer: Any = SimpleNamespace(index=0, id="a", name="f", parent=None)
    inner: Any = SimpleNamespace(index=1, id="b", name="g", parent=outer)
    kind, fields = withdrawal(inner)
    assert (kind, fields["id"], fields["value"]["id"]) == ("ToolProgress", "a", "b")
    assert set(recordable({"a": object()})) == {"a"}
