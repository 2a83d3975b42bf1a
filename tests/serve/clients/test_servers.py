"""uvicorn, hypercorn and granian as processes: clients that go in every way, and the end of the process."""

from __future__ import annotations

import json
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.serve.service_process import ServiceProcess, service_process

pytestmark = pytest.mark.slow
SERVERS = ["uvicorn", "hypercorn", "granian"]
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends RST in place of FIN


Connect = Callable[..., socket.socket]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Makes bare connections to a service, which are closed at the end."""

    def connected(it: ServiceProcess, *, receive_buffer: int | None = None) -> socket.socket:
        raw = stack.enter_context(socket.socket())
        raw.settimeout(20)
        if receive_buffer is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        raw.connect((it.browser.base_url.host, it.browser.base_url.port))
        return raw

    with ExitStack() as stack:
        yield connected


def head(method: str, place: str, body: bytes = b"", **more: str) -> bytes:
    """A request with the token of the user."""
    headers = {"host": "127.0.0.1", "authorization": "Bearer token", "content-type": "application/json", **more}
    headers.setdefault("content-length", str(len(body)))
    lines = [f"{method} {place} HTTP/1.1", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def start_stream(raw: socket.socket, text: str, **body: Any) -> None:
    """Start a run whose stream is the answer to the same request, and read until its function runs."""
    content = json.dumps({"text": text, **body}).encode()
    raw.sendall(head("POST", "/conversations/c/runs", content, accept="text/event-stream"))
    seen = b""
    while b"ToolCallStarted" not in seen:
        piece = raw.recv(65536)
        assert piece, seen
        seen += piece


def only_run(it: ServiceProcess) -> dict[str, Any]:
    [run] = it.browser.get("/runs").json()["runs"]
    found: dict[str, Any] = run
    return found


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("version", ["", "2.4"], ids=["own version", "2.4"])
@pytest.mark.parametrize("server", SERVERS)
def test_a_server_reports_a_client_that_disconnects(
    tmp_path: Path, server: str, version: str, how: str, connect: Connect
) -> None:
    """A run with "cancel" is stopped while its function is silent, with any version of ASGI."""
    with service_process(tmp_path / "chats.sqlite", server=server, version=version) as it:
        raw = connect(it)
        start_stream(raw, "slow 60", on_disconnect="cancel")
        if how == "reset":
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        raw.close()
        state = it.ended(only_run(it)["id"])
        assert (state["status"], state["reason"]) == ("stopped", "no_reader")
        assert state["result"]["response"]["messages"][-1]["content"] == "cancelled; its outcome is unknown"


@pytest.mark.parametrize("server", SERVERS)
def test_clients_that_do_nothing_hold_nothing_up(
    tmp_path: Path, server: str, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a head, half a body, and streams that are never read: runs end beside them, and a new one is answered."""
    monkeypatch.setenv("SERVICE_CUT", "5000")
    with service_process(tmp_path / "chats.sqlite", server=server, drain=1) as it:
        run = it.say("long 1000000")
        half_head, half_body = connect(it), connect(it)
        half_head.sendall(b"POST /conversations/c/runs HTTP/1.1\r\nhost: 127.0.0.1\r\n")
        half_body.sendall(head("POST", "/conversations/d/runs", content_length="100") + b'{"text": ')
        never = [connect(it, receive_buffer=1024) for _ in range(5)]
        for raw in never:
            raw.sendall(head("GET", f"/runs/{run}/events"))
        assert it.ended(run)["status"] == "finished"
        assert it.ended(it.say("Hi!", "e"))["status"] == "finished"
        assert [found["id"] for found in it.browser.get("/runs?conversation=d").json()["runs"]] == []


@pytest.mark.parametrize("server", SERVERS)
def test_streams_end_at_sigterm_and_their_runs_are_kept(tmp_path: Path, server: str, connect: Connect) -> None:
    """Four open streams: each gets the end of its response, and each conversation has what is known of its call."""
    store = tmp_path / "chats.sqlite"
    with service_process(store, server=server, drain=1) as first:
        body = json.dumps({"text": "slow 60"}).encode()
        raws = []
        for number in range(4):  # as many as a user may have
            raw = connect(first)
            raw.sendall(head("POST", f"/conversations/{number}/runs", body, accept="text/event-stream"))
            raws.append(raw)
        while len(runs := first.browser.get("/runs").json()["runs"]) < len(raws):
            time.sleep(0.01)
        for run in runs:
            first.wait_for(run["id"], "ToolCallStarted")
        first.process.send_signal(signal.SIGTERM)
        texts = [read_all(raw) for raw in raws]
        first.process.wait(120)
        if server != "hypercorn":  # hypercorn sends no signal to the app, and cuts the streams after 3 seconds
            assert all(text.endswith(b"retry: 1000\n\n\r\n0\r\n\r\n") for text in texts), texts
    with service_process(store) as second:
        states = [second.ended(run["id"]) for run in second.browser.get("/runs").json()["runs"]]
        assert [(state["status"], state["reason"]) for state in states] == [("stopped", "shutdown")] * 4
        for number in range(4):
            messages = second.browser.get(f"/conversations/{number}").json()["messages"]
            assert messages[-1]["content"] == "cancelled; its outcome is unknown"


def read_all(raw: socket.socket) -> bytes:
    """The rest of a connection."""
    text = b""
    try:
        while piece := raw.recv(65536):
            text += piece
    except ConnectionResetError:
        pass
    return text
