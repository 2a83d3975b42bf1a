"""Real processes: the end by SIGTERM, kill -9 and restart, and several processes on one file."""

from __future__ import annotations

import importlib.util
import json
import signal
import threading
import time
from pathlib import Path

import httpx
import pytest

from tests.support.serve.served import events_of
from tests.support.serve.service_process import ServiceProcess, service_process

pytestmark = [pytest.mark.slow, pytest.mark.processes]

SERVERS = [
    "uvicorn",
    pytest.param(
        "granian",
        marks=pytest.mark.skipif(importlib.util.find_spec("granian") is None, reason="granian is not installed"),
    ),
]


class Reader(threading.Thread):
    """Reads a stream until it ends. `text`: all of it; `ended_at`: when, on the clock of `time.monotonic`."""

    def __init__(self, process: ServiceProcess, run: str) -> None:
        super().__init__()
        self.text, self.ended_at, self.is_whole = "", 0.0, False
        self._process, self._run_id = process, run
        self.began = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            with self._process.browser.stream("GET", f"/runs/{self._run_id}/events") as stream:
                for piece in stream.iter_text():
                    self.text += piece
                    if '"ToolProgress"' in self.text:  # the function runs, so the start of its call is committed
                        self.began.set()
            self.is_whole = True
        except httpx.RemoteProtocolError:
            pass
        self.ended_at = time.monotonic()


DRAIN = 10


@pytest.mark.heavy
@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize(
    "seconds", [pytest.param(1.0, id="ends in time", marks=pytest.mark.heavy), pytest.param(60.0, id="is stopped")]
)
def test_sigterm_closes_streams_and_lets_runs_finish(tmp_path: Path, server: str, seconds: float) -> None:
    """Readers get a whole response with a hint to reconnect; runs have `drain` seconds, and a stopped run is kept."""
    store = tmp_path / "chats.sqlite"
    with service_process(store, server=server, drain=DRAIN) as first:
        run = first.say(f"slow {seconds}")
        reader = Reader(first, run)
        assert reader.began.wait(120)
        begun = time.monotonic()
        first.process.send_signal(signal.SIGTERM)
        reader.join(120)
        assert reader.is_whole
        assert reader.text.endswith("retry: 1000\n\n")
        assert reader.ended_at - begun < DRAIN
        first.process.wait(120)
    with service_process(store) as second:
        state = second.ended(run)
        expected = ("finished", None) if seconds < 2 else ("stopped", "shutdown")
        assert (state["status"], state.get("reason")) == expected
        last = second.browser.get("/conversations/c").json()["messages"][-1]
        assert last["content"] == ("4 messages." if seconds < 2 else "cancelled; its outcome is unknown")
        seen = [event["id"] for event in events_of(reader.text) if "id" in event][-1]
        rest = events_of(second.browser.get(f"/runs/{run}/events", headers={"last-event-id": seen}).text)
        assert json.loads(rest[-1]["data"])["type"] == ("RunFinished" if seconds < 2 else "RunStopped")
        assert int(rest[0]["id"]) > int(seen)


def test_a_conversation_continues_after_a_kill(tmp_path: Path) -> None:
    """After kill -9 in a call and a restart, the run is closed, the outcome of the call is unknown, and a message works."""
    store = tmp_path / "chats.sqlite"
    with service_process(store) as first:
        run = first.say("slow 60")
        reader = Reader(first, run)
        assert reader.began.wait(120)
        first.kill()
        reader.join(120)
    with service_process(store) as second:
        state = second.ended(run)
        assert (state["status"], state["reason"]) == ("stopped", "process_died")
        seen = [event["id"] for event in events_of(reader.text) if "id" in event][-1]
        rest = events_of(second.browser.get(f"/runs/{run}/events", headers={"last-event-id": seen}).text)
        assert json.loads(rest[-1]["data"])["type"] == "RunStopped"
        messages = second.browser.get("/conversations/c").json()["messages"]
        assert messages[-1]["content"] == "cancelled; its outcome is unknown"
        assert second.ended(second.say("And now?"))["status"] == "finished"


def test_processes_share_the_runs_of_a_file(tmp_path: Path) -> None:
    """Another process reads a run live, refuses a second message, and stops the run."""
    store = tmp_path / "chats.sqlite"
    with service_process(store) as first, service_process(store) as second:
        run = first.say("slow 60")
        second.wait_for(run, "ToolProgress")
        refused = second.browser.post("/conversations/c/runs", json={"text": "Hello?"})
        assert (refused.status_code, refused.json()["error"]["run"]) == (409, run)
        reader = Reader(second, run)
        assert reader.began.wait(120)
        state = second.browser.post(f"/runs/{run}/cancel").json()
        assert (state["status"], state["reason"]) == ("stopped", "cancelled")
        reader.join(120)
        assert '"RunStopped"' in reader.text
        assert first.ended(run)["result"] == state["result"]
        assert second.ended(second.say("Go on."))["status"] == "finished"
        assert first.browser.get("/conversations/c").json()["messages"][-1]["role"] == "assistant"
