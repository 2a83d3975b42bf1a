"""A server of MCP over stdio, of a version before 2026-07-28. Without the SDK, so that it starts fast.

    python mcp_stdio_server.py JOURNAL

JOURNAL is a file that gets a line for each call. `crash` dies; `crash_once` dies the first time; `slow` never answers;
after `spoil`, the list of tools is not valid; after `crash_for_good`, the program does not start again. `fail` answers with
an error with the code and the message in its arguments. The file JOURNAL.text has the text of all tools. `garble` writes bytes that are not UTF-8, before its result and in it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

HINTS: dict[str, dict[str, bool]] = {
    "echo": {"readOnlyHint": True},
    "write": {},
    "crash": {},
    "crash_once": {"idempotentHint": True},
    "crash_for_good": {"idempotentHint": True},
    "fail": {},
    "slow": {},
    "spoil": {},
    "garble": {},
}


def result_of(method: str, params: dict[str, Any], journal: str) -> dict[str, Any] | None:
    """Return the answer to a request; None for an error."""
    if method == "initialize":
        info = {"name": "plain", "version": "1"}
        return {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list" and "spoil" in Path(journal).read_text():
        return {"tools": 7}
    if method == "tools/list":
        text = Path(f"{journal}.text")
        common = {"inputSchema": {"type": "object"}, "description": text.read_text() if text.exists() else ""}
        return {"tools": [{"name": name, "annotations": hints, **common} for name, hints in HINTS.items()]}
    if method == "prompts/list":
        hello = {"messages": [{"role": "user", "content": {"type": "text", "text": "Say hello."}}]}
        return {"prompts": [{"name": json.dumps(hello), "title": "Hello"}]}
    if method == "prompts/get":  # the name is the result
        made: dict[str, Any] = json.loads(params["name"])
        return made
    if method != "tools/call":
        return None
    name = params["name"]
    if name == "garble":
        sys.stdout.flush()
        sys.stdout.buffer.write(b"\xff\xfe starting\n")
        sys.stdout.buffer.flush()
    with Path(journal).open("a+") as file:
        file.seek(0)
        is_first = name not in file.read().split()
        file.write(f"{name}\n")
    if name in ("crash", "crash_for_good") or (name == "crash_once" and is_first):
        os.kill(os.getpid(), signal.SIGKILL)
    return {"content": [{"type": "text", "text": str(params.get("arguments", {}).get("text", "done"))}]}


def main(journal: str) -> None:
    """Answer the lines of stdin, one after another."""
    if "crash_for_good" in Path(journal).read_text():
        return
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message or "method" not in message or message.get("params", {}).get("name") == "slow":
            continue
        result = result_of(message["method"], message.get("params") or {}, journal)
        error = {"code": -32601, "message": "Method not found"}
        if message.get("params", {}).get("name") == "fail":
            result, error = None, message["params"]["arguments"]
        body = {"error": error} if result is None else {"result": result}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **body}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
