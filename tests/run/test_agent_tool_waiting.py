"""Agents as tools whose inner runs wait: the stored history, the data for users, and decisions at any level."""

from __future__ import annotations

import json
from collections.abc import Mapping, MutableMapping
from typing import Any

import pytest

from aswarm import (
    Agent,
    Approve,
    AsyncSwarm,
    CallWaiting,
    ConfigurationError,
    Deny,
    Reply,
    agent_tool,
    open_calls,
    tool,
)
from aswarm.testing import ScriptedModel, call, check_history
from tests.support.run.inner_agents import ask, editor, model_of, researcher
from tests.support.run.one_turn import contents

USER = {"role": "user", "content": "Go"}


class Nest:
    """Agents as tools in `depth` levels. In the innermost run, `refund` needs approvals."""

    def __init__(self, depth: int, refunds: int = 1) -> None:
        self.ran: list[int] = []
        self.history: list[Any] = [USER]
        self.depth = depth
        self.steps: list[Any] = [[call("below", call_id="b", request="x")]] * depth
        self.steps.append([call("refund", call_id=f"r{n}", order=n) for n in range(refunds)])

        @tool(approve=True)
        async def refund(order: int) -> str:
            self.ran.append(order)
            return f"refunded {order}"

        self.agent = Agent(name="Level 0", functions=[refund])
        for level in range(depth):
            self.agent = Agent(name=f"Level {level + 1}", functions=[agent_tool(self.agent, name="below")])

    async def run(self, resume: Any = False) -> Any:
        """Run or continue, and keep the history as a storage gives it back."""
        steps = ["Done."] * (self.depth + 1) if resume else self.steps
        response = await AsyncSwarm(ScriptedModel(steps).client()).run(self.agent, self.history, resume=resume)
        self.history = json.loads(json.dumps([*self.history, *response.messages]))
        return response

    @property
    def size(self) -> int:
        return len(json.dumps(self.history))


def inside(data: Any, depth: int) -> Any:
    """Return the data of the innermost call that waits because of a run inside it."""
    for _ in range(depth - 1):
        data = data["waiting"][0]["data"]
    return data


async def test_each_level_adds_the_same_size() -> None:
    """The stored data of a level does not depend on the levels inside it. Thirty levels run, and are decided."""
    sizes: dict[int, int] = {}
    for depth in (1, 5, 10, 30):
        nest = Nest(depth)
        response = await nest.run()
        assert response.stop == "waiting"
        sizes[depth] = nest.size
        assert sizes[depth] < 2000 * (depth + 1), sizes
        assert len(response.model_dump_json()) < 2 * 2000 * (depth + 1)
        check_history(nest.history, allow_open=True)
    done = await nest.run(resume={"b": True})
    assert (done.text, nest.ran) == ("Done.", [0])
    check_history(nest.history)


async def test_a_user_sees_the_calls_at_each_level() -> None:
    """The response, the event and the stored history show the same agents and open calls, and nothing else of the inner runs."""
    nest = Nest(3)
    async with AsyncSwarm(ScriptedModel(nest.steps).client()).stream(nest.agent, "Go") as run:
        events = [event async for event in run]
    nest.history = json.loads(json.dumps([USER, *run.response.messages]))
    (shown,) = run.response.open_calls
    assert shown.data == open_calls(nest.history)[0].data
    assert [event.data for event in events if isinstance(event, CallWaiting)] == [shown.data]
    data = inside(shown.data, 3)
    assert data == {
        "agent": "Level 0",
        "started_inside": False,
        "waiting": [
            {
                "index": 0,
                "id": "r0",
                "name": "refund",
                "arguments": '{"order": 0}',
                "agent": "Level 0",
                "reason": "needs approval",
                "data": None,
                "answer": None,
            }
        ],
    }
    assert "messages" not in json.dumps(shown.data)
    assert "messages" not in json.dumps([event.to_dict() for event in events[:-1]])


async def test_the_shown_calls_are_the_calls_that_run() -> None:
    """A history that was changed in its storage shows the changed call, because there is no second copy."""
    nest = Nest(2)
    await nest.run()
    text = json.dumps(nest.history)
    assert text.count(json.dumps('{"order": 0}')) == 1
    nest.history = json.loads(text.replace(json.dumps('{"order": 0}'), json.dumps('{"order": 7}')))
    shown = inside(open_calls(nest.history)[0].data, 2)["waiting"][0]
    assert shown["arguments"] == '{"order": 7}'
    await nest.run(resume={"b": True})
    assert nest.ran == [7]


@pytest.mark.parametrize("messages", [7, [{"role": "x"}], [{"role": "tool"}], [{"role": "assistant", "tool_calls": 3}]])
async def test_stored_messages_that_are_none(messages: Any) -> None:
    """The call can be shown, stays open without a decision, and cannot be approved."""
    nest = Nest(1)
    await nest.run()
    mark = nest.history[-1]["waiting"][0]
    mark["data"] = {"agent": "Level 0", "messages": messages, "context_variables": {}, "removed": []}
    (shown,) = open_calls(nest.history)
    assert shown.data["waiting"] == []
    left = await AsyncSwarm(ScriptedModel([]).client()).run(nest.agent, nest.history, resume={})
    assert (left.stop, left.open_calls) == ("waiting", [shown])
    with pytest.raises(ConfigurationError, match="messages"):
        await nest.run(resume={"b": True})
    assert nest.ran == []


async def test_too_many_levels_are_an_error() -> None:
    with pytest.raises(ConfigurationError, match="nested too deeply to be stored; use fewer levels"):
        await Nest(60).run()


@pytest.mark.parametrize("depth", [1, 2, 3])
async def test_calls_inside_that_are_decided_one_by_one(depth: int) -> None:
    """Each decision stores the inner runs once, without the data of decided calls; a user sees the open calls alone."""
    nest = Nest(depth, refunds=8)
    response = await nest.run()
    for order in range(8):
        shown = inside(response.open_calls[0].data, depth)
        assert [each["id"] for each in shown["waiting"]] == [f"r{n}" for n in range(order, 8)]
        before, decision = nest.size, Reply({f"r{order}": True})
        for _ in range(depth - 1):
            decision = Reply({"b": decision})
        response = await nest.run(resume={"b": decision})
        assert nest.size - before < 3000 + 1000 * depth
    assert (response.text, nest.ran) == ("Done.", [*range(8)])
    check_history(nest.history)


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
        """Return the whole script; each run gets a new model, as in another process."""
        calls = [call("sign"), call("refund", call_id="a", order=1), call("refund", call_id="b", order=2)]
        return model_of(outer=[[ask()]], inner=[[call("transfer_to_payer")]], payer=[calls])

    async def start(self) -> list[Any]:
        """Run until the outer call waits, and return the history as a storage gives it back."""
        response = await AsyncSwarm(self.model().client()).run(self.agent, "Go")
        (waits,) = response.open_calls
        assert (response.stop, waits.id, self.ran) == ("waiting", "outer_1", [])
        assert waits.reason == "Payer: refund needs approval; Payer: refund needs approval"
        assert [each["id"] for each in waits.data["waiting"]] == ["a", "b"]
        history: list[Any] = json.loads(json.dumps([{"role": "user", "content": "Go"}, *response.messages]))
        return history


@pytest.mark.parametrize(
    ("decision", "ran"),
    [
        (True, [1, 2]),
        (Reply({"a": True, "b": False}), [1]),
        (Reply({"a": True, "b": {"deny": "late"}}), [1]),
        ({"answer": {"a": True, "b": False}}, [1]),
        (False, []),
    ],
    ids=["True", "Answer", "nested form", "JSON", "False"],
)
async def test_it_waits_and_the_outer_call_waits(decision: Any, ran: list[int]) -> None:
    """The decisions are passed down in another process, and earlier changes of the inner context are still there."""
    shop = Waiting()
    history = await shop.start()
    model = model_of(outer=["Done."], payer=["Refunded."])
    response = await AsyncSwarm(model.client()).run(shop.agent, history, resume={"outer_1": decision})
    assert (sorted(shop.ran), response.text) == (ran, "Done.")
    if ran:
        assert contents(response) == ["Refunded."]
        assert "refunded 1 by Ann" in str(model.requests[0].messages)
    check_history([*history, *response.messages])


async def test_an_agent_that_is_not_found_is_named() -> None:
    """A resumed run needs the agent to which the inner run had handed off."""
    shop = Waiting()
    history = await shop.start()
    with pytest.raises(ConfigurationError, match=r"'Payer'.*no agent of this name can be found from 'Researcher'"):
        await AsyncSwarm(ScriptedModel([]).client()).run(editor(researcher()), history, resume={"outer_1": True})


@pytest.mark.parametrize(
    ("decision", "words"),
    [
        (Reply(False), "the answer False has no decisions"),
        ({"answer": ["a"]}, "the answer ['a'] has no decisions"),
        (Reply({"typo": True}), "resume names 'typo', but no open call has this id"),
        (Reply({"a": {"deny": 3}}), "a decision is True, False"),
        (Approve({"request": "other"}), "its arguments cannot be changed"),
    ],
    ids=["False", "list", "typo", "no form", "arguments"],
)
async def test_a_decision_that_fits_nothing_inside_ends_the_run(decision: Any, words: str) -> None:
    """Nothing runs, the error names the outer call, and no response replaces the stored history."""
    shop = Waiting()
    history = await shop.start()
    with pytest.raises(ConfigurationError) as caught:
        await AsyncSwarm(ScriptedModel([]).client()).run(shop.agent, history, resume={"outer_1": decision})
    assert words in str(caught.value)
    assert "the call 'outer_1' of researcher" in str(caught.value)
    assert caught.value.response is None
    assert shop.ran == []


@pytest.mark.parametrize(
    "inside",
    [{"typo": True}, {"a": Approve(expected={"order": 9})}, {"a": Approve({"order": "many"})}, {"a": Reply(1)}],
    ids=["typo", "expected", "arguments", "answer"],
)
@pytest.mark.parametrize("levels", [1, 2])
async def test_a_wrong_decision_inside_is_found_before_calls_beside_it_run(levels: int, inside: Any) -> None:
    """A wrong decision at any level is an error before the approved calls beside it run."""
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
        decision = {"b": Reply(decision), "e": True}
    first = await AsyncSwarm(ScriptedModel(steps).client(), concurrent_tools=False).run(inner, "Go")
    assert first.stop == "waiting"
    history = [{"role": "user", "content": "Go"}, *json.loads(json.dumps(first.messages))]
    with pytest.raises(ConfigurationError, match="the call 'b' of below: "):
        await AsyncSwarm(ScriptedModel([]).client()).run(inner, history, resume=decision)
    assert ran == []


async def test_changed_arguments_stay_after_a_wait_of_the_inner_run() -> None:
    """Arguments that the user changed before the inner run stay in the tool message after its wait."""
    shop = Waiting()
    shop.agent.functions = [tool(approve=True)(each) for each in shop.agent.functions]
    history: list[Any] = [{"role": "user", "content": "Go"}]
    model = model_of(
        outer=[[ask()], "Done."],
        inner=[[call("transfer_to_payer")]],
        payer=[[call("sign"), call("refund", call_id="a", order=1), call("refund", call_id="b", order=2)], "Refunded."],
    )
    steps: list[Any] = [False, Approve({"request": "Listen"}), Reply({"a": Approve({"order": 3}), "b": Deny()}), True]
    for decision in steps:
        response = await AsyncSwarm(model.client()).run(shop.agent, history, resume=decision and {"outer_1": decision})
        history = json.loads(json.dumps([*history, *response.messages]))
    assert contents(response) == ['(run with arguments changed by the user: {"request": "Listen"})\nRefunded.']
    assert (shop.ran, "Listen" in str(model.requests[1].messages)) == ([3], True)


async def test_context_that_is_not_json_ends_the_run_that_waits() -> None:
    """The inner run could not continue in another process, so the error names the variable, and shows no value."""

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
    """A call with `history=all` that waits stores its own messages; the conversation comes from the outer history."""

    @tool(approve=True)
    def refund() -> str:
        return "refunded"

    agent = editor(researcher(refund, history="all"))
    model = model_of(outer=[[ask()], "Done."], inner=[[call("refund", call_id="a")], "Refunded."])
    swarm, question = AsyncSwarm(model.client()), {"role": "user", "content": "a long conversation"}
    first = await swarm.run(agent, [question])
    assert "long" not in str(first.messages)
    response = await swarm.run(agent, [question, *first.messages], resume={"outer_1": True})
    assert response.text == "Done."
    assert [each["content"] for each in model.requests[2].messages][:3] == ["inner", "a long conversation", "Look"]
