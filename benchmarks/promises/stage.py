"""For the programs: the functions of the tools, the address of the model, the folder, and the ends of a step.

Only the standard library, because it runs in the environment of each framework.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

URL = os.environ.get("PROMISES_URL", "")  # the base URL of the model
FOLDER = Path(os.environ.get("PROMISES_FOLDER", "."))  # the processes of a program share this folder
PORT = int(os.environ.get("PROMISES_PORT", "0"))  # for the service of the scenarios with a service
STEP = os.environ.get("PROMISES_STEP", "")
HANGS = os.environ.get("PROMISES_HANGS", "")  # the function that does not return in this step
EFFECTS = FOLDER / "effects.jsonl"
REFUSED, NOT_OFFERED = 11, 12
GO_ON = "Go on."


# --- the functions of the tools ---------------------------------------------------------------------------------------


async def look_up(order: int) -> str:
    """Look up an order."""
    effect("look_up", order=order)
    return f"Order {order}: one lamp, paid."


async def book_hotel() -> str:
    """Book the hotel."""
    effect("book_hotel")
    return "hotel: room 12"


async def book_train() -> str:
    """Book the train."""
    effect("book_train")
    await _hang("book_train")
    return "train: seat 5"


async def refund(order: int) -> str:
    """Refund an order."""
    effect("refund", order=order)
    await _hang("refund")
    return f"refunded order {order}"


async def _hang(name: str) -> None:
    if name == HANGS:
        try:
            await asyncio.sleep(600)  # longer than each time limit, so that a slow machine changes no verdict
        except asyncio.CancelledError:
            effect(f"{name} cancelled")
            raise
        effect(f"{name} ended")
    else:
        await asyncio.sleep(0.3)  # long enough that two processes overlap


# --- facts ------------------------------------------------------------------------------------------------------------


def effect(what: str, **details: Any) -> None:
    """Write a line that survives the death of the process."""
    line = json.dumps({"what": what, "step": STEP, "pid": os.getpid(), **details}) + "\n"
    with EFFECTS.open("a") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def effects() -> list[dict[str, Any]]:
    """Return the lines of all processes."""
    with suppress(FileNotFoundError):
        return [json.loads(line) for line in EFFECTS.read_text().splitlines()]
    return []


def read(text: str) -> None:
    """Write a piece of text that the client has read."""
    effect("read", text=text)


def read_whole(text: str) -> None:
    """Write the whole answer that the client has read."""
    effect("whole", text=text)


async def seen(what: str) -> None:
    """Wait until a process has written this line, and 0.3 seconds more for everything that follows at once."""
    while not any(line["what"] == what for line in effects()):
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.3)


async def both_ready() -> None:
    """Wait until the other process of the same step is here too."""
    effect("ready")
    while not (FOLDER / "go").exists():
        await asyncio.sleep(0.005)


# --- the ends of a step -----------------------------------------------------------------------------------------------


def refused(error: object) -> NoReturn:
    """End the step: the framework has refused with a clear error."""
    print(f"refused: {type(error).__name__}: {error}", flush=True)
    os._exit(REFUSED)


def not_offered(link: str) -> NoReturn:
    """End the step: the documentation has no way to do this."""
    print(f"not offered: {link}", flush=True)
    os._exit(NOT_OFFERED)


def main(*steps: Callable[[], Awaitable[None]]) -> None:
    """Run the step that is named on the command line."""
    (step,) = [step for step in steps if step.__name__ == sys.argv[1]]
    asyncio.run(step())  # type: ignore[arg-type]
