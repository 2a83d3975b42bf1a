"""uvicorn, hypercorn and granian as processes: clients that disconnect."""

from __future__ import annotations

import json
import socket
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.support.serve.service_process import service_process

pytestmark = pytest.mark.slow
SERVERS = ["uvicorn", "hypercorn", "granian"]
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends RST in place of FIN


def start_stream(raw: socket.socket, text: str, **body: Any) -> None:
    """Start a run whose stream is the answer to the same request, and read until its function runs."""
    content = json.dumps({"text": text, **body}).encode()
    head = (
        f"POST /conversations/c/runs HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer token\r\n"
        f"accept: text/event-stream\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    raw.sendall(head.encode() + content)
    seen = b""
    while b"ToolCallStarted" not in seen:
        piece = raw.recv(65536)
        assert piece, seen
        seen += piece


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("version", ["", "2.4"], ids=["own version", "2.4"])
@pytest.mark.parametrize("server", SERVERS)
def test_a_server_reports_a_client_that_disconnects(tmp_path: Path, server: str, version: str, how: str) -> None:
    """A run with "cancel" is stopped while its function is silent, with any version of ASGI."""
    with service_process(tmp_path / "chats.sqlite", server=server, version=version) as it:
        url = it.browser.base_url
        raw = socket.create_connection((url.host, url.port), timeout=20)
        start_stream(raw, "slow 60", on_disconnect="cancel")
        if how == "reset":
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        raw.close()
        [run] = it.browser.get("/runs").json()["runs"]
        state = it.ended(run["id"])
        assert (state["status"], state["reason"]) == ("stopped", "no_reader")
        assert state["result"]["response"]["messages"][-1]["content"] == "cancelled; its outcome is unknown"
