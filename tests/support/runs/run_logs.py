"""Logs of scripted runs with every kind of call: drawn by hypothesis, and cut anywhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
import anyio.lowlevel
from hypothesis import strategies as st

from aswarm import (
    Agent,
    AsyncSwarm,
    Hold,
    Reply,
    Response,
    Result,
    RunError,
    ToolError,
    current_call,
    external_tool,
    progress,
    tool,
)
from aswarm import open_calls as waiting_calls
from aswarm._record.entries import Entry
from aswarm._record.entry_maker import EntryMaker
from aswarm._record.fold import Folded, fold
from aswarm._runtime import seams
from aswarm.middleware import Handlers
from aswarm.testing import Failure, ScriptedModel, call
from aswarm.testing import ScriptedAnswer as Scripted

USER = {"role": "user", "content": "Go"}
NAMES = (
    "look",
    "fail",
    "note",
    "put",
    "drop",
    "ask",
    "page_open",
    "question",
    "hand",
    "report",
    "missing",
    "transfer_to_b",
)
Json = dict[str, Any]
Check = Callable[[Any, Folded, Response], None]


async def _work() -> None:
    for _ in range(30):  # so that a reader keeps up with the run
        await anyio.lowlevel.checkpoint()


async def look(n: int) -> str:
    await _work()
    return f"found {n}"


async def fail(n: int) -> str:
    await _work()
    raise ToolError(f"no {n}")


async def note(n: int) -> Result:
    await _work()
    return Result(value="noted", context_variables={"note": n})


async def put(context_variables: dict[str, Any], n: int) -> str:
    await _work()
    context_variables[f"key {n}"] = [n]
    return "put"


async def drop(context_variables: dict[str, Any], n: int) -> str:
    await _work()
    context_variables.pop("kept", None)
    return "dropped"


@tool(approve=True)
async def ask(n: int) -> str:
    await _work()
    return f"asked {n}"


@tool(may_wait=True)
async def question(n: int) -> str:
    await _work()
    if not current_call().is_approved:
        raise Hold("Which one?", data={"n": n})
    return f"{current_call().answer}"


async def report(n: int) -> str:
    progress({"done": n})
    await _work()
    return "reported"


page_open = external_tool(
    name="page_open",
    description="Opens a page.",
    parameters={"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
)


def unhurried(handlers: Handlers) -> Handlers:
    """Wrap a run with a middleware that makes each call slow, also a call that does nothing."""

    async def call_tool(each: Any, context: Any, started: Any, /) -> Any:
        await _work()
        outcome = await handlers.call_tool(each, context, started)
        await _work()
        return outcome

    return replace(handlers, call_tool=call_tool)


def agents() -> dict[str, Agent]:
    """Return two agents that hand off to each other, with functions of every kind."""
    a, b = Agent(name="A"), Agent(name="B")

    async def hand(n: int) -> Agent:
        await _work()
        return b

    own = [look, fail, note, put, drop, ask, question, report, page_open]
    a.functions, b.functions = [*own, hand, b], own
    return {"A": a, "B": b}


@dataclass
class Scene:
    """The script of the model, and the decisions of the user after a run that waits. `cut`: of the model's stream."""

    script: Sequence[Any]
    decided: Mapping[str, Any] = field(default_factory=dict)  # by the name of the function
    cut: int | None = 3
    max_turns: int = 8
    concurrent: bool = False


@dataclass
class Logged:
    """The logs of the runs of a scene, each with the history before it, and the last response."""

    logs: list[list[Entry]] = field(default_factory=list)
    histories: list[list[Json]] = field(default_factory=list)
    responses: list[Response] = field(default_factory=list)

    @property
    def messages(self) -> list[Json]:
        return [*self.histories[-1], *fold(self.logs[-1]).messages]


async def logged(scene: Scene, check: Check | None = None) -> Logged:
    """Run a scene: one run, and another run with decisions after each run that waits."""
    found, history, resume = Logged(), list[Json](), False
    model = ScriptedModel(list(scene.script), cut=scene.cut)
    context: Json = {"kept": 1}
    async with AsyncSwarm(
        client=model.client(max_retries=0), concurrent_tools=scene.concurrent, middleware=[unhurried]
    ) as swarm:
        agent = agents()["A"]
        for number in range(4):
            new = [] if resume else [USER]
            log, response = await _run(swarm, agent, history, new, resume, context, f"run{number}", scene, check)
            found.logs.append(log)
            found.histories.append(history)
            found.responses.append(response)
            history, agent, context = [*history, *new, *response.messages], response.agent, response.context_variables
            history = json.loads(json.dumps(history))
            resume = _decided(history, scene.decided) if response.stop == "waiting" else False
            if not resume:
                break
    return found


async def _run(
    swarm: AsyncSwarm,
    agent: Agent,
    history: list[Json],
    new: list[Json],
    resume: Any,
    context: Json,
    run_id: str,
    scene: Scene,
    check: Check | None,
) -> tuple[list[Entry], Response]:
    maker = EntryMaker(history)
    log = [maker.started(run_id, "chat", agent, new, resume=resume, context_variables=context)]
    try:
        async with swarm.stream(
            agent, [*history, *new], context, run_id=run_id, resume=resume, max_turns=scene.max_turns
        ) as run:
            async for event in run:
                log += maker.event(event, run._state)
                if check is not None:
                    check(event, fold(log), run.response)
        return log, run.response
    except RunError as error:
        return [*log, *maker.failed(error, None, run._state.turn)], error.response or Response()


def _decided(history: list[Json], decided: Mapping[str, Any]) -> dict[int, Any]:
    return {each.index: decided[each.name] for each in waiting_calls(history) if each.name in decided}


def closed(log: Sequence[Entry], end: str, *, with_response: bool = True) -> list[Entry]:
    """Return a log that was cut, with the last entry of a run that failed ("RunFailed") or was left ("RunStopped")."""
    folded = fold(log)
    fields: Json = {"reason": "cancelled"}
    if end == "RunFailed":
        fields = {"error": {"type": "RunError", "message": "secret", "public_message": "The run ended with an error."}}
    if with_response:
        fields["response"] = {
            "messages": folded.response_messages,
            "agent": folded.active_agent,
            "context_variables": folded.context,
            "stop": "cancelled",
            "usage": folded.usage,
            "waiting": [],
        }
    return [*log, Entry(log[-1].seq + 1, log[-1].at_ms + 1, end, fields)]


# --- drawn scenes -----------------------------------------------------------------------------------------------------

_IDS = ("c1", "c2", "c3", "c1~2", "x/y")
_texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)


@st.composite
def _calls(draw: st.DrawFn, names: Sequence[str]) -> list[Any]:
    found = []
    for name in draw(st.lists(st.sampled_from(names), min_size=1, max_size=4)):
        call_id = draw(st.sampled_from(_IDS))
        bad = draw(st.sampled_from(["", "", "", "", "[1]", '{"n": ', "n"]))
        arguments = {} if name == "transfer_to_b" else {"n": draw(st.integers(0, 9))}
        found.append(call(name, bad or None, call_id=call_id, **({} if bad else arguments)))
    return found


@st.composite
def scenes(draw: st.DrawFn, *, names: Sequence[str] = NAMES, concurrent: bool = False) -> Scene:
    """Draw a scene: turns with reasoning, text and calls; ends with an answer, a refusal, a failure, or a limit."""
    script: list[Any] = []
    for _ in range(draw(st.integers(0, 4))):
        extra = draw(st.sampled_from([{}, {}, {"reasoning_content": "Let me think."}]))
        text = draw(st.none() | _texts)
        script.append(Scripted(text, draw(_calls(names)), extra))
    script += draw(
        st.sampled_from(
            [
                [Scripted("The end.")],
                [Scripted("The", finish_reason="length")],
                [Scripted(None, extra={"refusal": "I will not."})],
                [Failure(500)],
                [Scripted("The end is not here", break_after=3)],
                [Scripted(None, [call("look", call_id="c9", n=1)], break_after=3)],
            ]
        )
    )
    script += [Scripted("Again.")] * 4
    decided = {
        "ask": draw(st.sampled_from([True, False, {"deny": "too late"}, {"approve": {"arguments": {"n": 7}}}])),
        "question": draw(st.sampled_from([Reply("this"), False])),
        "page_open": draw(st.sampled_from([Reply({"title": "Home"}), False])),
    }
    skipped = draw(st.sets(st.sampled_from(sorted(decided)), max_size=2))
    return Scene(
        script,
        {name: decision for name, decision in decided.items() if name not in skipped},
        cut=draw(st.sampled_from([None, 1, 3, 7])),
        max_turns=draw(st.sampled_from([2, 8])),
        concurrent=concurrent,
    )


def logged_now(scene: Scene, check: Check | None = None) -> Logged:
    ticks = iter(range(1_000, 1_000_000))  # milliseconds
    with seams.replaced({}, {"time": lambda: (next(ticks) + 0.5) / 1000}):
        return anyio.run(logged, scene, check)
