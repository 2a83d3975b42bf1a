"""Programs for the simulation, one for each feature of a run: eager tools, hedge, middleware, agent tools, code, types, handoffs, budgets."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, TypedDict

import anyio
from pydantic import BaseModel

from aswarm import Agent, AswarmError, Budget, Deny, OpenCall, Output, Reply, Response, Result, Usage, agent_tool
from aswarm.code import code_tool
from aswarm.middleware import Handlers, Middleware, hedge, retry
from aswarm.testing import RawAnswer, ScriptedAnswer, ScriptedCall
from aswarm.testing.simulate import Provider, World
from tests.support.testing.drawn import several
from tests.support.testing.ledger import (
    APPROVED,
    Ledger,
    agent,
    answers_of,
    drawn_calls,
    drawn_usage,
    functions,
    key_of,
    script,
)

# Not "ids": the oracles find the answer of a call by its id.
FAULTS = ("429", "500", "refused", "reset", "cut")
USER = {"role": "user", "content": "go"}


class Featured:
    """One conversation of a program: a ledger, a provider, and runs that are checked after each round.

    `messages`: the history so far. `unknown`: the unknown calls so far. `is_clean`: whether no run was stopped.
    """

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.ledger = Ledger(world, limiter=anyio.CapacityLimiter(1))
        self.messages: list[Any] = [dict(USER)]
        self.unknown: list[Any] = []
        self.context: dict[str, Any] = {}
        self.used = Usage()
        self.is_clean = True
        self.response: Response
        self.has_oracle = True

    def provider(self, steps: Any, faults: Sequence[Any] = FAULTS, **options: Any) -> Provider:
        """Return the provider of this conversation."""
        api: Any = ("chat", "responses")[self.world.draw(f"{self.name}: API", 2)]
        return Provider(self.world, steps, faults=faults, name=self.name, **{"api": api, **options})

    async def run(
        self, swarm: Any, first: Agent, *, rounds: int = 4, may_leave: bool = True, **options: Any
    ) -> Response:
        """Run, decide on the calls that wait, and resume, some times. Returns the last response."""
        response = await self._one(swarm, first, "start", may_leave=may_leave, **options)
        for number in range(rounds):
            decisions = self.decisions(response.open_calls, number)
            if not decisions:
                break
            response = await self._one(swarm, response.agent, str(number), resume=decisions, **options)
        self.ledger.check()
        return response

    async def _one(self, swarm: Any, first: Agent, round_: str, **options: Any) -> Response:
        name = f"{self.name} {round_}"
        seconds = (None, None, 0.003, 0.03)[self.world.draw(f"{self.name}: timeout", 4)]
        try:
            async with asyncio.timeout(seconds):
                await self.world.run(swarm, first, self.messages, self.context, name=name, **options)
        except (AswarmError, TimeoutError):
            self.is_clean = False
        self.ledger.check_end()
        run = next(run for run in self.world.runs if run.name == name)
        assert run.response is not None
        response: Response = run.response
        self.is_clean = self.is_clean and response.stop != "cancelled"
        self.messages = [*self.messages, *response.messages]
        self.unknown += response.unknown_calls
        self.used += response.usage
        self.response = response
        self.context = response.context_variables
        if self.has_oracle:
            self.ledger.check_run(self.messages, self.unknown, self.context)
        return response

    def decisions(self, waiting: Sequence[OpenCall], number: int) -> dict[int, Any]:
        """Draw the decisions on the open calls. Some are left out."""
        asked = [call for call in waiting if call.reason is not None] or list(waiting)
        place = f"{self.name}: {number}"
        chosen = [call for call in asked if self.world.draw(f"{place}: leaves out", 5) != 4]
        return {call.index: self.decision(call, place) for call in chosen}

    def decision(self, call: Any, place: str) -> Any:
        """Draw the decision on a call, or on the calls inside."""
        if isinstance(call.data, Mapping) and "waiting" in call.data:
            inside = [SimpleNamespace(**each) for each in call.data["waiting"]]
            asked = [each for each in inside if each.reason is not None]
            return Reply({each.id: self.decision(each, place) for each in asked})
        if call.name in APPROVED:
            approve = not self.world.draw(f"{place}: denies", 3)
            return True if self.ledger.decide(key_of(call.arguments), approve=approve) else Deny("no")
        return Reply("yes") if call.name == "ask" and call.reason is not None else True

    def check_usage(self) -> None:
        """The usage has the tokens of the whole answers of the provider. The last bytes of an answer have none."""
        answers = [each for each in self.world.answers if each.provider == self.name]
        least = sum((each.usage or Usage() for each in answers if each.left == 0), Usage())
        most = sum((each.usage or Usage() for each in answers if each.left <= 20), Usage())
        for count in ("requests", "prompt_tokens", "completion_tokens", "total_tokens"):
            used, low, high = (getattr(each, count) for each in (self.used, least, most))
            low = low if self.is_clean else 0
            assert low <= used <= high, (
                f"{self.name} has used {used} {count}, and the provider answered {low} to {high}"
            )


# --- eager tools -------------------------------------------------------------------------------------------------------


def drifting(ledger: Ledger, name: str) -> RawAnswer:
    """Return a stream whose first call gets more arguments after the second call has started, as from a broken server."""
    first, second = ledger.call("look", f"{name}-a"), ledger.call("look", f"{name}-b")
    more = ("", json.dumps({"key": ledger.key("look")}), " ")[ledger.world.draw(f"{name}: drift", 3)]

    def chunk(index: int, arguments: str, call: ScriptedCall | None = None) -> bytes:
        head = {} if call is None else {"id": call.id, "type": "function"}
        function = {"arguments": arguments, **({} if call is None else {"name": call.name})}
        delta = {"tool_calls": [{"index": index, **head, "function": function}]}
        return b"data: " + json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode() + b"\n\n"

    pieces = [chunk(0, first.arguments, first), chunk(1, second.arguments, second), chunk(0, more), chunk(1, "")]
    end = b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}\n\ndata: [DONE]\n\n'
    return RawAnswer([*pieces, end])


def check_drift(messages: Sequence[Mapping[str, Any]]) -> None:
    """A call has a result only for the arguments in the history."""
    calls = {call["id"]: call for message in messages for call in message.get("tool_calls") or ()}
    for message in messages:
        if message["role"] == "tool" and str(message["content"]).startswith("done"):
            key = key_of(calls[message["tool_call_id"]]["function"]["arguments"])
            assert message["content"] == f"done {key}", f"the arguments have {key!r}, the result {message['content']!r}"


async def eager_tools(world: World) -> None:
    """Calls that start while the model writes, whose completion fails, is left, or changes; nothing runs after the end."""

    async def one(name: str) -> None:
        each = Featured(world, name)
        ledger, eager = each.ledger, (True, "always")[world.draw(f"{name}: always", 2)]
        names = ("look", "look", "look", "charge", "put", "pay", "fails")
        steps = script(ledger, name, names)
        is_drifting = world.draw(f"{name}: drifts", 3) == 2
        if is_drifting:
            steps[0] = drifting(ledger, name)
        provider = each.provider(steps, [*FAULTS, "hang"], api="chat") if is_drifting else each.provider(steps)
        swarm = world.swarm(provider, eager_tools=eager)
        async with asyncio.timeout(60):
            await each.run(swarm, agent(ledger, *dict.fromkeys(names)))
        check_drift(each.messages)
        if not is_drifting:
            each.check_usage()

    await several(world, one)


# --- hedge and other middleware ------------------------------------------------------------------------------------------


def watching(ledger: Ledger, name: str) -> Middleware:
    """Return middleware that checks that one stream is open at most while content arrives."""

    def wrap(handlers: Handlers) -> Handlers:
        async def complete(request: Any) -> AsyncGenerator[Mapping[str, Any], None]:
            chunks = 0
            async with aclosing(handlers.complete(request)) as inner:
                async for chunk in inner:
                    chunks += bool(chunk.get("choices"))
                    yield chunk
                    answers = (each for each in ledger.world.answers if each.provider == name)
                    left = sum(each.closed_at is None for each in answers)
                    if chunks > 1 and left > 1:
                        ledger.problems.append(f"{left} streams are open after {chunks} chunks")

        return replace(handlers, complete=complete)

    return wrap


def counting_requests(made: list[Any]) -> Middleware:
    """Return middleware that notes each request. A request that is cancelled early may not reach the provider."""

    def wrap(handlers: Handlers) -> Handlers:
        def complete(request: Any) -> AsyncGenerator[Mapping[str, Any], None]:
            made.append(request)
            return handlers.complete(request)

        return replace(handlers, complete=complete)

    return wrap


def together(handlers: Handlers) -> Handlers:
    """Middleware that lets the first two chunks of streams arrive at the same times."""

    async def complete(request: Any) -> AsyncGenerator[Mapping[str, Any], None]:
        chunks = 0
        async with aclosing(handlers.complete(request)) as inner:
            async for chunk in inner:
                chunks += 1
                if chunks <= 2:
                    await anyio.sleep_until(math.ceil(anyio.current_time() * 50 + 0.01) / 50)
                yield chunk

    return replace(handlers, complete=complete)


async def hedged(world: World) -> None:
    """Streams that are requested twice: the loser is closed, and the usage has each completion once and each loser once."""

    async def one(name: str) -> None:
        each = Featured(world, name)
        steps = script(each.ledger, name, ("charge", "put", "add"), turns=2)
        answers = iter(steps)
        known: dict[int, ScriptedAnswer] = {}

        def answer(request: Any) -> Any:  # the second request for a completion gets the answer of the first
            place = len(request.messages)
            if place not in known:
                known[place] = next(answers)
            return known[place]

        has_faults = bool(world.draw(f"{name}: faults", 2))
        provider = each.provider(answer, FAULTS if has_faults else ())
        seconds = (0.0005, 0.002, 0.02)[world.draw(f"{name}: after", 3)]
        chosen = [watching(each.ledger, name), hedge(after_seconds=seconds, share=1)]
        if world.draw(f"{name}: together", 2):
            chosen.append(together)
        requests = list[Any]()
        chosen.append(counting_requests(requests))
        swarm = world.swarm(provider, middleware=chosen)
        await each.run(swarm, agent(each.ledger, "charge", "put", "add"))
        made = [event for run in world.runs if run.name.startswith(f"{name} ") for _, event in run.events]
        finished = sum(type(event).__name__ == "CompletionFinished" for event in made)
        assert finished <= each.used.requests <= len(requests), f"{each.used}, {len(requests)} requests"
        if each.is_clean and not has_faults:  # each request is for a completion or a loser
            assert each.used.requests >= len(provider.requests), f"{each.used}, {len(provider.requests)} requests"

    await several(world, one)


def counting(handlers: Handlers) -> Handlers:
    """Middleware that counts the calls in the context, before and after each."""

    async def call_tool(call: Any, context: dict[str, Any], started: Any) -> Any:
        context["before"] = context.get("before", 0) + 1
        outcome = await handlers.call_tool(call, context, started)
        context["after"] = context.get("after", 0) + 1
        return outcome

    return replace(handlers, call_tool=call_tool)


def changing(handlers: Handlers) -> Handlers:
    """Middleware that marks each result."""

    async def call_tool(call: Any, context: dict[str, Any], started: Any) -> Any:
        outcome = await handlers.call_tool(call, context, started)
        return outcome if isinstance(outcome.content, list) else replace(outcome, content=f"marked {outcome.content}")

    return replace(handlers, call_tool=call_tool)


async def middlewares(world: World) -> None:
    """Retries count each completion once, and the changes of a middleware in the context stay."""

    async def one(name: str) -> None:
        each = Featured(world, name)
        eager = bool(world.draw(f"{name}: eager", 2))
        names = (
            ("look", "look", "charge", "fails")
            if eager
            else ("charge", "put", "add", "plain_add", "look", "fails", "pay")
        )
        steps = script(each.ledger, name, names)
        chosen = [[counting, retry(3)], [retry(3), changing, counting], [changing, retry(2)]][
            world.draw(f"{name}: which", 3)
        ]
        swarm = world.swarm(each.provider(steps), middleware=chosen, eager_tools=eager, max_threads=1)
        response = await each.run(swarm, agent(each.ledger, *dict.fromkeys(names)))
        each.check_usage()
        texts = [text for text in answers_of(each.messages).values() if text is not None]
        if counting in chosen and each.is_clean:
            denied = sum(text.startswith("not run") for text in texts)
            assert response.context_variables.get("after", 0) == len(texts) - denied, (
                f"{response.context_variables}, {texts}"
            )

    await several(world, one)


# --- agents as tools, and code ---------------------------------------------------------------------------------------------


async def agent_tools(world: World) -> None:
    """Agents inside calls, whose calls wait, are decided together, and run once."""

    async def one(name: str) -> None:
        each = Featured(world, name)
        ledger = each.ledger
        of_inner = ("charge", "pay", "ask", "look", "put", "add")
        inner = agent(ledger, *of_inner, name="inner", instructions="inner")
        shares: Any = ("copy", "share")[world.draw(f"{name}: context", 2)]
        tools = [agent_tool(inner, name="helper", context=shares)]
        outer = agent(ledger, "charge", "pay", "ask", more=tools, name="outer", instructions="outer")

        def answer(request: Any) -> Any:
            is_inner = request.messages[0]["content"] == "inner"
            turn = sum(message["role"] == "assistant" for message in request.messages)
            usage = drawn_usage(world, name)
            if turn >= 1 + world.draw(f"{name}: turns", 2):
                return ScriptedAnswer("finished", usage=usage)
            if is_inner:
                return drawn_calls(ledger, f"{name}: inner", f"{name}-i", of_inner, most=3)
            made = drawn_calls(ledger, name, f"{name}-o{turn}", ("charge", "pay", "ask"), most=2)
            asked = [
                ScriptedCall("helper", '{"request": "help"}', f"{name}-h{turn}{number}")
                for number in range(1 + world.draw(f"{name}: helpers", 2))
            ]
            return ScriptedAnswer(calls=[*asked, *made.calls], usage=usage)

        each.has_oracle = False  # an inner run with context="share" changes the context of the outer run
        provider = each.provider(answer, faults=("500", "cut"))
        budget = (None, Budget(turns=2), Budget(tokens=1500), Budget(tool_calls=4))[world.draw(f"{name}: budget", 4)]
        await each.run(world.swarm(provider), outer, budget=budget)
        ledger.check_run(each.messages, each.unknown)
        each.check_usage()
        check_budget(each, provider, budget, world)
        failed = [text for text in answers_of(each.messages).values() if str(text).startswith("Error: ")]
        # The calls of a helper whose stream was cut are lost with its answer.
        if each.is_clean and budget is None and not failed and not each.response.open_calls:
            lost = [key for key, which in ledger.names.items() if which in APPROVED and key not in ledger.decided]
            assert not lost, f"the calls {lost} that wait were never asked"

    await several(world, one)


def check_budget(each: Featured, provider: Provider, budget: Budget | None, world: World) -> None:
    """The runs of a conversation, with their inner runs, stay in the budget of each run."""
    rounds = max(1, sum(run.name.startswith(f"{each.name} ") for run in world.runs))
    last = 1 if budget is not None and budget.then == "answer" else 0
    if budget is not None and budget.turns is not None:
        asked, most = len(provider.requests), rounds * (budget.turns + last)
        assert asked <= most, f"{asked} requests in {rounds} runs with {budget}"
    if budget is not None and budget.tool_calls is not None:
        # Calls of a run that was resumed count in the budget of the new run.
        started = sum(each.ledger.starts.values())
        assert started <= rounds * budget.tool_calls, f"{started} calls in {rounds} runs with {budget}"


def drawn_code(ledger: Ledger, name: str) -> str:
    """Draw code with calls one after another, together, and with caught errors; it returns the results of all calls."""
    world, lines = ledger.world, ["results = []"]
    for _ in range(1 + world.draw(f"{name}: lines", 3)):
        made = []
        for _ in range(1 + world.draw(f"{name}: together", 3)):
            which = ("charge", "pay", "add", "look", "charge")[world.draw(f"{name}: in code", 5)]
            made.append(f"{which}(key='{ledger.key(which)}')")
        if len(made) == 1:
            lines += ["try:", f"    results.append(await {made[0]})"]
        else:
            lines += ["try:", f"    results.extend(await asyncio.gather({', '.join(made)}))"]
        lines += ["except (PermissionError, RuntimeError):", "    results.append('failed')"]
    return "\n".join([*lines, "results"])


def check_code(each: Featured) -> None:
    """Each result of the code comes from a call that has returned; the log has the writes of all such calls once."""
    for message in each.messages:
        if (
            message["role"] == "tool"
            and message.get("tool_name") == "run_code"
            and str(message["content"]).startswith("[")
        ):
            for key in [
                text.removeprefix("done ")
                for text in json.loads(str(message["content"]).partition("\n")[0].replace("'", '"'))
                if text != "failed"
            ]:
                assert each.ledger.ends[key], f"the code has a result of {key}, which has not run"
    written = list(each.context.get("log", []))
    assert len(written) == len(set(written)), f"a change of the context was repeated: {written}"
    ended = {key for key, name in each.ledger.names.items() if name == "add" and each.ledger.ends[key]}
    if each.is_clean:
        assert set(written) == ended, f"{ended} have ended, and the context has {written}"


async def code_mode(world: World) -> None:
    """Code whose calls wait: each effect happens once, however often the code is replayed."""

    async def one(name: str) -> None:
        each = Featured(world, name)
        ledger, named = each.ledger, functions(each.ledger)
        tools = code_tool(*(named[which] for which in ("charge", "pay", "add", "look")), type_check=False)
        coder = agent(ledger, "charge", "pay", more=[tools])
        code = ScriptedCall("run_code", json.dumps({"code": drawn_code(ledger, name)}), f"{name}-code")
        beside = [ledger.call("pay", f"{name}-p") for _ in range(world.draw(f"{name}: beside", 2))]
        first = ScriptedAnswer(calls=[code, *beside], usage=drawn_usage(world, name))
        steps = [first, ScriptedAnswer("finished", usage=drawn_usage(world, name))]
        each.has_oracle = False  # code has no key of its own
        await each.run(world.swarm(each.provider(steps, faults=("500",))), coder)
        ledger.check_run(each.messages, each.unknown)
        check_code(each)
        each.check_usage()

    await several(world, one)


# --- types -----------------------------------------------------------------------------------------------------------------


@dataclass
class Shop:
    """A typed context. `points`: the sum of all numbers. `cart`: the keys of the calls."""

    points: int = 0
    cart: list[str] | None = None


class ShopItems(TypedDict):
    points: int


class Seen(BaseModel, frozen=True):
    points: int = 0


async def typed_context(world: World) -> None:
    """Functions with typed contexts of three kinds: the context equals serial execution."""

    async def one(name: str) -> None:
        each = Featured(world, name)
        ledger = each.ledger

        async def spend(key: str, context_variables: Shop) -> str:
            before = context_variables.points
            text = await ledger.work(key)
            context_variables.points = before + 1
            context_variables.cart = [*(context_variables.cart or []), key]
            return text

        def collect(key: str, context_variables: ShopItems) -> str:
            text = ledger.note(key)
            context_variables["points"] += 1
            return text

        async def balance(key: str, context_variables: Seen) -> str:
            seen = context_variables.points
            text = await ledger.work(key)
            if seen != context_variables.points:
                ledger.problems.append("a frozen view has changed")
            return text

        names = ("spend", "collect", "balance", "charge")
        steps = script(ledger, name, names)
        each.has_oracle, each.context = False, {"points": 0, "other": {"kept": [1, {"deep": 2}]}}
        shopper = agent(ledger, "charge", more=[spend, collect, balance])
        response = await each.run(world.swarm(each.provider(steps)), shopper)
        ledger.check_run(each.messages, each.unknown)
        context, reported = response.context_variables, {key_of(call.arguments) for call in each.unknown}
        done = [key for key, text in answers_of(each.messages).items() if text == f"done {key}"]
        counted = sum(ledger.names[key] in ("spend", "collect") for key in done)
        assert counted <= context["points"] <= counted + len(reported), f"{context}, {done}"
        cart = [key for key in context.get("cart") or [] if key not in reported]
        assert cart == [key for key in done if ledger.names[key] == "spend"], f"{context}, {done}"
        assert context["other"] == {"kept": [1, {"deep": 2}]}, f"the other keys are {context['other']}"

    await several(world, one)


class Trip(BaseModel):
    city: str
    days: int


async def structured_output(world: World) -> None:
    """Answers of a type, some of them invalid: only a valid answer ends the run, and it is the answer of the model."""

    async def one(name: str) -> None:
        each = Featured(world, name)
        ledger, valid = each.ledger, set[str]()
        mode: Any = ("auto", "tool", "schema", "prompt")[world.draw(f"{name}: mode", 4)]
        names = ("charge", "put", "pay")
        has_tools = bool(world.draw(f"{name}: tools", 2))

        def check(trip: Trip) -> None:
            if trip.days > 5:
                raise ValueError("too long")

        def drawn_text() -> str:
            days = (2, 9, "x", None)[world.draw(f"{name}: days", 4)]
            city = ledger.key("city")
            if days == 2:
                valid.add(city)
            return json.dumps({"city": city, "days": days})

        def answer(request: Any) -> Any:
            usage = drawn_usage(world, name)
            if has_tools and world.draw(f"{name}: calls a tool", 3) == 2:
                made = drawn_calls(ledger, name, f"{name}-{len(request.messages)}", names, most=2)
                if "final_answer" in request.tool_names and world.draw(f"{name}: answers too", 2):
                    final = ScriptedCall("final_answer", drawn_text(), f"{name}-f{len(request.messages)}")
                    return ScriptedAnswer(calls=[final, *made.calls], usage=usage)
                return made
            if "final_answer" in request.tool_names and world.draw(f"{name}: by tool", 3):
                return ScriptedAnswer(
                    calls=[ScriptedCall("final_answer", drawn_text(), f"{name}-f{len(request.messages)}")], usage=usage
                )
            return ScriptedAnswer(drawn_text(), usage=usage)

        traveller = agent(ledger, *(names if has_tools else ()), output=Output(Trip, mode=mode, check=check, retries=2))
        each.has_oracle = False
        provider = each.provider(answer, faults=("500", "cut"))
        response = await each.run(world.swarm(provider), traveller, max_turns=8)
        ledger.check_run(each.messages, each.unknown)
        each.check_usage()
        if response.stop == "answer":
            trip = response.output
            assert isinstance(trip, Trip)
            assert trip.city in valid, f"the answer {trip} is not valid"

    await several(world, one)


# --- handoffs and budgets --------------------------------------------------------------------------------------------------


async def handoffs(world: World) -> None:
    """Several handoffs in one message: the last in call order wins, after all changes of the turn."""

    async def one(name: str) -> None:
        each = Featured(world, name)
        ledger, agents = each.ledger, dict[str, Agent]()
        seen: list[tuple[str, dict[str, Any]]] = []

        def instructions_of(who: str) -> Callable[..., str]:
            def instructions(context_variables: dict[str, Any]) -> str:
                seen.append((who, dict(context_variables)))
                return who

            return instructions

        def to(who: str, *, is_async: bool) -> Callable[..., Any]:
            async def later(key: str) -> Result:
                return Result(value=await ledger.work(key), agent=agents[who], context_variables={"last": key, key: 1})

            def now(key: str) -> Agent:
                ledger.note(key)
                return agents[who]

            function = later if is_async else now
            function.__name__ = f"to_{who}"
            return function

        common = ("charge", "put", "add")
        for who in "abc":
            more = [to(other, is_async=other != "b") for other in "abc"]
            agents[who] = agent(ledger, *common, more=more, name=who, instructions=instructions_of(who))
        ledger.names["none"] = "none"
        steps = script(ledger, name, ("to_a", "to_b", "to_c", *common))
        each.has_oracle = False
        response = await each.run(world.swarm(each.provider(steps)), agents["a"])
        ledger.check_run(each.messages, each.unknown)
        check_handoffs(ledger, each.messages, response, seen, is_clean=each.is_clean)

    await several(world, one)


def check_handoffs(
    ledger: Ledger, messages: Sequence[Any], response: Response, seen: Sequence[Any], *, is_clean: bool
) -> None:
    """Each answer comes from the agent of the last handoff before it, which has seen all changes of the turns before."""
    active, merged, turn = "a", list[str](), 0
    target: str | None = None
    for message in messages:
        if message["role"] == "assistant":
            active, target = target or active, None
            assert message["sender"] == active, f"{message['sender']} answers after a handoff to {active}"
            who, context = seen[turn]
            lost = [key for key in merged if context.get(key) != 1]
            assert (who, lost) == (active, []), f"{who} has not seen the changes of {lost}"
            turn += 1
        elif message["role"] == "tool":
            key = message["tool_call_id"].rpartition("-")[2]
            kind, text = ledger.names[key], str(message["content"])
            has_result = text.startswith((f"done {key}", "{"))
            if has_result and kind.startswith("to_"):
                target = kind.removeprefix("to_")
            if text.startswith(f"done {key}") and kind in ("to_a", "to_c", "put"):
                merged.append(key)
    if is_clean:
        assert response.agent.name == (target or active), f"the agent is {response.agent.name}, not {target or active}"


async def budgets(world: World) -> None:
    """Runs with each limit: not one request, token or call more."""

    async def one(name: str) -> None:
        each = Featured(world, name)
        then: Any = ("stop", "answer", "raise")[world.draw(f"{name}: then", 3)]
        most = 1 + world.draw(f"{name}: most", 3)
        limits: Any = ({"turns": most}, {"tokens": 400 * most}, {"tool_calls": most}, {"turns": 3, "tokens": 900})
        budget = Budget(**limits[world.draw(f"{name}: limit", 4)], then=then)
        names = ("charge", "put", "add", "look", "pay")
        provider = each.provider(script(each.ledger, name, names, turns=5) * 2, faults=("500", "cut"))
        eager = bool(world.draw(f"{name}: eager", 2))
        swarm = world.swarm(provider, eager_tools=eager)
        await each.run(swarm, agent(each.ledger, *names), rounds=1, budget=budget)
        check_budget(each, provider, budget, world)
        each.check_usage()

    await several(world, one)


FEATURED = {
    each.__name__: each
    for each in (
        eager_tools,
        hedged,
        middlewares,
        agent_tools,
        code_mode,
        typed_context,
        structured_output,
        handoffs,
        budgets,
    )
}
