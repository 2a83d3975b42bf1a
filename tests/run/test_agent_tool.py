"""An agent as a tool: what its run gets, what comes back, and how it waits, fails and ends with the run around it."""

from __future__ import annotations

import json
from collections.abc import Mapping, MutableMapping
from typing import Any

import anyio
import pytest

from aswarm import (
    Agent,
    Answer,
    Approve,
    AsyncSwarm,
    Budget,
    ConfigurationError,
    Deny,
    Response,
    RunFinished,
    Swarm,
    TextDelta,
    ToolCallFinished,
    ToolProgress,
    agent_tool,
    tool,
)
from aswarm.middleware import Handlers
from aswarm.testing import Failure, Request, ScriptedModel, call, check_history

pytestmark = pytest.mark.anyio


def model_of(**scripts: list[Any]) -> ScriptedModel:
    """A model that answers each agent from its own script; an agent is known by its instructions."""

    def script(request: Request) -> Any:
        return scripts[request.messages[0]["content"]].pop(0)

    return ScriptedModel(script)


def researcher(*functions: Any, **options: Any) -> Any:
    """An agent as a tool."""
    return agent_tool(Agent(name="Researcher", instructions="inner", functions=list(functions)), **options)


def editor(*functions: Any) -> Agent:
    """The agent around it."""
    return Agent(name="Editor", instructions="outer", functions=list(functions))


def ask(request: str = "Look", call_id: str = "outer_1") -> Any:
    """The call of the tool."""
    return call("researcher", call_id=call_id, request=request)


def told(response: Response) -> list[str]:
    """The answers to calls."""
    return [each["content"] for each in response.messages if each["role"] == "tool"]


async def test_the_answer_of_the_agent_is_the_result() -> None:
    """It gets the request alone, and its messages are in no history of the outer run."""
    model = model_of(outer=[[ask("Look at Oslo")], "Done."], inner=["It rains."])
    response = await AsyncSwarm(model.client()).run(editor(researcher()), "Go")
    assert (told(response), response.text, response.agent.name) == (["It rains."], "Done.", "Editor")
    assert model.requests[1].messages[1:] == [{"role": "user", "content": "Look at Oslo"}]
    check_history(response.messages)


@pytest.mark.parametrize("context", ["copy", "share"])
async def test_wrong_arguments_are_told_by_their_names(context: Any) -> None:
    """As for any function; nothing runs inside."""
    calls = [
        call("researcher", call_id="1", request="Look", topic="rain"),
        call("researcher", call_id="2"),
        call("researcher", call_id="3", request=["Look"]),
    ]
    model = model_of(outer=[calls, "Done."], inner=[])
    response = await AsyncSwarm(model.client()).run(editor(researcher(context=context)), "Go")
    assert told(response) == [
        "Error: topic: Extra inputs are not permitted (got 'rain')",
        "Error: request: Field required",
        "Error: request: Input should be a valid string (got ['Look'])",
    ]


async def test_it_may_get_the_conversation() -> None:
    """`history="all"`: what was said, up to the turn before the call, and then the request."""
    model = model_of(outer=[[ask()], "Done."], inner=["It rains."])
    await AsyncSwarm(model.client()).run(editor(researcher(history="all")), "Go")
    assert [each["content"] for each in model.requests[1].messages] == ["inner", "Go", "Look"]


@pytest.mark.parametrize(("context", "expected"), [("copy", {"seen": 0}), ("share", {"seen": 1, "new": [1]})])
async def test_context_variables(context: Any, expected: dict[str, Any]) -> None:
    """It sees those of the outer run; what it changes comes back only if it shares them."""

    def look(context_variables: MutableMapping[str, Any]) -> str:
        context_variables["seen"] += 1
        context_variables["new"] = [1]
        return "seen"

    model = model_of(outer=[[ask()], "Done."], inner=[[call("look")], "It rains."])
    response = await AsyncSwarm(model.client()).run(editor(researcher(look, context=context)), "Go", {"seen": 0})
    assert response.context_variables == expected


def take(context_variables: MutableMapping[str, Any]) -> str:
    """Delete a context variable."""
    return f"took {context_variables.pop('seen', 'nothing')}"


@pytest.mark.parametrize(("context", "left"), [("copy", {"seen": 1, "kept": 2}), ("share", {"kept": 2})])
async def test_a_deleted_context_variable(context: Any, left: dict[str, Any]) -> None:
    """It is deleted outside if it is shared, and the next call of the turn does not see it."""
    model = model_of(outer=[[ask("a", "1"), ask("b", "2")], "Done."], inner=[[call("take")], "A", [call("take")], "B"])
    response = await AsyncSwarm(model.client(), concurrent_tools=context == "share").run(
        editor(researcher(take, context=context)), "Go", {"seen": 1, "kept": 2}
    )
    took = [each.messages[-1]["content"] for each in model.requests if "took" in str(each.messages[-1]["content"])]
    assert took == ["took 1", "took nothing" if context == "share" else "took 1"]
    assert response.context_variables == left


async def test_a_context_variable_is_deleted_before_a_wait() -> None:
    """The deletion is made outside when the call ends, in another run."""

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
        agent, history, first.context_variables, resume=True
    )
    assert (again.text, again.context_variables) == ("Done.", {"kept": 2})


async def test_calls_fan_out() -> None:
    """Two calls of one turn run at the same time."""
    both = anyio.Event()
    begun: list[str] = []

    async def look() -> str:
        begun.append("begun")
        if len(begun) == 2:
            both.set()
        with anyio.fail_after(60):
            await both.wait()
        return "seen"

    model = model_of(outer=[[ask("a", "1"), ask("b", "2")], "Done."], inner=[[call("look")], [call("look")], "A", "B"])
    response = await AsyncSwarm(model.client()).run(editor(researcher(look)), "Go")
    assert sorted(told(response)) == ["A", "B"]


async def test_its_events_are_progress() -> None:
    """Typed events of the inner run, in order, nested, with the deltas; its end is the result."""
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
    """And the middleware knows the call that started it."""
    runs: list[Any] = []

    def watch(handlers: Handlers) -> Handlers:
        runs.append(handlers.run.tool_call and handlers.run.tool_call.name)
        return handlers

    model = model_of(outer=[[ask()], "Done."], inner=["It rains."])
    await AsyncSwarm(model.client(), middleware=[watch]).run(editor(researcher()), "Go")
    assert runs == [None, "researcher"]


async def test_its_error_is_told() -> None:
    """The outer run goes on."""
    model = model_of(outer=[[ask()], "Done."], inner=[Failure(400, "no such model")])
    response = await AsyncSwarm(model.client()).run(editor(researcher()), "Go")
    assert told(response)[0].startswith("Error: CompletionError: ")
    assert response.text == "Done."


async def test_it_is_cancelled_with_the_outer_run() -> None:
    """Leaving the outer stream ends the inner tools."""
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
    assert told(run.response) == ["cancelled; its outcome is unknown"]


class Waiting:
    """An inner agent with two calls that need approval, after a handoff inside."""

    def __init__(self) -> None:
        self.ran: list[int] = []

        @tool(approve=True)
        async def refund(order: int, context_variables: Mapping[str, Any]) -> str:
            self.ran.append(order)
            return f"refunded {order} by {context_variables['clerk']}"

        def sign(context_variables: MutableMapping[str, Any]) -> str:
            context_variables["clerk"] = "Ann"
            return "signed"

        payer = Agent(name="Payer", instructions="payer", functions=[sign, refund])
        self.agent = editor(researcher(payer))

    def model(self) -> ScriptedModel:
        """The whole script; each run of it takes a new one, as in another process."""
        calls = [call("sign"), call("refund", call_id="a", order=1), call("refund", call_id="b", order=2)]
        return model_of(outer=[[ask()]], inner=[[call("transfer_to_payer")]], payer=[calls])

    async def begin(self) -> list[Any]:
        """Run until it waits; the history as it comes back from a storage."""
        response = await AsyncSwarm(self.model().client()).run(self.agent, "Go")
        (waits,) = response.waiting
        assert (response.stop, waits.id, self.ran) == ("waiting", "outer_1", [])
        assert waits.reason == "Payer: refund needs approval; Payer: refund needs approval"
        assert [each["id"] for each in waits.data["waiting"]] == ["a", "b"]
        history: list[Any] = json.loads(json.dumps([{"role": "user", "content": "Go"}, *response.messages]))
        return history


@pytest.mark.parametrize(
    ("decision", "ran"),
    [
        (True, [1, 2]),
        (Answer({"a": True, "b": False}), [1]),
        (Answer({"a": True, "b": {"deny": "late"}}), [1]),
        ({"answer": {"a": True, "b": False}}, [1]),
        (False, []),
    ],
    ids=["True", "Answer", "nested form", "JSON", "False"],
)
async def test_it_waits_and_the_outer_call_waits(decision: Any, ran: list[int]) -> None:
    """The decisions are passed down, in another process; context that the inner run had changed is still there."""
    shop = Waiting()
    history = await shop.begin()
    model = model_of(outer=["Done."], payer=["Refunded."])
    response = await AsyncSwarm(model.client()).run(shop.agent, history, resume={"outer_1": decision})
    assert (sorted(shop.ran), response.text) == (ran, "Done.")
    if ran:
        assert told(response) == ["Refunded."]
        assert "refunded 1 by Ann" in str(model.requests[0].messages)
    check_history([*history, *response.messages])


async def test_a_configuration_error_of_the_inner_run_is_the_callers() -> None:
    """Here a model without a price, in a run whose cost is limited: no model is told of it."""
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


async def test_a_typed_inner_run_that_a_limit_ends() -> None:
    """A text that is no answer of the type is no result: the outer model is told that there is none."""

    async def look() -> str:
        return "seen"

    model = model_of(outer=[[ask()], "Done."], inner=[[call("look")], "not json"])
    agent = editor(researcher(look, output=dict[str, str]))
    response = await AsyncSwarm(model.client()).run(agent, "Go", max_turns=2)
    assert told(response) == ["The agent Researcher stopped without an answer: its turns are used up."]


async def test_a_typed_inner_run_that_answers_at_its_limit() -> None:
    """`then="answer"`: the inner agent is asked for its answer, and that is the result."""

    async def look() -> str:
        return "seen"

    model = model_of(outer=[[ask()], "Done."], inner=[[call("look")], '{"a": "b"}'])
    agent = editor(researcher(look, output=dict[str, str]))
    response = await AsyncSwarm(model.client()).run(agent, "Go", budget=Budget(tool_calls=2, then="answer"))
    assert told(response) == ['{"a": "b"}']


async def test_the_default_budget_of_the_swarm_does_not_come_beside_that_of_the_run() -> None:
    """`Budget()` is no limit for the outer run, and so none for the inner one."""
    model = model_of(outer=[[ask()], "Done."], inner=[[call("look")], "It rains."])
    swarm = AsyncSwarm(model.client(), budget=Budget(turns=1))

    async def look() -> str:
        return "seen"

    response = await swarm.run(editor(researcher(look)), "Go", budget=Budget())
    assert (told(response), response.stop) == (["It rains."], "answer")


async def test_inner_calls_are_decided_one_by_one() -> None:
    """The outer call waits again, with what is left."""
    shop = Waiting()
    history = await shop.begin()
    swarm = AsyncSwarm(model_of(outer=["Done."], payer=["Refunded."]).client())
    second = await swarm.run(shop.agent, history, resume={"outer_1": Answer({"a": True})})
    assert (second.stop, shop.ran) == ("waiting", [1])
    assert [each["id"] for each in second.waiting[0].data["waiting"]] == ["b"]
    history = json.loads(json.dumps([*history, *second.messages]))
    third = await swarm.run(shop.agent, history, resume={"outer_1": {"answer": {"b": True}}})
    assert (third.text, shop.ran) == ("Done.", [1, 2])


async def test_an_agent_that_is_not_found_is_named() -> None:
    """The inner run had handed off to an agent that the program no longer has."""
    shop = Waiting()
    history = await shop.begin()
    with pytest.raises(ConfigurationError, match=r"'Payer'.*no agent of this name can be found from 'Researcher'"):
        await AsyncSwarm(ScriptedModel([]).client()).run(editor(researcher()), history, resume={"outer_1": True})


@pytest.mark.parametrize(
    ("decision", "words"),
    [
        (Answer(False), "the answer False has no decisions"),
        ({"answer": ["a"]}, "the answer ['a'] has no decisions"),
        (Answer({"typo": True}), "resume names 'typo', but no open call has this id"),
        (Answer({"a": {"deny": 3}}), "a decision is True, False"),
        (Approve({"request": "other"}), "its arguments cannot be changed"),
    ],
    ids=["False", "list", "typo", "no form", "arguments"],
)
async def test_a_decision_that_fits_nothing_inside_ends_the_run(decision: Any, words: str) -> None:
    """Nothing runs, the model is not told of it, and the outer call waits as before."""
    shop = Waiting()
    history = await shop.begin()
    with pytest.raises(ConfigurationError) as caught:
        await AsyncSwarm(ScriptedModel([]).client()).run(shop.agent, history, resume={"outer_1": decision})
    assert words in str(caught.value)
    assert "the call 'outer_1' of researcher" in str(caught.value)
    assert caught.value.response is None  # the run has not begun
    assert shop.ran == []


@pytest.mark.parametrize(
    "inside",
    [{"typo": True}, {"a": Approve(expected={"order": 9})}, {"a": Approve({"order": "many"})}, {"a": Answer(1)}],
    ids=["typo", "expected", "arguments", "answer"],
)
@pytest.mark.parametrize("levels", [1, 2])
async def test_a_wrong_decision_inside_is_found_before_calls_beside_it_run(levels: int, inside: Any) -> None:
    """At each level: the calls beside the agent's are not run for a decision that cannot be carried out."""
    ran: list[Any] = []

    @tool(approve=True)
    async def refund(order: int) -> str:
        ran.append(order)
        return "refunded"

    @tool(approve=True)
    async def erase() -> str:
        ran.append("erase")
        return "erased"

    asked: list[Any] = [call("refund", call_id="a", order=1), call("erase", call_id="e")]
    inner = Agent(name="Level 1", functions=[refund, erase])
    steps, decision = [asked], inside | {"e": True}
    for level in range(2, levels + 2):
        inner = Agent(name=f"Level {level}", functions=[agent_tool(inner, name="below"), erase])
        steps.insert(0, [call("below", call_id="b", request="x"), call("erase", call_id="e")])
        decision = {"b": Answer(decision), "e": True}
    first = await AsyncSwarm(ScriptedModel(steps).client(), concurrent_tools=False).run(inner, "Go")
    assert first.stop == "waiting"
    history = [{"role": "user", "content": "Go"}, *json.loads(json.dumps(first.messages))]
    with pytest.raises(ConfigurationError, match="the call 'b' of below: "):
        await AsyncSwarm(ScriptedModel([]).client()).run(inner, history, resume=decision)
    assert ran == []


async def test_changed_arguments_stay_where_the_inner_run_waits() -> None:
    """The inner run began with them, so a later decision inside is no change, and the tool message still tells of them."""
    shop = Waiting()
    shop.agent.functions = [tool(approve=True)(each) for each in shop.agent.functions]
    history: list[Any] = [{"role": "user", "content": "Go"}]
    model = model_of(
        outer=[[ask()], "Done."],
        inner=[[call("transfer_to_payer")]],
        payer=[[call("sign"), call("refund", call_id="a", order=1), call("refund", call_id="b", order=2)], "Refunded."],
    )
    steps: list[Any] = [False, Approve({"request": "Listen"}), Answer({"a": Approve({"order": 3}), "b": Deny()}), True]
    for decision in steps:
        response = await AsyncSwarm(model.client()).run(shop.agent, history, resume=decision and {"outer_1": decision})
        history = json.loads(json.dumps([*history, *response.messages]))
    assert told(response) == ['(run with arguments changed by the user: {"request": "Listen"})\nRefunded.']
    assert (shop.ran, "Listen" in str(model.requests[1].messages)) == ([3], True)


async def test_context_that_is_not_json_ends_the_run_that_waits() -> None:
    """It could not go on in another process; the error names the variable, and shows nothing of it."""

    def connect(context_variables: MutableMapping[str, Any]) -> str:
        context_variables["client"] = object()
        return "connected"

    @tool(approve=True)
    def refund() -> None:
        raise AssertionError

    model = model_of(outer=[[ask()]], inner=[[call("connect"), call("refund")]])
    with pytest.raises(ConfigurationError, match="its context variable 'client' is not JSON"):
        await AsyncSwarm(model.client()).run(editor(researcher(connect, refund)), "Go")


async def test_the_conversation_is_not_stored_twice() -> None:
    """What waits inside keeps the inner messages; the conversation comes from the outer history again."""

    @tool(approve=True)
    def refund() -> str:
        return "refunded"

    agent = editor(researcher(refund, history="all"))
    model = model_of(outer=[[ask()], "Done."], inner=[[call("refund", call_id="a")], "Refunded."])
    swarm, begin = AsyncSwarm(model.client()), {"role": "user", "content": "a long conversation"}
    first = await swarm.run(agent, [begin])
    assert "long" not in str(first.messages)
    response = await swarm.run(agent, [begin, *first.messages], resume={"outer_1": True})
    assert response.text == "Done."
    assert [each["content"] for each in model.requests[2].messages][:3] == ["inner", "a long conversation", "Look"]


async def test_what_the_inner_run_removed_stays_removed() -> None:
    """Also after it has waited."""

    def forget(context_variables: MutableMapping[str, Any]) -> str:
        del context_variables["secret"]
        return "forgotten"

    @tool(approve=True)
    async def look(context_variables: Mapping[str, Any]) -> str:
        return str(sorted(context_variables))

    agent = editor(researcher(forget, look))
    model = model_of(outer=[[ask()], "Done."], inner=[[call("forget"), call("look")], "Looked."])
    swarm, context = AsyncSwarm(model.client()), {"secret": 1, "clerk": "Ann"}
    first = await swarm.run(agent, "Go", context)
    await swarm.run(agent, [{"role": "user", "content": "Go"}, *first.messages], context, resume={"outer_1": True})
    assert "['clerk']" in str(model.requests[2].messages)


async def test_it_gets_the_limits_of_the_outer_run() -> None:
    """`max_turns` holds for each inner run, and `model_override` for its requests."""

    async def look() -> str:
        return "seen"

    model = model_of(outer=[[ask()], "Done."], inner=[[call("look")], [call("look")], [call("look")]])
    response = await AsyncSwarm(model.client()).run(editor(researcher(look)), "Go", model_override="small", max_turns=2)
    assert [each.body["model"] for each in model.requests] == ["small"] * 4
    assert told(response) == ["The agent Researcher stopped without an answer: its turns are used up."]
    assert response.text == "Done."


def test_options_are_checked() -> None:
    """A value that it does not know would be ignored otherwise."""
    with pytest.raises(ConfigurationError, match="takes an Agent, not 'x'"):
        agent_tool("x")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigurationError, match="not 'some' and 'copy'"):
        researcher(history="some")
    with pytest.raises(ConfigurationError, match="names of 1 to 64"):
        researcher(name="my researcher")


def test_name_and_description() -> None:
    """By default those of the agent."""
    made = agent_tool(Agent(name="Big Boss"))
    assert made._schema.json["function"]["name"] == "big_boss"
    assert agent_tool(Agent(name="Ø"))._schema.name == "agent"
    assert agent_tool(Agent(), name="x", description="y")._schema.json["function"]["description"] == "y"


async def test_options_of_tool_apply() -> None:
    """`tool(...)` adds to it as to any tool."""
    waits = tool(approve=True)(researcher())
    response = await AsyncSwarm(model_of(outer=[[ask()]]).client()).run(editor(waits), "Go")
    assert response.waiting[0].reason == "needs approval"
    model = model_of(outer=["Done."], inner=["It rains."])
    history = [{"role": "user", "content": "Go"}, *response.messages]
    again = await AsyncSwarm(model.client()).run(editor(waits), history, resume={"outer_1": True})
    assert told(again) == ["It rains."]


async def test_outside_of_a_run_it_says_so() -> None:
    """Called by itself it has no swarm."""
    with pytest.raises(ConfigurationError, match="only as a function of an agent"):
        await researcher()(request="x", context_variables={})


def test_in_a_blocking_run() -> None:
    """`Swarm` runs it too."""
    model = model_of(outer=[[ask()], "Done."], inner=["It rains."])
    with Swarm(model.client()).stream(editor(researcher()), "Go") as run:
        ended = [event.content for event in run if isinstance(event, ToolCallFinished)]
    assert ended == ["It rains."]


def test_in_a_step_of_swarm_it_says_so() -> None:
    """`handle_tool_calls` carries out calls without a run, so there is none to begin the inner one from."""
    swarm = Swarm(ScriptedModel([]).client())
    asked = {"id": "1", "type": "function", "function": {"name": "researcher", "arguments": '{"request": "x"}'}}
    response = swarm.handle_tool_calls([asked], [researcher()], {}, debug=False)
    assert "an agent_tool works only as a function of an agent" in response.messages[0]["content"]
