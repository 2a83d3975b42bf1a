"""`Conversation`: what a run begins with, and what it leaves in the store."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import anyio
import pytest
from pydantic import BaseModel

from aswarm import (
    Agent,
    Answer,
    AsyncSwarm,
    Budget,
    CompletionError,
    ConfigurationError,
    Hold,
    Result,
    RunError,
    RunFinished,
    Swarm,
    ToolCallFinished,
    current_call,
    tool,
)
from aswarm.conversations import Conflict, Conversation, MemoryStore, PostgresStore, SQLiteStore, last
from aswarm.guards import Block, Blocked, CheckedInput, Replace, guard_answer, guard_input
from aswarm.testing import Failure, ScriptedModel, call, check_history
from tests.support.conversations.stores import change, read, user

pytestmark = pytest.mark.anyio


async def order(number: int) -> str:
    """Look an order up."""
    return f"order {number} is on its way"


def swarm_of(*script: Any) -> AsyncSwarm:
    """A swarm whose model answers from this script."""
    return AsyncSwarm(ScriptedModel(script).client())


def chat_of(*script: Any, agent: Agent | None = None, store: Any = None, **options: Any) -> Conversation:
    """A conversation in a store of its own."""
    store = store or MemoryStore()
    return store.conversation("a", swarm_of(*script), agent=agent or Agent(functions=[order]), **options)


async def test_a_run_adds_the_message_and_what_it_leads_to() -> None:
    """The store has the whole history, the agent and the context variables."""
    chat = chat_of(call("order", number=7), "It is on its way.", context_variables={"name": "Ann"})
    response = await chat.run("Where is order 7?")
    stored = await chat.load()
    assert (response.text, response.stop) == ("It is on its way.", "answer")
    assert stored.messages == [user("Where is order 7?"), *response.messages]
    assert (stored.agent, stored.stop, stored.context_variables) == ("Agent", "answer", {"name": "Ann"})
    check_history(stored.messages)


async def test_the_next_run_continues() -> None:
    """Its request has the whole history, also with another `Conversation` of the same id."""
    store, model = MemoryStore(), ScriptedModel(["One.", "Two."])
    for text in ("1", "2"):
        chat = store.conversation("a", AsyncSwarm(model.client()), agent=Agent())
        await chat.run(text)
    assert [each["content"] for each in model.requests[1].messages][1:] == ["1", "One.", "2"]


async def test_a_conversation_that_was_never_written_is_empty() -> None:
    """With what it would begin with."""
    chat = chat_of(context_variables={"n": 1})
    stored = await chat.load()
    assert (stored.id, stored.revision, stored.messages, stored.agent) == ("a", "", [], "Agent")
    assert stored.context_variables == {"n": 1}
    stored.context_variables["n"] = 2
    assert (await chat.load()).context_variables == {"n": 1}


async def test_messages_may_be_a_list() -> None:
    """Of new messages only."""
    chat = chat_of("Yes.")
    await chat.run([{"role": "system", "content": "Be short."}, user("Well?")])
    assert [each["role"] for each in (await chat.load()).messages] == ["system", "user", "assistant"]


async def test_a_handoff_is_kept() -> None:
    """The next run begins with the new agent, found by its name without being listed."""
    sales = Agent(name="Sales")
    triage = Agent(name="Triage", functions=[sales])
    store, model = MemoryStore(), ScriptedModel([call("transfer_to_sales"), "Sales here.", "Still sales."])
    swarm = AsyncSwarm(model.client())
    await store.conversation("a", swarm, agent=triage).run("Hi")
    chat = store.conversation("a", swarm, agent=triage)
    assert (await chat.load()).agent == "Sales"
    assert (await chat.run("And?")).agent is sales


async def test_a_handoff_that_no_later_run_could_find_ends_the_run() -> None:
    """What has happened is in the store, with the agent from before."""

    def escalate() -> Agent:
        """Hand over to a new agent."""
        return Agent(name=f"Agent {len('made here')}")

    chat = chat_of(call("escalate"), "unreachable", agent=Agent(functions=[escalate]))
    with pytest.raises(ConfigurationError, match=r"handed over to the agent 'Agent 9'.*agents=") as caught:
        await chat.run("Hi")
    stored = await chat.load()
    assert caught.value.response is not None
    assert stored.messages == [user("Hi"), *caught.value.response.messages]
    assert (stored.agent, stored.stop) == ("Agent", "error")
    check_history(stored.messages)


async def test_an_agent_of_a_known_name_that_is_another_one_ends_the_run() -> None:
    """A later run would take the listed one in its place."""

    def clone() -> Agent:
        """Hand over."""
        return Agent(name="Agent", model="other")

    with pytest.raises(ConfigurationError, match="another agent of this name"):
        await chat_of(call("clone"), agent=Agent(functions=[clone])).run("Hi")


async def test_an_agent_that_was_added_later_is_found() -> None:
    """Agents may change after the conversation was made."""
    late = Agent(name="Late")
    first = Agent(name="First")
    chat = chat_of(call("transfer_to_late"), "Late here.", agent=first)
    first.functions.append(late)
    assert (await chat.run("Hi")).agent is late


async def test_a_stored_agent_that_is_gone_is_an_error() -> None:
    """Nothing is written; the text names the agent and the conversation. With the agent it continues."""
    store, old, new = MemoryStore(), Agent(name="Old"), Agent(name="New")
    await store.conversation("a", swarm_of("Hi."), agent=old).run("1")
    chat = store.conversation("a", swarm_of("Hi."), agent=new)
    with pytest.raises(ConfigurationError, match="conversation 'a' is with the agent 'Old'"):
        await chat.run("2")
    assert len((await chat.load()).messages) == 2
    assert (await store.conversation("a", swarm_of("Hi."), agent=new, agents=[old]).run("2")).agent is old


async def test_another_agent_may_take_over() -> None:
    """`agent=` of a run; it must be one that can be found again."""
    other = Agent(name="Other")
    chat = chat_of("Hi.", "Ho.", agents=[other])
    assert (await chat.run("1", agent=other)).agent is other
    assert (await chat.run("2")).agent is other
    with pytest.raises(ConfigurationError, match="handed over to the agent 'Third'"):
        await chat.run("3", agent=Agent(name="Third"))


async def test_an_agent_that_is_listed_and_can_be_found() -> None:
    """It is one agent."""
    late = Agent(name="Late")
    sales = Agent(name="Sales", functions=[late])
    chat = chat_of(
        call("transfer_to_sales"), call("transfer_to_late"), "Hi.", agent=Agent(functions=[sales]), agents=[sales]
    )
    assert (await chat.run("Hi")).agent is late


async def test_two_agents_of_one_name_that_can_be_found() -> None:
    """No later run could tell them apart."""
    twins = [Agent(name="Twin"), Agent(name="Twin", model="other")]
    middle = [Agent(name=f"Middle {n}", functions=[twin]) for n, twin in enumerate(twins)]
    agent = Agent(functions=list(middle))
    with pytest.raises(ConfigurationError, match="more than one agent of this name can be found"):
        await chat_of(call("transfer_to_middle_0"), call("transfer_to_twin"), agent=agent).run("Hi")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"agent": "Agent"}, "one item is str"),
        ({"agents": ["Agent"]}, "one item is str"),
        ({"agents": Agent()}, "agents must be a list of Agents, not Agent"),
        ({"agents": 7}, "agents must be a list of Agents, not int"),
        ({"agents": [Agent(name="Agent")]}, "two agents named 'Agent'"),
        ({"context_variables": 7}, "context_variables must be a dict, not int"),
        ({"context_variables": {"x": object()}}, "as JSON .*, but x is <object"),
    ],
)
async def test_what_a_conversation_cannot_be_made_of(arguments: dict[str, Any], text: str) -> None:
    """It is said before anything runs."""
    with pytest.raises(ConfigurationError, match=text):
        MemoryStore().conversation("a", swarm_of(), **{"agent": Agent(model="x"), **arguments})


async def test_a_blocking_swarm_is_refused() -> None:
    """A conversation awaits its runs."""
    swarm: Any = Swarm(ScriptedModel([]).client())
    with pytest.raises(ConfigurationError, match="needs an AsyncSwarm, not Swarm"):
        MemoryStore().conversation("a", swarm, agent=Agent())


# --- context variables ---


async def test_context_variables_are_kept() -> None:
    """Those that a tool sets, those of a Result, and those that a caller adds to a run."""

    def note(context_variables: dict[str, Any]) -> Result:
        """Note something."""
        context_variables["direct"] = [1]
        del context_variables["old"]
        return Result(value="ok", context_variables={"result": 2})

    chat = chat_of(
        call("note"), "Done.", "Again.", agent=Agent(functions=[note]), context_variables={"old": 0, "kept": 1}
    )
    await chat.run("1", {"kept": 2})
    assert (await chat.load()).context_variables == {"kept": 2, "direct": [1], "result": 2}
    assert (await chat.run("2")).context_variables == {"kept": 2, "direct": [1], "result": 2}


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ((1,), r"x is \(1,\)"),
        ({"y": [0, {1}]}, r"x\['y'\]\[1\] is \{1\}"),
        ({"a": {"b": 1}, 1: 2}, "x has the key 1"),
        (LOOP, "x is nested too deeply, or contains itself"),
    ],
)
async def test_a_context_variable_that_is_not_json_ends_the_run(value: Any, text: str) -> None:
    """At the write that meets it. The store has the history, and the value from before."""

    async def spoil() -> Result:
        """Set a variable."""
        return Result(value="ok", context_variables={"x": value, "y": 2, "z": 3})

    agent = Agent(functions=[spoil])
    chat = chat_of(call("spoil"), "unreachable", agent=agent, context_variables={"x": 1, "y": 1})
    with pytest.raises(ConfigurationError, match=text) as caught:
        await chat.run("Hi")
    stored = await chat.load()
    assert stored.context_variables == {"x": 1, "y": 2, "z": 3}
    assert caught.value.response is not None
    assert stored.messages == [user("Hi"), *caught.value.response.messages]
    assert stored.messages[-1]["content"] == "ok"


GUARDS = {
    "input": guard_input(lambda checked: Block() if "homework" in checked.text else None),
    "answer": guard_answer(lambda checked: Block() if "homework" in str(checked.messages) else None),
}


@pytest.mark.parametrize("guard", list(GUARDS))
@pytest.mark.parametrize("way", ["run", "stream", "caught inside"])
async def test_a_message_that_a_guard_has_blocked_does_not_block_the_next_one(guard: str, way: str) -> None:
    """It is not kept: every later run would send it again, and be blocked for it again. What came before it stays."""
    model = ScriptedModel(["One.", *(["Four."] if guard == "answer" else []), "Two."])
    swarm = AsyncSwarm(model.client(), middleware=[GUARDS[guard]])
    chat = MemoryStore().conversation("a", swarm, agent=Agent())
    await chat.run("Hi")
    if way == "run":
        with pytest.raises(Blocked):
            await chat.run("Do my homework")
    elif way == "stream":
        with pytest.raises(Blocked):
            async with chat.stream("Do my homework") as run:
                _ = [event async for event in run]
    else:
        async with chat.stream("Do my homework") as run:
            with pytest.raises(Blocked):
                _ = [event async for event in run]
    stored = await chat.load()
    assert ([each["content"] for each in stored.messages], stored.stop) == (["Hi", "One."], "error")
    assert (await chat.run("Hello again")).text == "Two."


async def test_what_a_run_has_done_before_it_was_blocked_is_kept() -> None:
    """Calls have happened; only the message that nothing follows is left out."""
    swarm = AsyncSwarm(ScriptedModel([call("order", number=7), "unused"]).client(), middleware=[GUARDS["input"]])
    chat = MemoryStore().conversation("a", swarm, agent=Agent(functions=[order]))
    async with chat.stream("Hi") as run:
        with suppress(Blocked):
            async for event in run:
                if isinstance(event, ToolCallFinished):
                    run.send("Do my homework")
    assert [each["role"] for each in (await chat.load()).messages] == ["user", "assistant", "tool"]


def hidden(checked: CheckedInput) -> Replace | None:
    """Hide a card number that the user has written since the last answer."""
    return Replace(checked.text.replace("4111", "***")) if "4111" in checked.text else None


@pytest.mark.parametrize("way", ["run", "stream"])
@pytest.mark.parametrize("history", [None, last(2)])
async def test_an_input_that_a_guard_has_replaced_is_never_sent(way: str, history: Any) -> None:
    """In no later run, also of an agent with a `history` function and of a fork. The user still has the own message."""
    model = ScriptedModel([call("order", number=7), "One.", "Two.", "Three.", "Four."])
    swarm = AsyncSwarm(model.client(), middleware=[guard_input(hidden)])
    chat = MemoryStore().conversation("a", swarm, agent=Agent(functions=[order], history=history))
    for text in ("My card is 4111.", "Pay.", "And?"):
        if way == "run":
            await chat.run(text)
        else:
            async with chat.stream(text) as run:
                _ = [event async for event in run]
    fork = await chat.fork("b", until=5)
    await fork.run("Or?")
    assert [request.body for request in model.requests if "4111" in str(request.body)] == []
    users = [[each["content"] for each in request.messages if each["role"] == "user"] for request in model.requests]
    assert users[2] == ["My card is ***.", "Pay."]
    stored = await chat.load()
    assert stored.messages[0] == user("My card is 4111.")
    check_history(stored.messages)


@pytest.mark.parametrize("left", ["before the answer", "waiting"])
async def test_an_input_that_a_guard_has_replaced_is_not_sent_after_a_run_that_was_left(left: str) -> None:
    """The next run judges the message again, or knows what was sent."""

    @tool(approve=True)
    async def pay() -> str:
        return "paid"

    model = ScriptedModel([Failure(404) if left == "before the answer" else call("pay"), "One.", "Two."])
    swarm = AsyncSwarm(model.client(), middleware=[guard_input(hidden)])
    chat = MemoryStore().conversation("a", swarm, agent=Agent(functions=[pay]))
    with suppress(RunError):
        await chat.run("My card is 4111.")
    await chat.resume(True)
    await chat.run("And?")
    assert [request.body for request in model.requests if "4111" in str(request.body)] == []
    assert len(model.requests) == 3


async def test_a_context_variable_without_a_text_as_its_name() -> None:
    """JSON has none."""
    wrong: Any = {7: 1}
    with pytest.raises(ConfigurationError, match="the name 7 is not a str"):
        await chat_of().run("Hi", wrong)


async def test_a_wrong_context_variable_of_a_caller_is_an_error() -> None:
    """Before anything is written or run."""
    chat = chat_of()
    with pytest.raises(ConfigurationError, match="x is"):
        await chat.run("Hi", {"x": object()})
    assert (await chat.load()).revision == ""


async def test_a_value_of_another_type_that_is_equal_is_a_change() -> None:
    """1 == True == 1.0, and a function may see the difference."""

    def flip(context_variables: dict[str, Any]) -> str:
        """Change a variable."""
        context_variables["x"] = True
        return "ok"

    chat = chat_of(call("flip"), "Done.", agent=Agent(functions=[flip]), context_variables={"x": 1})
    await chat.run("Hi")
    assert (await chat.load()).context_variables["x"] is True


# --- arguments ---


class City(BaseModel):
    """An answer with a type."""

    name: str


async def test_the_arguments_of_a_run_are_those_of_the_swarm() -> None:
    """A type, a model, a budget, a limit, an id."""
    model = ScriptedModel(['{"name": "Rome"}', call("order", number=1), call("order", number=1), "Answer."])
    chat = MemoryStore().conversation("a", AsyncSwarm(model.client()), agent=Agent(functions=[order]))
    response = await chat.run("Which?", output=City, model_override="other", run_id="r1")
    assert (response.output, response.run_id) == (City(name="Rome"), "r1")
    assert model.requests[0].body["model"] == "other"
    assert (await chat.run("Look", max_turns=1)).stop == "max_turns"
    assert (await chat.load()).stop == "max_turns"
    assert (await chat.run("Look", budget=Budget(turns=1, then="stop"))).stop == "budget"
    assert (await chat.load()).stop == "budget"
    check_history((await chat.load()).messages)


@pytest.mark.parametrize("wrong", [{"max_turns": -1}, {"run_id": ""}, {"messages": 7}, {"messages": [{"role": "x"}]}])
async def test_a_wrong_argument_writes_nothing(wrong: dict[str, Any]) -> None:
    """It is met before the message is written, and the next run is not held up."""
    chat = chat_of("Hi.")
    with pytest.raises(ConfigurationError):
        await chat.run(**{"messages": "Hi", **wrong})
    assert (await chat.load()).revision == ""
    assert (await chat.run("Hi")).text == "Hi."


# --- calls that are open ---


@tool(approve=True)
async def refund(number: int) -> str:
    """Refund an order."""
    return f"refunded {number}"


async def test_an_approval_that_comes_later() -> None:
    """What waits is in the store; `resume` decides on it."""
    chat = chat_of([call("refund", call_id="c1", number=7)], "Refunded.", agent=Agent(functions=[refund]))
    assert (await chat.run("Refund 7")).stop == "waiting"
    stored = await chat.load()
    assert [(each.id, each.reason) for each in stored.waiting] == [("c1", "needs approval")]
    assert stored.stop == "waiting"
    response = await chat.resume({"c1": True})
    assert (response.text, response.messages[0]["content"]) == ("Refunded.", "refunded 7")
    check_history((await chat.load()).messages)


async def test_resume_without_decisions_approves_nothing() -> None:
    """A call that waits for an approval waits again. `True` approves it."""
    chat = chat_of([call("refund", call_id="c1", number=7)], "Refunded.", agent=Agent(functions=[refund]))
    await chat.run("Refund 7")
    response = await chat.resume()
    assert (response.stop, [each.id for each in response.waiting]) == ("waiting", ["c1"])
    assert [(each.id, each.reason) for each in (await chat.load()).waiting] == [("c1", "needs approval")]
    response = await chat.resume(True)
    assert (response.text, response.messages[0]["content"]) == ("Refunded.", "refunded 7")


async def test_after_a_crash_resume_runs_only_calls_that_need_no_approval() -> None:
    """The process died before a function started, so the history does not say which calls need an approval. The tools do."""

    def message(*calls: Any) -> dict[str, Any]:
        return {"role": "assistant", "content": None, "sender": "Agent", "tool_calls": list(calls)}

    def asked(call_id: str, name: str, arguments: str) -> dict[str, Any]:
        return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}

    ran: list[int] = []

    async def count(number: int) -> str:
        ran.append(number)
        return "counted"

    chat = chat_of("Refunded.", agent=Agent(functions=[refund, count]))
    await chat.replace(
        [user("Refund 7"), message(asked("c0", "count", '{"number": 1}'), asked("c1", "refund", '{"number": 7}'))]
    )
    async with chat.resume_stream() as run:
        async for _ in run:
            pass
    assert (run.response.stop, [each.id for each in run.response.waiting], ran) == ("waiting", ["c1"], [1])
    response = await chat.resume({"c1": True})
    assert (response.text, response.messages[0]["content"], ran) == ("Refunded.", "refunded 7", [1])
    check_history((await chat.load()).messages)


async def test_a_decision_about_no_open_call_is_an_error() -> None:
    """A second click, say; nothing is written."""
    chat = chat_of("Hi.")
    await chat.run("Hi")
    before = await chat.load()
    with pytest.raises(ConfigurationError, match="no open calls"):
        await chat.resume({"c1": True})
    assert await chat.load() == before


async def test_a_new_message_closes_the_calls_that_wait() -> None:
    """Their answers say that they were not run, so that the history stays valid."""
    chat = chat_of([call("refund", call_id="c1", number=7)], "Well.", agent=Agent(functions=[refund]))
    await chat.run("Refund 7")
    await chat.run("Never mind")
    stored = await chat.load()
    check_history(stored.messages)
    assert [each["content"] for each in stored.messages if each["role"] == "tool"] == ["not run: interrupted"]


async def test_a_caller_may_answer_calls_itself() -> None:
    """With tool messages before its own message."""
    calls = [call("refund", call_id="c1", number=7), call("refund", call_id="c2", number=8)]
    chat = chat_of(calls, "Well.", "Good.", agent=Agent(functions=[refund]))
    await chat.run("Refund")
    answer = {"role": "tool", "tool_call_id": "c1", "content": "refused by a clerk"}
    with pytest.raises(ConfigurationError, match="no answer"):
        await chat.run([answer])
    await chat.run([answer, user("Well?")])
    stored = await chat.load()
    check_history(stored.messages)
    assert [each["content"] for each in stored.messages if each["role"] == "tool"] == [
        "refused by a clerk",
        "not run: interrupted",
    ]


async def test_a_question_and_its_answer() -> None:
    """A function that raises Hold is called again, with the answer."""

    @tool(may_wait=True)
    async def pay() -> str:
        """Pay."""
        if not current_call().is_approved:
            raise Hold("Which account?", data=["giro"])
        return f"paid from {current_call().answer}"

    chat = chat_of([call("pay", call_id="c1")], "Paid.", agent=Agent(functions=[pay]))
    await chat.run("Pay")
    [question] = (await chat.load()).waiting
    assert (question.reason, question.data) == ("Which account?", ["giro"])
    response = await chat.resume({"c1": Answer("giro")})
    assert response.messages[0]["content"] == "paid from giro"
    assert not (await chat.load()).waiting


async def test_resume_asks_again_after_a_failure() -> None:
    """The message of the user is not written a second time."""
    chat = chat_of(Failure(500, "broken"), "Here I am.")
    with pytest.raises(CompletionError):
        await chat.run("Hi")
    stored = await chat.load()
    assert (stored.messages, stored.stop) == ([user("Hi")], "error")
    assert (await chat.resume()).text == "Here I am."
    assert len((await chat.load()).messages) == 2


async def test_there_may_be_nothing_to_resume() -> None:
    """An answer, or no message at all."""
    chat = chat_of("Hi.")
    with pytest.raises(ConfigurationError, match="'a' has nothing to resume"):
        await chat.resume()
    await chat.run("Hi")
    with pytest.raises(ConfigurationError, match="'a' has nothing to resume"):
        await chat.resume()
    with pytest.raises(ConfigurationError, match="not False"):
        await chat.resume(False)


# --- streams ---


async def test_a_stream_gives_the_events_of_the_run() -> None:
    """The last one comes once the answer is in the store."""
    chat = chat_of(call("order", number=7), "It is on its way.")
    async with chat.stream("Where?") as run:
        events = [event async for event in run]
        stored = await chat.load()
    assert isinstance(events[-1], RunFinished)
    assert stored.messages == [user("Where?"), *run.response.messages]
    assert stored.stop == "answer"
    assert (await chat.load()) == stored


async def test_a_stream_that_is_left_early() -> None:
    """What had happened is in the store."""
    chat = chat_of([call("order", call_id="c1", number=7)], "It is on its way.", "Next.")
    async with chat.stream("Where?") as run:
        async for event in run:
            if type(event).__name__ == "ToolCallFinished":
                break
    stored = await chat.load()
    assert stored.messages == [user("Where?"), *run.response.messages]
    assert (stored.stop, stored.messages[-1]["content"]) == ("cancelled", "order 7 is on its way")
    assert (await chat.run("And?")).text == "It is on its way."


async def test_a_message_to_a_run_that_is_at_work() -> None:
    """It is in the store before the model answers it."""
    chat = chat_of(call("order", number=7), "Both are on their way.")
    async with chat.stream("Where is order 7?") as run:
        async for event in run:
            if type(event).__name__ == "ToolCallStarted":
                run.send("And order 8?")
    stored = await chat.load()
    assert stored.messages == [user("Where is order 7?"), *run.response.messages]
    assert stored.messages[-2] == user("And order 8?")
    check_history(stored.messages)


async def test_a_stream_that_resumes() -> None:
    """Decisions may be given to a stream too."""
    chat = chat_of([call("refund", call_id="c1", number=7)], "Refunded.", agent=Agent(functions=[refund]))
    async with chat.stream("Refund 7", deltas=False) as run:
        async for _ in run:
            pass
    async with chat.resume_stream({"c1": True}) as run:
        assert [type(event).__name__ async for event in run].index("ToolCallStarted") == 0
    assert run.response.text == "Refunded."


async def test_a_stream_is_entered_once() -> None:
    """And one that was never entered holds up nothing."""
    chat = chat_of("Hi.", "Ho.")
    chat.stream("never")
    stream = chat.stream("Hi")
    async with stream as run:
        with pytest.raises(RuntimeError, match="already entered"):
            await stream.__aenter__()
        assert [event async for event in run]
    with pytest.raises(RuntimeError, match="already entered"):
        await stream.__aenter__()
    assert (await chat.run("Ho")).text == "Ho."


async def test_an_exception_in_the_body_of_a_stream_leaves_as_itself() -> None:
    """The run has ended, and is written."""
    chat = chat_of("Hi.")
    with pytest.raises(KeyError):
        async with chat.stream("Hi"):
            raise KeyError
    assert (await chat.load()).stop == "cancelled"


async def test_a_stream_whose_run_fails() -> None:
    """The error comes where the events are read."""
    chat = chat_of(Failure(500, "broken"))
    with pytest.raises(CompletionError):
        await read(chat.stream("Hi"))
    assert (await chat.load()).stop == "error"


async def _read_on(run: Any) -> None:
    async for _ in run:
        pass


async def test_a_stream_that_is_left_while_another_task_reads_it() -> None:
    """The error says so; the next run is not held up."""
    reading = anyio.Event()

    async def wait() -> str:
        """Wait."""
        reading.set()
        await anyio.sleep(60)
        return ""

    chat = chat_of(call("wait"), "Next.", agent=Agent(functions=[wait]))
    stream = chat.stream("Hi")
    run = await stream.__aenter__()
    async with anyio.create_task_group() as group:
        group.start_soon(_read_on, run)
        await reading.wait()
        with pytest.raises(RuntimeError, match="read by another task"):
            await stream.__aexit__(None, None, None)
        group.cancel_scope.cancel()
    assert (await chat.run("And?")).text == "Next."


async def test_leaving_a_stream_before_it_was_entered_does_nothing() -> None:
    """As an exit stack may do it."""
    await chat_of().stream("Hi").__aexit__(None, None, None)


# --- the whole conversation ---


async def test_a_fork_continues_from_a_message() -> None:
    """With the agent and the context variables of that time; the original stays."""
    sales = Agent(name="Sales")
    triage = Agent(name="Triage", functions=[sales])
    script = ["Hi.", call("transfer_to_sales"), "Sales.", "From the fork."]
    chat = chat_of(*script, agent=triage, context_variables={"n": 0})
    await chat.run("1")
    await chat.run("2", {"n": 1})
    fork = await chat.fork("b", until=2)
    stored = await fork.load()
    assert (fork.id, len(stored.messages), stored.agent) == ("b", 2, "Triage")
    assert stored.context_variables == {"n": 0}
    assert (await fork.run("else")).text == "From the fork."
    assert len((await chat.load()).messages) == 6
    whole = await chat.fork("c")
    assert ((await whole.load()).messages, (await whole.load()).agent) == ((await chat.load()).messages, "Sales")


@pytest.mark.parametrize("at", range(5))
async def test_a_fork_from_any_message_is_valid(at: int) -> None:
    """Calls whose answers are not in it are open, and a new message closes them."""
    calls = [call("order", number=7), call("order", number=8)]
    chat = chat_of(calls, "Both.", "Yes.")
    await chat.run("Where?")
    fork = await chat.fork("b", until=at)
    check_history((await fork.load()).messages, allow_open=True)
    await fork.run("Really?")
    check_history((await fork.load()).messages)


@pytest.mark.parametrize("at", [-1, 3])
async def test_a_fork_at_no_message_is_an_error(at: int) -> None:
    """The text says how many there are."""
    chat = chat_of("Hi.")
    await chat.run("Hi")
    with pytest.raises(ConfigurationError, match=f"has 2 messages and cannot be forked at {at}"):
        await chat.fork("b", until=at)


async def test_a_fork_of_what_was_never_written_is_an_error() -> None:
    """There is nothing to copy."""
    with pytest.raises(ConfigurationError, match="no conversation 'a'"):
        await chat_of().fork("b")


async def test_a_history_may_be_replaced() -> None:
    """To import one, or to take the last messages back."""
    other = Agent(name="Other")
    chat = chat_of("Hi.", agents=[other])
    await chat.replace([user("1"), {"role": "assistant", "content": "One."}], agent=other, context_variables={"n": 1})
    stored = await chat.load()
    assert (len(stored.messages), stored.agent, stored.context_variables) == (2, "Other", {"n": 1})
    await chat.replace(stored.messages[:1])
    stored = await chat.load()
    assert (stored.messages, stored.agent, stored.context_variables) == ([user("1")], "Other", {"n": 1})
    assert (await chat.resume()).text == "Hi."
    with pytest.raises(ConfigurationError, match="role"):
        await chat.replace([{"role": "wrong"}])
    with pytest.raises(ConfigurationError, match="Third"):
        await chat.replace([], agent=Agent(name="Third"))


# --- two writers ---


async def test_a_run_that_another_writer_has_overtaken() -> None:
    """It ends with Conflict, which has both histories; the store has that of the other writer."""
    store = MemoryStore()

    async def elsewhere() -> str:
        """Write with a store object of its own."""
        stored = await store.load("a")
        assert stored is not None
        await store.write("a", change(stored, user("from elsewhere")))
        return "done"

    agent = Agent(functions=[elsewhere])
    chat = store.conversation("a", swarm_of(call("elsewhere"), "unreachable", "Next."), agent=agent)
    with pytest.raises(Conflict, match="changed by another writer") as caught:
        await chat.run("Hi")
    conflict = caught.value
    assert conflict.stored is not None and conflict.stored.messages[-1] == user("from elsewhere")
    assert conflict.response is not None and conflict.response.stop == "error"
    assert [each["role"] for each in conflict.messages] == ["user", "assistant", "tool"]
    assert conflict.messages[-1]["content"] == "done"
    assert (await chat.load()).messages == conflict.stored.messages


async def test_decisions_are_about_one_revision() -> None:
    """If the conversation was changed since, nothing runs: an approval is not for a call that came later."""
    ran: list[int] = []

    @tool(approve=True)
    async def refund(amount: int) -> str:
        """Pay back."""
        ran.append(amount)
        return "paid"

    store = MemoryStore()
    script = [call("refund", call_id="c", amount=1), call("refund", call_id="c", amount=1000), "Paid."]
    chat = store.conversation("a", swarm_of(*script), agent=Agent(functions=[refund]))
    await chat.run("1")
    seen = await chat.load()
    await chat.run("1000")
    now = await chat.load()
    with pytest.raises(Conflict) as caught:
        await chat.resume(True, revision=seen.revision)
    assert (caught.value.stored, caught.value.messages, ran) == (now, now.messages, [])
    async with chat.resume_stream({"c": True}, revision=now.revision) as run:
        [_ async for _ in run]
    assert ran == [1000]
    assert await store.delete("a")
    with pytest.raises(Conflict, match="deleted"):
        await chat.resume(True, revision=now.revision)


def test_the_stores_are_public() -> None:
    """With the package that exports them."""
    for kind in (MemoryStore, SQLiteStore, PostgresStore, Conversation):
        assert kind.__module__ == "aswarm.conversations"


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_memory_store_may_be_used_from_several_event_loops() -> None:
    """Its conversations do not belong to one."""
    chat = chat_of("One.", "Two.")
    await chat.run("1")
    await asyncio.to_thread(asyncio.run, MemoryStore().load("a"))
    store = MemoryStore()

    def in_thread() -> None:
        asyncio.run(store.conversation("a", swarm_of("One."), agent=Agent()).run("1"))

    await asyncio.to_thread(in_thread)
    assert (await store.conversation("a", swarm_of("Two."), agent=Agent()).run("2")).text == "Two."
