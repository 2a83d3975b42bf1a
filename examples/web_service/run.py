"""The web service with real sockets: a guest who twice closes the page in the middle, and what the server then knows.

With `--serve`, only the service, until Ctrl-C, for a browser. Model and server come from the environment:
OPENAI_API_KEY, OPENAI_BASE_URL, OPENAI_MODEL.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import httpx
import uvicorn
from app import app


def main() -> None:
    """Serve, or show what happens when a guest leaves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", action="store_true", help="serve until Ctrl-C")
    parser.add_argument("--port", type=int, default=8000, help="the port on this machine")
    options = parser.parse_args()
    if options.serve:
        uvicorn.run(app, port=options.port, timeout_graceful_shutdown=3)
    else:
        asyncio.run(_show())


async def _show() -> None:
    async with _serving() as url, httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as browser:
        name = (await browser.post("/conversations")).json()["id"]
        await _talk(browser, name, "When is breakfast?")
        await _talk(browser, name, "Tell me the story of this house.", leave_after=("text", 6))
        await _talk(browser, name, "I need a taxi to the station.", leave_after=("tool", 1))
        await _talk(browser, name, "Did you order it?")
        print("\nWhat the server has kept:")
        for message in app.state.conversations[name].messages:
            print(f"  {message['role']}: {message['content'] or _calls(message['tool_calls'])}")


@asynccontextmanager
async def _serving() -> AsyncGenerator[str]:
    """The service on a free port, in this process, for the length of the block."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=3))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"  # who connects before it has started waits a moment
        finally:
            server.should_exit = True
            await serving


async def _talk(browser: httpx.AsyncClient, name: str, text: str, leave_after: tuple[str, int] = ("", 0)) -> None:
    """Say something and print what comes; close the connection after so many events of a kind."""
    print(f"\nGuest: {text}")
    kind, left = leave_after
    async with browser.stream("POST", f"/conversations/{name}", json={"text": text}) as response:
        lines = response.aiter_lines()
        async for line in lines:
            if line.startswith("event: "):
                event, data = line[7:], json.loads((await anext(lines))[6:])
                _print(event, data)
                left -= event == kind
                if event == kind and not left:
                    print(" ... the guest closes the page")
                    return
    print()


def _print(event: str, data: str) -> None:
    if event == "tool":
        print(f"  [{data}]")
    elif event in {"text", "error"}:
        print(data, end="", flush=True)


def _calls(calls: list[dict[str, dict[str, str]]]) -> str:
    return ", ".join(f"{call['function']['name']}({call['function']['arguments']})" for call in calls)


if __name__ == "__main__":
    main()
