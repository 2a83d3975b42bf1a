"""`Conversation`: the messages of a run, and the messages, agent and context variables that it writes to the store."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext, suppress
from typing import Any

import anyio
import pytest
from pydantic import BaseModel

from aswarm import (
    Agent,
    Approve,
    AsyncSwarm,
    Budget,
    CompletionError,
    ConfigurationError,
    Result,
    RunError,
    Swarm,
    ToolCallFinished,
    tool,
)
from aswarm.conversations import Conflict, Conversation, MemoryStore, last
from aswarm.guards import Block, Blocked, CheckedInput, Replace, guard_answer, guard_input
from aswarm.testing import Failure, ScriptedModel, call, check_history
from tests.support.conversations.stores import change, read, user


async def order(number: int) -> str:
    """Look an order up."""
    return f"order {number} is on its way"


def swarm_of(*script: Any) -> AsyncSwarm:
    """Return a swarm whose model answers from this script."""
    return AsyncSwarm(ScriptedModel(script).client())


def chat_of(*script: Any, agent: Agent | None = None, store: Any = None, **options: Any) -> Conversation:
    """A conversation in a store of its own."""
    store = store or MemoryStore()
    return store.conversation("a", swarm_of(*script), agent=agent or Agent(functions=[order]), **options)


async def test_a_conversation_that_was_never_written_is_empty() -> None:
    """It has the agent and a copy of the context variables with which it would start."""
    chat = chat_of(context_variables={"n": 1})
    stored = await chat.load()
    assert (stored.id, stored.revision, stored.messages, stored.agent) == ("a", "", [], "Agent")
    assert stored.context_variables == {"n": 1}
    stored.context_variables["n"] = 2
    assert (await chat.load()).context_variables == {"n": 1}


def escalate() -> Agent:
    """Hand over to a new agent."""
    return Agent(name=f"Agent {len('made here')}")


def clone() -> Agent:
    """Hand over to another agent with the name of the first."""
    return Agent(name="Agent", model="other")


TWINS = [Agent(name=f"Middle {n}", functions=[Agent(name="Twin", model=f"{n}")]) for n in range(2)]


@pytest.mark.parametrize(
    ("functions", "calls", "text"),
    [
        ([escalate], ["escalate"], r"handed over to the agent 'Agent 9'.*agents="),
        ([clone], ["clone"], "another agent of this name"),
        (TWINS, ["transfer_to_middle_0", "transfer_to_twin"], "more than one agent of this name can be found"),
    ],
    ids=["unknown", "an equal name", "two of one name"],
)
async def test_a_handoff_that_no_later_run_could_find_ends_the_run(functions: Any, calls: list[str], text: str) -> None:
    """The messages so far are in the store, with the agent before the handoff."""
    chat = chat_of(*map(call, calls), "unreachable", agent=Agent(functions=functions))
    with pytest.raises(ConfigurationError, match=text) as caught:
        await chat.run("Hi")
    stored = await chat.load()
    assert caught.value.response is not None
    assert stored.messages == [user("Hi"), *caught.value.response.messages]
    assert (stored.agent, stored.stop) == ("Agent" if len(calls) == 1 else "Middle 0", "error")
    check_history(stored.messages)


async def test_a_stored_agent_that_is_gone_is_an_error() -> None:
    """The error names the agent and the conversation; with the agent, the conversation continues."""
    store, old, new = MemoryStore(), Agent(name="Old"), Agent(name="New")
    await store.conversation("a", swarm_of("Hi."), agent=old).run("1")
    chat = store.conversation("a", swarm_of("Hi."), agent=new)
    with pytest.raises(ConfigurationError, match="conversation 'a' is with the agent 'Old'"):
        await chat.run("2")
    assert len((await chat.load()).messages) == 2
    assert (await store.conversation("a", swarm_of("Hi."), agent=new, agents=[old]).run("2")).agent is old


async def test_another_agent_may_take_over() -> None:
    """`agent=` of a run must be an agent that can be found again."""
    other = Agent(name="Other")
    chat = chat_of("Hi.", "Ho.", agents=[other])
    assert (await chat.run("1", agent=other)).agent is other
    assert (await chat.run("2")).agent is other
    with pytest.raises(ConfigurationError, match="handed over to the agent 'Third'"):
        await chat.run("3", agent=Agent(name="Third"))


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
        ({"swarm": Swarm(ScriptedModel([]).client())}, "needs an AsyncSwarm, not Swarm"),
    ],
)
async def test_wrong_arguments_of_a_conversation(arguments: dict[str, Any], text: str) -> None:
    """The error comes before a run."""
    with pytest.raises(ConfigurationError, match=text):
        MemoryStore().conversation("a", **{"swarm": swarm_of(), "agent": Agent(model="x"), **arguments})


async def test_context_variables_are_kept() -> None:
    """The variables of a tool, of a Result and of the caller of a run are kept."""

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
    """The write that meets it fails; the store has the history, and the value from before."""

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
    """A blocked message is not kept, because every later run would send it again; earlier messages stay."""
    model = ScriptedModel(["One.", *(["Four."] if guard == "answer" else []), "Two."])
    swarm = AsyncSwarm(model.client(), middleware=[GUARDS[guard]])
    chat = MemoryStore().conversation("a", swarm, agent=Agent())
    await chat.run("Hi")
    with pytest.raises(Blocked) if way != "caught inside" else nullcontext():
        if way == "run":
            await chat.run("Do my homework")
        async with chat.stream("Do my homework") as run:
            with pytest.raises(Blocked) if way == "caught inside" else nullcontext():
                _ = [event async for event in run]
    stored = await chat.load()
    assert ([each["content"] for each in stored.messages], stored.stop) == (["Hi", "One."], "error")
    assert (await chat.run("Hello again")).text == "Two."


async def test_calls_before_a_blocked_message_are_kept() -> None:
    """The calls have run, so only the message without an answer is left out."""
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
    """No later run or fork sends it, also with a `history` function; the user keeps the own message."""
    model = ScriptedModel([call("order", number=7), "One.", "Two.", "Three.", "Four."])
    swarm = AsyncSwarm(model.client(), middleware=[guard_input(hidden)])
    chat = MemoryStore().conversation("a", swarm, agent=Agent(functions=[order], history=history))
    for text in ("My card is 4111.", "Pay.", "And?"):
        await (chat.run(text) if way == "run" else read(chat.stream(text)))
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
    """The next run checks the message again, or has the replaced text."""

    @tool(approve=True)
    async def pay() -> str:
        return "paid"

    model = ScriptedModel([Failure(404) if left == "before the answer" else call("pay"), "One.", "Two."])
    swarm = AsyncSwarm(model.client(), middleware=[guard_input(hidden)])
    chat = MemoryStore().conversation("a", swarm, agent=Agent(functions=[pay]))
    with suppress(RunError):
        await chat.run("My card is 4111.")
    await chat.resume(Approve.all())
    await chat.run("And?")
    assert [request.body for request in model.requests if "4111" in str(request.body)] == []
    assert len(model.requests) == 3


@pytest.mark.parametrize(("wrong", "text"), [({7: 1}, "the name 7 is not a str"), ({"x": object()}, "x is")])
async def test_a_wrong_context_variable_of_a_caller_is_an_error(wrong: Any, text: str) -> None:
    """The error comes before anything is written or run."""
    chat = chat_of()
    with pytest.raises(ConfigurationError, match=text):
        await chat.run("Hi", wrong)
    assert (await chat.load()).revision == ""


class City(BaseModel):
    """An answer with a type."""

    name: str


async def test_a_run_has_the_arguments_of_the_swarm() -> None:
    """A run takes an output type, a model, an id, a limit of turns and a budget."""
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
    """The error comes before the message is written, and does not delay the next run."""
    chat = chat_of("Hi.")
    with pytest.raises(ConfigurationError):
        await chat.run(**{"messages": "Hi", **wrong})
    assert (await chat.load()).revision == ""
    assert (await chat.run("Hi")).text == "Hi."


@tool(approve=True)
async def refund(number: int) -> str:
    """Refund an order."""
    return f"refunded {number}"


def refunding(*script: Any, call_ids: str = "1") -> Conversation:
    """A conversation whose model calls `refund`."""
    calls = [call("refund", call_id=f"c{each}", number=int(each) + 6) for each in call_ids]
    return chat_of(calls, *script, agent=Agent(functions=[refund]))


@pytest.mark.parametrize("decision", [Approve.all(), {"c1": True}])
@pytest.mark.parametrize("way", ["run", "stream"])
async def test_an_approval_that_comes_later(way: str, decision: Any) -> None:
    """The waiting call is in the store; `resume` decides on it, and without a decision the call waits again."""
    chat = refunding("Refunded.")
    assert (await chat.run("Refund 7")).stop == "waiting"
    for _ in range(2):
        stored = await chat.load()
        assert [(each.id, each.reason) for each in stored.open_calls] == [("c1", "needs approval")]
        assert stored.stop == "waiting"
        assert (await chat.resume()).stop == "waiting"
    names: list[str] = []
    if way == "run":
        response = await chat.resume(decision)
    else:
        response = (await read(chat.resume_stream(decision), names)).response
        assert names[0] == "ToolCallStarted"
    assert (response.text, response.messages[0]["content"]) == ("Refunded.", "refunded 7")
    check_history((await chat.load()).messages)


async def test_a_caller_may_answer_calls_itself() -> None:
    """Tool messages before its own message are answers; the message closes the other calls, which were not run."""
    chat = refunding("Well.", "Good.", call_ids="12")
    await chat.run("Refund")
    answer = {"role": "tool", "tool_call_id": "c1", "content": "refused by a clerk"}
    with pytest.raises(ConfigurationError, match="open calls"):
        await chat.run([answer])
    await chat.run([answer, user("Well?")])
    stored = await chat.load()
    check_history(stored.messages)
    results = [each["content"] for each in stored.messages if each["role"] == "tool"]
    assert results == ["refused by a clerk", "not run: interrupted"]


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
    """A conversation without messages, or with an answer at its end, has nothing to resume; nothing is written."""
    chat = chat_of("Hi.")
    with pytest.raises(ConfigurationError, match="'a' has nothing to resume: it has no messages"):
        await chat.resume()
    await chat.run("Hi")
    before = await chat.load()
    for decision, text in (
        ((), "'a' has nothing to resume: its last message is an answer"),
        ((True,), "'a' has nothing to resume"),
        (({},), "'a' has nothing to resume"),
        ((Approve.all(),), "'a' has nothing to resume"),
        ((False,), "not False"),
        (({"c1": True},), "no open calls"),
    ):
        with pytest.raises(ConfigurationError, match=text):
            await chat.resume(*decision)
    assert await chat.load() == before


async def test_a_stream_is_entered_once() -> None:
    """A stream that was never entered, or was left before, delays no run."""
    chat = chat_of("Hi.", "Ho.")
    await chat.stream("never").__aexit__(None, None, None)
    stream = chat.stream("Hi")
    async with stream as run:
        with pytest.raises(RuntimeError, match="already entered"):
            await stream.__aenter__()
        assert [event async for event in run]
    with pytest.raises(RuntimeError, match="already entered"):
        await stream.__aenter__()
    assert (await chat.run("Ho")).text == "Ho."


async def test_a_stream_that_is_left_while_another_task_reads_it() -> None:
    """The error names the other task, and the next run does not wait."""
    reading = anyio.Event()

    async def wait() -> str:
        """Wait."""
        reading.set()
        await anyio.sleep(60)
        return ""

    chat = chat_of(call("wait"), "Next.", agent=Agent(functions=[wait]))
    stream = chat.stream("Hi")
    run = await stream.__aenter__()

    async def read_on() -> None:
        async for _ in run:
            pass

    async with anyio.create_task_group() as group:
        group.start_soon(read_on)
        await reading.wait()
        with pytest.raises(RuntimeError, match="read by another task"):
            await stream.__aexit__(None, None, None)
        group.cancel_scope.cancel()
    assert (await chat.run("And?")).text == "Next."


@pytest.mark.parametrize("at", range(5))
async def test_a_fork_from_any_message_is_valid(at: int) -> None:
    """Calls without an answer in the fork are open, and a new message closes them."""
    calls = [call("order", number=7), call("order", number=8)]
    chat = chat_of(calls, "Both.", "Yes.")
    await chat.run("Where?")
    fork = await chat.fork("b", until=at)
    check_history((await fork.load()).messages, allow_open=True)
    await fork.run("Really?")
    check_history((await fork.load()).messages)


@pytest.mark.parametrize("at", [-1, 3])
async def test_a_fork_at_no_message_is_an_error(at: int) -> None:
    """The error has the number of messages; a conversation that was never written cannot be forked either."""
    chat = chat_of("Hi.")
    with pytest.raises(ConfigurationError, match="no conversation 'a'"):
        await chat.fork("b")
    await chat.run("Hi")
    with pytest.raises(ConfigurationError, match=f"has 2 messages and cannot be forked at {at}"):
        await chat.fork("b", until=at)


async def test_a_history_may_be_replaced() -> None:
    """A program may import a history, or take the last messages back."""
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


async def test_a_run_that_another_writer_has_overtaken() -> None:
    """Conflict has both histories, and the store has the history of the other writer."""
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
    """If the conversation was changed since, nothing runs: an approval is not for a later call."""
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
        await chat.resume(Approve.all(), revision=seen.revision)
    assert (caught.value.stored, caught.value.messages, ran) == (now, now.messages, [])
    async with chat.resume_stream({"c": True}, revision=now.revision) as run:
        [_ async for _ in run]
    assert ran == [1000]
    assert await store.delete("a")
    with pytest.raises(Conflict, match="deleted"):
        await chat.resume(Approve.all(), revision=now.revision)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_memory_store_may_be_used_from_several_event_loops() -> None:
    """Its conversations do not belong to one event loop."""
    store = MemoryStore()

    def in_thread() -> None:
        asyncio.run(store.conversation("a", swarm_of("One."), agent=Agent()).run("1"))

    await asyncio.to_thread(in_thread)
    assert (await store.conversation("a", swarm_of("Two."), agent=Agent()).run("2")).text == "Two."
