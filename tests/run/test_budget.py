"""Budgets: what is checked before a request and a call, what the model is told, and what is left."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from typing import Any

import anyio
import pytest

from aswarm import (
    Agent,
    AsyncSwarm,
    Budget,
    BudgetError,
    CompletionRequest,
    ConfigurationError,
    Hold,
    Response,
    Result,
    RunFinished,
    Swarm,
    ToolCallFinished,
    ToolCallStarted,
    TurnStarted,
    agent_tool,
    tool,
)
from aswarm.testing import ScriptedAnswer, ScriptedModel, call, check_history
from tests.support.rate_limits.timed_models import client_of
from tests.support.run.ways_to_run import consume
from tests.support.runtime.virtual_time import jump, virtual_backend

pytestmark = pytest.mark.anyio
USAGE = {"prompt_tokens": 60, "completion_tokens": 40, "total_tokens": 100}


class Shop:
    """An agent with a few functions, what ran, and a model."""

    def __init__(self, *steps: Any, **options: Any) -> None:
        self.ran: list[Any] = []
        self.model = ScriptedModel(steps)
        self.swarm = AsyncSwarm(client_of(self.model), **options)

        async def look(at: int = 0) -> str:
            self.ran.append(at)
            return f"seen {at}"

        async def poll() -> str:
            self.ran.append("poll")
            return "pending"

        async def count() -> str:
            self.ran.append("count")
            return str(len(self.ran))

        self.agent = Agent(name="A", functions=[look, poll, count])

    async def run(self, budget: Budget | None = None, messages: Any = "Go", **options: Any) -> Response:
        """A run with this budget; its history is checked."""
        response = await self.swarm.run(self.agent, messages, budget=budget, **options)
        before = [{"role": "user", "content": "Go"}] if isinstance(messages, str) else messages
        check_history([*before, *response.messages], allow_open=response.stop in ("waiting", "tool_calls"))
        return response


def told(response: Response) -> list[str]:
    """The answers to calls."""
    return [each["content"] for each in response.messages if each["role"] == "tool"]


def looks(*places: int) -> list[Any]:
    """A turn with these calls."""
    return [call("look", at=place) for place in places]


# --- calls ------------------------------------------------------------------------------------------------------------


async def test_the_first_calls_run_and_the_others_are_told() -> None:
    """Of five calls and a limit of three, three run; the run stops before the next request."""
    shop = Shop(looks(0, 1, 2, 3, 4))
    response = await shop.run(Budget(tool_calls=3))
    assert sorted(shop.ran) == [0, 1, 2]
    refused = "not run: the budget of 3 tool calls is used up"
    assert told(response) == ["seen 0", "seen 1", "seen 2", refused, refused]
    assert (response.stop, response.spent, len(shop.model.requests)) == ("budget", "tool_calls", 1)


async def test_a_limit_that_is_just_reached_lets_the_model_answer() -> None:
    """Nothing was refused, so the run goes on to its answer."""
    shop = Shop(looks(0, 1, 2), "Done.")
    response = await shop.run(Budget(tool_calls=3))
    assert (response.stop, response.spent, response.text) == ("answer", None, "Done.")


async def test_calls_of_several_turns_count_together() -> None:
    """Two in the first turn leave one for the second."""
    shop = Shop(looks(0, 1), looks(2, 3))
    response = await shop.run(Budget(tool_calls=3))
    assert (sorted(shop.ran), told(response)[3]) == ([0, 1, 2], "not run: the budget of 3 tool calls is used up")


async def test_without_a_single_call() -> None:
    """0 runs nothing, and tells so."""
    shop = Shop(looks(0))
    response = await shop.run(Budget(tool_calls=0))
    assert (shop.ran, told(response)) == ([], ["not run: the budget of 0 tool calls is used up"])


async def test_one_tool_call() -> None:
    """The text counts as English does."""
    shop = Shop(looks(0, 1))
    assert told(await shop.run(Budget(tool_calls=1)))[1] == "not run: the budget of 1 tool call is used up"


async def test_refused_calls_are_events_too() -> None:
    """A reader sees them finished, and never started."""
    shop = Shop(looks(0, 1))
    async with shop.swarm.stream(shop.agent, "Go", budget=Budget(tool_calls=1)) as run:
        events = [event async for event in run if isinstance(event, ToolCallStarted | ToolCallFinished)]
    assert [(type(event), event.index) for event in events if event.index == 1] == [(ToolCallFinished, 1)]
    assert run.response.stop == "budget"


async def test_calls_that_are_not_run_here_stay_open() -> None:
    """With execute_tools=False the budget answers no call."""
    shop = Shop(looks(0, 1))
    response = await shop.run(Budget(tool_calls=0), execute_tools=False)
    assert (response.stop, told(response), len(response.waiting)) == ("tool_calls", [], 2)


async def test_a_resumed_call_counts_and_a_denied_one_does_not() -> None:
    """The limit is for calls that run."""
    shop = Shop(looks(0, 1, 2), "Done.")
    history = [{"role": "user", "content": "Go"}, *(await shop.run(execute_tools=False)).messages]
    ids = [each["id"] for each in history[-1]["tool_calls"]]
    response = await shop.run(Budget(tool_calls=1), history, resume={ids[0]: False, ids[1]: True, ids[2]: True})
    assert shop.ran == [1]
    assert told(response)[2] == "not run: the budget of 1 tool call is used up"


async def test_a_call_that_is_not_decided_yet_is_not_counted() -> None:
    """It does not run, so the next one may."""
    shop = Shop(looks(0, 1))
    history = [{"role": "user", "content": "Go"}, *(await shop.run(execute_tools=False)).messages]
    first, second = (each["id"] for each in history[-1]["tool_calls"])
    shop.agent.functions = [tool(concurrent=True)(shop.agent.functions[0])]
    response = await shop.run(Budget(tool_calls=1), history, resume={second: True})
    assert (response.stop, [each.id for each in response.waiting]) == ("waiting", [first])
    assert "not run: the budget of 1 tool call is used up" not in told(response)


async def test_calls_that_need_an_approval_are_counted_once_it_is_given() -> None:
    """Neither a limit that is reached nor a call beside them keeps them from the user."""
    shop = Shop([call("pay", call_id="a"), call("look", call_id="l"), call("pay", call_id="b")], "Done.")

    @tool(approve=True)
    def pay() -> str:
        shop.ran.append("pay")
        return "paid"

    shop.agent.functions.append(pay)
    first = await shop.run(Budget(tool_calls=1))
    assert ([each.id for each in first.waiting], shop.ran) == (["a", "l", "b"], [])
    history = [{"role": "user", "content": "Go"}, *first.messages]
    second = await shop.run(Budget(tool_calls=2), history, resume={"a": True, "l": True, "b": True})
    assert shop.ran == ["pay", 0]
    assert told(second) == ["paid", "seen 0", "not run: the budget of 2 tool calls is used up"]


async def test_a_call_that_waits_still_waits() -> None:
    """A call within the limit may ask; one above it is told that it does not run."""

    @tool(may_wait=True)
    async def ask() -> str:
        raise Hold("Sure?")

    shop = Shop([call("ask"), call("look", at=1)])
    shop.agent.functions.append(ask)
    response = await shop.run(Budget(tool_calls=1))
    assert (response.stop, [each.name for each in response.waiting]) == ("waiting", ["ask"])
    assert told(response) == ["not run: the budget of 1 tool call is used up"]


# --- requests ---------------------------------------------------------------------------------------------------------


async def test_turns() -> None:
    """The tools of the last completion still run; no request comes after them."""
    shop = Shop(looks(0), looks(1), looks(2))
    response = await shop.run(Budget(turns=2))
    assert (response.stop, response.spent, shop.ran) == ("budget", "turns", [0, 1])
    assert len(shop.model.requests) == 2


async def test_tokens() -> None:
    """A request is made as long as fewer were used."""
    steps = [ScriptedAnswer(calls=looks(place), usage=USAGE) for place in range(9)]
    shop = Shop(*steps)
    response = await shop.run(Budget(tokens=250))
    assert (response.spent, response.usage.total_tokens) == ("tokens", 300)


async def test_tokens_without_a_total() -> None:
    """Input and output are added up where the provider does not."""
    usage = {"prompt_tokens": 60, "completion_tokens": 40}
    shop = Shop(*(ScriptedAnswer(calls=looks(place), usage=usage) for place in range(9)))
    assert (await shop.run(Budget(tokens=100))).usage.requests == 1


async def test_tokens_that_no_provider_reports_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """The limit cannot hold then, and the log says so."""
    steps = [ScriptedAnswer(calls=looks(place), usage=None) for place in range(3)]
    shop = Shop(*steps, "Done.")
    response = await shop.run(Budget(tokens=100))
    warnings = [
        record for record in caplog.records if "reported no token count for a completion" in record.getMessage()
    ]
    assert (response.stop, len(warnings)) == ("answer", 1)
    assert warnings[0].run_id == response.run_id  # type: ignore[attr-defined]


async def test_an_answer_is_an_answer_whatever_it_used() -> None:
    """The limit is looked at before a request, and none follows."""
    shop = Shop(ScriptedAnswer("Done.", usage=USAGE))
    response = await shop.run(Budget(tokens=1, turns=1))
    assert (response.stop, response.spent) == ("answer", None)


async def test_max_turns_holds_too() -> None:
    """Whichever comes first."""
    shop = Shop(looks(0), looks(1))
    assert (await shop.run(Budget(turns=5), max_turns=1)).stop == "max_turns"
    assert (await Shop(looks(0)).run(Budget(turns=1, then="answer"), max_turns=1)).stop == "budget"


async def test_nothing_changes_without_a_limit() -> None:
    """An empty budget is no limit, and wins over that of the swarm."""
    shop = Shop(looks(0), "Done.", looks(0), budget=Budget(turns=1))
    assert (await shop.run(Budget())).text == "Done."
    assert (await shop.run()).spent == "turns"


# --- then -------------------------------------------------------------------------------------------------------------


async def test_then_raise() -> None:
    """BudgetError has the valid partial response, which names the limit."""
    shop = Shop(looks(0), looks(1))
    with pytest.raises(BudgetError, match="the budget of 1 turn is used up") as caught:
        await shop.run(Budget(turns=1, then="raise"))
    response = caught.value.response
    assert response is not None
    assert (response.stop, response.spent, told(response)) == ("error", "turns", ["seen 0"])


async def test_then_answer() -> None:
    """One last completion with the tools in the request, and no choice of one."""
    shop = Shop(looks(0, 1), "I found 0.")
    response = await shop.run(Budget(tool_calls=1, turns=1, then="answer"))
    assert (response.stop, response.spent, response.text) == ("budget", "tool_calls", "I found 0.")
    body = shop.model.requests[-1].body
    assert (body["tool_choice"], len(body["tools"])) == ("none", 3)


@pytest.mark.parametrize("stream", [False, True])
async def test_then_answer_over_the_responses_api(stream: bool) -> None:
    """The same choice, in the form of that API."""
    shop = Shop()
    model = ScriptedModel([looks(0), "I found 0."], api="responses")
    swarm = AsyncSwarm(model.client(), api="responses")
    left: list[Response] = []
    face = "stream" if stream else "run"
    await consume(swarm, shop.agent, face, left, budget=Budget(turns=1, tokens=15, then="answer"))
    body = model.requests[-1].body
    assert (left[0].text, body["tool_choice"], len(body["tools"])) == ("I found 0.", "none", 3)


async def test_a_model_that_calls_all_the_same_is_told_so() -> None:
    """Some servers ignore tool_choice: nothing runs, and no further request is made."""
    shop = Shop(looks(0), looks(1))
    response = await shop.run(Budget(turns=1, then="answer"))
    assert (shop.ran, told(response)[1]) == ([0], "not run: the budget of 1 turn is used up")
    assert (response.stop, len(shop.model.requests)) == ("budget", 2)


async def test_a_forced_choice_does_not_survive_the_last_completion() -> None:
    """tool_choice of the agent or of its settings is replaced."""
    for forced in ({"tool_choice": "required"}, {"model_settings": {"tool_choice": "required"}}):
        shop = Shop(looks(0), "Done.")
        shop.agent = Agent(name="A", functions=shop.agent.functions, **forced)
        await shop.run(Budget(turns=1, then="answer"))
        assert [request.body["tool_choice"] for request in shop.model.requests] == ["required", "none"]


# --- seconds ----------------------------------------------------------------------------------------------------------

VIRTUAL = pytest.mark.parametrize(
    "anyio_backend", [virtual_backend("asyncio"), virtual_backend("trio")], ids=["asyncio", "trio"]
)


async def slow() -> str:
    """Takes a minute."""
    await anyio.sleep(60)
    return "slept"


class SlowSource:
    """A source that says "Hello", waits for a minute, and says " there". The second answer comes at once."""

    def __init__(self) -> None:
        self.choices: list[Any] = []
        self.closed = 0

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        """Answer."""
        self.choices.append(request.body.get("tool_choice"))
        try:
            yield chunk("Hello")
            await anyio.sleep(0 if len(self.choices) > 1 else 60)
            yield chunk(" there", "stop")
        finally:
            self.closed += 1


def chunk(text: str, finish_reason: str | None = None) -> dict[str, Any]:
    """A piece of an answer."""
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish_reason}]}


@VIRTUAL
async def test_a_call_is_cut_at_the_deadline() -> None:
    """Its outcome is unknown; the one after it is not begun; the history is valid."""

    @tool(concurrent=False)
    async def later() -> str:
        raise AssertionError

    shop = Shop([call("look"), call("slow"), call("later")])
    shop.agent.functions += [slow, later]
    began = anyio.current_time()
    response = await shop.run(Budget(seconds=10))
    assert anyio.current_time() - began < 11
    assert (response.stop, response.spent) == ("budget", "seconds")
    assert told(response) == [
        "seen 0",
        "cancelled; its outcome is unknown (the budget of 10 seconds is used up)",
        "not run: the budget of 10 seconds is used up",
    ]
    assert [each.name for each in response.unknown_calls] == ["slow"]


@VIRTUAL
@pytest.mark.parametrize("then", ["stop", "answer"])
async def test_instructions_are_cut_at_the_deadline(then: Any) -> None:
    """Instructions that take too long are given up, and nothing is asked with them."""

    async def instructions() -> str:
        await anyio.sleep(60)
        return "Be brief."

    shop = Shop("Hello.")
    shop.agent.instructions = instructions
    began = anyio.current_time()
    response = await shop.run(Budget(seconds=10, then=then))
    assert anyio.current_time() - began < (11 if then == "stop" else 80)
    assert (response.stop, response.spent, len(shop.model.requests)) == ("budget", "seconds", then == "answer")


@VIRTUAL
async def test_a_call_that_waits_for_a_limiter_has_not_begun() -> None:
    """It is told that it was not run."""
    token = anyio.CapacityLimiter(1)
    token.acquire_on_behalf_of_nowait("other")
    shop = Shop([call("guarded")])
    shop.agent.functions.append(tool(limiter=token, name="guarded")(slow))
    assert told(await shop.run(Budget(seconds=0.5))) == ["not run: the budget of 0.5 seconds is used up"]


@VIRTUAL
@pytest.mark.parametrize("face", ["stream", "run(stream=True)"])
@pytest.mark.parametrize("then", ["stop", "answer", "raise"])
async def test_a_completion_is_cut_at_the_deadline(face: str, then: Any) -> None:
    """Its text is `partial` and in no message; the source is closed; `then` decides what follows."""
    source = SlowSource()
    agent, swarm, budget = Agent(functions=[slow]), AsyncSwarm(source), Budget(seconds=10, then=then)
    left: list[Response] = []
    if then == "raise":
        with pytest.raises(BudgetError) as caught:
            await consume(swarm, agent, face, left, budget=budget)
        assert caught.value.partial == "Hello"
    else:
        await consume(swarm, agent, face, left, budget=budget)
    assert (left[0].spent, left[0].stop) == ("seconds", "error" if then == "raise" else "budget")
    assert left[0].text == ("Hello there" if then == "answer" else "")
    assert source.choices == ([None, "none"] if then == "answer" else [None])
    assert source.closed == len(source.choices)


@VIRTUAL
@pytest.mark.parametrize("then", ["stop", "answer"])
async def test_swarms_events_of_a_cut_completion(then: Any) -> None:
    """Each start has its end, also that of the completion that was cut."""
    run = AsyncSwarm(SlowSource()).run(Agent(), "Hi", stream=True, budget=Budget(seconds=10, then=then))
    marks = [event["delim"] async for event in run if "delim" in event]
    assert marks == ["start", "end"] * (1 if then == "stop" else 2)


@VIRTUAL
async def test_the_text_of_a_cut_completion_is_partial() -> None:
    """As after every other end of a run."""
    async with AsyncSwarm(SlowSource()).stream(Agent(), "Hi", budget=Budget(seconds=10)) as run:
        assert isinstance([event async for event in run][-1], RunFinished)
    assert (run.partial, run.response.messages, run.response.stop) == ("Hello", [], "budget")


@VIRTUAL
async def test_a_reader_that_takes_its_time_uses_up_the_seconds() -> None:
    """They count from the start of the run; what has arrived already is still an answer."""
    source = SlowSource()
    source.choices.append(None)
    async with AsyncSwarm(source).stream(Agent(), "Hi", budget=Budget(seconds=10)) as run:
        async for event in run:
            if isinstance(event, TurnStarted):
                await anyio.sleep(11)
    assert (run.response.stop, len(source.choices)) == ("budget", 1)  # the request was not sent


async def use_up(started: threading.Event, over: threading.Event | None = None) -> None:
    """Let a budget of 60 seconds be over when a function has started. `over`: set when the run knows it."""
    await anyio.to_thread.run_sync(started.wait, 120)
    jump(60)
    await anyio.sleep(0)
    await anyio.wait_all_tasks_blocked()
    if over is not None:
        over.set()


async def test_a_function_in_a_thread_is_waited_for() -> None:
    """It cannot be stopped, so its outcome is known, and the run stops after it."""
    shop, over = Shop([call("block"), call("look")]), threading.Event()
    started = threading.Event()

    def block() -> str:
        started.set()
        assert over.wait(120)
        return "done"

    shop.agent.functions.append(block)
    async with anyio.create_task_group() as group:
        group.start_soon(use_up, started, over)
        response = await shop.run(Budget(seconds=60))
    assert told(response) == ["done", "not run: the budget of 60 seconds is used up"]
    assert (response.spent, response.unknown_calls) == ("seconds", [])


async def test_a_function_that_may_be_abandoned_is_left() -> None:
    """The run does not wait for it, and says that it may still be running."""
    started, ended = threading.Event(), threading.Event()

    @tool(abandon_on_cancel=True)
    def block() -> str:
        started.set()
        ended.wait(120)
        return "done"

    shop = Shop([call("block")])
    shop.agent.functions.append(block)
    async with anyio.create_task_group() as group:
        group.start_soon(use_up, started)
        response = await shop.run(Budget(seconds=60))
    ended.set()
    expected = "cancelled; its outcome is unknown; it may still be running (the budget of 60 seconds is used up)"
    assert told(response) == [expected]
    assert [each.name for each in response.unknown_calls] == ["block"]


# --- repeats ----------------------------------------------------------------------------------------------------------


async def test_the_same_call_with_the_same_result() -> None:
    """After three times the model is told, after six attempts the run stops; white space and order of keys are no change."""
    steps = [call("look", '{"at": 1}'), call("look", '{ "at":1 }')] * 4
    shop = Shop(*steps)
    response = await shop.run(Budget(repeats=3))
    refused = "not run: this call was made 3 times with this result: 'seen 1'"
    assert told(response) == ["seen 1"] * 3 + [refused] * 3
    assert (shop.ran, response.spent) == ([1, 1, 1], "repeats")


@pytest.mark.parametrize(
    ("limit", "steps", "ran"),
    [
        (2, [[call("look")] * 5, call("look"), "I see."], 5),
        (2, [call("look"), call("look"), [call("look"), call("look")], "I see."], 2),
        (1, [call("look"), call("look"), "I see."], 1),
    ],
    ids=["in one turn", "twice in a turn", "once"],
)
async def test_the_model_reads_what_it_was_told_before_the_run_ends(limit: int, steps: list[Any], ran: int) -> None:
    """However many calls of one turn were refused: only asking again in a later turn ends the run."""
    shop = Shop(*steps)
    response = await shop.run(Budget(repeats=limit))
    assert (response.stop, response.text, len(shop.ran)) == ("answer", "I see.", ran)


async def test_other_results_are_no_repetition() -> None:
    """A function whose answer changes may be called as often as it likes."""
    shop = Shop(*[call("count")] * 5, "Done.")
    assert (await shop.run(Budget(repeats=2))).text == "Done."


async def test_something_new_lets_a_call_run_again() -> None:
    """A result that was not seen the last time is progress; two calls that take turns are not."""
    shop = Shop(*looks(1, 1), *looks(2), *looks(1, 1), "Done.")
    assert (await shop.run(Budget(repeats=2))).text == "Done."
    shop = Shop(*looks(1, 2) * 9)
    assert (await shop.run(Budget(repeats=2))).spent == "repeats"
    assert shop.ran == [1, 2, 1, 2, 1]  # the first of each was new


async def test_a_function_that_polls_is_not_counted() -> None:
    """It has the same result until something has changed; beside it, other calls still repeat."""
    shop = Shop(*[call("wait_for_it")] * 5, "Done.")

    @tool(polls=True)
    async def wait_for_it() -> str:
        return "pending"

    shop.agent.functions.append(wait_for_it)
    assert (await shop.run(Budget(repeats=2))).text == "Done."
    shop.model = ScriptedModel([call("wait_for_it"), call("look")] * 9)
    shop.swarm = AsyncSwarm(shop.model.client())
    assert (await shop.run(Budget(repeats=2))).spent == "repeats"


async def test_errors_repeat_too() -> None:
    """Bad arguments, again and again."""
    shop = Shop(*[call("look", "[]")] * 9)
    assert (await shop.run(Budget(repeats=1))).spent == "repeats"


async def test_calls_with_broken_arguments_are_compared_as_text() -> None:
    """They are no JSON."""
    shop = Shop(*[call("look", "{")] * 9)
    assert (await shop.run(Budget(repeats=2))).usage.requests == 4


# --- handoffs ---------------------------------------------------------------------------------------------------------


def pair(*, as_functions: bool = False) -> Agent:
    """Two agents that can hand over to each other; B has a function."""
    a, b = Agent(name="A"), Agent(name="B")

    async def work() -> str:
        return "worked"

    def transfer_to_a() -> Result:
        return Result(value="to A", agent=a, context_variables={"seen": True})

    a.functions = [b]
    b.functions = [transfer_to_a if as_functions else a, work]
    return a


BACK_AND_FORTH = [call("transfer_to_b"), call("transfer_to_a")] * 9


@pytest.mark.parametrize("as_functions", [False, True])
async def test_handing_back_and_forth(as_functions: bool) -> None:
    """One way back is allowed; the next one back is told, and the one after it stops the run."""
    model = ScriptedModel([*BACK_AND_FORTH[:3], *[call("transfer_to_b")] * 2])
    agent = pair(as_functions=as_functions)
    swarm = AsyncSwarm(model.client())
    response = await swarm.run(agent, "Go", budget=Budget(handoffs=1))
    texts = told(response)
    refused = (
        "not handed over to B: the conversation was handed back once with nothing done in between; answer the user, or "
        "call another function"
    )
    assert (texts[2], response.agent.name, response.spent) == (refused, "A", "handoffs")
    assert len(model.requests) == 4
    check_history([{"role": "user", "content": "Go"}, *response.messages])


async def test_a_refused_handoff_keeps_the_context() -> None:
    """The function has run; only its handoff does not happen."""
    response = await AsyncSwarm(ScriptedModel([*BACK_AND_FORTH[:2], "Fine."]).client()).run(
        pair(as_functions=True), "Go", budget=Budget(handoffs=0)
    )
    assert (response.agent.name, response.context_variables, response.text) == ("B", {"seen": True}, "Fine.")


async def test_work_between_handoffs_lets_them_begin_again() -> None:
    """A conversation that does something between its handoffs goes in no circle."""
    steps = [call("transfer_to_b"), call("work"), call("transfer_to_a")]
    response = await AsyncSwarm(ScriptedModel([*steps * 3, "Done."]).client()).run(
        pair(), "Go", budget=Budget(handoffs=1)
    )
    assert response.text == "Done."


async def test_a_chain_of_agents_is_no_circle() -> None:
    """Only ways back count."""
    last = Agent(name="C")
    model = ScriptedModel([call("transfer_to_b"), call("transfer_to_c"), "Hi."])
    agent = Agent(name="A", functions=[Agent(name="B", functions=[last])])
    response = await AsyncSwarm(model.client()).run(agent, "Go", budget=Budget(handoffs=0))
    assert (response.text, response.agent.name) == ("Hi.", "C")


# --- runs inside tools ------------------------------------------------------------------------------------------------


class Nested:
    """An agent whose function runs another agent, which looks at two places, and then answers."""

    def __init__(self, *steps: Any, inner: Budget | None = None, **options: Any) -> None:
        self.ran: list[int] = []
        self.inner: list[Response] = []

        async def look(at: int) -> str:
            self.ran.append(at)
            return f"seen {at}"

        async def ask() -> str:
            self.inner.append(await self.swarm.run(Agent(name="inner", functions=[look]), "Look", budget=inner))
            return self.inner[-1].text or f"stopped: {self.inner[-1].spent}"

        self.model = ScriptedModel(steps)
        self.swarm = AsyncSwarm(self.model.client(), **options)
        self.agent = Agent(name="outer", functions=[ask])


async def test_usage_of_a_run_inside_a_tool_counts_for_the_outer_run() -> None:
    """With a budget or without one."""
    nested = Nested(call("ask"), looks(1), "Inner.", "Outer.")
    response = await nested.swarm.run(nested.agent, "Go")
    assert (response.text, response.usage.requests, nested.inner[0].usage.requests) == ("Outer.", 4, 2)
    assert response.usage.total_tokens == 60


@pytest.mark.parametrize(
    ("budget", "spent"),
    [
        (Budget(tool_calls=2), "tool_calls"),
        (Budget(turns=2), "turns"),
        (Budget(tokens=30), "tokens"),
        (Budget(cost=0.00003, prices={"gpt-6-luna": (1.0, 1.0)}), "cost"),
    ],
)
async def test_a_run_inside_a_tool_shares_the_budget(budget: Budget, spent: str) -> None:
    """It stops, whatever `then` says, which is for the run that has the budget."""
    nested = Nested(call("ask"), looks(1, 2), "Outer answers.")
    response = await nested.swarm.run(nested.agent, "Go", budget=replace(budget, then="answer"))
    assert (nested.inner[0].stop, nested.inner[0].spent) == ("budget", spent)
    assert told(response) == [f"stopped: {spent}"]
    assert (response.stop, response.spent, response.text) == ("budget", spent, "Outer answers.")


async def test_a_budget_of_its_own_holds_too() -> None:
    """The inner limit ends the inner run alone."""
    nested = Nested(call("ask"), looks(1, 2), "Outer.", inner=Budget(tool_calls=1))
    response = await nested.swarm.run(nested.agent, "Go", budget=Budget(tool_calls=9))
    assert (nested.inner[0].spent, response.stop) == ("tool_calls", "answer")


async def test_the_budget_of_the_swarm_holds_for_each_run_and_over_all() -> None:
    """The inner run has the default too, and shares that of the outer one."""
    nested = Nested(call("ask"), looks(1, 2, 3), "Never.", budget=Budget(tool_calls=3))
    response = await nested.swarm.run(nested.agent, "Go")
    assert (sorted(nested.ran), nested.inner[0].spent, response.spent) == ([1, 2], "tool_calls", "tool_calls")


async def test_an_agent_as_a_tool_shares_the_budget() -> None:
    """The outer model is told why there is no answer, and its last completion follows."""
    shop = Shop(call("inner", request="Look"), looks(1, 2), "Outer answers.")
    outer = Agent(name="outer", functions=[agent_tool(Agent(name="inner", functions=shop.agent.functions))])
    response = await shop.swarm.run(outer, "Go", budget=Budget(tool_calls=2, then="answer"))
    assert told(response) == ["The agent inner stopped without an answer: the budget is used up."]
    assert (shop.ran, response.text, response.usage.requests) == ([1], "Outer answers.", 3)


@pytest.mark.parametrize("levels", [1, 2])
@pytest.mark.parametrize("is_default", [False, True])
async def test_circles_of_handoffs_inside_agents_as_tools(*, is_default: bool, levels: int) -> None:
    """The inner run ends as the outer one would, and the outer model reads why there is no answer."""
    agent, asks, answers = pair(), list[Any](), list[Any]()
    for level in range(levels):
        agent = Agent(name=f"Outer {level}", functions=[agent_tool(agent, name="below")])
        asks.append(call("below", request="Go"))
        answers.append(f"Answer {level}.")
    model = ScriptedModel([*asks, *BACK_AND_FORTH[:3], call("transfer_to_b"), *answers])
    budget = Budget(handoffs=1)
    swarm = AsyncSwarm(model.client(), budget=budget if is_default else None)
    response = await swarm.run(agent, "Go", budget=None if is_default else budget)
    assert (response.text, response.stop, response.spent) == (answers[-1], "answer", None)
    assert "The agent A stopped without an answer: the budget is used up." in str(model.requests[levels + 4].messages)


@pytest.mark.parametrize("kind", ["agent tool", "function"])
async def test_repeated_calls_of_a_run_inside_a_tool(kind: str) -> None:
    """They are counted in each run by itself."""
    steps = [looks(1), looks(1), looks(1), looks(1)]
    begin = call("inner", request="x") if kind == "agent tool" else call("ask")
    nested = Nested(begin, *steps, "Outer.")
    if kind == "agent tool":
        shop = Shop()
        inner = Agent(name="inner", functions=shop.agent.functions)
        nested.agent, nested.ran = Agent(functions=[agent_tool(inner)]), shop.ran
    response = await nested.swarm.run(nested.agent, "Go", budget=Budget(repeats=2))
    assert (nested.ran, response.text, response.spent) == ([1, 1], "Outer.", None)
    assert [each.spent for each in nested.inner] == (["repeats"] if kind == "function" else [])


async def test_two_inner_runs_may_make_the_same_call() -> None:
    """A new inner run counts from 0, and a limit of its own holds if it is lower."""
    steps = [call("inner", request="x"), looks(1), "One.", call("inner", request="y"), looks(1), "Two.", "Outer."]
    shop = Shop(*steps)
    agent = Agent(functions=[agent_tool(Agent(name="inner", functions=shop.agent.functions))])
    assert (await shop.swarm.run(agent, "Go", budget=Budget(repeats=1))).text == "Outer."
    assert shop.ran == [1, 1]
    nested = Nested(call("ask"), looks(1), looks(1), looks(1), "Outer.", inner=Budget(repeats=1))
    await nested.swarm.run(nested.agent, "Go", budget=Budget(repeats=9))
    assert (nested.ran, nested.inner[0].spent) == ([1], "repeats")


@VIRTUAL
async def test_the_deadline_of_the_outer_run_cuts_the_inner_one() -> None:
    """As any other call."""
    source = SlowSource()

    async def ask() -> str:
        return (await AsyncSwarm(source).run(Agent(), "Hi")).text

    shop = Shop(call("ask"))
    shop.agent.functions.append(ask)
    response = await shop.run(Budget(seconds=10))
    assert told(response) == ["cancelled; its outcome is unknown (the budget of 10 seconds is used up)"]
    assert source.closed == 1


async def test_a_blocking_run_in_a_thread_counts_too() -> None:
    """A plain function that uses `Swarm` is in the call of its run as well."""
    inner = ScriptedModel(["Inner."])

    def ask() -> str:
        return Swarm(inner.client()).run(Agent(), "Hi").text

    shop = Shop(call("ask"), "Outer.")
    shop.agent.functions.append(ask)
    assert (await shop.run(Budget(turns=9))).usage.requests == 3


async def test_a_run_that_begins_after_the_call_has_a_budget_of_its_own() -> None:
    """A worker that a tool has started, and that outlives the call, is no part of the run."""
    shop = Shop(call("begin"), "Done.", "Later.")
    responses: list[Response] = []
    may_run = anyio.Event()

    async def work() -> None:
        await may_run.wait()
        responses.append(await shop.swarm.run(Agent(), "Hi"))

    async def begin() -> str:
        group.start_soon(work)
        return "begun"

    shop.agent.functions.append(begin)
    async with anyio.create_task_group() as group:
        response = await shop.run(Budget(turns=2))
        may_run.set()
    assert (responses[0].text, response.usage.requests) == ("Later.", 2)


# --- bad input --------------------------------------------------------------------------------------------------------


async def test_what_is_no_budget() -> None:
    """A dict or a number is a mistake, for a run and for a swarm."""
    shop = Shop("Hi")
    for wrong in ({"turns": 1}, 3):
        with pytest.raises(ConfigurationError, match="budget must be a Budget"):
            await shop.swarm.run(shop.agent, "Go", budget=wrong)  # type: ignore[call-overload]
        with pytest.raises(ConfigurationError, match="budget must be a Budget"):
            AsyncSwarm(shop.model.client(), budget=wrong)  # type: ignore[arg-type]


async def test_the_error_names_the_cost() -> None:
    """In dollars, as the budget has it."""
    shop = Shop(call("look"), "Done.")
    budget = Budget(cost=0.01, prices={"gpt-6-luna": (1000.0, 1000.0)}, then="raise")
    with pytest.raises(BudgetError, match=r"the budget of \$0.01 is used up"):
        await shop.run(budget)
