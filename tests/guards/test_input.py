"""`guard_input`: what each verdict does, in each way to run; and what others' guards have let happen."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
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
from aswarm.guards import Block, Blocked, CheckedInput, Halt, Replace, Say, guard_answer, guard_input
from aswarm.middleware import CompletionRequest, Handlers, Middleware, fallback
from aswarm.testing import Failure, ScriptedModel, call, check_history
from tests.support.guards.guarded import WAYS, Scene, steps
from tests.support.leaving.run_scenes import client_of, until
from tests.support.middleware.middlewares import Chunks, asking_first
from tests.support.providers.loopback import Reply, serve

pytestmark = pytest.mark.anyio
INFINITE = float("inf")
EVERY_WAY = pytest.mark.parametrize("way", WAYS)
PARALLEL = pytest.mark.parametrize("parallel", [True, False])


# --- the five reports -------------------------------------------------------------------------------------------------


@EVERY_WAY
@pytest.mark.parametrize("count", [0, 3, 200])
async def test_nothing_is_shown_before_the_verdict(way: str, count: int) -> None:
    """openai-agents-python #300: the answer was streamed, and then the guard tripped."""
    scene = Scene(calls=())
    with pytest.raises(Blocked):
        await scene.run(guard_input(scene.check(Block("no"), count)), way=way)
    assert scene.seen == []


@EVERY_WAY
async def test_no_tool_runs_before_all_verdicts(way: str) -> None:
    """#624: a tool ran while a guard was at work. The completion is asked for all the same, so that no time is lost."""
    scene = Scene()
    await scene.run(guard_input(scene.check(None, 20)), guard_input(scene.check(None, 200)), way=way)
    assert scene.log[:1] == ["asked"]
    assert scene.log.index("worked") > [place for place, what in enumerate(scene.log) if what == "verdict"][-1]
    assert scene.worked == 1


@EVERY_WAY
async def test_a_guard_that_comes_first_asks_the_model_for_nothing(way: str) -> None:
    """#889: a search that the provider runs was paid for. With parallel=False no request leaves."""
    scene = Scene()
    with pytest.raises(Blocked):
        await scene.run(guard_input(scene.check(Block("no")), parallel=False), way=way)
    assert scene.asked == []


@EVERY_WAY
@pytest.mark.parametrize("count", [0, 3, 200])
async def test_no_tool_runs_after_the_block(way: str, count: int) -> None:
    """#991: the exception was raised, and the tools ran on. The request is cut off too."""
    scene = Scene()
    with pytest.raises(Blocked):
        await scene.run(guard_input(scene.check(Block("no"), count)), way=way)
    await anyio.sleep(0.01)
    assert (scene.worked, scene.open_streams, len(scene.asked)) == (0, 0, 1)


@EVERY_WAY
@PARALLEL
@pytest.mark.parametrize("moment", ["before", "between"])
async def test_a_block_does_not_wait_for_the_model(way: str, parallel: bool, moment: str) -> None:
    """#1622: the guard tripped before the model had said anything, and the reader waited for ever."""
    scene = Scene(**{moment: INFINITE})
    with anyio.fail_after(60), pytest.raises(Blocked):
        await scene.run(guard_input(scene.check(Block("no")), parallel=parallel), way=way)
    assert (scene.seen, scene.worked, scene.open_streams) == ([], 0, 0)


@PARALLEL
@pytest.mark.parametrize("stream", [True, False])
async def test_a_block_closes_the_connection(parallel: bool, stream: bool) -> None:
    """Over a real socket, to a server that does not answer: nothing is left open."""

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
    """The run is that without a guard, event by event."""
    plain, guarded = Scene(), Scene()
    expected = await plain.run(way=way)
    response = await guarded.run(guard_input(guarded.check(), parallel=parallel), way=way)
    assert response.messages == expected.messages
    assert response.usage == expected.usage
    assert list(map(str, guarded.seen)) == list(map(str, plain.seen))


@PARALLEL
async def test_a_block_leaves_a_valid_history_without_the_completion(parallel: bool) -> None:
    """The error says which check and why; a conversation can continue from its response."""
    scene = Scene()
    with pytest.raises(Blocked, match=r"the check check blocked the run: no homework$") as caught:
        await scene.run(guard_input(scene.check(Block("no homework")), parallel=parallel))
    error = caught.value
    assert isinstance(error, RunError)
    assert (error.reason, error.check) == ("no homework", "check")
    assert error.response is not None
    assert (error.response.messages, error.response.stop, error.partial) == ([], "error", "")


async def test_a_block_in_a_later_turn_keeps_what_has_happened() -> None:
    """With every="turn" the results of calls are judged before they are sent."""
    scene = Scene()
    check = scene.check(lambda checked: Block() if "worked" in [each["content"] for each in checked.new] else None)
    with pytest.raises(Blocked, match=r"blocked the run$") as caught:
        await scene.run(guard_input(check, every="turn"))
    assert caught.value.response is not None
    assert [message["role"] for message in caught.value.response.messages] == ["assistant", "tool"]
    check_history(caught.value.response.messages)


@EVERY_WAY
@PARALLEL
async def test_a_text_in_place_of_the_answer(way: str, parallel: bool) -> None:
    """`Say`: the run ends with this text as its answer, and the model's is nowhere."""
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
    """Its tokens count, although no reader sees it, for the budget too."""
    scene = Scene(calls=(), between=0)
    guard = guard_input(scene.check(verdict, 100))
    try:
        response: Response | None = await scene.run(guard, way=way, budget=Budget(tokens=100))
    except Blocked as error:
        response = error.response
    assert response is not None
    assert (response.usage.total_tokens, response.usage.requests) == (tokens, requests)


async def test_a_completion_that_was_cut_has_told_no_tokens() -> None:
    """What the provider does not say is not estimated."""
    scene = Scene(calls=(), between=INFINITE)
    with pytest.raises(Blocked) as caught:
        await scene.run(guard_input(scene.check(Block())), way="stream")
    assert caught.value.response is not None
    assert caught.value.response.usage == Usage()


async def test_a_text_in_place_of_an_answer_with_a_type_holds_for_the_run() -> None:
    """A run whose answer must have a type asks again, and the model still gets nothing."""
    scene = Scene(calls=())
    # What the run tells the model of the text is no message that the check would stop.
    guard = guard_input(lambda checked: Say("No.") if "bad" in checked.text else None)
    with pytest.raises(OutputError, match="asked again 1 times"):
        await scene.run(guard, messages="bad", output=int)
    assert scene.asked == []


@EVERY_WAY
@PARALLEL
async def test_a_message_in_place_of_the_users(way: str, parallel: bool) -> None:
    """`Replace`: every request of the run has the new content, the history the original."""
    scene = Scene()
    messages = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Yes?"},
        {"role": "user", "content": "My card is 4111."},
        {"role": "user", "content": "Pay with it."},
    ]
    guard = guard_input(
        scene.check(lambda checked: Replace(f"[{checked.text}]".replace("4111", "***"))), parallel=parallel
    )
    response = await scene.run(guard, way=way, messages=messages)
    assert response.text == "It is done."
    used = scene.asked[1:] if parallel else scene.asked
    assert len(used) == 2
    for body in used:
        assert [each["content"] for each in body["messages"] if each["role"] == "user"] == [
            "Hello",
            "[My card is ***.\nPay with it.]",
        ]
    assert messages[2]["content"] == "My card is 4111."


def hidden(checked: CheckedInput) -> Replace | None:
    """Replace a card number in what the user has written since the last answer."""
    return Replace(checked.text.replace("4111", "***")) if "4111" in checked.text else None


def sent_texts(model: ScriptedModel) -> list[list[Any]]:
    """The contents of each request, without the instructions."""
    return [[each["content"] for each in request.messages if each["role"] != "system"] for request in model.requests]


@EVERY_WAY
@PARALLEL
@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_later_runs_send_what_was_sent(way: str, parallel: bool, api: Any) -> None:
    """The history has the original, and beside it what replaces it. No reader is shown a chunk of that."""
    script = [call("work"), "One.", "Two.", "Three."]
    model = ScriptedModel([call("work"), *script] if parallel else script, api=api, cut=3)
    guard = guard_input(Scene().check(hidden), parallel=parallel)
    scene, history = Scene(), [{"role": "user", "content": "My card"}, {"role": "user", "content": "is 4111."}]
    first = await scene.read(AsyncSwarm(model.client(), middleware=[guard]), way, history)
    deltas = [each for each in scene.seen if type(each).__name__ != "CompletionFinished"]
    assert "***" not in str(deltas)
    history += [*first.messages, {"role": "user", "content": "And?"}]
    assert "4111" in str(history)
    asked = len(model.requests)
    for swarm in (AsyncSwarm(model.client(), middleware=[guard]), AsyncSwarm(model.client())):
        await swarm.run(scene.agent(), history)
    for request in model.requests[asked:]:
        assert "4111" not in json.dumps(request.body)
        users = [each["content"] for each in request.messages if each["role"] == "user"]
        assert users == ["My card\nis ***.", "And?"]


@pytest.mark.parametrize("content", ["", "***", [{"type": "text", "text": "***"}]])
async def test_later_runs_send_any_content(content: Any) -> None:
    """An empty text too."""
    model = ScriptedModel(["One.", "Two."])
    swarm = AsyncSwarm(
        model.client(), middleware=[guard_input(lambda checked: None if checked.text == "And?" else Replace(content))]
    )
    first = await swarm.run(Agent(), "4111")
    await swarm.run(
        Agent(), [{"role": "user", "content": "4111"}, *first.messages, {"role": "user", "content": "And?"}]
    )
    assert sent_texts(model) == [[content], [content, "One.", "And?"]]


async def test_later_runs_send_the_last_of_several_replacements() -> None:
    """Each replaces the one before. An equal message of an earlier turn stays."""
    model = ScriptedModel(["Yes.", call("work"), "Two.", "Three."])
    verdicts = iter([None, Replace("1"), Replace("2"), None])
    swarm = AsyncSwarm(model.client(), middleware=[guard_input(lambda checked: next(verdicts), every="turn")])
    history: list[Any] = []
    for text in ("Hi", "Hi", "And?"):
        history.append({"role": "user", "content": text})
        history += (await swarm.run(Scene().agent(), history)).messages
    users = [[each["content"] for each in request.messages if each["role"] == "user"] for request in model.requests]
    assert users[-1] == ["Hi", "2", "And?"]


async def test_a_message_that_is_sent_while_the_run_goes_on_is_kept() -> None:
    """The replacement of the first message does not replace the second one, which the check lets pass."""
    model = ScriptedModel([call("work"), "One.", "Two."])
    swarm = AsyncSwarm(
        model.client(), middleware=[guard_input(lambda checked: None if "ok" in checked.text else hidden(checked))]
    )
    async with swarm.stream(Scene().agent(), "4111") as run:
        async for event in run:
            if isinstance(event, ToolCallFinished):
                run.send("ok")
    history = [{"role": "user", "content": "4111"}, *run.response.messages, {"role": "user", "content": "ok?"}]
    await swarm.run(Scene().agent(), history)
    users = [[each["content"] for each in request.messages if each["role"] == "user"] for request in model.requests]
    assert users == [["***"], ["***", "ok"], ["***", "ok", "ok?"]]


async def test_an_attempt_that_failed_does_not_lose_the_replacement() -> None:
    """Other middleware asks again, and the check is not asked again."""
    model = ScriptedModel([Failure(404), "One.", "Two."])
    swarm = AsyncSwarm(model.client(), middleware=[fallback("other"), guard_input(hidden)])
    first = await swarm.run(Agent(), "4111")
    await swarm.run(
        Agent(), [{"role": "user", "content": "4111"}, *first.messages, {"role": "user", "content": "And?"}]
    )
    assert sent_texts(model) == [["***"], ["***"], ["***", "One.", "And?"]]


async def test_an_answer_that_another_guard_replaces_keeps_the_replacement() -> None:
    """Whichever stands outside."""
    for guards in (
        [guard_answer(lambda checked: Say("...")), guard_input(hidden)],
        [guard_input(hidden), guard_answer(lambda checked: Say("..."))],
    ):
        model = ScriptedModel(["One.", "Two."])
        swarm = AsyncSwarm(model.client(), middleware=guards)
        first = await swarm.run(Agent(), "4111")
        await swarm.run(
            Agent(), [{"role": "user", "content": "4111"}, *first.messages, {"role": "user", "content": "And?"}]
        )
        assert sent_texts(model) == [["***"], ["***", "...", "And?"]]


@pytest.mark.parametrize("content", [None, 7, [7]])
async def test_a_replacement_in_a_history_that_cannot_be_sent(content: Any) -> None:
    """The error names its place."""
    history = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes", "sent_input": content}]
    with pytest.raises(ConfigurationError, match=r"sent_input of messages\[1\]"):
        await AsyncSwarm(ScriptedModel([]).client()).run(Agent(), [*history, {"role": "user", "content": "And?"}])


async def test_each_turn_may_replace_again() -> None:
    """A replacement of a later turn replaces the earlier one, also in the turns after it."""
    model = ScriptedModel([call("work"), call("work"), "Done"])
    verdicts = iter([Replace("1"), Replace("2"), None])
    seen: list[str] = []

    def check(checked: CheckedInput) -> Replace | None:
        seen.append(checked.text)
        return next(verdicts)

    swarm = AsyncSwarm(model.client(), middleware=[guard_input(check, every="turn")])
    await swarm.run(Scene().agent(), "Hi")
    assert [request.messages[1]["content"] for request in model.requests] == ["1", "2", "2"]
    assert seen == ["Hi", "1", "2"]


async def test_middleware_further_in_changes_each_request_once() -> None:
    """A completion that is asked for again with other content begins with the request as it came."""
    scene = Scene(calls=())
    note = {"role": "system", "content": "note"}
    changing = asking_first(lambda body: body["messages"].append(note))
    await scene.run(guard_input(scene.check(Replace("x"))), changing)
    assert [body["messages"].count(note) for body in scene.asked] == [1, 1]


async def test_nothing_to_replace_is_no_pass() -> None:
    """Without a message of the user the run is blocked."""
    scene = Scene(calls=())
    history = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yes"},
        {"role": "system", "content": "!"},
    ]
    with pytest.raises(Blocked, match="the user has sent nothing since the last answer"):
        await scene.run(guard_input(lambda checked: Replace("x")), messages=history)
    assert scene.asked == []


# --- checks that fail -------------------------------------------------------------------------------------------------


@EVERY_WAY
@PARALLEL
async def test_a_check_that_raises_blocks(way: str, parallel: bool) -> None:
    """The run is blocked; its error has that of the check."""
    scene = Scene()
    with pytest.raises(Blocked, match="the check failed: ValueError: boom") as caught:
        await scene.run(guard_input(scene.check(ValueError("boom")), parallel=parallel), way=way)
    assert isinstance(caught.value.__cause__, ValueError)
    assert (scene.seen, scene.worked, scene.open_streams) == ([], 0, 0)


@PARALLEL
async def test_a_check_that_raises_may_let_pass(parallel: bool, caplog: pytest.LogCaptureFixture) -> None:
    """With on_error="pass"; the log says so, with the id of the run."""
    scene = Scene()
    guard = guard_input(scene.check(ValueError("boom")), parallel=parallel, on_error="pass")
    assert (await scene.run(guard, run_id="r1")).text == "It is done."
    [record] = [each for each in caplog.records if each.levelname == "WARNING"]
    assert "lets the content pass: the check failed: ValueError: boom" in record.message
    assert record.run_id == "r1"  # type: ignore[attr-defined]


@pytest.mark.parametrize("on_error", ["block", "pass"])
@pytest.mark.parametrize("verdict", [True, False, "no", Block, Halt("no"), Replace(3), Replace([]), Replace(["x"])])
async def test_a_value_that_is_not_a_verdict_ends_the_run(verdict: Any, on_error: Any) -> None:
    """It could mean yes as well as no, so it does not pass with on_error="pass" either."""
    scene = Scene()
    with pytest.raises(ConfigurationError, match="a check of an input must return None"):
        await scene.run(guard_input(lambda checked: verdict, on_error=on_error))
    assert scene.asked == []


@PARALLEL
@pytest.mark.parametrize("on_error", ["block", "pass"])
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_check_that_raises_a_cancellation_blocks(parallel: bool, on_error: Any) -> None:
    """A CancelledError that the check itself raises does not let the completion pass."""
    scene = Scene()

    async def check(checked: CheckedInput) -> None:
        await steps(2)
        raise asyncio.CancelledError

    with pytest.raises(Blocked, match="cancelled, but not by its run"):
        await scene.run(guard_input(check, parallel=parallel, on_error=on_error))
    assert (scene.worked, scene.open_streams) == (0, 0)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_check_that_cancels_its_own_task_blocks() -> None:
    """It gives no verdict, and the run, which has a task of its own, is not cancelled."""
    scene = Scene()

    async def check(checked: CheckedInput) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await steps(1)

    with pytest.raises(Blocked, match="the check gave no verdict"):
        await scene.run(guard_input(check))
    assert (scene.worked, scene.open_streams) == (0, 0)


@EVERY_WAY
async def test_the_verdict_comes_before_an_error_of_the_model(way: str) -> None:
    """The model has failed before the check was ready: a block is a block, a text is a text."""
    for verdict in (Block("no"), ValueError("boom")):
        scene = Scene(fails=CompletionError("broken"))
        with pytest.raises(Blocked):
            await scene.run(guard_input(scene.check(verdict, 30)), way=way)
    scene = Scene(fails=CompletionError("broken"))
    assert (await scene.run(guard_input(scene.check(Say("No."), 30)), way=way)).text == "No."


async def test_after_a_pass_an_error_of_the_model_is_what_it_was() -> None:
    """What came before it is shown, then the error is raised: as without a guard."""
    scene = Scene(fails=CompletionError("broken"))
    with pytest.raises(CompletionError, match="broken") as caught:
        await scene.run(guard_input(scene.check(None, 30)), way="run(stream=True)")
    assert not isinstance(caught.value, Blocked)


def asking_twice(kind: type[Exception]) -> Middleware:
    """Middleware that asks again after an error of this class."""

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


async def test_a_retry_around_a_guard_asks_no_check_again() -> None:
    """The verdict holds for the run, and the model is asked again."""
    scene = Scene(calls=())
    model = ScriptedModel([Failure(503), "Hello"])
    swarm = AsyncSwarm(model.client(), middleware=[asking_twice(CompletionError), guard_input(scene.check())])
    assert (await swarm.run(Agent(), "Hi")).text == "Hello"
    assert scene.log == ["verdict"]


async def test_a_block_that_is_caught_further_out_is_a_block_again() -> None:
    """Only a pass holds for the run: if other middleware asks again, the check is asked again."""
    scene = Scene()
    with pytest.raises(Blocked):
        await scene.run(asking_twice(Blocked), guard_input(scene.check(Block()), parallel=False))
    assert scene.log == ["verdict", "verdict"]


# --- when it is asked -------------------------------------------------------------------------------------------------


async def test_a_check_is_asked_once_a_run_or_once_a_turn() -> None:
    """What it sees: the text of the user, what is new, all messages, the agent, the run."""
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
async def test_what_the_user_sends_later_is_judged(parallel: bool) -> None:
    """A message that comes while the run is at work is judged, although the guard has given a verdict before."""
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


async def test_each_run_is_judged_for_itself() -> None:
    """Two runs of one swarm, two verdicts."""
    scene = Scene(calls=())
    swarm = AsyncSwarm(scene, middleware=[guard_input(lambda checked: Block() if checked.text == "bad" else None)])
    assert (await swarm.run(scene.agent(), "good")).text
    with pytest.raises(Blocked):
        await swarm.run(scene.agent(), "bad")


@pytest.mark.parametrize("agents", [["B"], "B", [Agent(name="B")], Agent(name="B")])
async def test_a_guard_of_some_agents_waits_for_them(agents: Any) -> None:
    """It is asked before the first completion of such an agent, whichever agent was first."""
    b = Agent(name="B")
    model = ScriptedModel([call("transfer_to_b"), "Hello"])
    seen: list[str] = []
    guard = guard_input(lambda checked: seen.append(f"{checked.agent.name}: {checked.text}"), agents=agents)
    await AsyncSwarm(model.client(), middleware=[guard]).run(Agent(name="A", functions=[b]), "Hi")
    assert seen == ["B: Hi"]


async def test_new_messages_are_those_after_the_last_completion_without_instructions() -> None:
    """A note of the caller among the messages of the user hides none of them."""
    scene = Scene(calls=())
    seen: list[CheckedInput] = []
    messages = [
        {"role": "user", "content": "old"},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "new"},
        {"role": "system", "content": "a note"},
        {"role": "developer", "content": "another"},
        {"role": "user", "content": "newer"},
    ]
    await scene.run(guard_input(seen.append), messages=messages)
    assert [message["content"] for message in seen[0].new] == ["new", "newer"]


async def test_the_text_is_what_the_user_wrote_last() -> None:
    """Content parts too; and a beginning of the answer that the caller wrote hides nothing."""
    scene = Scene(calls=())
    seen: list[str] = []
    messages = [
        {"role": "user", "content": "old"},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": [{"type": "text", "text": "new"}]},
        {"role": "assistant", "content": "Sure, "},
    ]
    await scene.run(guard_input(lambda checked: seen.append(checked.text)), messages=messages)
    assert seen == ["new"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_check_may_be_anything_that_can_be_called(anyio_backend: str) -> None:
    """A partial, an object with `__call__`, a function that returns a task. The error has its name."""

    class Strict:
        async def __call__(self, checked: CheckedInput) -> Block:
            return Block()

    def in_a_task(checked: CheckedInput) -> Any:
        return asyncio.ensure_future(Strict()(checked))

    for check, name in ((partial(Scene().check(Block())), "check"), (Strict(), "Strict"), (in_a_task, "in_a_task")):
        scene = Scene()
        with pytest.raises(Blocked) as caught:
            await scene.run(guard_input(check))
        assert (caught.value.check, scene.worked) == (name, 0)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"check": "x"}, "must be a function, plain or async, not 'x'"),
        ({"every": "message"}, "every must be"),
        ({"agents": []}, "at least one"),
        ({"agents": [3]}, "agents or their names"),
        ({"on_error": "open"}, "on_error must be"),
    ],
)
async def test_a_mistake_is_found_when_the_guard_is_made(arguments: dict[str, Any], text: str) -> None:
    """With what to write instead."""
    with pytest.raises(ConfigurationError, match=text):
        guard_input(**{"check": print, **arguments})


async def test_a_configuration_error_of_a_check_is_one_of_the_run() -> None:
    """It is the mistake of a programmer, and no verdict; it never lets pass."""
    scene = Scene()

    def check(checked: CheckedInput) -> None:
        raise ConfigurationError("wrong")

    with pytest.raises(ConfigurationError, match="wrong"):
        await scene.run(guard_input(check, on_error="pass"))


async def test_a_batch_has_the_block_as_the_error_of_the_item() -> None:
    """The other items run, and no attempt is made again."""
    scene = Scene(calls=())
    guard = guard_input(scene.check(lambda checked: Block("no") if checked.text == "bad" else None))
    swarm = AsyncSwarm(scene, middleware=[guard])
    async with swarm.batch(scene.agent(), ["good", "bad"], ordered=True) as outcomes:
        good, bad = [outcome async for outcome in outcomes]
    assert good.error is None
    assert isinstance(bad.error, Blocked)
    assert json.loads(json.dumps(bad.error.response.messages)) == []  # type: ignore[union-attr]
    assert scene.log.count("asked") == 2
