"""Runs examples, unchanged, against a real model on this machine: the model of the demo, SmolLM2-135M on llama.cpp.

    python examples/live.py                       # all of EXAMPLES; `nox -s demo -- --live` installs the packages
    python examples/live.py basic/handoff.py ...  # some of them, with their output

Such a small model writes arguments and follows instructions, but it cannot choose a function. So a relay between the example and
the model's server adds settings to each request: temperature 0, a maximum length, and the next function to call. The functions
come from `live_plan.py`, one at a time, and then none. All other data pass unchanged, also in a stream.

The checks test effects: the called functions, valid arguments, the results, handoffs, and an answer at the end of each run. They
do not test the text. Exit codes: 0: all checks passed. 1: a check failed. 2: there is no model.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any

import httpx
import offline
from live_plan import EXAMPLES, PLAN, Expected

from aswarm.testing import Request, check_history

sys.path.append(str(Path(__file__).with_name("demo")))
from checks import Checks
from model_server import ModelUnavailableError, model_server

SECONDS = 240  # for all of them; on two cores that have nothing else to do, it takes 40

# --- the relay ---


@dataclass(slots=True)
class Exchange:
    """A request of the example, the forced function, and the bytes of the answer so far."""

    request: Request
    forced: str | None
    answer: bytearray = field(default_factory=bytearray)
    is_whole: bool = False

    @property
    def said(self) -> bool:
        """Whether the answer has text, and was not cut off by the client."""
        return self.is_whole and re.search(rb'"content": ?"[^"]', self.answer) is not None


class Relay:
    """A relay to the model's server. It adds the settings for a small model, and keeps the exchanges."""

    def __init__(self, url: str) -> None:
        """`url`: the URL of the model's server."""
        # This server closes connections that its header promises to keep.
        headers = {"connection": "close"}
        self._client = httpx.AsyncClient(base_url=url, timeout=SECONDS, trust_env=False, headers=headers)
        self.exchanges: list[Exchange] = []

    async def _respond(self, request: Request) -> httpx.Response:
        """Return the answer of the model's server."""
        exchange = Exchange(request, _next_in_plan(request))
        self.exchanges.append(exchange)
        body = {**request.body, **_settings(request.body, exchange.forced)}
        passed_on = self._client.build_request("POST", "/v1/chat/completions", json=body)
        response = await self._client.send(passed_on, stream=True)
        response.stream = _Noted(response.stream, exchange)
        return response


class _Noted(httpx.AsyncByteStream):
    """The body of an answer. It is passed on unchanged, and recorded."""

    def __init__(self, body: Any, exchange: Exchange) -> None:
        self._body = body
        self._exchange = exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._body:
            self._exchange.answer += piece
            yield piece
        self._exchange.is_whole = True

    async def aclose(self) -> None:
        await self._body.aclose()


def _since_the_user(messages: list[dict[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    """Return the last message of the user, and the calls after this message."""
    last = max(index for index, message in enumerate(messages) if message["role"] == "user")
    return messages[last]["content"], [call for each in messages[last:] for call in each.get("tool_calls") or ()]


def _next_in_plan(request: Request) -> str | None:
    said, calls = _since_the_user(request.messages)
    return next(iter(PLAN.get(said, [])[len(calls) :]), None)


def _settings(body: dict[str, Any], forced: str | None) -> dict[str, Any]:
    settings: dict[str, Any] = {"temperature": 0, "seed": 1, "max_tokens": 100 if forced else 40}
    if forced:
        # In place of a `tool_choice` with the name of the function, which llama.cpp ignores.
        settings["tools"] = _only(body["tools"], {forced})
        settings |= {"tool_choice": "required", "parallel_tool_calls": False}
    elif "tools" in body:
        # As in the previous request, so that the server can reuse its cache.
        called = {call["function"]["name"] for call in _since_the_user(body["messages"])[1]}
        settings["tools"] = _only(body["tools"], called) or body["tools"]
        settings["tool_choice"] = "none"
    return settings


def _only(tools: list[dict[str, Any]], names: set[str]) -> list[dict[str, Any]]:
    return [tool for tool in tools if tool["function"]["name"] in names]


# --- an example, and its checks ---


async def _run(relay: Relay, script: str, deadline: float) -> tuple[int | None, str, str]:
    """Run an example. Returns its exit code, output and errors. `deadline`: a time of the event loop's clock."""
    server = await asyncio.start_server(partial(offline.serve, relay), "127.0.0.1", 0)
    environment = offline.environment(server.sockets[0].getsockname()[1])
    command = [sys.executable, os.fspath(offline.EXAMPLES / script)]
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdin=DEVNULL, stdout=PIPE, stderr=PIPE)
    try:
        async with asyncio.timeout_at(deadline):
            output, errors = await process.communicate()
    except TimeoutError:
        return None, "", "it did not end in time"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        server.close()
    return process.returncode, output.decode(), errors.decode()


def _check(checks: Checks, expected: Expected, exchanges: list[Exchange], output: str) -> None:
    ends = [exchange for exchange in exchanges if exchange.forced is None and exchange.said]
    checks.check(len(ends) == expected.answers, f"runs that ended with an answer: {expected.answers}", seen=len(ends))
    calls = [call["function"] for end in ends for call in _since_the_user(end.request.messages)[1]]
    names = tuple(call["name"] for call in calls)
    checks.check(names == expected.calls, f"called: {', '.join(expected.calls) or 'nothing'}", seen=names)
    bad = [fault for end in ends for fault in _faults(end.request.messages)]
    checks.check(not bad, "the arguments parse and fit, and every history is valid", seen=bad)
    if expected.prints:
        done = re.search(expected.prints, output, re.MULTILINE)
        checks.check(done is not None, f"what was done is seen in the output: {done and done[0]}", seen=output)


def _faults(messages: list[dict[str, Any]]) -> list[str]:
    faults = [
        str(each["content"]) for each in messages if each["role"] == "tool" and each["content"].startswith("Error")
    ]
    try:
        check_history(messages)
        for message in messages:
            for call in message.get("tool_calls") or ():
                dict(json.loads(call["function"]["arguments"]))  # TypeError or ValueError if it is not an object
    except (AssertionError, ValueError, TypeError) as error:
        faults.append(str(error))
    return faults


async def _live(url: str, scripts: list[str], *, verbose: bool) -> list[str]:
    checks, now = Checks(), asyncio.get_running_loop().time
    began = now()
    for script in scripts:
        relay, started = Relay(url), now()
        code, output, errors = await _run(relay, script, began + SECONDS)
        print(f"{script}: {len(relay.exchanges)} completions in {now() - started:.1f} s", flush=True)
        if verbose:
            print(output)
        checks.check((code, errors) == (0, ""), "it ended well", seen=(code, errors))
        _check(checks, EXAMPLES[script], relay.exchanges, output)
    print(f"{len(scripts)} examples in {now() - began:.1f} s, {len(checks.failures)} failed checks")
    return checks.failures


def main(scripts: list[str]) -> int:
    """Run these examples, or all examples if the list is empty. Returns the exit code."""
    if unknown := set(scripts) - set(EXAMPLES):
        print(f"not among {', '.join(EXAMPLES)}: {', '.join(unknown)}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        with model_server() as url:
            return 1 if asyncio.run(_live(url, scripts or list(EXAMPLES), verbose=bool(scripts))) else 0
    except ModelUnavailableError as error:
        print(f"cannot start the model: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
