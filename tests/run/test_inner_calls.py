"""Tools whose functions make calls, on the public face alone: a small tool that runs scripts of calls.

`tests/code` has the cases of code mode, which is such a tool.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from aswarm import (
    Agent,
    Approve,
    AsyncSwarm,
    Budget,
    ConfigurationError,
    Hold,
    Reply,
    Response,
    RunError,
    Tool,
    ToolError,
    current_call,
    tool,
)
from aswarm.batch import BatchResult
from aswarm.errors import ToolArgumentsError
from aswarm.events import ToolProgress
from aswarm.extensions import Handlers, InnerCalls, Started, ToolCall, ToolOutcome, calling_tool
from aswarm.testing import ScriptedModel, call

USER = {"role": "user", "content": "Go"}
OTHER = Agent(name="Other")
Step = list[tuple[str, dict[str, Any]]]


async def run_script(calls: InnerCalls, steps: list[Step]) -> str:
    """Run the steps; the calls of a step run together. A failed call is a line, and a step after a handoff does not run."""
    lines = [calls.fixed(lambda: {"start": "first"})["start"]]
    for step in steps:
        made = [calls.make(name, json.dumps(arguments)) for name, arguments in step]
        await calls.run(made)
        if calls.handed_to is not None:
            break
        lines += [line_of(calls, each) for each in made]
    return "; ".join(lines)


def line_of(calls: InnerCalls, made: ToolCall) -> str:
    try:
        return f"{made.name} {calls.value_of(made)!r}"
    except ToolError as error:
        return f"{made.name} {'denied' if calls.is_denied(made) else 'failed'}: {error}"


def calling(function: Callable[..., Any], *functions: Any, **options: Any) -> Tool[..., Any]:
    parameters = {"type": "object", "properties": {"steps": {"type": "array"}}}
    return calling_tool(
        function, functions, name="run_script", description="Runs a script.", parameters=parameters, **options
    )


class Desk:
    """The functions of a script, and their effects."""

    def __init__(self) -> None:
        self.done: list[str] = []

    async def look(self, number: int) -> dict[str, int]:
        self.done.append(f"look {number}")
        return {"number": number}

    async def fail(self) -> str:
        raise ToolError("no")

    async def count(self, context_variables: dict[str, Any]) -> int:
        context_variables["count"] = context_variables.get("count", 0) + 1
        return int(context_variables["count"])

    async def read(self, context_variables: Mapping[str, Any]) -> str:
        return str(context_variables.get("count"))

    async def pay(self, amount: int) -> str:
        self.done.append(f"pay {amount} {current_call().id}")
        return f"paid {amount}"

    @property
    def functions(self) -> list[Any]:
        return [self.look, self.fail, self.count, self.read, tool(approve=True)(self.pay), OTHER]

    def agent(self, function: Callable[..., Any] = run_script) -> Agent:
        return Agent(name="Clerk", functions=[calling(function, *self.functions)])


@pytest.fixture
def desk() -> Desk:
    return Desk()


def swarm_of(steps: list[Step], **options: Any) -> AsyncSwarm:
    return AsyncSwarm(ScriptedModel([call("run_script", call_id="outer", steps=steps), "Done."]).client(), **options)


async def run(desk: Desk, *steps: Step, **options: Any) -> Response:
    return await swarm_of([*steps], **options).run(desk.agent(), "Go")


async def resumed(agent: Agent, response: Response, decision: Any) -> Response:
    history = json.loads(json.dumps([USER, *response.messages]))
    return await AsyncSwarm(ScriptedModel(["Done."]).client()).run(agent, history, resume={"outer": decision})


def result_in(response: Response) -> str:
    (content,) = (each["content"] for each in response.messages if each["role"] == "tool" and "waiting" not in each)
    return str(content)


LOOK: Step = [("look", {"number": 1})]
PAY: Step = [("pay", {"amount": 5})]


async def test_calls_run_and_have_values(desk: Desk) -> None:
    """The value of a call is the returned value; a failed call raises; the run has the changes of the context."""
    response = await run(desk, [("look", {"number": 1}), ("fail", {})], [("count", {})], [("count", {}), ("read", {})])
    expected = "first; look {'number': 1}; fail failed: no; count 1; count 2; read '2'"
    assert (result_in(response), response.context_variables) == (expected, {"count": 2})


async def test_its_events_are_the_progress_of_the_outer_call(desk: Desk) -> None:
    """Each call inside starts and finishes there, after the values that are fixed."""
    async with swarm_of([LOOK]).stream(desk.agent(), "Go") as stream:
        values = [event.value async for event in stream if isinstance(event, ToolProgress)]
    assert values[0] == {"type": "CodeStarted", "start": "first"}
    assert [type(value).__name__ for value in values[1:]] == ["ToolCallStarted", "ToolCallFinished"]
    assert values[1].id == "outer.0"


async def test_a_call_inside_waits_and_the_outer_call_with_it(desk: Desk) -> None:
    """After the approval, finished calls do not run again, and the fixed values are the same as in the first execution."""
    response = await run(desk, LOOK, [*LOOK, *PAY])
    (waiting,) = response.open_calls
    assert (waiting.reason, [each["id"] for each in waiting.data["waiting"]]) == ("pay needs approval", ["outer.2"])

    async def later(calls: InnerCalls, steps: list[Step]) -> str:
        assert calls.fixed(lambda: {"start": "second"}) == {"start": "first"}
        return await run_script(calls, steps)

    last = await resumed(desk.agent(later), response, Reply({"outer.2": True}))
    assert desk.done == ["look 1", "look 1", "pay 5 outer.2"]
    assert result_in(last) == "first; look {'number': 1}; look {'number': 1}; pay 'paid 5'"


async def test_a_denied_call_is_an_error_of_the_call(desk: Desk) -> None:
    last = await resumed(desk.agent(), await run(desk, PAY, LOOK), Reply({"outer.0": False}))
    assert result_in(last) == "first; pay denied: not run: denied by the user; look {'number': 1}"


async def test_a_decision_is_reported_once(desk: Desk) -> None:
    """A denied call that the function runs twice has one event."""

    async def twice(calls: InnerCalls, steps: list[Step]) -> str:
        made = calls.make("pay", '{"amount": 5}')
        await calls.run([made])
        await calls.run([made])
        return line_of(calls, made)

    history = [USER, *(await run(desk, PAY)).messages]
    swarm = AsyncSwarm(ScriptedModel(["Done."]).client())
    async with swarm.stream(desk.agent(twice), history, resume={"outer": Reply({"outer.0": False})}) as stream:
        ends = [event.value.id async for event in stream if isinstance(event, ToolProgress)]
    assert ends == ["outer.0"]


async def test_notes_are_there_after_a_wait(desk: Desk) -> None:
    async def noting(calls: InnerCalls, steps: list[Step]) -> str:
        calls.notes["times"] = calls.notes.get("times", 0) + 1
        await calls.run([calls.make("pay", '{"amount": 5}')])
        return f"{calls.notes['times']} {calls.call.name}"

    agent = desk.agent(noting)
    response = await swarm_of([]).run(agent, "Go")
    assert result_in(await resumed(agent, response, Reply({"outer.0": True}))) == "2 run_script"


async def test_a_handoff_ends_the_function(desk: Desk) -> None:
    """The agent of the run changes after the turn, as for a call outside."""
    response = await run(desk, [("transfer_to_other", {})], LOOK)
    assert (response.agent, result_in(response), desk.done) == (OTHER, "first", [])


async def test_calls_after_a_handoff_are_refused(desk: Desk) -> None:
    async def blind(calls: InnerCalls, steps: list[Step]) -> str:
        await calls.run([calls.make("transfer_to_other", "{}")])
        await calls.run([calls.make("look", '{"number": 1}')])
        return ""

    response = await swarm_of([]).run(desk.agent(blind), "Go")
    assert "a call has handed off, so the function must return" in result_in(response)


async def test_calls_that_were_not_run_are_closed(desk: Desk) -> None:
    """`close` returns them; the end of the function closes them too. Their functions do not run, and they have no value."""

    async def idle(calls: InnerCalls, steps: list[Step]) -> str:
        made = calls.make("look", '{"number": 1}')
        with pytest.raises(ToolError, match="not run"):
            calls.value_of(made)
        assert not calls.has_run(made)
        assert calls.close() == [made]
        last = calls.make("look", '{"number": 2}')
        assert calls.close() == [last]
        return line_of(calls, last)

    response = await swarm_of([]).run(desk.agent(idle), "Go")
    assert (result_in(response), desk.done) == ("look failed: not run: the code ended without it", [])


async def test_an_unknown_function_is_an_error(desk: Desk) -> None:
    response = await run(desk, [("nothing", {})])
    assert result_in(response).startswith("Error: Tool nothing not found. Tools: look, fail, count")


async def test_a_budget_counts_the_calls(desk: Desk) -> None:
    response = await run(desk, LOOK, LOOK, budget=Budget(tool_calls=2))
    assert "look failed: not run: the budget of 2 tool calls is used up" in result_in(response)


async def test_a_function_that_makes_other_calls_than_before_has_an_unknown_outcome(desk: Desk) -> None:
    """Another call, no call, an error before the call, or its own statement that it cannot follow."""

    async def other(calls: InnerCalls, steps: list[Step]) -> str:
        await calls.run([calls.make("look", '{"number": 9}')])
        return ""

    async def none(calls: InnerCalls, steps: list[Step]) -> str:
        return ""

    async def failing(calls: InnerCalls, steps: list[Step]) -> str:
        raise ToolError("no")

    async def broken(calls: InnerCalls, steps: list[Step]) -> str:
        raise KeyError(steps[0][0])

    async def lost(calls: InnerCalls, steps: list[Step]) -> str:
        raise calls.lost()

    response = await run(desk, PAY)
    for function in (other, none, failing, broken, lost):
        last = await resumed(desk.agent(function), response, Reply({"outer.0": True}))
        assert (
            result_in(last) == "stopped: the code has made other calls than its record has, so its outcome is unknown"
        )
        assert [each.id for each in last.unknown_calls] == ["outer"]
    assert desk.done == []


async def test_a_middleware_sees_the_calls_and_its_error_ends_the_run(desk: Desk) -> None:
    """The run fails with this error, as for a call of the model."""

    def strict(handlers: Handlers) -> Handlers:
        async def call_tool(made: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
            if made.parent is not None and made.valid_arguments() == {"number": 2}:
                raise ValueError(f"{made.name} of {made.parent.name}")
            return await handlers.call_tool(made, context, started)

        return replace(handlers, call_tool=call_tool)

    with pytest.raises(RunError, match="look of run_script") as raised:
        await run(desk, LOOK, [("look", {"number": 2})], middleware=[strict])
    assert raised.value.response is not None
    assert [each.id for each in raised.value.response.unknown_calls] == ["outer"]


async def test_read_decides_the_value(desk: Desk) -> None:
    """It gets the call, the returned data and the text; for a result that a middleware has replaced, the text twice."""
    seen: list[Any] = []

    def read(made: ToolCall, value: Any, text: str) -> Any:
        seen.append((made.name, value, text))
        return len(text)

    def changing(handlers: Handlers) -> Handlers:
        async def call_tool(made: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
            outcome = await handlers.call_tool(made, context, started)
            return replace(outcome, content="changed") if made.index == 1 else outcome

        return replace(handlers, call_tool=call_tool)

    agent = Agent(functions=[calling(run_script, desk.look, read=read)])
    response = await swarm_of([[*LOOK, *LOOK]], middleware=[changing]).run(agent, "Go")
    assert result_in(response) == "first; look 13; look 7"
    assert {("look", str(value), text) for _, value, text in seen} == {
        ("look", "{'number': 1}", '{"number": 1}'),
        ("look", "changed", "changed"),
    }


async def test_a_value_without_json_is_its_text(desk: Desk) -> None:
    agent = Agent(functions=[calling(run_script, desk.look, read=lambda _, __, ___: object)])
    response = await swarm_of([LOOK]).run(agent, "Go")
    assert result_in(response) == "first; look \"<class 'object'>\""


@pytest.mark.parametrize(
    ("decision", "text"),
    [
        (Reply({"outer.9": True}), "no open call has this id"),
        (Reply("yes"), "has no decisions"),
        ({"approve": {"arguments": {"steps": []}}}, "its code has started, so it cannot be changed"),
    ],
)
async def test_a_decision_that_does_not_suit_is_refused_first(decision: Any, text: str, desk: Desk) -> None:
    with pytest.raises(ConfigurationError, match=rf"the call 'outer' of run_script.*{text}"):
        await resumed(desk.agent(), await run(desk, PAY), decision)


async def test_data_that_were_changed_are_refused(desk: Desk) -> None:
    """Before anything runs, also if all calls are approved, which decides on no call alone."""
    response = await run(desk, LOOK, PAY)
    history = [USER, *response.messages]
    history[1]["waiting"][0]["data"]["code"]["failed"] = ["x"]
    swarm = AsyncSwarm(ScriptedModel(["Done."]).client())
    for resume in (Approve.all(), {"outer": True}):
        with pytest.raises(
            ConfigurationError, match="the call 'outer' of run_script: the calls in its data cannot be read"
        ):
            await swarm.run(desk.agent(), history, resume=resume)
    assert desk.done == ["look 1"]


async def test_a_question_that_is_nested_too_deeply_ends_the_run(desk: Desk) -> None:
    """It could not be stored with the calls around it."""
    deep: dict[str, Any] = {}
    for _ in range(196):
        deep = {"inner": deep}

    @tool(may_wait=True)
    async def ask() -> str:
        raise Hold("Really?", data=deep)

    agent = Agent(functions=[calling(run_script, ask)])
    with pytest.raises(ConfigurationError, match="its data are nested too deeply to be stored"):
        await swarm_of([[("ask", {})]]).run(agent, "Go")


async def test_data_of_another_form_are_refused(desk: Desk) -> None:
    """The function has raised a Hold of its own, or the history was changed."""
    response = await run(desk, PAY)
    response.messages[0]["waiting"][0]["data"] = {"question": 1}
    with pytest.raises(ConfigurationError, match="it has no calls in its data"):
        await resumed(desk.agent(), response, True)


async def test_a_question_of_the_function_itself_is_refused_when_it_runs_again(desk: Desk) -> None:
    """An external middleware may have approved it, so that nothing was checked before."""

    async def asking(calls: InnerCalls, steps: list[Step]) -> str:
        raise Hold("Really?", data={"question": 1})

    agent = desk.agent(asking)
    response = await swarm_of([]).run(agent, "Go")
    assert response.open_calls[0].reason == "Really?"
    with pytest.raises(ConfigurationError, match="it has no calls in its data"):
        await resumed(agent, response, Reply({}))


async def test_it_works_only_in_a_run(desk: Desk) -> None:
    with pytest.raises(ConfigurationError, match="works only as a function of an agent"):
        await calling(run_script, desk.look)(steps=[])


def test_tools_that_make_calls_are_not_nested(desk: Desk) -> None:
    with pytest.raises(ConfigurationError, match="'run_script' makes calls itself; pass its functions to one tool"):
        calling(run_script, calling(run_script, desk.look))


async def test_the_plan_of_a_turn_knows_the_effects_inside(desk: Desk) -> None:
    """Two scripts run together unless a function inside writes the context, hands off, or runs alone."""
    events: list[str] = []

    async def watched(calls: InnerCalls, steps: list[Step]) -> str:
        events.append("start")
        await calls.run([calls.make("look", '{"number": 1}')])
        events.append("end")
        return ""

    for extra, together in [(desk.read, True), (desk.count, False), (OTHER, False), (len_of, False)]:
        events.clear()
        agent = Agent(functions=[calling(watched, desk.look, extra)])
        both = [call("run_script", call_id=name, steps=[]) for name in "ab"]
        await AsyncSwarm(ScriptedModel([both, "Done."]).client()).run(agent, "Go")
        assert events == (["start", "start", "end", "end"] if together else ["start", "end"] * 2)


def len_of(text: str) -> int:
    return len(text)


async def test_a_record_replays_the_calls(desk: Desk, tmp_path: Path) -> None:
    """A batch whose process has died continues from its journal: recorded calls do not run again."""
    path = tmp_path / "journal.sqlite"

    class Died(BaseException):
        pass

    async def dying(calls: InnerCalls, steps: list[Step]) -> str:
        await calls.run([calls.make("look", '{"number": 1}')])
        raise Died

    first = call("run_script", call_id="outer", steps=[LOOK, [("look", {"number": 2})]])

    async def outcome_of(function: Callable[..., Any], *answers: Any) -> BatchResult:
        swarm = AsyncSwarm(ScriptedModel([*answers]).client())
        async with swarm.batch(desk.agent(function), ["Go"], journal=path) as outcomes:
            (outcome,) = [each async for each in outcomes]
        return outcome

    with pytest.raises(BaseException) as raised:
        await outcome_of(dying, first)
    assert "Died" in repr(raised.value)
    outcome = await outcome_of(run_script, "Done.")
    assert outcome.response is not None
    assert result_in(outcome.response) == "first; look {'number': 1}; look {'number': 2}"
    assert desk.done == ["look 1", "look 2"]


async def test_a_function_without_arguments_that_fit_tells_the_model(desk: Desk) -> None:
    agent = desk.agent()
    response = await AsyncSwarm(ScriptedModel([call("run_script", call_id="outer", other=1), "Done."]).client()).run(
        agent, "Go"
    )
    assert "run_script() got an unexpected keyword argument 'other'" in result_in(response)
    assert issubclass(ToolArgumentsError, ToolError)


async def outcome_of(function: Callable[..., Any], *functions: Any) -> Response:
    """Run a call of a tool with this function."""
    agent = Agent(name="Clerk", functions=[calling(function, *functions)])
    return await swarm_of([]).run(agent, "Go")


def started(log: list[str]) -> Callable[..., Any]:
    async def slow() -> str:
        log.append("start")
        await anyio.sleep(0.05)
        return "v"

    return slow


async def test_a_call_whose_run_was_cancelled_never_starts_again(desk: Desk) -> None:
    """Its outcome is unknown, for the function and, after a wait, for its next execution."""
    log, texts = list[str](), list[str]()

    async def hurry(calls: InnerCalls, steps: list[Step]) -> str:
        made = calls.make("slow", "{}")
        with anyio.move_on_after(0.001):
            await calls.run([made])
        if made.outcome is None:
            with pytest.raises(RuntimeError, match="its outcome is unknown; do not run it again"):
                await calls.run([made])
        await calls.run([calls.make("pay", '{"amount": 1}')])
        with pytest.raises(ToolError, match="cancelled; its outcome is unknown") as raised:
            calls.value_of(made)
        texts.append(str(raised.value))
        return "x"

    agent = Agent(name="Clerk", functions=[calling(hurry, started(log), *desk.functions)])
    first = await swarm_of([]).run(agent, "Go")
    assert [unknown.name for unknown in first.unknown_calls] == ["slow"]
    done = ScriptedModel(["Done."]).client()
    response = await AsyncSwarm(done).run(agent, [USER, *first.messages], resume=Approve.all())
    assert (response.text, log, len(texts)) == ("Done.", ["start"], 1)


@pytest.mark.parametrize("way", ["at once", "twice", "outer", "late"])
async def test_only_open_calls_of_this_function_run_and_each_once(way: str) -> None:
    """Rounds do not overlap, and nothing runs after the end of the function."""
    log, kept, others = list[str](), list[InnerCalls](), list[ToolCall]()

    async def misuse(calls: InnerCalls, steps: list[Step]) -> str:
        kept.append(calls)
        first, second = calls.make("slow", "{}"), calls.make("slow", "{}")
        others.append(first)
        match way:
            case "at once":
                with pytest.raises(RuntimeError, match="already running"):  # noqa: PT012
                    async with anyio.create_task_group() as group:
                        group.start_soon(calls.run, [first])
                        await anyio.sleep(0.01)
                        try:
                            await calls.run([second])
                        except RuntimeError as error:
                            failure = error
                    raise failure
            case "twice":
                await calls.run([first, first])
            case "outer":
                with pytest.raises(RuntimeError, match="not a call that this object has made"):
                    await calls.run([calls.call])
            case _:
                pass
        return "x"

    response = await outcome_of(misuse, started(log))
    assert response.messages[1]["content"] == "x"

    async def foreign(calls: InnerCalls, steps: list[Step]) -> str:
        calls.make("slow", "{}")
        with pytest.raises(RuntimeError, match="not a call that this object has made"):
            await calls.run(others)
        return "x"

    assert (await outcome_of(foreign, started([]))).messages[1]["content"] == "x"
    assert log == (["start"] if way in ("at once", "twice") else [])
    with pytest.raises(RuntimeError, match="has ended"):
        kept[0].make("slow", "{}")


@pytest.mark.parametrize("notes", [{"values": 1}, {"o": object()}])
async def test_notes_that_cannot_be_stored_end_the_run(notes: dict[str, Any], desk: Desk) -> None:
    async def noting(calls: InnerCalls, steps: list[Step]) -> str:
        calls.notes.update(notes)
        await calls.run([calls.make("pay", '{"amount": 1}')])
        return "x"

    with pytest.raises(ConfigurationError, match="its notes cannot be stored"):
        await swarm_of([]).run(desk.agent(noting), "Go")


@pytest.mark.parametrize("values", [{"type": "t"}, {"o": object()}])
async def test_fixed_values_are_json_without_a_type(values: dict[str, Any], desk: Desk) -> None:
    async def fixing(calls: InnerCalls, steps: list[Step]) -> str:
        return str(calls.fixed(lambda: values))

    with pytest.raises(ConfigurationError, match="fixed values must be JSON data"):
        await swarm_of([]).run(desk.agent(fixing), "Go")
