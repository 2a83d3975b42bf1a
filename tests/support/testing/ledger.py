"""A ledger of the effects of one universe, functions that note their effects in it, and the oracle that compares it with histories.

Each scripted call has a key of its own, which its function returns as "done KEY". So the ledger knows which calls have run, and a
history shows which calls have a result. The ledger survives crashes, as a bank does.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio

from aswarm import Agent, Hold, Result, current_call, tool
from aswarm.testing import ScriptedAnswer, ScriptedCall
from aswarm.testing.simulate import World

UNKNOWN = "outcome is unknown"


@dataclass
class Ledger:
    """The effects of one universe.

    `names`: the name of the function, by the key of its call. `starts`, `ends`, `holds`: the number of times that a function
    has started, has returned, and has asked its question. `running`: the keys of the functions that run now. `decided`:
    whether a user has approved a key. `problems`: faults that a function or a middleware has seen; raised there, they would
    become an error of the run.
    """

    world: World
    names: dict[str, str] = field(default_factory=dict[str, str])
    numbers: dict[str, int] = field(default_factory=dict[str, int])
    starts: Counter[str] = field(default_factory=Counter[str])
    ends: Counter[str] = field(default_factory=Counter[str])
    holds: Counter[str] = field(default_factory=Counter[str])
    running: Counter[str] = field(default_factory=Counter[str])
    decided: dict[str, bool] = field(default_factory=dict[str, bool])
    problems: list[str] = field(default_factory=list[str])
    limiter: anyio.CapacityLimiter | None = None  # of `charge`; without a crash, because it would survive

    # --- calls and functions ---

    def call(self, name: str, place: str, **arguments: Any) -> ScriptedCall:
        """Return a call with a new key. `place`: the prefix of its id."""
        key = self.key(name)
        return ScriptedCall(name, json.dumps({"key": key, **arguments}), f"{place}-{key}")

    def key(self, name: str) -> str:
        """Return a new key for a call of this function."""
        key = f"k{len(self.names) + 1}"
        self.names[key] = name
        return key

    @contextmanager
    def running_now(self, key: str) -> Generator[None]:
        """Note the start and the end of a function."""
        self.starts[key] += 1
        self.running[key] += 1
        try:
            yield
        finally:
            self.running[key] -= 1
        self.ends[key] += 1

    def note(self, key: str) -> str:
        """Note a function that runs in one step."""
        with self.running_now(key):
            return f"done {key}"

    async def work(self, key: str) -> str:
        """Run a function that waits for I/O."""
        with self.running_now(key):
            await self.world.pause("the bank")
            return f"done {key}"

    def decide(self, key: str, *, approve: bool) -> bool:
        """Note the decision of a user."""
        self.decided[key] = approve
        return approve

    # --- the oracle ---

    def check(self) -> None:
        """Each effect happens at most once, and none without the approval that it needs."""
        assert not self.problems, "; ".join(self.problems)
        for key, name in self.names.items():
            most = 1 + self.holds[key]
            assert name in REPEATABLE or self.starts[key] <= most, f"{name} ran {self.starts[key]} times for {key}"
            assert name not in APPROVED or not self.starts[key] or self.decided.get(key), (
                f"{name} ran undecided for {key}"
            )
            assert self.ends[key] <= 1 or name in REPEATABLE, f"{name} ended {self.ends[key]} times for {key}"

    def check_end(self) -> None:
        """Nothing runs after the end of all runs."""
        left = [key for key, number in self.running.items() if number]
        assert not left, f"functions run after the end of their run: {left}"

    def check_run(
        self,
        messages: Sequence[Mapping[str, Any]],
        unknown: Sequence[Any] = (),
        context: Mapping[str, Any] | None = None,
    ) -> None:
        """The history agrees with the ledger, and the context equals serial execution.

        `messages`: a whole history. `unknown`: the unknown calls of its runs.
        """
        self.check()
        answers = answers_of(messages)
        reported = {key_of(each.arguments if hasattr(each, "arguments") else each["arguments"]) for each in unknown}
        for key, text in answers.items():
            self._check_answer(key, text, reported)
        if context is not None:
            self._check_context(answers, reported, context)

    def _check_answer(self, key: str, text: str | None, reported: set[str]) -> None:
        name, started, held = self.names[key], self.starts[key], self.holds[key]
        if text is None:
            assert started <= held or name in REPEATABLE, f"{name} has started for {key}, and its call is open"
        elif text.endswith(f"done {key}"):
            assert self.ends[key], f"{key} has a result, and {name} has not ended"
        elif UNKNOWN in text:
            assert key in reported, f"the outcome of {key} is unknown, and it is not in unknown_calls"
        elif text.startswith(("not run", "interrupted")):
            assert started <= held, f"{name} has started for {key}, and its answer is {text!r}"

    def _check_context(self, answers: Mapping[str, str | None], reported: set[str], context: Mapping[str, Any]) -> None:
        """Compare the context with the changes of the calls with a result, in the order of their messages."""
        done = [key for key, text in answers.items() if text is not None and text.endswith(f"done {key}")]
        log = [key for key in done if self.names[key] in WRITERS]
        found = [key for key in context.get("log", ()) if key not in reported]
        assert found == [key for key in log if key not in reported], f"the log is {context.get('log')}, the calls {log}"
        puts = [key for key in done if self.names[key] in MERGED]
        left = [key for key in puts if context.get(key) != 1]
        assert not left, f"the changes of {left} are not in the context {context}"
        allowed = {*(puts[-1:] or [None]), *(key for key in reported if self.names.get(key) in MERGED)}
        assert context.get("last") in allowed, f"the last change is {context.get('last')}, the calls in order {puts}"


# --- functions ---------------------------------------------------------------------------------------------------------

REPEATABLE = {"look"}
APPROVED = {"pay"}
WRITERS = {"add", "plain_add"}
MERGED = {"put", "plain_put"}


def functions(ledger: Ledger) -> dict[str, Any]:
    """Return a function of each kind, by name."""

    async def charge(key: str) -> str:
        return await ledger.work(key)

    async def add(key: str, context_variables: dict[str, Any]) -> str:
        before = context_variables.get("log", [])
        text = await ledger.work(key)
        context_variables["log"] = [*before, key]
        return text

    def plain_add(key: str, context_variables: dict[str, Any]) -> str:
        text = ledger.note(key)
        context_variables["log"] = [*context_variables.get("log", []), key]
        return text

    async def put(key: str) -> Result:
        return Result(value=await ledger.work(key), context_variables={"last": key, key: 1})

    def plain_put(key: str) -> Result:
        return Result(value=ledger.note(key), context_variables={"last": key, key: 1})

    async def look(key: str) -> str:
        return await ledger.work(key)

    async def pay(key: str) -> str:
        return await ledger.work(key)

    @tool(may_wait=True)
    async def ask(key: str) -> str:
        if current_call().answer is None:
            ledger.starts[key] += 1
            ledger.holds[key] += 1
            raise Hold("a question")
        return await ledger.work(key)

    async def fails(key: str) -> str:
        with ledger.running_now(key):
            await ledger.world.pause("the bank")
            raise ValueError("the bank is closed")

    named: list[Callable[..., Any]] = [charge, add, plain_add, put, plain_put, ask, fails]
    tools: dict[str, Any] = {each.__name__: each for each in named}
    if ledger.limiter is not None:
        tools["charge"] = tool(limiter=ledger.limiter)(charge)
    return {**tools, "look": tool(repeatable=True)(look), "pay": tool(approve=True)(pay)}


def agent(ledger: Ledger, *names: str, more: Sequence[Any] = (), **options: Any) -> Agent:
    """Return an agent with these functions."""
    known = functions(ledger)
    return Agent(functions=[*(known[name] for name in names), *more], **{"name": "agent", **options})


def drawn_calls(ledger: Ledger, name: str, place: str, names: Sequence[str], most: int = 4) -> ScriptedAnswer:
    """Draw an answer with calls. `name`: of the choices."""
    world = ledger.world
    number = 1 + world.draw(f"{name}: calls", most)
    calls = [ledger.call(names[world.draw(f"{name}: tool", len(names))], f"{place}-{index}") for index in range(number)]
    return ScriptedAnswer(calls=calls, usage=drawn_usage(world, name))


def drawn_usage(world: World, name: str) -> dict[str, int]:
    """Draw the usage of an answer, so that two answers seldom have equal numbers."""
    prompt, completion = 1 + world.draw(f"{name}: prompt", 1000), 1 + world.draw(f"{name}: completion", 100)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def script(ledger: Ledger, name: str, names: Sequence[str], turns: int = 3) -> list[Any]:
    """Draw the answers of a model: some turns with calls, then a text."""
    world = ledger.world
    steps: list[Any] = [
        drawn_calls(ledger, name, f"{name}-{turn}", names) for turn in range(1 + world.draw(f"{name}: turns", turns))
    ]
    return [*steps, ScriptedAnswer("finished", usage=drawn_usage(world, name))]


# --- histories ---------------------------------------------------------------------------------------------------------


def key_of(arguments: str) -> str:
    """Return the key in the arguments of a call; empty if there is none."""
    try:
        return str(json.loads(arguments or "{}").get("key", ""))
    except ValueError:
        return ""


def answers_of(messages: Sequence[Mapping[str, Any]]) -> dict[str, str | None]:
    """Return the texts of the tool messages by key, in the order of the messages; then None for the calls without an answer."""
    keys: dict[str, str] = {}
    answers: dict[str, str | None] = {}
    for message in messages:
        for call in message.get("tool_calls") or ():
            if key := key_of(call["function"]["arguments"]):
                keys[call["id"]] = key
        if message["role"] == "tool" and "waiting" not in message and message["tool_call_id"] in keys:
            key = keys[message["tool_call_id"]]
            assert key not in answers, f"{key} has two answers"
            answers[key] = str(message["content"])
    return {**answers, **{key: None for key in keys.values() if key not in answers}}
