"""aimock, an independent server that imitates OpenAI, Anthropic and Gemini; and a relay in front of it.

The relay records the original requests: the journal of aimock has them in its own form. It also converts Gemini's fields and
path to the only spelling that aimock supports.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

PROGRAM = os.environ.get("AIMOCK")  # the path of its cli.js; `nox -s deep -- providers` sets it


@dataclass(frozen=True)
class Seen:
    """A request: its path and its body."""

    path: str
    body: dict[str, Any]


class Relay(ThreadingHTTPServer):
    """A relay of requests to `target`, and of its answers; `seen` has the requests."""

    daemon_threads = True

    def __init__(self, target: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = target
        self.seen: list[Seen] = []

    @property
    def url(self) -> str:
        """The URL, without a slash at its end."""
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Relay

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.seen.append(Seen(self.path, body))
        with _answer_of(self.server.target, self.path, body) as answer:
            self.send_response(answer.status)
            for name in ("content-type", "retry-after"):
                if name in answer.headers:
                    self.send_header(name, answer.headers[name])
            self.send_header("connection", "close")
            self.end_headers()
            while piece := answer.read1(4096):
                self.wfile.write(piece)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def _answer_of(target: str, path: str, body: Any) -> Any:
    if "/models/" in path:
        path, body = path.replace("/v1/", "/v1beta/"), _camel_case(body)
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(target + path, json.dumps(body).encode(), headers, method="POST")
    try:
        return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30)
    except urllib.error.HTTPError as error:
        return error


def _camel_case(value: Any) -> Any:
    """Return the value with `functionCall` for `function_call`: Gemini reads both."""
    if isinstance(value, dict):
        return {re.sub("_([a-z])", lambda found: found[1].upper(), key): _camel_case(v) for key, v in value.items()}
    return [_camel_case(item) for item in value] if isinstance(value, list) else value


@contextmanager
def aimock(fixtures: Path) -> Iterator[Relay]:
    """Run a relay in front of aimock, which answers from the fixtures, in pieces of seven characters."""
    assert PROGRAM is not None
    command = ["node", PROGRAM, "--port", "0", "--chunk-size", "7", "--fixtures", os.fspath(fixtures)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            with Relay(_address(process)) as relay:
                threading.Thread(target=relay.serve_forever, daemon=True).start()
                yield relay
                relay.shutdown()
        finally:
            process.kill()


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    printed: list[str] = []
    for line in process.stdout:
        if found := re.search(r"listening on (http://\S+)", line):
            threading.Thread(target=process.stdout.read, daemon=True).start()  # a full pipe would stop the server
            return found[1]
        printed.append(line)
    raise AssertionError(f"aimock did not start: {printed}")
