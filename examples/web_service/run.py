"""The web service over real sockets: a guest closes the page, comes back, and stops an answer.

With `--serve`, it only serves, until Ctrl-C; use a browser then. Model and server come from the environment: OPENAI_API_KEY,
OPENAI_BASE_URL, OPENAI_DEFAULT_MODEL.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import uvicorn
from app import app

SHOWN = 54  # characters of the story that the guest reads before the page is closed


def main() -> None:
    """Serve, or show a guest who closes the page and comes back."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", action="store_true", help="serve until Ctrl-C")
    parser.add_argument("--port", type=int, default=8000, help="the port on this machine")
    options = parser.parse_args()
    if options.serve:
        uvicorn.run(app, port=options.port)
    else:
        asyncio.run(_show())


async def _show() -> None:
    async with _serving() as url, httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as browser:
        await browser.get("/")  # the cookie
        await _read(browser, await _say(browser, "When is breakfast?"))
        events = await _say(browser, "Tell me the story of this house.")
        await _read(browser, events, leave_after=SHOWN)
        print("\nThe guest opens the page again:")
        await _read(browser, events)
        events = await _say(browser, "I need a taxi to the station.")
        await _read(browser, events, stop_at="order_taxi")
        await _read(browser, await _say(browser, "Did you order it?"))
        print("\nWhat the server has kept:")
        for message in (await browser.get("/chat/conversations/1")).json()["messages"]:
            print(f"  {message['role']}: {message['content'] or _calls(message['tool_calls'])}")


@asynccontextmanager
async def _serving() -> AsyncGenerator[str]:
    """Inside the block, run the service in this process, on a free port. Yields its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"  # a client that connects before the start waits
        finally:
            server.should_exit = True
            await serving


async def _say(browser: httpx.AsyncClient, text: str) -> str:
    """Start a run with a message, and return the address of its events."""
    print(f"\nGuest: {text}")
    started = await browser.post("/chat/conversations/1/runs", json={"text": text})
    started.raise_for_status()
    return started.headers["location"]


async def _read(browser: httpx.AsyncClient, events: str, leave_after: int | None = None, stop_at: str = "") -> None:
    """Print the events. Close the connection after this number of characters, or stop the run when a function starts."""
    text = ""
    async with browser.stream("GET", events) as response:
        async for line in response.aiter_lines():
            event: dict[str, Any] = json.loads(line[6:]) if line.startswith("data: ") else {"type": ""}
            if event["type"] == "TextDelta":
                text += event["text"]
            elif event["type"] == "ToolCallStarted":
                print(f"  [{event['name']}]")
                if event["name"] == stop_at:
                    break
            if leave_after is not None and len(text) >= leave_after:
                break
    if stop_at:
        print(" ... the guest presses Stop")
        stopped = (await browser.post(events.replace("/events", "/cancel"))).json()
        print(f"  [{stopped['status']}: {stopped['result']['response']['messages'][-1]['content']}]")
    elif leave_after is not None:
        print(f"{text[:leave_after]} ... the guest closes the page")
    else:
        print(text)


def _calls(calls: list[dict[str, dict[str, str]]]) -> str:
    return ", ".join(f"{call['function']['name']}({call['function']['arguments']})" for call in calls)


if __name__ == "__main__":
    main()
