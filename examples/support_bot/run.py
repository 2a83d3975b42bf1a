"""The support bot: a short conversation, or your own with `--chat`. Shows the outbox at the end.

Model and server come from the environment: OPENAI_API_KEY, OPENAI_BASE_URL, OPENAI_DEFAULT_MODEL.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path
from typing import Any

from agents import user_interface
from help_centre import HelpCentre
from outbox import Outbox

from aswarm import AsyncSwarm, CompletionFinished, Event, TextDelta, ToolCallFinished, ToolCallStarted
from aswarm.events import TurnStarted

CUSTOMER = "noor@example.org"
CONVERSATION = [
    "Hello! My planter blinks red and the pump is loud. And could I still send it back?",
    "Please mail me how to clean that filter.",
    "I have cleaned it, it still blinks. I would like a human to look at this.",
]


def main() -> None:
    """Open the help centre and an outbox, serve the customer, show the outbox."""
    options = _options()
    with tempfile.TemporaryDirectory() as folder:
        outbox = Outbox(options.outbox or Path(folder))
        outbox.folder.mkdir(parents=True, exist_ok=True)
        try:
            asyncio.run(_serve(outbox, chat=options.chat))
        finally:
            _show(outbox)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chat", action="store_true", help="type what the customer says")
    parser.add_argument("--outbox", type=Path, metavar="FOLDER", help="keep tickets and letters in a folder")
    return parser.parse_args()


async def _serve(outbox: Outbox, *, chat: bool) -> None:
    async with HelpCentre() as articles:
        context = {"help_centre": articles, "outbox": outbox, "email": CUSTOMER}
        await (_chat if chat else _converse)(context)


async def _chat(context: dict[str, Any]) -> None:
    from aswarm.repl import run_demo_loop_async  # noqa: PLC0415 - only a chat needs the extra `repl`

    await run_demo_loop_async(user_interface, context, stream=True)


async def _converse(context: dict[str, Any]) -> None:
    agent, messages = user_interface, list[Any]()
    async with AsyncSwarm() as swarm:
        for line in CONVERSATION:
            print(f"\nCustomer: {line}")
            messages.append({"role": "user", "content": line})
            async with swarm.stream(agent, messages, context) as run:
                async for event in run:
                    _print(event)
            messages += run.response.messages
            agent = run.response.agent


def _print(event: Event) -> None:
    match event:
        case TurnStarted(agent=agent):
            print(f"{agent.name}: ", end="", flush=True)
        case TextDelta(text=text):
            print(text, end="", flush=True)
        case CompletionFinished(message=message):
            calls = [made["function"]["name"] for made in message["tool_calls"] or ()]
            print("calls " + ", ".join(calls) if calls else "")
        case ToolCallStarted(name=name, arguments=arguments):
            print(f"    {name}({arguments})")
        case ToolCallFinished(name="query_docs", content=content):
            print("    found:", "; ".join(line[2:] for line in content.splitlines() if line.startswith("# ")))
        case ToolCallFinished(content=content):
            print(f"    {content}")
        case _:
            pass


def _show(outbox: Outbox) -> None:
    for path in sorted([*outbox.folder.glob("email-*.eml"), *outbox.folder.glob("ticket-*.json")]):
        print(f"\n--- {path.name}\n{path.read_text(encoding='utf-8').strip()}")


if __name__ == "__main__":
    main()
