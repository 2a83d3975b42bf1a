"""`guard_input`: the effect of each verdict, in each way to run, and reports about guards of other packages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any

import anyio
import pytest

from aswarm import (
    Agent,
    AsyncSwarm,
    Budget,
    CompletionError,
    ConfigurationError,
    OutputError,
    Response,
    RunError,
    ToolCallFinished,
    Usage,
)
from aswarm.guards import Block, Blocked, CheckedInput, Replace, Say, guard_answer, guard_input
from aswarm.middleware import CompletionRequest, Handlers, Middleware, fallback
from aswarm.testing import Failure, ScriptedModel, call
from tests.support.guards.guarded import WAYS, Scene
from tests.support.leaving.run_scenes import client_of, until
from tests.support.middleware.middlewares import Chunks
from tests.support.providers.loopback import Reply, serve

INFINITE = float("inf")
EVERY_WAY = pytest.mark.parametrize("way", WAYS)
PARALLEL = pytest.mark.parametrize("parallel", [True, False])


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: str) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


# --- reports about guards of openai-agents-python ---------------------------------------------------------------------


@EVERY_WAY
@pytest.mark.parametrize("count", [0, 3, 200])
async def test_a_block_shows_nothing_and_runs_nothing(way: str, count: int) -> None:
    """The answer was streamed before the guard tripped (#300), and the tools ran on after the exception (#991)."""
    scene = Scene()
    with pytest.raises(Blocked):
        await scene.run(guard_input(scene.check(Block("no"), count)), way=way)
    await anyio.sleep(0.01)
    assert (scene.seen, scene.worked, scene.open_streams, len(scene.asked)) == ([], 0, 0, 1)


@EVERY_WAY
@PARALLEL
@pytest.mark.parametrize("moment", ["before", "between"])
async def test_a_block_does_not_wait_for_the_model(way: str, parallel: bool, moment: str) -> None:
    """The guard tripped before the first chunk of the model, and the reader waited for ever (#1622)."""
    scene = Scene(**{moment: INFINITE})
    with anyio.fail_after(60), pytest.raises(Blocked) as caught:
        await scene.run(guard_input(scene.check(Block("no")), parallel=parallel), way=way)
    assert (scene.seen, scene.worked, scene.open_streams) == ([], 0, 0)
    assert caught.value.response is not None
    if moment == "before" or way in ("run(stream=True)", "stream"):
        assert caught.value.response.usage == Usage()  # the tokens of a completion that was cut are not estimated


@PARALLEL
@pytest.mark.parametrize("stream", [True, False])
async def test_a_block_closes_the_connection(parallel: bool, stream: bool) -> None:
    """The connection to a server that does not answer is closed, over a real socket."""

    def check(checked: CheckedInput) -> Any:
        async def when_asked() -> Block:
            if parallel:
                await until(lambda: server.requests)
            return Block("no")

        return when_asked()

    async with serve(lambda body: Reply([], silent=True)) as server, client_of(server) as client:
        swarm = AsyncSwarm(client, middleware=[guard_input(check, parallel=parallel)])
        with anyio.fail_after(60), pytest.raises(Blocked):
            await Scene().read(swarm, "stream" if stream else "run")
        await until(lambda: server.open_now == 0)
        assert len(server.requests) == parallel


# --- the verdicts -----------------------------------------------------------------------------------------------------


@EVERY_WAY
@PARALLEL
async def test_a_pass_changes_nothing(way: str, parallel: bool) -> None:
    """A run whose guard lets everything pass is equal to a run without a guard, event by event."""
    plain, guarded = Scene(), Scene()
    expected = await plain.run(way=way)
    response = await guarded.run(guard_input(guarded.check(), parallel=parallel), way=way)
    assert (response.messages, response.usage) == (expected.messages, expected.usage)
    assert list(map(str, guarded.seen)) == list(map(str, plain.seen))


@PARALLEL
async def test_a_block_leaves_a_valid_history_without_the_completion(parallel: bool) -> None:
    """The error has the name of the check and the reason; a conversation can continue from its response."""
    scene = Scene()
    with pytest.raises(Blocked, match=r"the check check blocked the run: no homework$") as caught:
        await scene.run(guard_input(scene.check(Block("no homework")), parallel=parallel))
    error = caught.value
    assert isinstance(error, RunError)
    assert (error.reason, error.check) == ("no homework", "check")
    assert error.response is not None
    assert (error.response.messages, error.response.stop, error.partial) == ([], "error", "")


@EVERY_WAY
@PARALLEL
async def test_a_text_in_place_of_the_answer(way: str, parallel: bool) -> None:
    """The text of the check replaces the answer of the model in the events and in the response."""
    scene = Scene()
    response = await scene.run(guard_input(scene.check(Say("Ask me about trains.")), parallel=parallel), way=way)
    assert (response.text, response.stop, len(response.messages)) == ("Ask me about trains.", "answer", 1)
    assert (scene.worked, scene.open_streams) == (0, 0)
    if way != "run":
        assert "Ask me about trains." in str(scene.seen)
        assert "Let me see" not in str(scene.seen)


@EVERY_WAY
@pytest.mark.parametrize(
    ("verdict", "tokens", "requests"),
    [(Block(), 15, 1), (ValueError("broken"), 15, 1), (Say("No."), 15, 1), (Replace("Hello"), 30, 2)],
    ids=["block", "failed", "say", "replace"],
)
async def test_a_completion_that_ended_before_the_verdict_was_paid_for(
    way: str, verdict: Any, tokens: int, requests: int
) -> None:
    """The tokens of a completion that no reader sees count in the usage, and for the budget."""
    scene = Scene(calls=(), between=0)
    guard = guard_input(scene.check(verdict, 100))
    try:
        response: Response | None = await scene.run(guard, way=way, budget=Budget(tokens=100))
    except Blocked as error:
        response = error.response
    assert response is not None
    assert (response.usage.total_tokens, response.usage.requests) == (tokens, requests)


async def test_a_text_in_place_of_an_answer_with_a_type_holds_for_the_run() -> None:
    """A run whose answer must have a type asks again, and the model still gets nothing."""
    scene = Scene(calls=())
    # The message in which the run asks again would pass the check.
    guard = guard_input(lambda checked: Say("No.") if "bad" in checked.text else None)
    with pytest.raises(OutputError, match="asked again once"):
        await scene.run(guard, messages="bad", output=int)
    assert scene.asked == []


# --- a message in place of the user's ---------------------------------------------------------------------------------


def hidden(checked: CheckedInput) -> Replace | None:
    """Replace a card number in the messages of the user since the last answer."""
    return Replace(checked.text.replace("4111", "***")) if "4111" in checked.text else None


def always(content: Any) -> Middleware:
    """Replace every message of the user but "And?"."""
    return guard_input(lambda checked: None if checked.text == "And?" else Replace(content))


def users_of(model: ScriptedModel) -> list[list[Any]]:
    """Return the contents of the user's messages in each request."""
    return [[each["content"] for each in request.messages if each["role"] == "user"] for request in model.requests]


@EVERY_WAY
@PARALLEL
@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_later_runs_send_the_replacement(way: str, parallel: bool, api: Any) -> None:
    """The history has the original, and beside it the replacement. No reader gets a chunk with the replacement."""
    script = [call("work"), "One.", "Two.", "Three."]
    model = ScriptedModel([call("work"), *script] if parallel else script, api=api, cut=3)
    guard = guard_input(Scene().check(hidden), parallel=parallel)
    scene, history = Scene(), [user("My card"), user("is 4111.")]
    first = await scene.read(AsyncSwarm(model.client(), middleware=[guard]), way, history)
    assert "***" not in str([each for each in scene.seen if type(each).__name__ != "CompletionFinished"])
    history += [*first.messages, user("And?")]
    assert "4111" in str(history)
    asked = len(model.requests)
    for swarm in (AsyncSwarm(model.client(), middleware=[guard]), AsyncSwarm(model.client())):
        await swarm.run(scene.agent(), history)
    assert "4111" not in json.dumps([request.body for request in model.requests[asked:]])
    assert users_of(model)[asked:] == [["My card\nis ***.", "And?"]] * 2


@pytest.mark.parametrize(
    ("script", "middleware", "answer", "content"),
    [
        (["One."], [always("")], "One.", ""),
        (["One."], [always([{"type": "text", "text": "***"}])], "One.", [{"type": "text", "text": "***"}]),
        ([Failure(404), "One."], [fallback("other"), always("***")], "One.", "***"),
        (["One."], [guard_answer(lambda checked: Say("...")), always("***")], "...", "***"),
        (["One."], [always("***"), guard_answer(lambda checked: Say("..."))], "...", "***"),
    ],
    ids=["empty", "parts", "a second attempt", "a guard of answers outside", "a guard of answers inside"],
)
async def test_a_replacement_survives_other_middleware(
    script: list[Any], middleware: Sequence[Any], answer: str, content: Any
) -> None:
    """The next run sends any content, after a failed attempt of a fallback, and beside a guard that replaces the answer."""
    model = ScriptedModel([*script, "Two."])
    swarm = AsyncSwarm(model.client(), middleware=middleware)
    first = await swarm.run(Agent(), "4111")
    await swarm.run(Agent(), [user("4111"), *first.messages, user("And?")])
    sent = [[each["content"] for each in request.messages if each["role"] != "system"] for request in model.requests]
    assert sent == [*[[content]] * len(script), [content, answer, "And?"]]


async def test_each_turn_may_replace_again() -> None:
    """A later replacement replaces the earlier one, also in later runs. An equal message of an earlier turn stays."""
    model = ScriptedModel(["Yes.", call("work"), call("work"), "Two.", "Three."])
    verdicts, seen = iter([None, Replace("1"), Replace("2"), None, None]), list[str]()

    def check(checked: CheckedInput) -> Replace | None:
        seen.append(checked.text)
        return next(verdicts)

    swarm = AsyncSwarm(model.client(), middleware=[guard_input(check, every="turn")])
    history: list[Any] = []
    for text in ("Hi", "Hi", "And?"):
        history.append(user(text))
        history += (await swarm.run(Scene().agent(), history)).messages
    assert [contents[-1] for contents in users_of(model)] == ["Hi", "1", "2", "2", "And?"]
    assert users_of(model)[-1] == ["Hi", "2", "And?"]
    assert seen == ["Hi", "Hi", "1", "2", "And?"]


async def test_a_message_that_is_sent_during_the_run_is_kept() -> None:
    """The replacement of the first message does not replace the second one, which the check lets pass."""
    model = ScriptedModel([call("work"), "One.", "Two."])
    guard = guard_input(lambda checked: None if "ok" in checked.text else hidden(checked))
    swarm = AsyncSwarm(model.client(), middleware=[guard])
    async with swarm.stream(Scene().agent(), "4111") as run:
        async for event in run:
            if isinstance(event, ToolCallFinished):
                run.send("ok")
    await swarm.run(Scene().agent(), [user("4111"), *run.response.messages, user("ok?")])
    assert users_of(model) == [["***"], ["***", "ok"], ["***", "ok", "ok?"]]


@pytest.mark.parametrize("content", [None, 7, [7]])
async def test_a_replacement_in_a_history_that_cannot_be_sent(content: Any) -> None:
    """The error names its place."""
    history = [user("Hi"), {**assistant("Yes"), "sent_input": content}, user("And?")]
    with pytest.raises(ConfigurationError, match=r"sent_input of messages\[1\]"):
        await AsyncSwarm(ScriptedModel([]).client()).run(Agent(), history)


async def test_a_replacement_of_no_message_blocks() -> None:
    """Without a message of the user since the last answer the run is blocked."""
    scene = Scene(calls=())
    history = [user("Hi"), assistant("Yes"), {"role": "system", "content": "!"}]
    with pytest.raises(Blocked, match="the user has sent nothing since the last answer"):
        await scene.run(guard_input(lambda checked: Replace("x")), messages=history)
    assert scene.asked == []


# --- the calls of a check ---------------------------------------------------------------------------------------------


def asking_twice(kind: type[Exception]) -> Middleware:
    """Middleware that requests the completion again after an error of this class."""

    def wrap(handlers: Handlers) -> Handlers:
        async def complete(request: CompletionRequest) -> Chunks:
            with suppress(kind):
                async with aclosing(handlers.complete(request.copy())) as chunks:
                    received = [chunk async for chunk in chunks]
                for chunk in received:
                    yield chunk
                return
            async with aclosing(handlers.complete(request)) as chunks:
                async for chunk in chunks:
                    yield chunk

        return replace(handlers, complete=complete)

    return wrap


async def test_only_a_pass_holds_for_the_run() -> None:
    """If other middleware requests the completion again, the check is called again after a block, and not after a pass."""
    scene = Scene(calls=())
    model = ScriptedModel([Failure(503), "Hello"])
    swarm = AsyncSwarm(model.client(), middleware=[asking_twice(CompletionError), guard_input(scene.check())])
    assert (await swarm.run(Agent(), "Hi")).text == "Hello"
    assert scene.log == ["verdict"]
    scene = Scene()
    with pytest.raises(Blocked):
        await scene.run(asking_twice(Blocked), guard_input(scene.check(Block()), parallel=False))
    assert scene.log == ["verdict", "verdict"]


async def test_a_check_is_called_once_a_run_or_once_a_turn() -> None:
    """A check sees the text of the user, the new messages, all messages, the agent and the run."""
    for every, expected in (("run", [1]), ("turn", [1, 3])):
        scene = Scene()
        seen: list[CheckedInput] = []
        guard = guard_input(lambda checked, into=seen: into.append(checked), every=every)  # type: ignore[arg-type, misc]
        await scene.run(guard, messages="Hello", context_variables={"user": "ada"}, run_id="r1")
        assert [len(checked.messages) - 1 for checked in seen] == expected
        assert {checked.text for checked in seen} == {"Hello"}
        assert [each["content"] for each in seen[-1].new] == [{"run": "Hello", "turn": "worked"}[every]]
        assert (seen[0].run.run_id, seen[0].run.context_variables["user"], seen[0].agent.name) == ("r1", "ada", "Agent")


@PARALLEL
async def test_later_messages_of_the_user_are_judged(parallel: bool) -> None:
    """A message that the user sends during the run is judged, although the guard has given a verdict before."""
    scene = Scene()
    check = scene.check(lambda checked: Block("no") if "bad" in checked.text else None)
    swarm = AsyncSwarm(scene, middleware=[guard_input(check, parallel=parallel)])
    for text, expected in (("good", 2), ("bad", 1)):
        scene.asked.clear()
        scene.log.clear()
        async with swarm.stream(scene.agent(), "Hi") as run:
            with suppress(Blocked):
                async for event in run:
                    if isinstance(event, ToolCallFinished):
                        run.send(text)
        assert scene.log.count("verdict") == 2
        assert len([body for body in scene.asked if text in str(body)]) == (expected - 1 if not parallel else 1)
        assert run.response.stop == ("answer" if text == "good" else "error")


@pytest.mark.parametrize("agents", [["B"], "B", [Agent(name="B")], Agent(name="B")])
async def test_a_guard_of_some_agents_waits_for_them(agents: Any) -> None:
    """The check is called before the first completion of such an agent, whichever agent was first."""
    b = Agent(name="B")
    model = ScriptedModel([call("transfer_to_b"), "Hello"])
    seen: list[str] = []
    guard = guard_input(lambda checked: seen.append(f"{checked.agent.name}: {checked.text}"), agents=agents)
    await AsyncSwarm(model.client(), middleware=[guard]).run(Agent(name="A", functions=[b]), "Hi")
    assert seen == ["B: Hi"]


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([user("new"), {"role": "system", "content": "a"}, {"role": "developer", "content": "b"}, user("newer")], None),
        ([user([{"type": "text", "text": "new"}]), assistant("Sure, ")], "new"),
    ],
    ids=["notes of the caller", "the start of the answer"],
)
async def test_the_text_is_of_the_messages_after_the_last_answer(messages: list[Any], text: str | None) -> None:
    """Neither a note of the caller nor a start of the answer that the caller wrote hides a message of the user."""
    seen: list[CheckedInput] = []
    await Scene(calls=()).run(guard_input(seen.append), messages=[user("old"), assistant("yes"), *messages])
    if text is None:
        assert [message["content"] for message in seen[0].new] == ["new", "newer"]
    else:
        assert seen[0].text == text


async def test_a_replacement_does_not_reach_back_over_a_typed_answer() -> None:
    """A call of `final_answer` is an answer, so a replacement in the next run leaves out no earlier message of the user."""
    model = ScriptedModel([call("final_answer", value=1), call("final_answer", value=2)])
    swarm = AsyncSwarm(
        model.client(), middleware=[guard_input(lambda asked: Replace("B") if asked.text == "b" else None)]
    )
    agent = Agent(functions=[anyio.sleep], output=int)
    first = await swarm.run(agent, "a")
    response = await swarm.run(agent, [user("a"), *first.messages, user("b")])
    assert response.output == 2
    assert [each["content"] for each in model.requests[-1].messages if each["role"] == "user"] == ["a", "B"]
