"""Small runs against a scripted model, whose outcomes are tables of the pages: how runs end, and the texts that the model reads.

Only the words for the rows are written by hand: the outcomes come from these runs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.lowlevel

from aswarm import (
    Agent,
    Approve,
    AsyncSwarm,
    Budget,
    Deny,
    Hold,
    Response,
    Swarm,
    TextDelta,
    ToolCallFinished,
    ToolError,
    external_tool,
    tool,
)
from aswarm import Reply as given
from aswarm.conversations import Conversation, MemoryStore
from aswarm.guards import Block, guard_answer, guard_tool
from aswarm.middleware import Middleware
from aswarm.testing import Failure, ScriptedAnswer, ScriptedModel, Step, call, check_history
from aswarm.tools import ToolFailure

USER = {"role": "user", "content": "Go"}
SECONDS = 30.0  # nothing here takes as long


# --- the functions of the scenes --------------------------------------------------------------------------------------


async def quick() -> str:
    """Answer at once."""
    return "done"


async def later(context_variables: dict[str, Any]) -> str:
    """Run alone, after the calls before it."""
    return f"later {len(context_variables)}"


async def broken() -> str:
    """Fail."""
    raise ValueError("no such order")


@tool(may_wait=True)
async def ask() -> str:
    """Wait for a person."""
    raise Hold("Really?")


def _raise(failure: ToolFailure) -> str:
    raise RuntimeError(failure.text)


# --- how a run ends ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Exit:
    """A way in which a run ends. `cancel_at`: set once the run is to be cancelled; `is_left`: its reader leaves."""

    words: str
    script: Sequence[Step]
    agent: Agent = field(default_factory=lambda: Agent(functions=[quick, later, broken, ask]))
    options: dict[str, Any] = field(default_factory=dict)
    of_swarm: dict[str, Any] = field(default_factory=dict)
    cancel_at: anyio.Event | None = None
    is_left: bool = False


def exits() -> list[Exit]:
    """All ways, new each time."""
    cancel_at = anyio.Event()

    async def slow() -> str:
        """Never answer."""
        for _ in range(50):
            await anyio.lowlevel.checkpoint()  # until the end of the call beside it
        cancel_at.set()
        await anyio.sleep(SECONDS)
        return "late"

    twice = Agent(functions=[Agent(name="other", functions=[tool(name="a")(quick), tool(name="a")(later)])])
    return [
        Exit("the model answers", ["Hello."]),
        Exit("`max_turns` is reached", [call("quick")], options={"max_turns": 1}),
        Exit("`execute_tools=False`, and the model calls something", [call("quick")], options={"execute_tools": False}),
        Exit("a call waits for a decision", [[call("quick"), call("ask"), call("later")]]),
        Exit("a limit of a budget", [call("quick"), call("quick")], options={"budget": Budget(turns=1)}),
        Exit(
            'a limit of a budget, with `then="raise"`',
            [call("quick"), call("quick")],
            options={"budget": Budget(turns=1, then="raise")},
        ),
        Exit("no answer has the output type", ["x"] * 5, options={"output": int}),
        Exit("the provider refuses or fails", [call("quick"), Failure(400, message="no")]),
        Exit("the stream breaks", [call("quick"), ScriptedAnswer("Hello there", break_after=2)]),
        Exit("`tool_error=` raises", [[call("quick"), call("broken")]], of_swarm={"tool_error": _raise}),
        Exit(
            "a guard blocks the answer",
            [call("quick"), "Hello."],
            of_swarm={"middleware": [guard_answer(lambda _: Block("no"))]},
        ),
        Exit("an agent after a handoff cannot be used", [call("transfer_to_other")], agent=twice),
        Exit(
            "cancelled, or a timeout, while calls run",
            [[call("quick"), call("slow"), call("later")]],
            agent=Agent(functions=[quick, slow, later]),
            cancel_at=cancel_at,
        ),
        Exit("the reader leaves in the middle of the answer", ["Hello there"], is_left=True),
    ]


@dataclass(frozen=True)
class Outcome:
    """The end of a run: the `stop`, the type of the exception, and the answer to each call."""

    stop: str
    raised: str
    calls: tuple[str, ...]

    def __str__(self) -> str:
        return f"`{self.stop}`" + (f", {self.raised}" if self.raised else "")


Way = Callable[[Exit, AsyncSwarm, ScriptedModel, list[Response]], Awaitable[None]]


async def by_run(exit_: Exit, swarm: AsyncSwarm, _: ScriptedModel, left: list[Response]) -> None:
    """`await swarm.run(...)`."""
    try:
        left.append(await swarm.run(exit_.agent, [USER], **exit_.options))
    except BaseException as error:
        left.append(error.response)  # type: ignore[attr-defined]
        raise


async def by_classic_stream(exit_: Exit, swarm: AsyncSwarm, _: ScriptedModel, left: list[Response]) -> None:
    """`async for ... in swarm.run(..., stream=True)`."""
    run = swarm.run(exit_.agent, [USER], stream=True, **exit_.options)
    try:
        async for event in run:
            if exit_.is_left and event.get("content"):
                break
    finally:
        await run.aclose()
        left.append(run.response)


async def by_stream(exit_: Exit, swarm: AsyncSwarm, _: ScriptedModel, left: list[Response]) -> None:
    """`async with swarm.stream(...)`."""
    run = swarm.stream(exit_.agent, [USER], **exit_.options)
    try:
        async with run:
            async for event in run:
                if exit_.is_left and isinstance(event, TextDelta):
                    break
    finally:
        left.append(run.response)


async def by_conversation(exit_: Exit, swarm: AsyncSwarm, _: ScriptedModel, left: list[Response]) -> None:
    """A run of a stored conversation; the history comes from the store."""
    store = MemoryStore()
    kept = Conversation(store, "c", swarm, agent=exit_.agent)
    runs = []
    try:
        async with kept.stream("Go", **exit_.options) as run:
            runs.append(run)
            async for event in run:
                if exit_.is_left and isinstance(event, TextDelta):
                    break
    finally:
        with anyio.CancelScope(shield=True):
            stored = await store.load("c")
        assert stored is not None
        left.append(runs[0].response.model_copy(update={"messages": stored.messages[1:]}))


async def by_swarm(exit_: Exit, _: AsyncSwarm, model: ScriptedModel, left: list[Response]) -> None:
    """`Swarm().stream(...)`, without `await`."""

    def read() -> None:
        with Swarm(model.client(), **exit_.of_swarm) as swarm:
            run = swarm.stream(exit_.agent, [USER], **exit_.options)
            try:
                with run:
                    for event in run:
                        if exit_.is_left and isinstance(event, TextDelta):
                            break
            finally:
                left.append(run.response)

    await anyio.to_thread.run_sync(read)


WAYS: dict[str, Way] = {
    "`run()`": by_run,
    "`run(stream=True)`": by_classic_stream,
    "`stream()`": by_stream,
    "`Swarm`": by_swarm,
    "`Conversation`": by_conversation,
}


async def outcome(exit_: Exit, way: Way) -> Outcome | None:
    """End a run in this way, and return its outcome; None if this way of running cannot end so."""
    if (exit_.is_left and way is by_run) or (exit_.cancel_at and way is by_swarm):
        return None
    left: list[Response] = []
    raised = ""
    model = ScriptedModel(exit_.script)
    async with model.client() as client:
        swarm = AsyncSwarm(client, **exit_.of_swarm)
        with anyio.CancelScope() as scope:
            try:
                async with anyio.create_task_group() as group:
                    if exit_.cancel_at:
                        group.start_soon(_cancel_at, exit_.cancel_at, scope)
                    await _carry_out(way(exit_, swarm, model, left))
            except* Exception as errors:
                (error,) = errors.exceptions
                raised = f"`{type(error).__name__}`"
        if scope.cancelled_caught:
            raised = "the cancellation"
    (response,) = left
    check_history([USER, *response.messages], allow_open=True)
    return Outcome(response.stop, raised, _calls(response))


async def _carry_out(run: Awaitable[None]) -> None:
    with anyio.fail_after(SECONDS):
        await run


async def _cancel_at(moment: anyio.Event, scope: anyio.CancelScope) -> None:
    await moment.wait()
    scope.cancel()


def _calls(response: Response) -> tuple[str, ...]:
    answers = {each["tool_call_id"]: each["content"] for each in response.messages if each["role"] == "tool"}
    made = [each["id"] for message in response.messages for each in message.get("tool_calls") or ()]
    return tuple(answers.get(each, "(open)") for each in made)


# --- the texts for the model -------------------------------------------------------------------------------------------


async def book(city: str, nights: int = 1) -> str:
    """Book a room."""
    return f"{nights} in {city}"


async def refuse() -> str:
    """Refuse with a text for the model."""
    raise ToolError("No such order. Ask for the number on the invoice.")


@tool(timeout=0.01)
async def wait() -> str:
    """Take too long."""
    await anyio.sleep(SECONDS)
    return "late"


async def rows() -> list[dict[str, Any]]:
    """Return data."""
    return [{"id": 1, "name": "Zoë"}]


async def nothing() -> None:
    """Return nothing."""


@tool(approve=True)
async def refund(order: int) -> str:
    """Need an approval."""
    return f"refunded {order}"


locate = external_tool(
    name="locate", description="Run in the browser.", parameters={"type": "object", "properties": {}}
)


@dataclass(frozen=True)
class Told:
    """A call, and the text that the model reads. `error`: the type of the exception in `ToolCallFinished.error`."""

    words: str
    text: str
    error: str = ""


async def told() -> list[Told]:
    """Return the text that the model reads in each case."""
    one, two = Agent(name="one"), Agent(name="two")
    refunded, repeats = ([refund], [call("refund", order=7)]), [call("quick")] * 5
    before, after = guard_tool(before=lambda _: Block("not now")), guard_tool(after=lambda _: Block("not now"))
    cases: dict[str, tuple[Any, ...]] = {  # the functions, the script, the decision, the budget and the guard
        "a text is returned": ([quick], [call("quick")]),
        "data is returned: a dict, a list, a dataclass, a model of pydantic": ([rows], [call("rows")]),
        "None is returned": ([nothing], [call("nothing")]),
        "an agent is returned: a handoff": ([one], [call("transfer_to_one")]),
        "the second of two calls of a turn that hand off": (
            [one, two],
            [[call("transfer_to_one"), call("transfer_to_two")]],
        ),
        "the agent has no such tool": ([quick, book], [call("find")]),
        "the arguments are not JSON": ([book], [call("book", '{"city": ')]),
        "the arguments are not an object": ([book], [call("book", '["Rome"]')]),
        "arguments are missing, wrong or unknown": ([book], [call("book", nights="two", stars=3)]),
        "the function raised": ([broken], [call("broken")]),
        "the function raised `ToolError`": ([refuse], [call("refuse")]),
        "the function took longer than its `timeout`": ([wait], [call("wait")]),
        "a person denied the call": (*refunded, Deny("Too late.")),
        "a person denied the call without a reason": (*refunded, Deny()),
        "a person changed the arguments": (*refunded, Approve({"order": 8})),
        "a person gave a text as the result": (*refunded, "We sent a new one."),
        "the call ran in another program, and the answer is data": (
            [locate],
            [call("locate")],
            given({"city": "Rome"}),
        ),
        "the limit `tool_calls` of the budget is reached": ([quick], repeats, None, Budget(tool_calls=1)),
        "the limit `repeats` of the budget is reached": ([quick], repeats, None, Budget(repeats=2)),
        "a guard blocks the call": ([quick], [call("quick")], None, None, before),
        "a guard blocks the result": ([quick], [call("quick")], None, None, after),
    }
    return [
        *[Told(words, *await _asked(*case)) for words, case in cases.items()],
        Told("the call was cancelled after its function had started", await _cancelled()),
        Told("the call was open, and a new message came", await _open_before_a_message()),
    ]


async def _asked(
    functions: list[Any],
    script: Sequence[Step],
    decision: Any = None,
    budget: Budget | None = None,
    guard: Middleware | None = None,
) -> tuple[str, str]:
    """The last tool message of a run of the script, and the type of its error."""
    error = ""
    steps = iter(script)
    model = ScriptedModel(lambda _: next(steps, "Done."))
    async with (
        model.client() as client,
        AsyncSwarm(client, middleware=[guard] if guard else []).stream(
            Agent(functions=functions), [USER], budget=budget
        ) as run,
    ):
        async for event in run:
            if isinstance(event, ToolCallFinished):
                error = f"`{type(event.error).__name__}`" if event.error else ""
    messages = run.response.messages
    if decision is not None:
        (waiting,) = run.response.open_calls
        async with model.client() as client:
            swarm = AsyncSwarm(client)
            response = await swarm.run(run.response.agent, [USER, *messages], resume={waiting.id: decision})
        messages = response.messages
    texts = [message["content"] for message in messages if message["role"] == "tool"]
    return texts[-1], error


async def _cancelled() -> str:
    (exit_,) = (each for each in exits() if each.cancel_at)
    left = await outcome(exit_, by_run)
    assert left is not None
    return left.calls[1]


async def _open_before_a_message() -> str:
    model = ScriptedModel([call("quick"), "Done."])
    async with model.client() as client:
        swarm, agent = AsyncSwarm(client), Agent(functions=[quick])
        first = await swarm.run(agent, [USER], execute_tools=False)
        await swarm.run(agent, [USER, *first.messages, USER])
    return str(model.requests[-1].messages[-2]["content"])
