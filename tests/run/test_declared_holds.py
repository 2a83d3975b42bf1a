"""A function that may raise Hold and may share a group declares it. Without the declaration, the run fails, and loses nothing."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import replace
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aswarm import Agent, AsyncSwarm, ConfigurationError, Hold, Reply, Response, Result, agent_tool, current_call, tool
from aswarm.guards import CheckedCall, guard_tool
from aswarm.middleware import Handlers, Started, ToolCall, ToolOutcome
from aswarm.testing import Request, ScriptedModel, call, check_history
from aswarm.tools import function_tool

Json = dict[str, Any]
USER = {"role": "user", "content": "Go"}
NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


class Waits(Hold):
    """A Hold with another name."""


class Desk:
    """Functions that count their effects by the number in the call."""

    def __init__(self) -> None:
        self.effects: Counter[int] = Counter()

    def done(self, n: int, text: str) -> str:
        self.effects[n] += 1
        return f"{text} {n}"

    async def looks(self, n: int) -> str:
        return self.done(n, "looked")

    async def reads(self, n: int, context_variables: Mapping[str, Any]) -> str:
        return self.done(n, f"saw {context_variables.get('last')}")

    async def writes(self, n: int) -> Result:
        return Result(value=self.done(n, "wrote"), context_variables={"last": n})

    async def changes(self, n: int, context_variables: Json) -> str:
        seen, context_variables["last"] = context_variables.get("last"), n
        return self.done(n, f"changed {seen}")

    async def leaves(self, n: int) -> Agent:
        self.done(n, "left")
        return Agent(name=f"Next {n}", instructions="other")

    def plain(self, n: int) -> str:
        return self.done(n, "plain")

    async def pays(self, n: int) -> str:
        return self.done(n, "paid")

    def functions(self, ask: Any) -> list[Any]:
        own = [self.looks, self.reads, self.writes, self.changes, self.leaves]
        approved = [tool(name=f"{each.__name__}_approved", approve=True)(each) for each in own]
        by_context = tool(name="by_context", approve=lambda _, context: "last" in context)(self.looks)
        pays = tool(approve=True)(self.pays)
        return [*own, self.plain, pays, *approved, by_context, tool(name="ask")(ask)]


OWN = ("looks", "reads", "writes", "changes", "leaves")
NAMES = [*OWN, *(f"{name}_approved" for name in OWN), "plain", "pays", "by_context"]

# --- the ways to raise Hold -------------------------------------------------------------------------------------------


def question() -> None:
    if current_call().answer is None:
        raise Hold("Which?")


def direct(desk: Desk) -> Any:
    async def ask(n: int) -> str:
        if current_call().answer is None:
            raise Hold("Which?")
        return desk.done(n, "asked")

    return ask


def helper(desk: Desk) -> Any:
    async def ask(n: int) -> str:
        question()
        return desk.done(n, "asked")

    return ask


def closure(desk: Desk) -> Any:
    asks = question

    async def inner() -> None:
        asks()

    async def ask(n: int) -> str:
        await inner()
        return desk.done(n, "asked")

    return ask


def subclass(desk: Desk) -> Any:
    async def ask(n: int) -> str:
        if current_call().answer is None:
            raise Waits("Which?")
        return desk.done(n, "asked")

    return ask


class Clerk:
    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    async def ask(self, n: int) -> str:
        question()
        return self.desk.done(n, "asked")

    async def __call__(self, n: int) -> str:
        return await self.ask(n)


async def ask_at(desk: Desk, n: int) -> str:
    question()
    return desk.done(n, "asked")


def decorated(desk: Desk) -> Any:
    function = helper(desk)

    @functools.wraps(function)
    async def around(*args: Any, **keywords: Any) -> Any:
        return await function(*args, **keywords)

    return around


def generator(desk: Desk) -> Any:
    async def ask(n: int) -> AsyncGenerator[str, None]:
        yield "soon"
        question()
        yield desk.done(n, "asked")

    return ask


def reader(desk: Desk) -> Any:
    async def ask(n: int, context_variables: Mapping[str, Any]) -> str:
        question()
        return desk.done(n, f"asked {context_variables.get('last')}")

    return ask


def writer(desk: Desk) -> Any:
    async def ask(n: int) -> Result:
        question()
        return Result(value=desk.done(n, "asked"), context_variables={"last": n})

    return ask


def thread(desk: Desk) -> Any:
    @tool(concurrent=True)
    def ask(n: int) -> str:
        question()
        return desk.done(n, "asked")

    return ask


def schema(desk: Desk) -> Any:
    return function_tool(helper(desk), name="ask", description="", parameters=NUMBER)


SPELLINGS: dict[str, Callable[[Desk], Any]] = {
    "direct": direct,
    "helper": helper,
    "closure": closure,
    "subclass": subclass,
    "method": lambda desk: Clerk(desk).ask,
    "object": Clerk,
    "partial": lambda desk: functools.partial(ask_at, desk),
    "decorated": decorated,
    "generator": generator,
    "reader": reader,
    "writer": writer,
    "thread": thread,
    "schema": schema,
}

# --- the property -----------------------------------------------------------------------------------------------------


class Conversation:
    """Runs of one conversation. Each run has its history and its context as JSON, as in another process."""

    def __init__(self, kinds: list[str], spelling: str) -> None:
        self.kinds = kinds
        self.desk = Desk()
        self.ask = SPELLINGS[spelling](self.desk)
        self.history: list[Any] = [USER]
        self.context: Json = {}
        self.response: Response | None = None
        self.denied: set[int] = set()

    def script(self, request: Request) -> Any:
        asked = sum(each["role"] == "assistant" for each in request.messages)
        if asked == 0:
            return [call(kind, call_id=f"c{n}", n=n) for n, kind in enumerate(self.kinds)]
        return "Done."

    async def run(self, *, declared: bool, concurrent: bool, resume: Any) -> Response:
        """Run once. Raises ConfigurationError, with the conversation at the response of the error."""
        ask = tool(may_wait=True)(self.ask) if declared else self.ask
        agent = Agent(name="A", instructions="outer", functions=self.desk.functions(ask))
        swarm = AsyncSwarm(ScriptedModel(self.script).client(), concurrent_tools=concurrent)
        try:
            response = await swarm.run(agent, self.history, self.context, resume=resume)
        except ConfigurationError as error:
            if error.response is not None:
                self.keep(error.response)
            raise
        self.keep(response)
        return response

    def keep(self, response: Response) -> None:
        if self.response is None:  # later runs answer calls that were open
            check_history([*self.history, *response.messages], allow_open=True)
        self.response = response
        self.history = json.loads(json.dumps([*self.history, *response.messages]))
        self.context = json.loads(json.dumps(response.context_variables))

    async def to_end(self, order: list[int], *, declared: bool, concurrent: bool, resume: Any = False) -> Any:
        """Run until no call waits; each run gets one more decision, in this order. Returns the result."""
        clicked: list[int] = []
        for _ in range(20):
            try:
                response = await self.run(declared=declared, concurrent=concurrent, resume=resume)
            except ConfigurationError as error:
                # The decision on a later call would be lost, so it is sent again with the next one.
                if "but not on the earlier call" not in str(error) or self.response is None:
                    raise
                response = self.response
            if response.stop != "waiting":
                break
            asking = [each.index for each in response.open_calls if each.reason is not None]
            clicked += [n for n in order if n in asking and n not in clicked][:1]
            resume = {n: self.decision(n) for n in clicked if n in asking}
        assert response.stop == "answer"
        return self.context, response.agent.name, answers_in(self.history), self.desk.effects

    def decision(self, number: int) -> Any:
        if number in self.denied:
            return False
        return Reply("this") if self.kinds[number] == "ask" else True


def answers_in(history: list[Any]) -> dict[str, Any]:
    """The results of the calls, by their ids."""
    results = [each for each in history if each["role"] == "tool" and "waiting" not in each]
    return {each["tool_call_id"]: each["content"] for each in results}


turns = st.lists(st.sampled_from([*NAMES, "ask", "ask", "ask"]), min_size=1, max_size=5).filter(
    lambda each: "ask" in each
)
backends = pytest.mark.parametrize("backend", ["asyncio", pytest.param("trio", marks=pytest.mark.heavy)])


@pytest.mark.slow
@backends
@given(turns, st.sampled_from(sorted(SPELLINGS)), st.data())
def test_a_declared_call_gives_what_calls_in_order_give(
    backend: str, kinds: list[str], spelling: str, data: st.DataObject
) -> None:
    """For any order of decisions, in other processes; the spelling of the Hold does not matter. Calls in order need no declaration."""
    order = data.draw(st.permutations(range(len(kinds))))
    denied = data.draw(st.sets(st.sampled_from(range(len(kinds))), max_size=1))

    async def end(together: bool) -> Any:
        conversation = Conversation(kinds, spelling)
        conversation.denied = denied
        return await conversation.to_end(order, declared=together, concurrent=together)

    async def both() -> tuple[Any, Any]:
        return await end(True), await end(False)

    together, in_order = anyio.run(both, backend=backend)
    assert together == in_order


@pytest.mark.slow
@backends
@given(turns, st.sampled_from(sorted(SPELLINGS)), st.data())
def test_an_undeclared_call_fails_the_run_and_loses_no_call(
    backend: str, kinds: list[str], spelling: str, data: st.DataObject
) -> None:
    """The response of the error has each call as answered or as open, and the declared program continues from it."""
    order = data.draw(st.permutations(range(len(kinds))))

    async def main() -> None:
        conversation = Conversation(kinds, spelling)
        with pytest.raises(ConfigurationError, match=r"the function 'ask' of the agent 'A' raised Hold.*may_wait=True"):
            await conversation.to_end(order, declared=False, concurrent=True)
        response, told = conversation.response, answers_in(conversation.history)
        assert response is not None and response.stop == "error" and response.unknown_calls == []
        open_calls = {each.id for each in response.open_calls}
        assert open_calls.isdisjoint(told) and open_calls.union(told) == {f"c{n}" for n in range(len(kinds))}
        for n in range(len(kinds)):
            has_run = f"c{n}" in told and told[f"c{n}"] != "not run: interrupted"
            assert conversation.desk.effects[n] == has_run
        if open_calls:
            _, _, told, effects = await conversation.to_end(order, declared=True, concurrent=True, resume=True)
            has_run = {n for n in range(len(kinds)) if told[f"c{n}"] != "not run: interrupted"}
            assert effects == dict.fromkeys(has_run, 1)

    anyio.run(main, backend=backend)


# --- one promise in each test -----------------------------------------------------------------------------------------

UNDECLARED = r"the function 'ask' of the agent 'A' raised Hold, and its calls may run together.*@tool\(may_wait=True\)"


def told(response: Response | None) -> list[Any]:
    assert response is not None
    return [message["content"] for message in response.messages if message["role"] == "tool"]


async def fails(functions: list[Any], *calls: Any, match: str = UNDECLARED, **options: Any) -> Response:
    """Return the response of the error of a run with these calls."""
    swarm = AsyncSwarm(ScriptedModel([list(calls), "Done."]).client(), **options)
    with pytest.raises(ConfigurationError, match=match) as caught:
        await swarm.run(Agent(name="A", functions=functions), "Go")
    assert caught.value.response is not None
    return caught.value.response


async def test_the_other_calls_of_the_group_finish_first() -> None:
    """The error is raised after them, and its response has their results and their context changes."""
    ended: list[str] = []

    async def slow() -> Result:
        await anyio.sleep(0.02)
        ended.append("slow")
        return Result(value="slow", context_variables={"slow": True})

    async def ask(n: int) -> str:
        raise Hold("Which?")

    response = await fails([ask, slow], call("ask", n=0), call("slow"))
    assert (ended, told(response), response.context_variables) == (["slow"], ["slow"], {"slow": True})
    assert [each.name for each in response.open_calls] == ["ask"]


async def test_a_handoff_of_the_group_closes_the_call() -> None:
    """The next agent may not have its function."""
    desk = Desk()
    response = await fails(desk.functions(helper(desk)), call("ask", n=0), call("leaves", n=1))
    assert (response.agent.name, response.open_calls, told(response)[0]) == ("Next 1", [], "not run: interrupted")


async def alone_with_dict(n: int, context_variables: Json) -> str:
    question()
    return "asked"


def alone_plain(n: int) -> str:
    question()
    return "asked"


@tool(concurrent=False)
async def alone_by_option(n: int) -> str:
    question()
    return "asked"


@pytest.mark.parametrize("ask", [alone_with_dict, alone_plain, alone_by_option])
async def test_a_function_whose_calls_run_alone_needs_no_declaration(ask: Any) -> None:
    """With the declaration, it does the same."""
    for made in (ask, tool(may_wait=True)(ask)):
        desk = Desk()
        model = ScriptedModel([[call("ask", n=0), call("looks", n=1)], "Done."])
        swarm, agent = AsyncSwarm(model.client()), Agent(functions=[desk.looks, tool(name="ask")(made)])
        first = await swarm.run(agent, "Go")
        assert [(each.name, each.reason) for each in first.open_calls] == [("ask", "Which?"), ("looks", None)]
        second = await swarm.run(agent, [USER, *first.messages], resume={0: Reply("this")})
        assert told(second) == ["asked", "looked 1"]


@pytest.mark.parametrize("eager", [True, "always"])
async def test_an_eager_call_needs_the_declaration_too(eager: Any) -> None:
    """The turn reports it, after the other calls."""
    desk = Desk()
    functions = [tool(repeatable=True)(each) for each in (direct(desk), desk.looks)]
    response = await fails(functions, call("ask", n=0), call("looks", n=1), eager_tools=eager)
    assert ([each.name for each in response.open_calls], told(response)) == (["ask"], ["looked 1"])


def holds(handlers: Handlers) -> Handlers:
    async def call_tool(made: ToolCall, context: Json, started: Started) -> ToolOutcome:
        if made.name == "looks" and not made.is_approved:
            raise Hold("May it look?")
        return await handlers.call_tool(made, context, started)

    return replace(handlers, call_tool=call_tool)


def held(checked: CheckedCall) -> Hold | None:
    return Hold("May it look?") if checked.name == "looks" else None


@pytest.mark.parametrize("eager", [False, True, "always"])
@pytest.mark.parametrize("middleware", [holds, guard_tool(held)], ids=["middleware", "guard"])
async def test_a_middleware_declares_too(middleware: Any, eager: Any) -> None:
    """The error has the line for a middleware and for a guard. The other calls finish, and no function of the call has run."""
    desk = Desk()
    functions = [tool(repeatable=True)(each) for each in (desk.looks, desk.pays)]
    response = await fails(
        functions,
        call("looks", n=0),
        call("pays", n=1),
        match=r"a middleware raised Hold for the function 'looks'.*may_hold=True.*guard_tool\(\.\.\., may_wait=True\)",
        middleware=[middleware],
        eager_tools=eager,
    )
    assert ([each.name for each in response.open_calls], told(response), desk.effects) == (
        ["looks"],
        ["paid 1"],
        {1: 1},
    )


async def test_a_middleware_in_which_a_call_has_run_leaves_its_call_unknown() -> None:
    """The data of its Hold tells that a function of an inner run has started."""

    def asks_late(handlers: Handlers) -> Handlers:
        async def call_tool(*_: Any) -> ToolOutcome:
            raise Hold("May it look?", data={"started_inside": True})

        return replace(handlers, call_tool=call_tool)

    response = await fails([Desk().looks], call("looks", n=0), match="a middleware raised Hold", middleware=[asks_late])
    assert ([each.name for each in response.unknown_calls], response.open_calls) == (["looks"], [])


@pytest.mark.parametrize(
    "options",
    [{"may_wait": True}, {"approve": lambda *_: False}, {"concurrent": False}],
    ids=["may_wait", "approve", "alone"],
)
async def test_a_middleware_may_hold_a_call_that_may_wait_anyway(options: Json) -> None:
    """The plan already knows that the call may wait, or that it runs alone."""
    desk = Desk()
    model = ScriptedModel([[call("looks", n=0), call("leaves", n=1)], "Done."])
    agent = Agent(functions=[tool(**options)(desk.looks), desk.leaves])
    response = await AsyncSwarm(model.client(), middleware=[holds]).run(agent, "Go")
    assert [each.reason for each in response.open_calls] == ["May it look?", None]


@pytest.mark.parametrize("name", ["looks", "transfer_to_b"])
async def test_a_middleware_may_hold_any_call_if_no_calls_run_together(name: str) -> None:
    def holds_all(handlers: Handlers) -> Handlers:
        async def call_tool(made: ToolCall, context: Json, started: Started) -> ToolOutcome:
            raise Hold("Wait.")

        return replace(handlers, call_tool=call_tool)

    model = ScriptedModel([call(name, n=0) if name == "looks" else call(name), "Done."])
    agent = Agent(name="A", functions=[Desk().looks, Agent(name="B")])
    swarm = AsyncSwarm(model.client(), middleware=[holds_all], concurrent_tools=False)
    assert (await swarm.run(agent, "Go")).stop == "waiting"


@pytest.mark.parametrize("effect", ["leaves", "writes", "changes"])
async def test_calls_under_a_middleware_that_may_hold_keep_the_order(effect: str) -> None:
    """A waiting call that may hand off, or change the context, is decided before a later call that may wait too."""

    def holds_once(handlers: Handlers) -> Handlers:
        async def call_tool(made: ToolCall, context: Json, started: Started) -> ToolOutcome:
            if not made.is_approved:
                raise Hold("May it run?")
            return await handlers.call_tool(made, context, started)

        return replace(handlers, call_tool=call_tool, may_hold=True)

    seen: list[Any] = []
    for concurrent in (True, False):
        desk = Desk()
        model = ScriptedModel([[call(effect, call_id="a", n=0), call("looks", call_id="b", n=1)], "Done."])
        swarm = AsyncSwarm(model.client(), middleware=[holds_once], concurrent_tools=concurrent)
        agent, history = Agent(name="A", functions=desk.functions(direct(desk))), [USER]
        response = await swarm.run(agent, history)
        while response.stop == "waiting":
            history = [*history, *response.messages]
            asking = [each.index for each in response.open_calls if each.reason]
            response = await swarm.run(agent, history, response.context_variables, resume=dict.fromkeys(asking, True))
        seen.append((answers_in([*history, *response.messages]), desk.effects, response.agent.name))
    assert seen[0] == seen[1]


async def test_a_decided_call_whose_arguments_change_again_waits_before_a_handoff() -> None:
    """The user has approved other arguments, so the call waits once more, and a later handoff does not close it."""
    limits = iter([10, 5, 5])
    guard = guard_tool(lambda checked: None if checked.name != "looks" else _at_most(next(limits)))

    def _at_most(limit: int) -> Any:
        from aswarm.guards import Replace

        return Replace({"n": limit})

    desk = Desk()
    model = ScriptedModel([[call("looks", call_id="a", n=100), call("leaves", call_id="b", n=1)], "Done."])
    agent = Agent(name="A", functions=desk.functions(direct(desk)))
    swarm = AsyncSwarm(model.client(), middleware=[guard])
    first = await swarm.run(agent, "Go", execute_tools=False)
    second = await swarm.run(agent, [USER, *first.messages], resume={"a": True, "b": True})
    assert [each.id for each in second.open_calls] == ["a", "b"]
    assert (second.stop, desk.effects, second.agent.name) == ("waiting", {}, "A")


# --- other runs -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("has_started", [False, True])
async def test_an_agent_as_a_tool_passes_the_error_on_after_the_other_calls(has_started: bool) -> None:
    """The error names the function of the inner agent. Its call stays open, unless a function has started inside: then it is unknown."""
    desk = Desk()
    inner = Agent(name="Inner", instructions="inner", functions=[direct(desk), desk.looks])

    async def slow() -> str:
        await anyio.sleep(0.02)
        return "slow"

    def script(request: Request) -> Any:
        if request.messages[0]["content"] == "inner":
            return [call("looks", n=1)] * has_started + [call("ask", n=0)]
        return [call("inner", request="Go"), call("slow")]

    agent = Agent(name="A", functions=[agent_tool(inner), slow])
    with pytest.raises(ConfigurationError, match="the function 'ask' of the agent 'Inner' raised Hold") as caught:
        await AsyncSwarm(ScriptedModel(script).client()).run(agent, "Go")
    response = caught.value.response
    assert response is not None
    unknown, waiting = [[each.name for each in calls] for calls in (response.unknown_calls, response.open_calls)]
    assert (unknown, waiting) == ((["inner"], []) if has_started else ([], ["inner"]))
    assert "slow" in told(response)


async def test_a_call_that_has_waited_keeps_its_question() -> None:
    """The next process has lost the declaration. Its error leaves the stored question, and the answer can be sent again."""
    desk = Desk()
    ask = direct(desk)

    async def ask_twice(n: int) -> str:
        if current_call().data is None:
            raise Hold("Which day?", data={"n": n})
        return await _second(n)

    async def _second(n: int) -> str:
        if current_call().answer != "noon":
            raise Hold("Which hour?", data=current_call().data)
        return str(await ask(n))

    model = ScriptedModel([call("ask_twice", call_id="a", n=0), "Done."])
    swarm = AsyncSwarm(model.client())
    first = await swarm.run(Agent(name="A", functions=[tool(may_wait=True)(ask_twice)]), "Go")
    history = [USER, *first.messages]
    with pytest.raises(ConfigurationError, match="'ask_twice'") as caught:
        await swarm.run(Agent(name="A", functions=[ask_twice]), history, resume={"a": Reply("Monday")})
    assert caught.value.response is not None
    history = json.loads(json.dumps([*history, *caught.value.response.messages]))
    assert [(each.reason, each.data) for each in caught.value.response.open_calls] == [("Which day?", {"n": 0})]
    third = await swarm.run(
        Agent(name="A", functions=[tool(may_wait=True)(ask_twice)]), history, resume={"a": Reply("noon")}
    )
    assert (third.text, told(third)) == ("Done.", ["asked 0"])
