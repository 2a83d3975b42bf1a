"""Kills a service with SIGKILL at random events of its runs; after each restart it checks what is there, and goes on.

    python -m tests.serve.service_kills KILLS SEED [CHAOS ...]

Each process is started by uvicorn on the same SQLite file. The functions append lines to files, which outlive the process. A
reader of the run counts events, and the process is killed after so many. In the next process the run must be closed. Its log
must continue after the last entry of the reader. The messages of the log must be the end of the history, and the history must
agree with the files of the functions.

CHAOS: what happens during the run too. "suspend" (the process is stopped with SIGSTOP for longer than any lease, beside a second
process on the file), "two" (a second process, which shares the runs), "locked" (another program holds the lock of the file),
"full" (the disk is full; needs root), and "load" (15 processes compute); "all" for all of it. Then the process is killed one
time in two; otherwise it must end its run itself.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import httpx

from aswarm import Agent, AsyncSwarm, Result
from aswarm.runs import Entry, fold, show_everything
from aswarm.serve import Service, bearer, create_app
from aswarm.testing import Request, ScriptedAnswer, ScriptedModel, call, check_history
from tests.support.serve import chaos
from tests.support.serve.record_checker import record_faults
from tests.support.serve.service_process import ServiceProcess, service_process

UNKNOWN = "cancelled; its outcome is unknown"
INTERRUPTED = "not run: interrupted"
TURNS = 3  # with calls; one more answers
ATTEMPT_NUMBERS = 1_000_000  # the numbers of a later attempt start at a multiple
Json = dict[str, Any]


def note(name: str, deed: str) -> None:
    """Append a line to a file of the process around."""
    chaos.append(Path(os.environ["SERVICE_NOTES"], name), deed)


async def work(deed: str) -> str:
    """Do something that can be seen from outside."""
    note("begun", deed)
    await anyio.sleep(random.random() * 0.02)
    note("ended", deed)
    return f"did {deed}"


def over(deed: str) -> Result:
    """Do something, and hand over."""
    note("begun", deed)
    note("ended", deed)
    return Result(value=f"did {deed}", agent=second)


first = Agent(name="First", functions=[work, over])
second = Agent(name="Second", functions=[work])


def answer(request: Request) -> Any:
    """Two or three calls in each turn, with deeds that have names of their own; then a text."""
    messages = request.body["messages"]
    last_user = max(at for at, message in enumerate(messages) if message["role"] == "user")
    turn = sum(message["role"] == "assistant" for message in messages[last_user:])
    if turn >= TURNS:
        return ScriptedAnswer("All of it is done, as you have asked.", pause=0.005)
    names = [tool["function"]["name"] for tool in request.body["tools"]]
    calls = [call(random.choice(names), deed=os.urandom(6).hex()) for _ in range(random.choice([2, 3]))]
    return ScriptedAnswer("Now this.", calls, pause=0.005)


def make_app() -> Service:
    """The service of a process."""
    swarm = AsyncSwarm(ScriptedModel(answer, cut=6).client())
    store = os.environ["SERVICE_STORE"]
    return create_app(swarm, agents=[first, second], auth=bearer("token"), store=store, show=show_everything)


def read(it: ServiceProcess, run: str, after: int, most: int | None = None) -> list[Json]:
    """The entries of a run after one of them; at most so many."""
    found: list[Json] = []
    try:
        with it.browser.stream("GET", f"/runs/{run}/events?after={after}") as stream:
            for line in stream.iter_lines():
                if line.startswith("data: "):
                    found.append(json.loads(line[6:]))
                    if len(found) == most:
                        break
    except httpx.HTTPError:
        pass
    return found


def follows(number: int, before: int) -> bool:
    """Whether an entry may stand behind another one: it is the next, or the first of a later attempt, which closes the run."""
    return number == before + 1 or (number % ATTEMPT_NUMBERS == 0 and number > before)


def check(it: ServiceProcess, folder: Path, run: str, seen: list[Json]) -> tuple[str, int]:
    """Check the log and the conversation after a kill. Returns the status of the run, and the unknown calls that never ran."""
    state = it.ended(run)
    if state["status"] == "stopped":
        assert state["reason"] == "process_died", state
    whole = read(it, run, -1)
    rest = read(it, run, seen[-1]["seq"]) if seen else whole
    numbers = [(entry.get("first", entry["seq"]), entry["seq"]) for entry in [*seen, *rest]]
    assert numbers[0][0] == 0, numbers
    # A reader may have seen entries that are not in the file, so the last entry has a number above all of them.
    live = numbers[:-1] if state["status"] == "stopped" else numbers
    assert all(follows(after[0], before[1]) for before, after in pairwise(live)), numbers
    assert numbers[-1][0] > live[-1][1] or live is numbers, numbers
    history = it.browser.get("/conversations/c").json()["messages"]
    check_history(history)
    entries = [Entry.from_dict(entry) for entry in whole]
    check_log(fold(entries).messages, history)
    faults = record_faults(entries, history)
    assert not faults, faults
    begun, ended, not_begun = lines(folder / "begun"), lines(folder / "ended"), 0
    for asked, told in calls_of(history):
        deed = json.loads(asked["function"]["arguments"])["deed"]
        match told:
            case str() if told == UNKNOWN:
                not_begun += deed not in begun  # killed while the commit of its start waited for the disk
            case str() if told == INTERRUPTED:
                assert deed not in begun, deed
            case _:
                assert told.endswith(f"did {deed}") or "handoff" in told or deed in ended, (deed, told)
                assert deed in ended, deed
    return str(state["status"]), not_begun


def check_log(folded: list[Json], history: list[Json]) -> None:
    """Check that the log of the last run and its conversation have the same messages."""
    start = max(at for at, message in enumerate(history) if message["role"] == "user")
    kept = [(message["role"], message["content"]) for message in history[start:]]
    told = [(message["role"], message["content"]) for message in folded]
    assert told[-len(kept) :] == kept, (told, kept)


def calls_of(history: list[Json]) -> list[tuple[Json, str]]:
    """Every call with its answer."""
    answers = [message for message in history if message["role"] == "tool"]
    asked = [each for message in history for each in message.get("tool_calls") or ()]
    assert len(asked) == len(answers)
    return [(each, str(told["content"])) for each, told in zip(asked, answers, strict=True)]


def lines(path: Path) -> set[str]:
    """The lines of a file that may not be there."""
    return set(path.read_text(encoding="utf-8").split()) if path.exists() else set()


CHAOS = ("suspend", "two", "locked", "full", "load")


def disturb(kinds: Sequence[str], it: ServiceProcess, store: Path, rng: random.Random) -> None:
    """Let one of these things happen to the process, or to the file."""
    match rng.choice(kinds):
        case "suspend":
            chaos.suspend([it.process.pid], rng.uniform(1, 14))
        case "locked":
            chaos.lock(store, rng.uniform(0.1, 7))
        case "full":
            chaos.fill(store.parent, rng.uniform(0.1, 3))
        case _:
            return


def main(kills: int, seed: int, *kinds: str) -> None:
    """Kill so many processes; the last process finishes a run."""
    rng = random.Random(seed)
    counts: dict[str, int] = {}
    kinds = CHAOS if kinds == ("all",) else kinds
    assert set(kinds) <= set(CHAOS), kinds
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder, run, seen, not_begun = Path(name), "", list[Json](), 0
        os.environ["SERVICE_NOTES"] = name
        store = (stack.enter_context(chaos.small_disk(folder / "disk")) if "full" in kinds else folder) / "chats.sqlite"
        if "load" in kinds:
            stack.enter_context(chaos.load())
        if {"suspend", "two"} & set(kinds):
            stack.enter_context(service_process(store, module="tests.serve.service_kills"))
        for _ in range(kills):
            with service_process(store, module="tests.serve.service_kills") as it:
                if run:
                    status, not_begun = check(it, folder, run, seen)
                    counts[status] = counts.get(status, 0) + 1
                run = it.say("Go on.")
                seen = read(it, run, -1, rng.randrange(1, 90))
                if kinds:
                    disturb(kinds, it, store, rng)
                if kinds and rng.random() < 0.5:
                    assert it.ended(run)["status"] == "finished", (
                        f"the process lives, its run has ended: {it.ended(run)}"
                    )
                it.kill()
        with service_process(store, module="tests.serve.service_kills") as it:
            _, not_begun = check(it, folder, run, seen)
            assert it.ended(it.say("To the end."))["status"] == "finished"
        ended = (folder / "ended").read_text(encoding="utf-8").split()
        assert len(ended) == len(set(ended)), "a function ran twice"
    print(
        f"{kills} kills, seed {seed}{''.join(f', {kind}' for kind in kinds)}: {counts}, {not_begun} unknown calls had not run"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
