"""Programs for the simulation with processes that die, files, and clients that come back."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import anyio

from aswarm import Agent, Approve, AswarmError, tool
from aswarm.conversations import Conversation, SQLiteStore
from aswarm.runs import CallAnswer, LocalRuns, NewRun, RequestRefused, RunNotFound
from aswarm.testing import ScriptedCall, check_history
from aswarm.testing.simulate import Clients, Crash, Provider, World
from tests.support.testing.drawn import FAULTS, agent, answers, api, several

ATTEMPT_NUMBERS = 1_000_000  # each attempt of a run numbers its entries from the next multiple
PATIENCE = 600.0  # seconds of a universe, after which a client that still waits is a failure


def user_message(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def decisions(world: World, name: str, run: str, response: Mapping[str, Any]) -> list[CallAnswer]:
    """Draw the answers to the open calls of a run: approved, denied, or answered."""
    drawn = []
    for call in response["waiting"]:
        which = call.get("call_id") or call["id"]
        if call.get("kind") == "approval":
            approve = not world.draw(f"{name}: denies", 3)
            drawn.append(CallAnswer(which, approve=approve, run_id=run))
        else:
            drawn.append(CallAnswer(which, data="yes", run_id=run))
    return drawn


# The errors of a run whose provider fails. Any other error is a fault of aswarm.
OF_PROVIDERS = {"CompletionError", "StreamInterrupted"}


async def user(world: World, clients: Clients, name: str) -> None:
    """Send a message, read its run, and answer its calls, up to three times."""
    conversation = f"conversation {world.draw(f'{name}: conversation', 2)}"
    policy: Any = ("refuse", "wait", "replace")[world.draw(f"{name}: while running", 3)]
    new = NewRun("u", conversation, messages=user_message(name), key=name, while_running=policy)
    for round_ in range(4):
        try:
            record = await clients.start(new)
        except RequestRefused:
            return  # another run is active, or the calls were answered or closed
        try:
            response = await follow(world, clients, name, record.id)
        except RunNotFound as error:
            raise AssertionError(f"an acknowledged run is lost: {error}") from error
        if not response or response["stop"] != "waiting":
            return
        answered = decisions(world, f"{name} {round_}", record.id, response)
        new = NewRun("u", conversation, answers=answered)


async def cancel(runs: LocalRuns, run: str) -> None:
    """Cancel a run: it does not wait for an answer afterwards."""
    record = await runs.cancel(run, user="u")
    assert record.reason != "waiting", "a cancelled run waits for an answer"


async def follow(world: World, clients: Clients, name: str, run: str) -> Mapping[str, Any]:
    """Read a run to its end, and cancel it in some universes. Returns its response."""

    if world.draw(f"{name}: cancels", 4) == 3:
        await world.pause(f"{name}: cancel")
        await clients.call(lambda runs: cancel(runs, run))
    last = (await clients.read(run, user="u"))[-1]
    if last.type == "RunFailed":
        kind = last.fields["error"]["type"]
        assert kind in OF_PROVIDERS, f"the run {run} failed: {last.fields['error']}"
    return last.response


async def check_stored(world: World, path: str) -> None:
    """The histories of all conversations are valid, no run is left, and no live process was taken for dead."""
    deaths = sum("dies" in text for _, text in world.notes)
    swarm = world.swarm(Provider(world, []))
    async with LocalRuns(swarm, store=path, agents=[agent("agent")], version="1", failover_seconds=1) as runs:
        records = await runs.list(user="u")
        assert not [record for record in records if record.is_running], f"runs are left: {records}"
        for summary in await runs.store.list():
            stored = await runs.store.load(summary.id)
            assert stored is not None
            check_history(stored.messages, allow_open=True, ordered=False)
        for record in records:
            entries = await runs.registry.recorded(record.id)
            attempts = {1, *(1 + entry.seq // ATTEMPT_NUMBERS for entry in entries)}
            assert max(attempts) <= 1 + deaths, f"{deaths} processes died, and {record.id} has the attempts {attempts}"
            last = [entry.is_last for entry in entries]
            assert last.count(True) == 1, f"the log of {record.id} has {last.count(True)} ends"
            assert last[-1], f"the log of {record.id} goes on after its end"


async def in_processes(
    world: World, crashes: Sequence[Crash[Any]], main: Callable[[Any], Any], one: Callable[[Any, str], Any]
) -> None:
    """Run `main` in processes that die, with several users, each of a drawn process, until all users have finished."""

    async def user_of_one(name: str) -> None:
        await one(crashes[world.draw(f"{name}: process", len(crashes))], name)

    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        processes = [group.create_task(crash.run(partial(main, crash))) for crash in crashes]
        await several(world, user_of_one)
        for crash in crashes:
            crash.stop()
        await asyncio.wait(processes)


async def runs_in(world: World, crashes: Sequence[Crash[LocalRuns]]) -> None:
    """Serve `LocalRuns` on one file in these processes, and check what is stored."""
    path = world.path("runs.sqlite")
    model = Provider(world, answers(world, "model"), faults=FAULTS, api=api(world, "model"))

    async def main(crash: Crash[LocalRuns]) -> None:
        swarm = world.swarm(model)
        async with LocalRuns(swarm, store=path, agents=[agent("agent")], version="1", failover_seconds=1) as runs:
            await crash.serve(runs)

    async def one(crash: Crash[LocalRuns], name: str) -> None:
        await user(world, Clients(world, crash, name=name), name)

    await in_processes(world, crashes, main, one)
    await check_stored(world, path)


async def crashed_runs(world: World) -> None:
    """Runs of `LocalRuns` whose process dies, with readers that come back, and answers that are sent twice."""
    await runs_in(world, [Crash(world, most=2, power=True)])


async def two_processes(world: World) -> None:
    """Two processes share the file of their runs; either may die, and the other one takes over."""
    await runs_in(world, [Crash(world, most=1, name=f"process {number}") for number in "ab"])


async def cancelled_approvals(world: World) -> None:
    """Runs are cancelled about when their call starts to wait; afterwards no call is open."""

    def answer(request: Any) -> Any:
        is_answered = request.messages[-1]["role"] == "tool"
        return "finished" if is_answered else ScriptedCall("needs_approval", '{"number": 1}', "1")

    swarm = world.swarm(Provider(world, answer))
    async with LocalRuns(swarm, store=world.path("runs.sqlite"), agents=[agent("agent")]) as runs:

        async def one(name: str) -> None:
            clients = Clients(world, runs, name=name)
            record = await clients.start(NewRun("u", name, messages=user_message(name), key=name))
            for _ in range(world.draw(f"{name}: pauses", 4)):
                await world.pause(f"{name}: before the cancel")
            await cancel(runs, record.id)
            last = (await runs.registry.recorded(record.id))[-1]
            assert not last.response.get("waiting"), "a cancelled run has an open call"

        await several(world, one)


async def crashed_conversations(world: World) -> None:
    """A process sends messages to a conversation in a file, dies, and goes on with the stored history."""
    path = world.path("conversations.sqlite")
    faults = [fault for fault in FAULTS if fault != "ids"]
    model = Provider(world, answers(world, "model"), faults=faults, api=api(world, "model"))
    sent: list[str] = []

    async def main() -> None:
        async with SQLiteStore(path) as store:
            conversation = Conversation(store, "conversation", world.swarm(model), agent=agent("agent"))
            stored = await conversation.load()
            check_history(stored.messages, allow_open=True, ordered=False)
            texts = [message["content"] for message in stored.messages if message["role"] == "user"]
            assert texts[: len(sent)] == sent, f"acknowledged messages are lost: {sent} in {texts}"
            while len(sent) < 2:
                text = f"message {len(sent)}"
                try:
                    async with asyncio.timeout((None, 0.02)[world.draw("timeout", 2)]):
                        if text in texts:
                            await conversation.resume(Approve.all())
                        else:
                            await conversation.run(text)
                except (AswarmError, TimeoutError):
                    pass
                texts = [each["content"] for each in (await conversation.load()).messages if each["role"] == "user"]
                if text in texts:
                    sent.append(text)

    await Crash[None](world, most=2, power=True).run(main)
    # The id of a call has the length of its history. A function that asks a question runs again with the answer.
    ids = Counter(call.id for call in world.calls if not call.repeatable and call.name != "waits")
    assert max(ids.values(), default=0) <= 1, f"functions ran twice for one call: {ids}"


def charging() -> tuple[list[str], Any, Callable[[Any], Any]]:
    """Return the items that were charged so far, the function that charges an item, and a model that calls it once."""
    charged: list[str] = []

    @tool(concurrent=True)
    async def charge(item: int) -> str:
        charged.append(str(item))
        await anyio.sleep(0.002)
        return "charged"

    def answer(request: Any) -> Any:
        item = next(each["content"] for each in request.messages if each["role"] == "user")
        is_charged = request.messages[-1]["role"] == "tool"
        return "finished" if is_charged else ScriptedCall("charge", f'{{"item": {item}}}', f"charge {item}")

    return charged, charge, answer


async def crashed_batches(world: World) -> None:
    """A batch with a journal dies and runs again: each item has one outcome, and no call starts twice."""
    charged, charge, answer = charging()
    items = [str(number) for number in range(1 + world.draw("items", 5))]
    model = Provider(world, answer, faults=["429", "500", "refused", "cut"])
    outcomes: dict[str, Any] = {}

    async def main() -> None:
        outcomes.clear()
        swarm = world.swarm(model)
        pairs = [(item, item) for item in items]
        async with swarm.batch(Agent(functions=[charge]), pairs, journal=world.path("journal.sqlite")) as batch:
            async for outcome in batch:
                assert outcome.id not in outcomes, f"{outcome.id} has two outcomes"
                outcomes[str(outcome.id)] = outcome

    await Crash[None](world, most=3, power=True).run(main)
    assert sorted(outcomes) == items, f"outcomes {sorted(outcomes)} of {items}"
    assert len(charged) == len(set(charged)), f"calls started twice: {charged}"
    for item, outcome in outcomes.items():
        if outcome.error is None:
            results = [message["content"] for message in outcome.response.messages if message["role"] == "tool"]
            is_known = results == ["charged"] and not outcome.response.unknown_calls
            assert is_known is (item in charged) or outcome.response.unknown_calls, f"{item}: {results}, {charged}"


CRASHING = {
    each.__name__: each
    for each in (crashed_runs, two_processes, crashed_conversations, crashed_batches, cancelled_approvals)
}
