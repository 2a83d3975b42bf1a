"""Kills a batch with SIGKILL at random moments and runs it again, until it has finished; then checks the results.

    python -m tests.record.journal_kills ROUNDS SEED [KILLS]

Each round is a batch of its own in a folder of its own; it is killed at most KILLS times. Its processes are forked from
this one, which has no threads, because a fork takes less time than a new interpreter. Tools and the consumer append
lines to files, which outlive the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import random
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from aswarm import Agent, AsyncSwarm, Response, Result, tool
from aswarm.sources import CompletionRequest
from tests.support.serve.chaos import append, forked

NAMES = [f"item-{number}" for number in range(12)]
TURNS = 3  # with tools; one more answers
UNKNOWN = "cancelled; its outcome is unknown"
Json = dict[str, Any]


class Model:
    """Asks for two or three calls in each turn, named after the item and the turn; which ones is random."""

    def __init__(self, pause: float) -> None:
        self._pause = pause

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        messages = request.body["messages"]
        item = next(message["content"] for message in messages if message["role"] == "user")
        turn = sum(message["role"] == "assistant" for message in messages)
        await asyncio.sleep(random.random() * self._pause)
        yield {"choices": [{"index": 0, "message": _message(item, turn), "finish_reason": "stop"}]}


def _message(item: str, turn: int) -> Json:
    if turn == TURNS:
        return {"role": "assistant", "content": f"{item} is done"}
    # A repeated request gets another answer, so that only the recorded answer can lead to the recorded results.
    names = [random.choice(["together", "alone", "in_thread", "again"]) for _ in range(random.choice([2, 3]))]
    names += ["over"] if turn == 1 else []
    draw = random.getrandbits(32)
    arguments = [json.dumps({"deed": f"{item}/{turn}/{position}/{draw:x}"}) for position in range(len(names))]
    asked = zip(names, arguments, strict=True)
    calls = [{"id": "c", "type": "function", "function": {"name": name, "arguments": text}} for name, text in asked]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def agents(folder: Path, pause: float) -> Agent:
    """Return two agents; the first hands off to the second. Every call adds a line to `effects`, or to `repeated` if it may run again."""

    async def together(deed: str) -> str:
        await asyncio.sleep(random.random() * pause)
        append(folder / "effects", deed)
        return f"did {deed}"

    async def alone(deed: str, context_variables: Json) -> Result:
        append(folder / "effects", deed)
        context_variables.setdefault("deeds", []).append(deed)
        await asyncio.sleep(random.random() * pause)
        return Result(value=f"did {deed}", context_variables={"last": deed})

    @tool
    def in_thread(deed: str) -> str:
        time.sleep(random.random() * pause)
        append(folder / "effects", deed)
        return f"did {deed}"

    @tool(repeatable=True)
    async def again(deed: str) -> str:
        append(folder / "repeated", deed)
        await asyncio.sleep(random.random() * pause)
        return f"did {deed}"

    async def over(deed: str) -> Result:
        append(folder / "effects", deed)
        return Result(value=f"did {deed}", agent=second)

    second = Agent(name="Second", functions=[together, alone, in_thread, again, over])
    return Agent(name="First", functions=[together, alone, in_thread, again, over])


async def batch(folder: Path, concurrency: int, pause: float) -> None:
    """Run all items, and append a fingerprint of each response to `results`."""
    swarm, agent = AsyncSwarm(client=Model(pause)), agents(folder, pause)
    items = [(item, item) for item in NAMES]
    async with swarm.batch(agent, items, concurrency=concurrency, journal=folder / "run.sqlite") as outcomes:
        async for outcome in outcomes:
            if outcome.response is None or outcome.error is not None:
                raise AssertionError(f"{outcome.id} failed") from outcome.error
            append(folder / "results", f"{os.getpid()} {outcome.id} {seal(outcome.response)}")
    # Reached only by a batch that was not killed.
    await check(folder, swarm, agent)


def seal(response: Response) -> str:
    assert response.agent is not None
    everything = response.model_dump(mode="json", exclude={"agent"}) | {"agent": response.agent.name}
    return hashlib.sha256(json.dumps(everything, sort_keys=True).encode()).hexdigest()


async def check(folder: Path, swarm: AsyncSwarm, agent: Agent) -> None:
    """Check the effects and the responses after the end of every item."""
    effects = Counter((folder / "effects").read_text().split())
    assert max(effects.values()) == 1, f"ran twice: {[deed for deed, times in effects.items() if times > 1]}"
    results = [line.split() for line in (folder / "results").read_text().splitlines()]
    mine = [item for pid, item, _ in results if pid == str(os.getpid())]
    assert sorted(mine) == sorted(NAMES), "not every item ended exactly once"
    sealed = {(item, seal_of_it) for _, item, seal_of_it in results}
    assert len(sealed) == len(NAMES), "an item that was given out ended otherwise later"
    repeated = Counter((folder / "repeated").read_text().split())
    told = Counter({"repeated": sum(times > 1 for times in repeated.values())})
    unknown = 0
    async with swarm.batch(agent, zip(NAMES, NAMES, strict=True), journal=folder / "run.sqlite") as outcomes:
        async for outcome in outcomes:
            assert outcome.response is not None and outcome.attempts == 0
            told.update(_check_item(outcome.response, effects + Counter(set(repeated)), outcome.id))
            unknown += len(outcome.unknown_calls)
    assert unknown == started_without_result(folder / "run.sqlite"), (
        "the responses have another number of unknown calls"
    )
    append(folder / "told", json.dumps(told))


def started_without_result(journal: Path) -> int:
    """Return the number of calls in the file with a start, but without an end or with an unknown end."""
    started: dict[tuple[str, int, int], bool] = {}
    turns: dict[str, int] = {}
    with contextlib.closing(sqlite3.connect(journal)) as file:
        for item, data in file.execute("SELECT run, data FROM aswarm_entry ORDER BY run, first"):
            for entry in map(json.loads, data.split(b"\n")):
                turns[item] = turn = entry.get("turn", turns.get(item, 0))
                key = (item, turn, entry.get("index", -1))
                if entry["type"] == "ToolCallStarted":
                    started[key] = True
                elif entry["type"] == "ToolCallFinished":
                    started[key] = entry["_outcome"].get("unknown", False)
                elif entry["type"] == "ToolCallWithdrawn":
                    started[key] = False
    return sum(started.values())


def _check_item(response: Response, effects: Counter[str], item: str) -> list[str]:
    messages = response.messages
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    answers = [message for message in messages if message["role"] == "tool"]
    assert response.usage.requests == TURNS + 1 and response.text == f"{item} is done"
    told: list[str] = []
    done: list[str] = []
    unknown = [json.loads(call.arguments)["deed"] for call in response.unknown_calls]
    for call, answer in zip(calls, answers, strict=True):
        deed = json.loads(call["function"]["arguments"])["deed"]
        if answer["content"] == UNKNOWN:
            assert call["function"]["name"] != "again", f"{deed} may run again"
            assert unknown.pop(0) == deed, "an unknown call is not listed"
            told.append("unknown, had run" if effects[deed] else "unknown, had not run")
        else:
            assert answer["content"].startswith(f"did {deed}"), f"{deed} was answered {answer['content']!r}"
            assert effects[deed] == 1, f"lost: {deed} was answered and did not run"
            told.append("done")
            done.append(deed) if call["function"]["name"] == "alone" else None
    assert response.context_variables.get("deeds", []) == done, "the context has not what the calls did to it"
    asked = {json.loads(call["function"]["arguments"])["deed"] for call in calls}
    assert not unknown, "a call is listed as unknown, and its message does not say so"
    strangers = [deed for deed in effects if deed.startswith(f"{item}/") and deed not in asked]
    assert not strangers, f"ran, and no message asks for it: {strangers}"
    return told


def one_round(folder: Path, luck: random.Random, most: int) -> int:
    """Kill the batch and run it again, until a process ends by itself; returns the number of kills."""
    concurrency, pause = luck.choice([1, 4, len(NAMES)]), luck.choice([0, 0.002, 0.01])
    patience = luck.uniform(0.005, 0.25)
    kills = 0
    while True:
        pid = forked(partial(batch, folder, concurrency, pause))
        if kills < most:
            time.sleep(luck.uniform(0, patience))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0, f"a process failed, see above; its files are in {folder}"
            return kills
        kills += 1


def main(rounds: int, seed: int, most: int = 25) -> None:
    """Run the rounds, and print a line with the counts of all rounds. A round without a kill does not count."""
    luck, seen, kills = random.Random(seed), Counter[str](), 0
    left = rounds
    while left:
        folder = Path(tempfile.mkdtemp(prefix="aswarm-kills-"))
        # A fast machine can finish a short round before the first signal.
        left, kills = left - bool(times := one_round(folder, luck, most)), kills + times
        # A process may be killed after its last line and before its end; the next one then adds its own line.
        seen.update(json.loads((folder / "told").read_text().splitlines()[-1]))
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
    print(json.dumps({"rounds": rounds, "kills": kills, **dict(sorted(seen.items()))}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
