"""An HTTP server in threads of its own, for programs that block their event loop or have several."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@contextmanager
def threaded_server(answer: Callable[[BaseHTTPRequestHandler, Any], tuple[int, bytes]]) -> Iterator[str]:
    """Run a server that keeps its connections, and yield its URL, without a path.

    `answer` gets the handler of a request and the body, and returns the status and the JSON of the answer.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            status, body = answer(self, json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
