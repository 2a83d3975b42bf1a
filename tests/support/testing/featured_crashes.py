"""Programs for the simulation: `LocalRuns` with each feature of a run, whose process dies at any await; the next one continues.

Afterwards, the ledger of the effects, the logs and the stored conversations agree.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from aswarm import Agent, AswarmError, Output, Result, agent_tool
from aswarm.code import code_tool
from aswarm.conversations import SQLiteStore
from aswarm.runs import CallAnswer, LocalRuns, NewRun, RequestRefused
from aswarm.testing import ScriptedAnswer, ScriptedCall, check_history
from aswarm.testing.simulate import Clients, Crash, Provider, World
from tests.support.testing.crashing import OF_PROVIDERS, in_processes
from tests.support.testing.drawn import api, several
from tests.support.testing.featured import Seen, Shop, Trip, counting, drawn_code
from tests.support.testing.ledger import (
    APPROVED,
    MERGED,
    Ledger,
    agent,
    answers_of,
    drawn_calls,
    drawn_usage,
    functions,
    key_of,
)

FAULTS = ("429", "500", "refused", "cut")


@dataclass
class Service:
    """The agents and the model of a program. `answer`: the model. `has_oracle`: whether the context follows `Ledger`."""

    ledger: Ledger
    agents: Sequence[Agent]
    answer: Callable[[Any], Any]
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    context: dict[str, Any] = field(default_factory=dict[str, Any])
    has_oracle: bool = True
    check: Callable[[list[Any], list[Any], dict[str, Any], str], None] | None = None


async def crashed(world: World, service: Service, *, processes: int = 1, locks: bool = False) -> None:
    """Run the service in processes that die, with users that answer its questions, and check what is stored."""
    path, model = world.path("runs.sqlite"), Provider(world, service.answer, faults=FAULTS, api=api(world, "model"))
    failover = 0.03 if locks else 1
    names = ("process",) if processes == 1 else tuple(f"process {number}" for number in range(processes))
    crashes = [
        Crash[LocalRuns](world, most=2 if processes == 1 else 1, power=processes == 1, locks=locks, name=name)
        for name in names
    ]

    async def main(crash: Crash[LocalRuns]) -> None:
        swarm = world.swarm(model, **service.options)
        runs = LocalRuns(swarm, store=path, agents=service.agents, version="1", failover_seconds=failover)
        async with runs:
            await crash.serve(runs)

    async def one(crash: Crash[LocalRuns], name: str) -> None:
        await user(world, service, Clients(world, crash, name=name), name)

    await in_processes(world, crashes, main, one)
    service.ledger.check()
    await check_stored(world, service, path)


async def user(world: World, service: Service, clients: Clients, name: str) -> None:
    """Send a message, read its run, and answer its calls."""
    context = service.context or None
    new = NewRun("u", name, messages=[{"role": "user", "content": name}], key=name, context_variables=context)
    for round_ in range(4):
        try:
            record = await clients.start(new)
        except RequestRefused:
            return
        last = (await clients.read(record.id, user="u"))[-1]
        if last.type == "RunFailed":
            assert last.fields["error"]["type"] in OF_PROVIDERS, f"the run failed: {last.fields['error']}"
        waiting = (last.response or {}).get("waiting") or []
        asked = [call for call in waiting if call.get("reason") is not None]
        place = f"{name}: {round_}"
        chosen = [call for call in asked if world.draw(f"{place}: leaves out", 5) != 4]
        if not chosen or last.response["stop"] != "waiting":
            return
        answers = [answered(service.ledger, call, place, record.id) for call in chosen]
        new = NewRun("u", name, answers=answers)


def answered(ledger: Ledger, call: Mapping[str, Any], place: str, run: str) -> CallAnswer:
    """Draw the answer to an open call."""
    which = call.get("call_id") or call["id"]
    if call.get("kind") == "approval":
        approve = not ledger.world.draw(f"{place}: denies", 3)
        return CallAnswer(which, approve=ledger.decide(key_of(call["arguments"]), approve=approve), run_id=run)
    data: Any = call.get("data")
    if isinstance(data, Mapping) and "waiting" in data:
        inside = [each for each in data["waiting"] if each["reason"] is not None]
        return CallAnswer(which, data={each["id"]: inner_decision(ledger, each, place) for each in inside}, run_id=run)
    return CallAnswer(which, data="yes", run_id=run)


def inner_decision(ledger: Ledger, call: Mapping[str, Any], place: str) -> Any:
    """Draw the decision on a call inside, in the form of JSON."""
    if call["name"] in APPROVED:
        approve = not ledger.world.draw(f"{place}: denies", 3)
        return {"approve": ledger.decide(key_of(call["arguments"]), approve=approve)}
    return {"answer": "yes"}


async def check_stored(world: World, service: Service, path: str) -> None:
    """The stored conversations, the logs and the ledger agree. A write of an old attempt is in no log."""
    swarm = world.swarm(Provider(world, []))
    async with LocalRuns(swarm, store=path, agents=service.agents, version="1", failover_seconds=1) as runs:
        records = await runs.list(user="u")
        assert not [record for record in records if record.is_running], f"runs are left: {records}"
        logs = {record.id: await whole_log(runs, record.id) for record in reversed(records)}
        for run_id, log in logs.items():
            ends = [entry.is_last for entry in log]
            assert ends.count(True) == 1, f"the log of {run_id} has {ends.count(True)} ends"
            assert ends[-1], f"the log of {run_id} goes on after its end"
        for summary in await runs.store.list():
            stored = await runs.store.load(summary.id)
            assert stored is not None
            check_history(stored.messages, allow_open=True, ordered=False)
            own = [
                log
                for record in reversed(records)
                for log in (logs[record.id],)
                if f"u/{record.conversation}" == summary.id
            ]
            ends = [log[-1].response for log in own if log[-1].response]
            unknown = [call for end in ends for call in end["unknown_calls"]]
            context = service.context if not ends else ends[-1]["context_variables"]
            assert stored.context_variables == context or len(ends) < len(own), (
                f"the conversation has the context {stored.context_variables}, its last log {context}"
            )
            service.ledger.check_run(stored.messages, unknown, context if service.has_oracle else None)
            if service.check is not None and len(ends) == len(own):
                service.check(stored.messages, unknown, context, stored.agent or "")


async def whole_log(runs: LocalRuns, run_id: str) -> list[Any]:
    """Return the entries of an ended run."""
    entries: list[Any] = []
    while batch := await runs.read(run_id, entries[-1].seq if entries else -1, user="u"):
        entries += batch
    return entries


def drawing(world: World, ledger: Ledger, names: Sequence[str], most: int = 4) -> Callable[[Any], Any]:
    """Return a model that draws each answer, so that a repeated request gets other calls."""

    def answer(request: Any) -> Any:
        turns = sum(message["role"] == "assistant" for message in request.messages)
        if turns > 3 or not world.draw("goes on", 1 + turns * 2 if turns else 4):
            return ScriptedAnswer("finished", usage=drawn_usage(world, "model"))
        return drawn_calls(ledger, "model", f"t{turns}", names, most)

    return answer


# --- programs --------------------------------------------------------------------------------------------------------------


async def crashed_contexts(world: World) -> None:
    """Functions that write the context and return changes of it: after a crash, it equals serial execution."""
    ledger = Ledger(world)
    names = ("charge", "add", "plain_add", "put", "plain_put", "look", "pay", "ask", "fails")
    await crashed(world, Service(ledger, [agent(ledger, *names)], drawing(world, ledger, names)))


async def crashed_middleware(world: World) -> None:
    """A middleware that counts the calls in the context: after a crash, it has counted each call."""
    ledger = Ledger(world)
    names = ("charge", "look", "put", "add")

    def check(messages: list[Any], unknown: list[Any], context: dict[str, Any], _: str) -> None:
        texts = [text for text in answers_of(messages).values() if text is not None]
        done, after = sum("done" in text for text in texts), context.get("after", 0)
        assert done <= after <= done + len(unknown), f"{done} calls have results, the middleware has counted {after}"

    service = Service(ledger, [agent(ledger, *names)], drawing(world, ledger, names), check=check)
    service.options["middleware"] = [counting]
    await crashed(world, service)


async def crashed_eager_tools(world: World) -> None:
    """Calls that start while the model writes, in a process that dies."""
    ledger = Ledger(world)
    names = ("look", "look", "charge", "put", "pay")
    service = Service(ledger, [agent(ledger, *dict.fromkeys(names))], drawing(world, ledger, names))
    service.options["eager_tools"] = "always"
    await crashed(world, service)


async def crashed_agent_tools(world: World) -> None:
    """Agents inside calls, some of whose calls wait, in a process that dies."""
    ledger = Ledger(world)
    of_inner = ("charge", "pay", "ask", "look")
    inner = agent(ledger, *of_inner, name="inner", instructions="inner")
    outer = agent(ledger, "charge", "pay", more=[agent_tool(inner, name="helper")], name="outer", instructions="outer")
    of_outer = drawing(world, ledger, ("charge", "pay"), most=2)

    def answer(request: Any) -> Any:
        usage, turn = drawn_usage(world, "model"), len(request.messages)
        if request.messages[0]["content"] == "inner":
            if turn > 2:
                return ScriptedAnswer("finished", usage=usage)
            return drawn_calls(ledger, "inner", "i", of_inner, most=3)
        if turn > 2:
            return of_outer(request)
        made = drawn_calls(ledger, "outer", "o", ("charge", "pay"), most=2)
        helper = ScriptedCall("helper", '{"request": "help"}', f"h{world.draw('helper', 1000)}")
        return ScriptedAnswer(calls=[helper, *made.calls], usage=usage)

    await crashed(world, Service(ledger, [outer], answer))


async def crashed_code(world: World) -> None:
    """Code with calls that wait, in a process that dies: no call of the code happens twice."""
    ledger = Ledger(world)
    named = functions(ledger)
    tools = code_tool(*(named[which] for which in ("charge", "pay", "add", "look")), type_check=False)

    def answer(request: Any) -> Any:
        turns = sum(message["role"] == "assistant" for message in request.messages)
        if turns:
            return ScriptedAnswer("finished", usage=drawn_usage(world, "model"))
        code = json.dumps({"code": drawn_code(ledger, "model")})
        return ScriptedCall("run_code", code, f"c{len(ledger.names)}")

    def check(_: list[Any], unknown: list[Any], context: dict[str, Any], __: str) -> None:
        log = list(context.get("log", []))
        assert len(log) == len(set(log)), f"a change of the context was repeated: {log}"
        early = [key for key in log if not ledger.ends[key]]
        assert not early, f"the context has changes of {early}, which have not ended"
        if not unknown:
            written.update(log)

    written = set[str]()
    service = Service(ledger, [agent(ledger, more=[tools])], answer, has_oracle=False, check=check)
    await crashed(world, service)


async def crashed_types(world: World) -> None:
    """Handoffs, typed contexts and typed answers, in a process that dies."""
    ledger, agents = Ledger(world), dict[str, Agent]()

    async def spend(key: str, context_variables: Shop) -> str:
        before = context_variables.points
        text = await ledger.work(key)
        context_variables.points = before + 1
        return text

    async def balance(key: str, context_variables: Seen) -> str:
        assert context_variables.points >= 0
        return await ledger.work(key)

    async def to_b(key: str) -> Result:
        return Result(value=await ledger.work(key), agent=agents["b"], context_variables={"last": key, key: 1})

    async def to_a(key: str) -> Result:
        return Result(value=await ledger.work(key), agent=agents["a"], context_variables={"last": key, key: 1})

    names = ("spend", "balance", "to_a", "to_b", "charge", "put", "pay")
    more = [spend, balance, to_a, to_b]
    agents["a"] = agent(ledger, "charge", "put", "pay", more=more, name="a", output=Output(Trip, mode="tool"))
    agents["b"] = agent(ledger, "charge", "put", "pay", more=more, name="b", output=Output(Trip, mode="tool"))
    draws = drawing(world, ledger, names)

    def answer(request: Any) -> Any:
        step = draws(request)
        if step.calls or "final_answer" not in request.tool_names:
            return step
        trip = {"city": ledger.key("city"), "days": 2}
        return ScriptedAnswer(
            calls=[ScriptedCall("final_answer", json.dumps(trip), f"f{trip['city']}")], usage=step.usage
        )

    def check(messages: list[Any], unknown: list[Any], context: dict[str, Any], name: str) -> None:
        done = [
            key for key, text in answers_of(messages).items() if text is not None and text.startswith(f"done {key}")
        ]
        spent = sum(ledger.names[key] == "spend" for key in done)
        assert spent <= context.get("points", 0) <= spent + len(unknown), f"{context}, {done}"
        lost = [key for key in done if ledger.names[key] in (*MERGED, "to_a", "to_b") and context.get(key) != 1]
        assert not lost, f"the changes of {lost} are not in {context}"
        target = [ledger.names[key][-1] for key in done if ledger.names[key] in ("to_a", "to_b")]
        assert name == (target or ["a"])[-1], f"the agent is {name}, after the handoffs to {target}"

    service = Service(ledger, list(agents.values()), answer, context={"points": 0}, has_oracle=False, check=check)
    await crashed(world, service)


async def lost_locks(world: World) -> None:
    """Two processes, of which one loses its locks and goes on: the other takes over, and only one of them appends."""
    ledger = Ledger(world)
    names = ("charge", "charge", "add", "put", "plain_add")
    await crashed(
        world,
        Service(ledger, [agent(ledger, *dict.fromkeys(names))], drawing(world, ledger, names)),
        processes=2,
        locks=True,
    )


# --- conversations -----------------------------------------------------------------------------------------------------------


async def shared_conversations(world: World) -> None:
    """Programs, each with its own store, write to one conversation at once: an answered message stays, others get a Conflict."""
    ledger, answered_texts = Ledger(world), list[str]()
    names = ("charge", "add", "put", "pay")
    path, shared_agent = world.path("conversations.sqlite"), agent(ledger, *names)

    async def one(name: str) -> None:
        model = Provider(world, drawing(world, ledger, names), faults=FAULTS, name=name)
        async with SQLiteStore(path) as store:
            conversation = store.conversation("shared", world.swarm(model), agent=shared_agent)
            for number in range(1 + world.draw(f"{name}: messages", 2)):
                text = f"{name} {number}"
                with suppress(AswarmError, TimeoutError):  # for example a Conflict
                    async with asyncio.timeout((None, 0.01)[world.draw(f"{name}: timeout", 2)]):
                        await conversation.run(text)
                    answered_texts.append(text)

    await several(world, one)
    ledger.check_end()
    async with SQLiteStore(path) as store:
        stored = await store.load("shared")
    if stored is not None:
        check_history(stored.messages, allow_open=True, ordered=False)
        asked = [message["content"] for message in stored.messages if message["role"] == "user"]
        lost = [text for text in answered_texts if text not in asked]
        assert not lost, f"the messages {lost} have an answer, and are not stored: {asked}"
        assert len(asked) == len(set(asked)), f"a message is stored twice: {asked}"
        # A stored conversation has only the unknown calls of its last run, so each call may be one of an earlier run.
        unknown = [{"arguments": json.dumps({"key": key})} for key in ledger.names]
        ledger.check_run(stored.messages, unknown)


FEATURED_CRASHES = {
    each.__name__: each
    for each in (
        crashed_contexts,
        crashed_middleware,
        crashed_eager_tools,
        crashed_agent_tools,
        crashed_code,
        crashed_types,
        lost_locks,
        shared_conversations,
    )
}
