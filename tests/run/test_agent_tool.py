"""An agent as a tool: the input of its run, its result, and its waits, errors and limits."""

from __future__ import annotations

import json
from collections.abc import MutableMapping
from typing import Any

import anyio
import pytest

from aswarm import (
    Agent,
    Approve,
    AsyncSwarm,
    Budget,
    ConfigurationError,
    RunFinished,
    Swarm,
    TextDelta,
    ToolCallFinished,
    agent_tool,
    tool,
)
from aswarm.events import ToolProgress
from aswarm.middleware import Handlers
from aswarm.testing import Failure, Request, ScriptedModel, call, check_history
from tests.support.run.inner_agents import ask, editor, model_of, researcher
from tests.support.run.one_turn import contents

STOPPED = "The agent Researcher stopped without an answer: its turns are used up"


async def test_the_answer_of_the_agent_is_the_result() -> None:
    """The inner run gets the request alone, and its messages are in no history of the outer run."""
    model = model_of(outer=[[ask("Look at Oslo")], "Done."], inner=["It rains."])
    response = await AsyncSwarm(model.client()).run(editor(researcher()), "Go")
    assert (contents(response), response.text, response.agent.name) == (["It rains."], "Done.", "Editor")
    assert model.requests[1].messages[1:] == [{"role": "user", "content": "Look at Oslo"}]
    check_history(response.messages)


@pytest.mark.parametrize("context", ["copy", "share"])
async def test_wrong_arguments_are_named(context: Any) -> None:
    """Wrong arguments are an error for the model, as for any function, and nothing runs inside."""
    calls = [
        call("researcher", call_id="1", request="Look", topic="rain"),
        call("researcher", call_id="2"),
        call("researcher", call_id="3", request=["Look"]),
    ]
    model = model_of(outer=[calls, "Done."], inner=[])
    response = await AsyncSwarm(model.client()).run(editor(researcher(context=context)), "Go")
    assert contents(response) == [
        "Error: topic: Extra inputs are not permitted (got 'rain')",
        "Error: request: Field required",
        "Error: request: Input should be a valid string (got ['Look'])",
    ]


@pytest.mark.parametrize(("context", "expected"), [("copy", {"seen": 0}), ("share", {"seen": 1, "new": [1]})])
async def test_context_variables(context: Any, expected: dict[str, Any]) -> None:
    """The inner run gets the context of the outer run; its changes come back only if the context is shared."""

    def look(context_variables: MutableMapping[str, Any]) -> str:
        context_variables["seen"] += 1
        context_variables["new"] = [1]
        return "seen"

    model = model_of(outer=[[ask()], "Done."], inner=[[call("look")], "It rains."])
    response = await AsyncSwarm(model.client()).run(editor(researcher(look, context=context)), "Go", {"seen": 0})
    assert response.context_variables == expected


def take(context_variables: MutableMapping[str, Any]) -> str:
    return f"took {context_variables.pop('seen', 'nothing')}"


@pytest.mark.parametrize(("context", "left"), [("copy", {"seen": 1, "kept": 2}), ("share", {"kept": 2})])
async def test_a_deleted_context_variable(context: Any, left: dict[str, Any]) -> None:
    """A deletion in a shared context holds outside, also for the next call of the turn."""
    model = model_of(outer=[[ask("a", "1"), ask("b", "2")], "Done."], inner=[[call("take")], "A", [call("take")], "B"])
    response = await AsyncSwarm(model.client(), concurrent_tools=context == "share").run(
        editor(researcher(take, context=context)), "Go", {"seen": 1, "kept": 2}
    )
    took = [each.messages[-1]["content"] for each in model.requests if "took" in str(each.messages[-1]["content"])]
    assert took == ["took 1", "took nothing" if context == "share" else "took 1"]
    assert response.context_variables == left


async def test_a_context_variable_is_deleted_before_a_wait() -> None:
    """A deletion before a wait is made outside when the call ends, in another run."""

    @tool(approve=True)
    async def refund() -> str:
        return "refunded"

    agent = editor(researcher(take, refund, context="share"))
    first = await AsyncSwarm(model_of(outer=[[ask()]], inner=[[call("take")], [call("refund")]]).client()).run(
        agent, "Go", {"seen": 1, "kept": 2}
    )
    assert (first.stop, first.context_variables) == ("waiting", {"seen": 1, "kept": 2})
    history = json.loads(json.dumps([{"role": "user", "content": "Go"}, *first.messages]))
    again = await AsyncSwarm(model_of(outer=["Done."], inner=["Refunded."]).client()).run(
        agent, history, first.context_variables, resume=Approve.all()
    )
    assert (again.text, again.context_variables) == ("Done.", {"kept": 2})


async def test_its_events_are_progress() -> None:
    """The typed events of the inner run are nested progress, in order, with the deltas; its end is the result."""
    innermost = agent_tool(Agent(name="Deep", instructions="deep"))
    model = model_of(outer=[[ask()], "Done."], inner=[[call("deep", request="x")], "It rains."], deep=["Deep."])
    async with AsyncSwarm(model.client()).stream(editor(researcher(innermost)), "Go") as run:
        events = [event async for event in run]
    inner = [event.value for event in events if isinstance(event, ToolProgress)]
    assert "".join(event.text for event in inner if isinstance(event, TextDelta)) == "It rains."
    deep = [event.value for event in inner if isinstance(event, ToolProgress)]
    assert "".join(event.text for event in deep if isinstance(event, TextDelta)) == "Deep."
    assert not any(isinstance(event, RunFinished) for event in [*inner, *deep])
    assert json.dumps([event.to_dict() for event in events])


async def test_its_run_goes_through_the_middleware() -> None:
    """The middleware of the swarm wraps the inner run, and knows the call that started it."""
    runs: list[Any] = []

    def watch(handlers: Handlers) -> Handlers:
        runs.append(handlers.run.tool_call and handlers.run.tool_call.name)
        return handlers

    model = model_of(outer=[[ask()], "Done."], inner=["It rains."])
    await AsyncSwarm(model.client(), middleware=[watch]).run(editor(researcher()), "Go")
    assert runs == [None, "researcher"]


async def test_its_error_is_a_tool_message() -> None:
    """The outer run goes on."""
    model = model_of(outer=[[ask()], "Done."], inner=[Failure(400, "no such model")])
    response = await AsyncSwarm(model.client()).run(editor(researcher()), "Go")
    assert contents(response)[0].startswith("Error: CompletionError: ")
    assert response.text == "Done."


async def test_its_error_does_not_hide_a_finished_action() -> None:
    """The model fails after an approved action. The outer model reads the error, and what was done before it."""
    paid: list[int] = []

    @tool(approve=True)
    async def pay(amount: int) -> str:
        paid.append(amount)
        return f"paid {amount}"

    inner = [[call("pay", amount=each) for each in range(12)], Failure(400, "no such model")]
    model = model_of(outer=[[ask()], "Done."], inner=inner)
    swarm, agent = AsyncSwarm(model.client()), editor(researcher(pay))
    first = await swarm.run(agent, "Go")
    history = [{"role": "user", "content": "Go"}, *first.messages]
    response = await swarm.run(agent, history, resume={first.open_calls[0].id: True})
    assert (sorted(paid), response.text) == ([*range(12)], "Done.")
    (text,) = contents(response)
    assert text.startswith("Error: CompletionError: ")
    assert ". Before, its functions had the 12 results, the last: pay: paid 2; pay: paid 3; " in text
    assert text.endswith("pay: paid 11")


async def test_the_error_of_a_run_in_a_function_tells_what_was_done() -> None:
    """A function may start a run itself, without `agent_tool`."""
    model = model_of(outer=[[call("look")], "Done."], inner=[[call("note")], Failure(400, "no such model")])
    swarm = AsyncSwarm(model.client())

    async def note() -> str:
        return "noted"

    async def look() -> str:
        return (await swarm.run(Agent(name="R", instructions="inner", functions=[note]), "Look")).text

    response = await swarm.run(editor(look), "Go")
    assert contents(response)[0].endswith(". Before, its functions had the results: note: noted")


async def test_the_errors_of_several_runs_in_a_function_tell_what_was_done() -> None:
    """A task group raises them as one error."""

    def answer(request: Request) -> Any:
        if "look" in request.tool_names:
            return "Done." if request.messages[-1]["role"] == "tool" else call("look")
        return Failure(400, "no such model") if request.messages[-1]["role"] == "tool" else call("note")

    swarm = AsyncSwarm(ScriptedModel(answer).client())

    def note() -> str:
        return "noted"

    async def look() -> None:
        async with anyio.create_task_group() as group:
            for name in ("A", "B"):
                group.start_soon(swarm.run, Agent(name=name, functions=[note]), "Look")

    response = await swarm.run(editor(look), "Go")
    assert contents(response)[0].startswith("Error: ExceptionGroup: ")
    assert ". Before, its functions had the results: note: noted" in contents(response)[0]


async def test_it_is_cancelled_with_the_outer_run() -> None:
    """A reader that leaves the outer stream ends the inner functions."""
    ended: list[str] = []

    async def hang() -> str:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("hang")
        return "never"

    model = model_of(outer=[[ask()]], inner=[[call("hang")]])
    with anyio.fail_after(60):
        async with AsyncSwarm(model.client()).stream(editor(researcher(hang)), "Go") as run:
            async for event in run:
                if isinstance(event, ToolProgress) and type(event.value).__name__ == "ToolCallStarted":
                    break
    assert ended == ["hang"]
    assert contents(run.response) == ["cancelled; its outcome is unknown"]


async def test_a_configuration_error_of_the_inner_run_is_the_callers() -> None:
    """A ConfigurationError of the inner run, such as a model without a price, ends the outer run."""
    inner = Agent(name="Inner", model="unknown")
    outer = Agent(name="Outer", model="known", functions=[agent_tool(inner)])
    budget = Budget(cost=1, prices={"known": (1, 1)})
    with pytest.raises(
        ConfigurationError, match=r"the call 'c' of inner: .*no price for the model 'unknown'"
    ) as caught:
        await AsyncSwarm(ScriptedModel([call("inner", call_id="c", request="x")]).client()).run(
            outer, "Go", budget=budget
        )
    assert caught.value.response is not None


@pytest.mark.parametrize(
    ("answer", "limit", "result"),
    [
        ("not json", {"max_turns": 2}, f"{STOPPED}. Before, its functions had the results: look: seen"),
        ('{"a": "b"}', {"budget": Budget(tool_calls=2, then="answer")}, '{"a": "b"}'),
    ],
)
async def test_a_typed_inner_run_that_a_limit_ends(answer: str, limit: Any, result: str) -> None:
    """A text that is no answer of the type is no result; an answer within the limit is."""

    async def look() -> str:
        return "seen"

    model = model_of(outer=[[ask()], "Done."], inner=[[call("look")], answer])
    agent = editor(researcher(look, output=dict[str, str]))
    assert contents(await AsyncSwarm(model.client()).run(agent, "Go", **limit)) == [result]


async def test_the_default_budget_of_the_swarm_does_not_come_beside_that_of_the_run() -> None:
    """`Budget()` is no limit for the outer run, and so no limit for the inner run."""
    model = model_of(outer=[[ask()], "Done."], inner=[[call("look")], "It rains."])
    swarm = AsyncSwarm(model.client(), budget=Budget(turns=1))

    async def look() -> str:
        return "seen"

    response = await swarm.run(editor(researcher(look)), "Go", budget=Budget())
    assert (contents(response), response.stop) == (["It rains."], "answer")


async def test_it_gets_the_limits_of_the_outer_run() -> None:
    """`max_turns` holds for each inner run, and `model_override` for its requests."""

    async def look() -> str:
        return "seen"

    model = model_of(outer=[[ask()], "Done."], inner=[[call("look")], [call("look")], [call("look")]])
    response = await AsyncSwarm(model.client()).run(editor(researcher(look)), "Go", model_override="small", max_turns=2)
    assert [each.body["model"] for each in model.requests] == ["small"] * 4
    assert contents(response) == [f"{STOPPED}. Before, its functions had the results: look: seen; look: seen"]
    assert response.text == "Done."


def test_options_are_checked() -> None:
    with pytest.raises(ConfigurationError, match="takes an Agent, not 'x'"):
        agent_tool("x")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigurationError, match="not 'some' and 'copy'"):
        researcher(history="some")
    with pytest.raises(ConfigurationError, match="names of 1 to 64"):
        researcher(name="my researcher")


async def test_name_and_description() -> None:
    """The name and the description of the tool come from the agent, or from the options."""
    model = ScriptedModel(["Done."])
    agents = [
        agent_tool(Agent(name="Big Boss")),
        agent_tool(Agent(name="Ø")),
        agent_tool(Agent(), name="x", description="y"),
    ]
    await AsyncSwarm(model.client()).run(Agent(functions=[*agents]), "Go")
    assert model.requests[0].tool_names == ["big_boss", "agent", "x"]
    assert model.requests[0].body["tools"][2]["function"]["description"] == "y"


async def test_outside_of_a_run_it_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="only as a function of an agent"):
        await researcher()(request="x", context_variables={})


def test_in_a_blocking_run() -> None:
    model = model_of(outer=[[ask()], "Done."], inner=["It rains."])
    with Swarm(model.client()).stream(editor(researcher()), "Go") as run:
        ended = [event.content for event in run if isinstance(event, ToolCallFinished)]
    assert ended == ["It rains."]


def test_in_a_step_of_swarm_it_is_an_error() -> None:
    """`handle_tool_calls` executes calls without a run, so an agent tool has no outer run."""
    swarm = Swarm(ScriptedModel([]).client())
    asked = {"id": "1", "type": "function", "function": {"name": "researcher", "arguments": '{"request": "x"}'}}
    response = swarm.handle_tool_calls([asked], [researcher()], {}, debug=False)
    assert "an agent_tool works only as a function of an agent" in response.messages[0]["content"]
