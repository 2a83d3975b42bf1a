"""A server of MCP over HTTP without the SDK, of a version before 2026-07-28, that answers a call with any status and body."""

from __future__ import annotations

import json
import socket
from collections.abc import Generator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import uvicorn

HINTS = {"pay": {}, "update": {"idempotentHint": True}}


class PlainServer:
    """`answers`: the status, the content type and the body for each call; further calls get the result "done".

    A body of None is a connection that breaks during the call; after it, no session can be opened. `calls`: the names of the
    called tools; a call with a status other than 2xx counts only if `counts_refusals`.
    """

    def __init__(self, *answers: tuple[int, str, bytes | None], counts_refusals: bool = True) -> None:
        self.calls: list[str] = []
        self._answers = list(answers)
        self._counts_refusals = counts_refusals
        self._is_down = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return None
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        if self._is_down or scope["method"] != "POST":
            return await _respond(send, 405 if not self._is_down else 503, "text/plain", b"no")
        request = json.loads(body)
        if "id" not in request:
            return await _respond(send, 202, "text/plain", b"")
        if request["method"] == "tools/call":
            return await self._call(request, send)
        result = _result_of(request["method"])
        error = {"error": {"code": -32601, "message": "Method not found"}}
        return await _respond_json(send, request["id"], error if result is None else {"result": result})

    async def _call(self, request: Any, send: Any) -> None:
        status, kind, body = self._answers.pop(0) if self._answers else (200, "", b"")
        if 200 <= status < 300 or self._counts_refusals:
            self.calls.append(request["params"]["name"])
        if body is None:
            self._is_down = True
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"9")]})
            raise ConnectionResetError
        if kind:
            await _respond(send, status, kind, body)
        else:
            await _respond_json(send, request["id"], {"result": {"content": [{"type": "text", "text": "done"}]}})


def _result_of(method: str) -> Any:
    match method:
        case "initialize":
            info = {"name": "plain", "version": "1"}
            return {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            schema = {"type": "object"}
            return {"tools": [{"name": n, "inputSchema": schema, "annotations": hints} for n, hints in HINTS.items()]}
    return None


async def _respond_json(send: Any, number: Any, fields: dict[str, Any]) -> None:
    body = json.dumps({"jsonrpc": "2.0", "id": number, **fields}).encode()
    await _respond(send, 200, "application/json", body)


async def _respond(send: Any, status: int, kind: str, body: bytes) -> None:
    headers = [(b"content-type", kind.encode()), (b"mcp-session-id", b"s1")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def error_body(code: int, message: str) -> bytes:
    """Return an error of JSON-RPC without a request id."""
    return json.dumps({"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message}}).encode()


@contextmanager
def served(app: PlainServer) -> Generator[str]:
    """Run the server in a thread, and yield its URL."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off", timeout_graceful_shutdown=0))
    thread = Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()
