"""Calls that wait keep the order of the calls: the end is the same as after serial execution."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import replace
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aswarm import Agent, Answer, AsyncSwarm, Hold, Response, Result, current_call, tool
from aswarm.guards import CheckedCall, guard_tool
from aswarm.middleware import Handlers, Started, ToolCall, ToolOutcome, clip_results
from aswarm.testing import Request, ScriptedModel, call

pytestmark = pytest.mark.slow
Json = dict[str, Any]


def writes(name: str) -> Callable[..., Any]:
    async def function(n: int) -> Result:
        return Result(value=f"{name} {n}", context_variables={"last": n})

    return function


def reads(name: str) -> Callable[..., Any]:
    async def function(n: int, context_variables: Mapping[str, Any]) -> str:
        return f"{name} {n} saw {context_variables.get('last')}"

    return function


def changes(name: str) -> Callable[..., Any]:
    async def function(n: int, context_variables: MutableMapping[str, Any]) -> str:
        seen, context_variables["last"] = context_variables.get("last"), n
        return f"{name} {n} saw {seen}"

    return function


def leaves(name: str) -> Callable[..., Any]:
    async def function(n: int) -> Agent:
        return Agent(name=f"{name} {n}", instructions="other")

    return function


def looks(name: str) -> Callable[..., Any]:
    async def function(n: int) -> str:
        return f"{name} {n}"

    return function


@tool(may_wait=True)
async def ask(n: int) -> Result:
    if current_call().answer is None:
        raise Hold("Which?")
    return Result(value=f"ask {n}", context_variables={"last": n})


@tool(may_wait=True)
async def ask_and_look(n: int, context_variables: Mapping[str, Any]) -> str:
    if current_call().answer is None:
        raise Hold("Which?")
    return f"asked {n} saw {context_variables.get('last')}"


KINDS: dict[str, Any] = {
    "ask": ask,
    "ask_and_look": ask_and_look,
    "to_ready": Agent(name="Ready", instructions="other"),
}
for make in (writes, reads, changes, leaves, looks):
    for suffix, options in {"": {}, "_approve": {"approve": True}, "_together": {"concurrent": True}}.items():
        name = make.__name__ + suffix
        KINDS[name] = tool(name=name, **options)(make(name))
KINDS["looks_by_context"] = tool(name="looks_by_context", approve=lambda _, context: "last" in context)(looks("looks"))
# A function that the user marks as independent of its neighbours may see any state of the context.
for name in ("reads_together", "changes_together"):
    del KINDS[name]


async def conversation(kinds: list[str], clicks: list[int], denied: set[int], *, concurrent: bool) -> Any:
    """Return the context, the agent and the answers at the end.

    In each round the user decides on one more call, in the order of `clicks`; decisions on unreached calls are passed again.
    """

    def script(request: Request) -> Any:
        first = request.messages[0]["content"]
        asked = sum(each["role"] == "assistant" for each in request.messages)
        if first == "outer" and asked == 0:
            return [call(name_of(kind), call_id=f"c{n}", **arguments(kind, n)) for n, kind in enumerate(kinds)]
        return "Done."

    agent = Agent(name="A", instructions="outer", functions=list(KINDS.values()))
    history: list[Any] = [{"role": "user", "content": "Go"}]
    context: Json = {}
    decisions: Any = False
    clicked: list[int] = []
    for _ in range(30):
        swarm = AsyncSwarm(ScriptedModel(script).client(), concurrent_tools=concurrent)
        response: Response = await swarm.run(agent, history, context, resume=decisions)
        history = json.loads(json.dumps([*history, *response.messages]))
        context = json.loads(json.dumps(response.context_variables))
        if response.stop != "waiting":
            break
        asking = {each.index: each for each in response.waiting if each.reason is not None}
        clicked += [n for n in clicks if n in asking and n not in clicked][:1]
        decisions = {n: False if n in denied else decision(kinds[n]) for n in clicked if n in asking}
    assert response.stop == "answer"
    told = {
        each["tool_call_id"]: each["content"] for each in history if each["role"] == "tool" and "waiting" not in each
    }
    return context, response.agent.name, told


def decision(kind: str) -> Any:
    return Answer("this") if kind.startswith("ask") else True


def name_of(kind: str) -> str:
    return "transfer_to_ready" if kind == "to_ready" else kind


def arguments(kind: str, number: int) -> Json:
    return {} if kind == "to_ready" else {"n": number}


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@given(st.lists(st.sampled_from(sorted(KINDS)), min_size=2, max_size=5), st.data())
def test_waiting_calls_keep_the_order(backend: str, kinds: list[str], data: st.DataObject) -> None:
    """The end is the same for any order of the decisions, each of them in another process."""
    clicks = data.draw(st.permutations(range(len(kinds))))
    denied = data.draw(st.sets(st.sampled_from(range(len(kinds))), max_size=1))

    async def both() -> tuple[Any, Any]:
        together = await conversation(kinds, clicks, denied, concurrent=True)
        return together, await conversation(kinds, clicks, denied, concurrent=False)

    together, in_order = anyio.run(both, backend=backend)
    assert together == in_order


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("kinds", "clicks"),
    [
        (["looks_approve", "leaves"], [0, 1]),
        (["writes_approve", "writes"], [0, 1]),
        (["reads_approve", "writes"], [0, 1]),
        (["writes_approve", "writes_approve"], [1, 0]),
        (["ask", "writes"], [0, 1]),
        (["ask_and_look", "writes"], [0, 1]),
    ],
)
async def test_a_call_that_waits_and_a_later_call(kinds: list[str], clicks: list[int]) -> None:
    """A later call that depends on a call that waits runs after it."""
    together = await conversation(kinds, clicks, set(), concurrent=True)
    assert together == await conversation(kinds, clicks, set(), concurrent=False)
    assert "not run: interrupted" not in together[2].values()


@pytest.mark.anyio
@pytest.mark.parametrize("concurrent", [True, False])
async def test_an_approval_that_depends_on_the_context(concurrent: bool) -> None:
    """`approve` gets the changes of an earlier call of the turn."""
    model = ScriptedModel([[call("writes", n=1), call("looks_by_context", n=2)], "Done."])
    swarm = AsyncSwarm(model.client(), concurrent_tools=concurrent)
    response = await swarm.run(Agent(name="A", functions=list(KINDS.values())), "Go")
    assert [(each.index, each.reason) for each in response.waiting] == [(1, "needs approval")]


@pytest.mark.anyio
@pytest.mark.parametrize("concurrent", [True, False])
async def test_calls_of_one_id_and_name(concurrent: bool) -> None:
    """A later call with the same id runs after the call that waits, because its answer would close the earlier call."""

    @tool(approve=lambda arguments, _: arguments["amount"] > 100)
    async def pay(amount: int) -> str:
        return f"paid {amount}"

    calls = [call("pay", call_id="same", amount=500), call("pay", call_id="same", amount=5)]
    agent = Agent(name="A", functions=[pay])
    swarm = AsyncSwarm(ScriptedModel([calls, "Done."]).client(), concurrent_tools=concurrent)
    response = await swarm.run(agent, "Go")
    assert [each.reason for each in response.waiting] == ["needs approval", None]
    history = [{"role": "user", "content": "Go"}, *response.messages]
    response = await swarm.run(agent, history, resume={0: True, 1: True})
    assert [each["content"] for each in response.messages] == ["paid 500", "paid 5", "Done."]


def holds_by_name(handlers: Handlers) -> Handlers:
    async def call_tool(call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
        if call.name == "looks" and not call.is_approved:
            raise Hold("May it look?")
        return await handlers.call_tool(call, context, started)

    return replace(handlers, call_tool=call_tool, may_hold=True)


def forgets_the_declaration(handlers: Handlers) -> Handlers:
    return Handlers(handlers.complete, handlers.call_tool, handlers.run)


def held(checked: CheckedCall) -> Hold | None:
    return Hold("May it look?") if checked.name == "looks" and not checked.is_approved else None


@pytest.mark.anyio
@pytest.mark.parametrize("concurrent", [True, False])
@pytest.mark.parametrize(
    "middleware",
    [
        [holds_by_name],
        [holds_by_name, lambda handlers: handlers],
        [forgets_the_declaration, holds_by_name],
        [guard_tool(held, may_wait=True)],
        [clip_results(100), guard_tool(held, may_wait=True)],
    ],
)
async def test_a_middleware_that_makes_a_call_wait(middleware: list[Any], concurrent: bool) -> None:
    """A later handoff does not close the call before the user is asked."""
    functions = [KINDS["looks"], KINDS["leaves"]]
    model = ScriptedModel([[call("looks", n=1), call("leaves", n=2)], "Done."])
    swarm = AsyncSwarm(model.client(), middleware=middleware, concurrent_tools=concurrent)
    response = await swarm.run(Agent(name="A", functions=functions), "Go")
    assert response.stop == "waiting"
    assert [each.reason for each in response.waiting] == ["May it look?", None]


class Waits(Hold):
    """A Hold with a name of its own."""


class Asks:
    async def __call__(self) -> str:
        raise Hold("Which?")


def kinds_of_asking() -> dict[str, Any]:
    class Inner(Hold):
        pass

    own_hold = Hold

    async def subclass() -> str:
        raise Waits("Which?")

    async def alias() -> str:
        raise own_hold("Which?")

    async def inner_class() -> str:
        raise Inner("Which?")

    return {
        "subclass": tool(subclass),
        "alias": tool(alias),
        "inner_class": tool(inner_class),
        "instance": tool(name="instance")(Asks()),
        "partial": tool(name="partial")(functools.partial(subclass)),
    }


@pytest.mark.anyio
@pytest.mark.parametrize("kind", list(kinds_of_asking()))
async def test_functions_that_ask_in_other_ways(kind: str) -> None:
    asks = tool(may_wait=True)(kinds_of_asking()[kind])
    model = ScriptedModel([[call(kind), call("leaves", n=2)], "Done."])
    agent = Agent(name="A", functions=[asks, KINDS["leaves"]])
    assert (await AsyncSwarm(model.client()).run(agent, "Go")).stop == "waiting"
