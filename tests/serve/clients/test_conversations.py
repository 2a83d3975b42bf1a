"""Conversations with the clients of npm: they decide on calls that wait, and send what the server then reads."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aswarm import Answer, Approve, Deny
from aswarm.runs._requests import ClientRequest, decisions
from aswarm.serve.wires.agui.encoder import AGUIWire
from aswarm.serve.wires.agui.input import agui_request
from aswarm.serve.wires.vercel.encoder import VercelWire
from aswarm.serve.wires.vercel.input import vercel_request
from aswarm.testing import call
from tests.support.runs.run_logs import Scene, logged_now

pytestmark = pytest.mark.skipif(
    "NODE_CLIENTS" not in os.environ, reason="NODE_CLIENTS names the folder with the packages of npm"
)
Json = dict[str, Any]
SCRIPT = Path(__file__).with_name("chats.mjs")
VERCEL = ("ai", "ai7")


def play(tmp_path: Path, chat: Json) -> Json:
    """Play one conversation, and return what the client has at the end."""
    (tmp_path / "chats.json").write_text(json.dumps([chat]), encoding="utf-8")
    done = subprocess.run(
        ["node", str(SCRIPT), os.environ["NODE_CLIENTS"], str(tmp_path / "chats.json")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = json.loads(done.stdout)
    return found


def answers(scene: Scene, wire: Callable[[], Any]) -> tuple[list[str], list[Json]]:
    """The bodies that a server would send for the runs of a scene, and the history after the first."""
    found = logged_now(scene)
    bodies = []
    for log in found.logs:
        encoder = wire()
        bodies.append(b"".join(frame for entry in log for frame in encoder.encode(entry)).decode())
    return bodies, found.histories[1]


def tool_parts(message: Json) -> list[tuple[str, str]]:
    return [(part["toolCallId"], part["state"]) for part in message["parts"] if "toolCallId" in part]


@pytest.mark.parametrize("client", VERCEL)
@pytest.mark.parametrize("approved", [True, False])
def test_a_chat_approves_a_call_and_continues_its_message(client: str, approved: bool, tmp_path: Path) -> None:
    """The client sends the approval by itself, though another call stands behind; no part stands twice, and nothing is sent again."""
    calls = [call("look", call_id="c0", n=0), call("ask", call_id="c1", n=1), call("look", call_id="c2", n=2)]
    bodies, history = answers(Scene([calls, "Done."], decided={"ask": approved}), VercelWire)
    found = play(tmp_path, {"client": client, "answers": bodies, "approve": approved})
    first, second = map(vercel_request, found["bodies"])
    assert [each.content for each in first.messages] == ["Go"]
    assert second.messages == []
    assert decide(second, history) == {1: Approve() if approved else Deny()}
    assert found["asked"] == []
    assert found["status"] == "ready"
    _, message = found["messages"]
    denied_or_done = "output-available" if approved else "output-denied"
    assert tool_parts(message) == [("c0", "output-available"), ("c1", denied_or_done), ("c2", "output-available")]
    outputs = {part["toolCallId"]: part.get("output") for part in message["parts"] if "toolCallId" in part}
    assert outputs["c2"] == "found 2"
    assert [part["text"] for part in message["parts"] if part["type"] == "text"] == ["Done."]


@pytest.mark.parametrize("client", VERCEL)
@pytest.mark.parametrize("name", ["page_open", "question"])
def test_a_chat_answers_a_call_of_its_own(client: str, name: str, tmp_path: Path) -> None:
    """A client tool and a question are its calls: it is asked once, and its output is the answer."""
    scene = Scene(
        [[call("look", call_id="c0", n=0), call(name, call_id="c1", n=1)], "Done."],
        decided={name: Answer({"title": "Home"})},
    )
    bodies, history = answers(scene, VercelWire)
    found = play(tmp_path, {"client": client, "answers": bodies, "output": {"title": "Home"}})
    assert len(found["bodies"]) == 2
    assert found["asked"] == ["c1"]
    assert decide(vercel_request(found["bodies"][1]), history) == {1: Answer({"title": "Home"})}
    assert tool_parts(found["messages"][1]) == [("c0", "output-available"), ("c1", "output-available")]
    assert found["status"] == "ready"


def test_an_agent_resumes_an_interrupt(tmp_path: Path) -> None:
    """`HttpAgent` knows what is open, sends the answer, and has each call and each result once."""
    calls = [call("look", call_id="c0", n=0), call("ask", call_id="c1", n=1)]
    bodies, history = answers(Scene([calls, "Done."], decided={"ask": True}), AGUIWire)
    found = play(tmp_path, {"client": "agui", "answers": bodies, "payload": {"approved": True, "editedArgs": {"n": 5}}})
    assert [each["id"] for each in found["interrupts"]] == ["run0/c1"]
    assert decide(agui_request(found["bodies"][1]), history) == {1: Approve({"n": 5})}
    assert [call_ids(message) for message in found["messages"]] == [None, ["c0", "c1"], "c0", "c1", []]
    arguments = [each["function"]["arguments"] for each in found["messages"][1]["toolCalls"]]
    assert arguments == ['{"n": 0}', '{"n": 1}']
    assert found["messages"][-1]["content"] == "Done."


def test_an_agent_answers_a_call_of_its_own(tmp_path: Path) -> None:
    """The call is pending; the tool message that the client adds is the answer."""
    scene = Scene([call("page_open", call_id="c1", n=1), "Done."], decided={"page_open": Answer("Home")})
    bodies, history = answers(scene, AGUIWire)
    found = play(tmp_path, {"client": "agui", "answers": bodies, "output": "Home"})
    assert (found["interrupts"], found["pending"]) == ([], ["c1"])
    first, second = map(agui_request, found["bodies"])
    assert [each.content for each in first.messages] == ["Go"]
    assert first.protocol_version == "1.0"
    assert second.messages == []
    assert decide(second, history) == {0: Answer("Home")}
    assert found["messages"][-1]["content"] == "Done."


def decide(request: ClientRequest, history: list[Json]) -> dict[int, Any]:
    return dict(decisions(request.answers, history, strict=request.strict, last_run="run0"))


def call_ids(message: Json) -> Any:
    """The calls of an assistant message, or the call that a tool message answers."""
    if message["role"] == "assistant":
        return [each["id"] for each in message.get("toolCalls") or ()]
    return message.get("toolCallId")
