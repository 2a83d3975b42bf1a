"""The moments at which a waiting run can be left, and the checks after each."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import anyio

from aswarm import Agent, Approve, AsyncSwarm, Response
from aswarm.middleware import Middleware
from aswarm.testing import ScriptedAnswer, call, check_history
from tests.support.leaving.run_scenes import (
    BOUND,
    HANDOFF,
    INTERRUPTED,
    UNKNOWN,
    USER,
    Deeds,
    Journey,
    Scene,
    answered,
    client_of,
    made_calls,
    settle,
    until,
)
from tests.support.providers.loopback import Reply, serve, spoken
from tests.support.providers.transports import Transport

# --- moments ----------------------------------------------------------------------------------------------------------

Api = Literal["chat", "responses", "anthropic"]
Body = dict[str, Any]
Speech = Callable[[Body], Reply]  # from a request of either API to the reply of the server


def says(answer: ScriptedAnswer) -> Speech:
    """Send a correct answer."""
    return lambda body: spoken(answer, body)


def says_nothing(_: Body) -> Reply:
    """Read the request, and send nothing."""
    return Reply([], silent=True)


def says_only_the_head(_: Body) -> Reply:
    """Send status and headers, and no byte of the body."""
    return Reply([], end="stall")


def says_half(body: Body) -> Reply:
    """Send an answer that stops in the middle of its text."""
    reply = spoken(ScriptedAnswer("Hello, world"), body, cut=5)
    if body.get("stream"):
        return Reply(first_half(reply), end="stall")
    return Reply([reply.pieces[0][:40]], end="stall", content_type="application/json")


def first_half(reply: Reply) -> list[bytes]:
    """Return the pieces of a stream up to the piece with "Hello"."""
    said = next(number for number, piece in enumerate(reply.pieces) if b"Hello" in piece)
    return list(reply.pieces[: said + 1])


@dataclass(frozen=True)
class Moment:
    """The moment at which a run is left, and its expected results: `answers` by function name, `open` calls, `agent`.

    `speech` answers the first request. `inner` answers the second request, from an agent inside a call.
    """

    speech: Speech
    reached: Callable[[Scene, Journey], object]
    answers: Mapping[str, str] = field(default_factory=dict)
    open: tuple[str, ...] = ()
    agent: str = "first"
    partial: str = ""
    holds_response: bool = False
    inner: Speech | None = None


def in_tools(*calls: str, started: tuple[str, ...], **kept: Any) -> Moment:
    """Return a moment with these calls of the model, of which these have started (or finished)."""
    return Moment(
        says(ScriptedAnswer(calls=[call(name) for name in calls])),
        lambda scene, _: set(started) <= set(scene.deeds.started),
        **kept,
    )


def asked(scene: Scene, _: Journey) -> bool:
    """Return whether the server has read the request."""
    return bool(scene.server.requests)


def asks_helper(*before: str) -> Speech:
    """Return calls of these functions, and of the agent that is a tool."""
    return says(ScriptedAnswer(calls=[*(call(name) for name in before), call("helper", request="Help.")]))


MOMENTS: dict[str, Moment] = {
    "before the head": Moment(says_nothing, asked, holds_response=True),
    "before the first byte": Moment(says_only_the_head, asked, holds_response=True),
    "mid-token": Moment(
        says_half, lambda scene, run: asked(scene, run) and run.has_read_half, partial="Hello", holds_response=True
    ),
    "async tool": in_tools("slow", started=("slow",), answers={"slow": UNKNOWN}),
    "function in a thread": in_tools("plain", started=("plain",), answers={"plain": "plain done"}),
    "thread, then another": in_tools(
        "plain", "later", started=("plain",), answers={"plain": "plain done"}, open=("later",)
    ),
    "several in one group": in_tools(
        *("fast", "slow", "slow_too", "later"),
        started=("fast", "slow", "slow_too"),
        answers={"fast": "fast done", "slow": UNKNOWN, "slow_too": UNKNOWN},
        open=("later",),
    ),
    "waiting for a limiter": in_tools(
        "fast", "limited", started=("fast",), answers={"fast": "fast done"}, open=("limited",)
    ),
    "shielded cleanup": in_tools("guarded", started=("guarded",), answers={"guarded": UNKNOWN}),
    "after a handoff": in_tools(
        *("transfer_to_other", "slow", "later"),
        started=("slow",),
        answers={"transfer_to_other": HANDOFF, "slow": UNKNOWN, "later": INTERRUPTED},
        agent="other",
    ),
    "beside a call that waits for a decision": Moment(
        says(ScriptedAnswer(calls=[call(name) for name in ("fast", "slow", "waits", "later")])),
        lambda scene, _: scene.deeds.asked and {"fast", "slow"} <= set(scene.deeds.started),
        {"fast": "fast done", "slow": UNKNOWN},
        open=("waits", "later"),
    ),
    "in the function that tells its progress": in_tools("tells", started=("tells",), answers={"tells": UNKNOWN}),
    "in the completion of an agent as a tool": Moment(
        asks_helper(), lambda scene, _: len(scene.server.requests) == 2, {"helper": UNKNOWN}, inner=says_only_the_head
    ),
    "in a function of an agent as a tool": Moment(
        asks_helper("fast"),
        lambda scene, _: {"fast", "slow"} <= set(scene.deeds.started),
        {"helper": UNKNOWN, "fast": "fast done"},
        inner=says(ScriptedAnswer(calls=[call("slow")])),
    ),
    "beside an agent as a tool that waits": Moment(
        asks_helper("slow"),
        lambda scene, _: scene.deeds.asked and "slow" in scene.deeds.started,
        {"slow": UNKNOWN},
        open=("helper",),
        inner=says(ScriptedAnswer(calls=[call("waits")])),
    ),
    "between turns": Moment(
        says(ScriptedAnswer(calls=[call("fast")])), lambda scene, _: scene.is_between_turns, {"fast": "fast done"}
    ),
}


# --- a scene, and a run in it -----------------------------------------------------------------------------------------


@asynccontextmanager
async def scene_of(
    moment: Moment, api: Api = "chat", middleware: Sequence[Middleware] = (), transport: Transport = "httpx"
) -> AsyncIterator[Scene]:
    """Open the scene of a moment, over one of the APIs. The first request gets its speech, every other request "done"."""
    speeches = dict(enumerate([moment.speech, moment.inner or says(ScriptedAnswer("done"))], 1))

    def reply(body: Body) -> Reply:
        return speeches.get(len(server.requests), says(ScriptedAnswer("done")))(body)

    deeds = Deeds()
    async with serve(reply) as server, client_of(server, transport, api) as client:
        scene = Scene(
            server,
            AsyncSwarm(client, api=api, middleware=middleware),
            deeds,
            Agent(name="first", functions=deeds.tools()),
        )
        if moment is MOMENTS["between turns"]:
            scene.agent.instructions = scene.instructions
        deeds.token.acquire_on_behalf_of_nowait(scene)
        await settle()
        scene.tasks = len(anyio.get_running_tasks())
        yield scene
        assert {"input" in body for body in server.requests} == {api == "responses"}


async def check_left(scene: Scene, moment: Moment, journey: Journey, finished_at: float) -> None:
    """Check the promises of every way of leaving: nothing runs, and the history is valid and can be continued."""
    assert scene.deeds.running == 0, "a tool still runs"
    if moment.holds_response:
        await until(lambda: scene.server.closed_at)
        assert scene.server.closed_at[0] - finished_at < BOUND
    await until(lambda: scene.server.open_now == 0)
    if journey.partial is not None:
        assert journey.partial == moment.partial
    check_kept(moment, journey.response)
    if "guarded" in scene.deeds.started:
        assert scene.deeds.cleaned == ["guarded"], "a shielded cleanup was cut short"
    await check_continues(scene, journey.response)


def check_kept(moment: Moment, response: Response) -> None:
    """Check that the response is valid, and has everything until then."""
    check_history([USER, *response.messages], allow_open=True)
    assert response.stop == "cancelled"
    assert response.agent is not None
    assert response.agent.name == moment.agent
    asked_for = made_calls(response.messages)
    answers = {message["tool_name"]: message["content"] for message in response.messages if message["role"] == "tool"}
    assert answers == moment.answers
    assert tuple(name for name in asked_for if name not in answers) == moment.open
    assert tuple(each.name for each in response.open_calls) == moment.open
    asking = [each.name for each in response.open_calls if each.reason is not None]
    assert asking == [name for name in moment.open if name in ("waits", "helper")]


async def check_continues(scene: Scene, response: Response) -> None:
    """Check that the conversation can be finished from the response, and that nothing runs twice."""
    open_before = set(made_calls(response.messages)) - set(answered(response.messages))
    scene.deeds.gate.set()
    scene.deeds.token.release_on_behalf_of(scene)
    assert response.agent is not None
    history = [USER, *response.messages]
    end = await scene.swarm.run(response.agent, history, response.context_variables, resume=Approve.all())
    assert end.text == "done"
    check_history([*history, *end.messages])
    assert max(Counter(scene.deeds.started).values(), default=1) == 1, "a call was run twice"
    asked_inside = {"helper": "waits"}
    assert {asked_inside.get(name, name) for name in open_before} <= set(scene.deeds.finished), (
        "an open call was never run"
    )
