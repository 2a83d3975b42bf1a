"""Kills a process that runs conversations with SIGKILL at random moments; then checks what is in the store.

    python -m tests.conversations.conversation_kills KILLS SEED [CHAOS ...]

One process after another works on the same conversations of one SQLite file. Each is killed at a random moment. After each
kill every conversation must be a valid history that agrees with the work of the functions: they append lines to a file, which
outlives the process. The processes are forked from this one, which has no threads, because a fork takes less time than
a new interpreter.

CHAOS: what happens before a kill too, "suspend" (SIGSTOP, for seconds), "locked" (another program holds the lock of the file),
"full" (the disk is full; needs root), "two" (two processes at once), and "load" (15 processes compute); "all" for all of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from aswarm import Agent, AsyncSwarm, Result, RunError, tool
from aswarm.conversations import SQLiteStore, Stored
from aswarm.sources import CompletionRequest
from aswarm.testing import check_history
from tests.support.serve import chaos
from tests.support.serve.chaos import append

CHATS = [f"chat-{number}" for number in range(4)]
TURNS = 3  # with tools; one more answers
UNKNOWN = "cancelled; its outcome is unknown"
Json = dict[str, Any]


class Model:
    """Asks for two or three calls in each turn; which ones is random. Each call has a name of its own, its deed."""

    def __init__(self, pause: float) -> None:
        self._pause = pause

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        messages = request.body["messages"]
        last_user = max(at for at, message in enumerate(messages) if message["role"] == "user")
        turn = sum(message["role"] == "assistant" for message in messages[last_user:])
        await asyncio.sleep(random.random() * self._pause)
        yield {"choices": [{"index": 0, "message": _message(turn), "finish_reason": "stop"}]}


def _message(turn: int) -> Json:
    if turn >= TURNS:
        return {"role": "assistant", "content": "done"}
    names = [random.choice(["together", "alone", "in_thread", "over"]) for _ in range(random.choice([2, 3]))]
    calls = [
        {
            "id": f"c{position}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps({"deed": f"{os.urandom(6).hex()}"})},
        }
        for position, name in enumerate(names)
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def agents(folder: Path, pause: float) -> Agent:
    """Two agents that hand over to each other; every call leaves a line in `begun`, and one in `ended`."""

    async def together(deed: str) -> str:
        append(folder / "begun", deed)
        await asyncio.sleep(random.random() * pause)
        append(folder / "ended", deed)
        return f"did {deed}"

    async def alone(deed: str, context_variables: Json) -> Result:
        append(folder / "begun", deed)
        context_variables.setdefault("deeds", []).append(deed)
        await asyncio.sleep(random.random() * pause)
        append(folder / "ended", deed)
        return Result(value=f"did {deed}", context_variables={"last": deed})

    @tool
    def in_thread(deed: str) -> str:
        append(folder / "begun", deed)
        time.sleep(random.random() * pause)
        append(folder / "ended", deed)
        return f"did {deed}"

    async def over(deed: str, context_variables: Json) -> Result:
        append(folder / "begun", deed)
        append(folder / "ended", deed)
        return Result(value=f"did {deed}", agent=second)

    first = Agent(name="First", functions=[together, alone, in_thread, over])
    second = Agent(name="Second", functions=[first, together, alone, in_thread, over])
    return first


async def work(folder: Path, pause: float, *, is_disturbed: bool) -> None:
    """Run all conversations, again and again: with a new message, or with the open calls of the last run."""
    swarm, agent = AsyncSwarm(client=Model(pause)), agents(folder, pause)
    async with SQLiteStore(folder / "disk" / "chats.sqlite") as store, asyncio.TaskGroup() as group:

        async def talk(name: str) -> None:
            chat = store.conversation(name, swarm, agent=agent)
            while True:
                try:
                    stored = await chat.load()
                    if stored.open_calls and random.random() < 0.5:
                        await chat.resume()
                    else:
                        await chat.run("Next")
                except RunError:  # of a writer in the other process, or of the disk
                    if not is_disturbed:
                        raise
                    await asyncio.sleep(0.01)

        for name in CHATS:
            group.create_task(talk(name))


async def check(folder: Path) -> Counter[str]:
    """Check the store after a kill. Return the number of calls of each kind."""
    begun = Counter((folder / "begun").read_text().split()) if (folder / "begun").exists() else Counter[str]()
    ended = set((folder / "ended").read_text().split()) if (folder / "ended").exists() else set[str]()
    assert not begun or max(begun.values()) == 1, "a function ran twice"
    seen, known = Counter[str](), set[str]()
    async with SQLiteStore(folder / "disk" / "chats.sqlite") as store:
        for name in CHATS:
            stored = await store.load(name)
            if stored is not None:
                known |= _check_one(stored, begun, ended, seen)
        assert len(await store.list()) <= len(CHATS)
    lost = set(begun) - known
    assert not lost, f"begun, and in no history: {lost}"
    return seen


def _check_one(stored: Stored, begun: Mapping[str, int], ended: set[str], seen: Counter[str]) -> set[str]:
    check_history(stored.messages, allow_open=True, ordered=False)
    assert stored.agent in ("First", "Second")
    deeds: dict[str, str | None] = {}
    done: list[str] = []
    for at, message in enumerate(stored.messages):
        for call in message.get("tool_calls") or ():
            if call["function"]["name"] == "transfer_to_first":
                continue
            deed = json.loads(call["function"]["arguments"])["deed"]
            following = stored.messages[at + 1 :]
            answers = [each for each in following if each["role"] == "tool" and each["tool_call_id"] == call["id"]]
            block = [each for each in answers if each in following[: _block(following)]]
            deeds[deed] = block[0]["content"] if block else None
            if call["function"]["name"] == "alone" and (deeds[deed] or "").startswith("did"):
                done.append(deed)
    for deed, content in deeds.items():
        if content is None or content == "not run: interrupted":
            assert deed not in begun, f"{deed} has begun, and is told as {content}"
            seen["not begun"] += 1
        elif content == UNKNOWN:
            seen["unknown, had ended" if deed in ended else "unknown"] += 1
        else:
            assert content.startswith(f"did {deed}") and deed in ended, f"{deed} was answered {content!r}"
            seen["done"] += 1
    listed = stored.context_variables.get("deeds", [])
    assert set(done) <= set(listed), "the context has not what the calls did to it"
    return set(deeds)


def _block(messages: list[Json]) -> int:
    return next((at for at, message in enumerate(messages) if message["role"] != "tool"), len(messages))


def wait_for_work(folder: Path) -> None:
    """Wait until the process has begun another call, for at most a second."""
    before = _size(folder / "begun")
    for _ in range(1000):
        if _size(folder / "begun") > before:
            break
        time.sleep(0.001)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


CHAOS = ("suspend", "locked", "full", "two", "load")


def disturb(kinds: Sequence[str], pids: Sequence[int], folder: Path, luck: random.Random) -> None:
    """Let one of these things happen to the processes, or to the file."""
    match luck.choice(kinds):
        case "suspend":
            chaos.suspend([luck.choice(pids)], luck.uniform(0.1, 3))
        case "locked":
            chaos.lock(folder / "disk" / "chats.sqlite", luck.uniform(0.1, 2))
        case "full":
            chaos.fill(folder / "disk", luck.uniform(0.1, 1))
        case _:
            return


def kill(pid: int, folder: Path) -> None:
    """Kill a process, which must not have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status), f"a process failed, see above; its files are in {folder}"


def main(kills: int, seed: int, *kinds: str) -> None:
    """Kill, check, and print a line with the counts."""
    luck, seen = random.Random(seed), Counter[str]()
    kinds = CHAOS if kinds == ("all",) else kinds
    assert set(kinds) <= set(CHAOS), kinds
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="aswarm-kills-"))
        if "full" in kinds:
            stack.enter_context(chaos.small_disk(folder / "disk"))
        else:
            (folder / "disk").mkdir()
        if "load" in kinds:
            stack.enter_context(chaos.load())
        for _ in range(kills):
            pauses = [luck.choice([0, 0.002, 0.01]) for _ in range(1 + ("two" in kinds))]
            pids = [chaos.forked(partial(work, folder, pause, is_disturbed=bool(kinds))) for pause in pauses]
            if luck.random() < 0.8:  # the others are killed while they begin
                wait_for_work(folder)
            if kinds:
                disturb(kinds, pids, folder, luck)
            time.sleep(luck.uniform(0, 0.15))
            for pid in pids:
                kill(pid, folder)
            seen = asyncio.run(check(folder))
    told = ", ".join(f"{count} {what}" for what, count in sorted(seen.items()))
    print(f"{kills} kills{''.join(f', {kind}' for kind in kinds)}, {len(CHATS)} conversations; calls: {told}")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
