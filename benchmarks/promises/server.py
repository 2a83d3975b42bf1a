"""The scripted server: a process that plays the model of one scenario over a socket, and records each request.

`python server.py SCENARIO` prints its port, and serves until stdin ends. Routes: `POST /v1/chat/completions`, `POST /v1/responses`,
`POST /step/NAME` (the step that runs from now on) and `GET /requests` (the recorded requests).
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from scripts import Seen, Turn, turn_of
from validator import faults_of, items_of, parameters_of
from wire import events, whole

Json = dict[str, Any]


class Server(ThreadingHTTPServer):
    """The state that all connections share."""

    daemon_threads = True

    def __init__(self, scenario: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.scenario = scenario
        self.step = ""
        self.requests: list[Json] = []
        self.lock = threading.Lock()

    def record(self, body: Json) -> tuple[int, Turn, list[str]]:
        """Record a request. Returns its number, the turn of the model, and the faults of the request."""
        faults = faults_of(body)
        items = [] if faults and faults[0].startswith("messages") else _items_if_readable(body)
        with self.lock:
            earlier = len(self.requests)
            self.requests.append({"step": self.step, "items": [asdict(item) for item in items], "faults": faults})
            turn = Turn() if faults else turn_of(self.scenario, Seen(items, self.step, earlier, parameters_of(body)))
        return earlier, turn, faults

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing if a client leaves: scenarios do that on purpose."""


def _items_if_readable(body: Json) -> list[Any]:
    try:
        return items_of(body)
    except (KeyError, TypeError, AttributeError):
        return []


class Handler(BaseHTTPRequestHandler):
    """A connection."""

    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
        """Print nothing."""

    def do_GET(self) -> None:
        """Return the recorded requests."""
        self.send_json(200, self.server.requests)

    def do_POST(self) -> None:
        """Answer as the model, or set the step."""
        sent = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.path.startswith("/step/"):
            self.server.step = self.path.removeprefix("/step/")
            self.send_json(200, {})
            return
        body = json.loads(sent)
        number, turn, faults = self.server.record(body)
        if faults:
            self.send_error_of_model(400, faults[0])
        elif turn.status != 200:
            self.send_error_of_model(turn.status, "the server had an error")
        elif body.get("stream"):
            self.stream(events(turn, number, responses="input" in body), turn)
        else:
            time.sleep(turn.pause)
            self.send_json(200, whole(turn, number, responses="input" in body))

    def send_json(self, status: int, value: Any) -> None:
        """Send a whole answer."""
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def send_error_of_model(self, status: int, text: str) -> None:
        """Send an error in the form of OpenAI."""
        kind = "invalid_request_error" if status == 400 else "server_error"
        self.send_json(status, {"error": {"message": text, "type": kind, "param": None, "code": None}})

    def stream(self, pieces: Iterable[bytes], turn: Turn) -> None:
        """Send the events. If the turn is cut, close the connection without an end."""
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for piece in pieces:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            time.sleep(turn.pause)
        if turn.cut:
            self.close_connection = True
        else:
            self.wfile.write(b"0\r\n\r\n")


def main() -> None:
    """Serve until stdin ends."""
    server = Server(sys.argv[1])
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
