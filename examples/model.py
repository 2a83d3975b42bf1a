"""A rule-based model for chats, with no network and no API key, served on loopback.

    python examples/model.py                        prints a base URL, and waits until Ctrl-C; --port N for a fixed port
    python examples/model.py -m aswarm chat ...     runs a Python command with this model, until the command ends

The model works with the functions of any agent. It compares the words of your message with the names and descriptions of the
functions, and calls the best match. A number in the message becomes the argument that is a number; the message itself becomes the
argument that is a text. So you can try tools, handoffs and streams, but not the quality of a real model.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from aswarm.testing import Request, ScriptedAnswer, ScriptedCall, ScriptedModel, call

offline = importlib.import_module("offline")  # beside this file

_PAUSE = 0.02  # seconds before each piece, so that a person can follow
_COMMON = {"about", "and", "are", "can", "does", "for", "from", "how", "its", "please", "some", "that", "the", "this"}
_COMMON |= {
    "those",
    "want",
    "was",
    "what",
    "when",
    "where",
    "which",
    "who",
    "why",
    "will",
    "with",
    "would",
    "you",
    "your",
}
_HINT = "I am no real model: I compare your words with the functions of the agent. "


def main(arguments: list[str]) -> int:
    """Serve the model until Ctrl-C, or until the command ends. Returns the exit code."""
    model = ScriptedModel(answer, cut=4)
    if arguments[:1] not in ([], ["--port"]):
        return int(offline.run_with(model, arguments))
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(model, int(arguments[1]) if arguments else 0))
    return 0


async def _serve(model: ScriptedModel, port: int) -> None:
    server = await asyncio.start_server(partial(offline.serve, model), "127.0.0.1", port)
    port = server.sockets[0].getsockname()[1]
    url = f"http://127.0.0.1:{port}/v1"
    print(f"base URL: {url}    (any API key; Ctrl-C ends it)")
    print(f'  AsyncOpenAI(base_url="{url}", api_key="x")')
    print(f"  aswarm chat --base-url {url} aswarm.cli.demo_agents:triage", flush=True)
    await server.serve_forever()


# --- the answers ------------------------------------------------------------------------------------------------------


def answer(request: Request) -> ScriptedAnswer:
    """Return a call of the best function for the user's last message. After calls, return their results; otherwise a hint."""
    messages = request.messages
    position = max((n for n, message in enumerate(messages) if message["role"] == "user"), default=0)
    text = str(messages[position].get("content") or "")
    made = [each["function"]["name"] for message in messages[position:] for each in message.get("tool_calls") or ()]
    if made and not made[-1].startswith("transfer_to_"):
        return ScriptedAnswer(_results(messages), pause=_PAUSE)
    system = str(messages[0].get("content")) if messages[0]["role"] == "system" else ""
    tools = [tool["function"] for tool in request.body.get("tools", ())]
    scores = {n: _score(tool, text, system) for n, tool in enumerate(tools) if tool["name"] not in made}
    best = max(scores, key=lambda n: scores[n], default=None)
    if best is None or not scores[best]:
        return ScriptedAnswer(_what_it_can_do(tools), pause=_PAUSE)
    return _call(tools[best], text)


def _results(messages: list[dict[str, Any]]) -> str:
    last_call = max(n for n, message in enumerate(messages) if message.get("tool_calls"))
    return " ".join(str(message.get("content")) for message in messages[last_call + 1 :])


def _what_it_can_do(tools: list[dict[str, Any]]) -> str:
    names = ", ".join(tool["name"] for tool in tools)
    return _HINT + (f"Here they are: {names}. Use their words." if names else "This agent has no functions.")


def _score(tool: dict[str, Any], text: str, system: str) -> int:
    """Return the number of common words. Words of the name count twice. For a handoff, instructions about the agent also count."""
    words, name = _words(text), str(tool["name"]).replace("_", " ")
    described = str(tool.get("description") or "")
    if name.startswith("transfer to "):
        target = name.removeprefix("transfer to ")
        described += " ".join(sentence for sentence in re.split(r"[.!?\n]", system) if target in sentence.lower())
    return 2 * len(words & _words(name)) + len(words & _words(described))


def _words(text: str) -> set[str]:
    words = (word.removesuffix("s") for word in re.findall(r"[^\W\d_]{3,}", text.lower()))
    return {word for word in words if word not in _COMMON}


def _call(tool: dict[str, Any], text: str) -> ScriptedAnswer:
    schema: dict[str, Any] = tool.get("parameters") or {}
    wanted = {name: schema["properties"][name] for name in schema.get("required") or ()}
    numbers = iter(re.findall(r"-?\d+(?:\.\d+)?", text))
    arguments = {name: _argument(part, text, numbers) for name, part in wanted.items()}
    missing = [name for name, value in arguments.items() if value is None]
    if missing:
        return ScriptedAnswer(f"To call {tool['name']} I need a number: {', '.join(missing)}.", pause=_PAUSE)
    made: ScriptedCall = call(tool["name"], json.dumps(arguments))
    return ScriptedAnswer(calls=[made], pause=_PAUSE)


def _argument(schema: dict[str, Any], text: str, numbers: Iterator[str]) -> Any:
    if "enum" in schema:
        named = [value for value in schema["enum"] if str(value).lower() in text.lower()]
        return (named or schema["enum"])[0]
    kind = schema.get("type")
    if kind in ("integer", "number"):
        number = next(numbers, None)
        return None if number is None else int(float(number)) if kind == "integer" else float(number)
    return {"boolean": True, "array": [], "object": {}}.get(str(kind), text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
