"""The wires as other programs read them: models of `ag-ui-protocol`, `ag-ui-validate`, and npm's `@ag-ui/client` and `ai`.

`nox -s deep -- serve` runs these. `NODE_CLIENTS` names the folder that has the packages of npm.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ag_ui.core import Event, Interrupt, RunFinishedSuccessOutcome
from ag_ui_validate import create_validator
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from aswarm.runs import Entry
from aswarm.serve.wires.agui.encoder import AGUIWire
from aswarm.serve.wires.vercel.encoder import VercelWire
from aswarm.testing import Failure, call
from aswarm.testing import ScriptedAnswer as Scripted
from tests.support.runs.run_logs import Scene, closed, logged_now, scenes
from tests.support.serve.wire_checks import data_of, joined

Json = dict[str, Any]
READER = Path(__file__).with_name("readers.mjs")
EVENT: TypeAdapter[Any] = TypeAdapter(Event)
# A model may write arguments that are no JSON, or its completion may be cut.
BAD_ARGUMENTS = "AGUI204"


def events(log: Sequence[Entry]) -> list[Json]:
    wire = AGUIWire()
    return [json.loads(text) for entry in log for text in data_of(wire.encode(entry))]


def parts(log: Sequence[Entry]) -> list[Json]:
    wire = VercelWire()
    return [json.loads(text) for entry in log for text in data_of(wire.encode(entry)) if text != "[DONE]"]


@given(scenes(concurrent=True), st.data())
def test_each_event_is_an_event_of_ag_ui(scene: Scene, data: st.DataObject) -> None:
    """The models read each event, and write the same again; the validator finds nothing in whole runs and in cut ones."""
    for log in logged_now(scene).logs:
        at = data.draw(st.integers(1, len(log) - 1))
        cut = closed(log[:at], data.draw(st.sampled_from(["RunFailed", "RunStopped"])))
        for entries in (log, list(joined(log)), cut):
            found, validator = events(entries), create_validator()
            diagnostics = []
            for event in found:
                dumped = EVENT.validate_python(event).model_dump(mode="json", by_alias=True, exclude_unset=True)
                assert dumped == event
                diagnostics += validator.feed(json.dumps(event))
            diagnostics += validator.finalize()
            assert [each for each in diagnostics if each.rule != BAD_ARGUMENTS and each.severity != "info"] == []


def test_the_models_of_ag_ui_read_the_outcomes() -> None:
    """A client would take an unknown outcome for a success, so the model of each outcome reads it."""
    asked = events(logged_now(Scene([call("ask", n=1)])).logs[0])[-1]["outcome"]
    assert Interrupt.model_validate(asked["interrupts"][0]).tool_call_id
    pending = events(logged_now(Scene([call("page_open", n=1)])).logs[0])[-1]["outcome"]
    assert RunFinishedSuccessOutcome.model_validate(pending).pending_tool_call_ids


def fixed_logs() -> list[list[Entry]]:
    """Runs of every kind, each whole and cut at each entry."""
    everything = [call(name, n=1, call_id="c1") for name in ("look", "fail", "note", "report")]
    conversations = [
        Scene(
            [Scripted("Wait.", everything, {"reasoning_content": "Hm."}), call("hand", n=1), "Done."], concurrent=True
        ),
        Scene([[call("ask", n=1), call("look", n=2)], "Done."], decided={"ask": True}),
        Scene([[call("ask", n=1), call("question", n=2)]]),
        Scene([call("page_open", n=1)]),
        Scene([Scripted(None, extra={"refusal": "No."})]),
        Scene([Failure(500)]),
        Scene([call("look", "[1]"), Scripted("The", finish_reason="length")]),
    ]
    whole = [log for scene in conversations for log in logged_now(scene).logs]
    cut = [closed(log[:at], end) for log in whole for at in range(1, len(log)) for end in ("RunFailed", "RunStopped")]
    return [*whole, *cut]


@pytest.mark.skipif("NODE_CLIENTS" not in os.environ, reason="NODE_CLIENTS names the folder with the packages of npm")
def test_clients_of_npm_accept_each_stream(tmp_path: Path) -> None:
    """`verifyEvents` of @ag-ui/client, and the schema and the message reader of `ai` 6 and 7, refuse nothing."""
    logs = fixed_logs()
    streams = {"agui": [events(log) for log in logs], "vercel": [parts(log) for log in logs]}
    (tmp_path / "streams.json").write_text(json.dumps(streams), encoding="utf-8")
    done = subprocess.run(
        ["node", str(READER), os.environ["NODE_CLIENTS"], str(tmp_path / "streams.json")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout) == {"agui": len(logs), "ai": len(logs), "ai7": len(logs)}
