"""`hold_answer`: nothing of an answer is shown before its check has seen all of it."""

from __future__ import annotations

from typing import Any

import pytest
from guarded import WAYS, Scene

from aswarm import Agent, AsyncSwarm, CompletionError, ConfigurationError, StreamInterrupted
from aswarm.guards import Block, Blocked, CheckedAnswer, Halt, Replace, Say, hold_answer
from aswarm.testing import Answer, ScriptedModel

pytestmark = pytest.mark.anyio
EVERY_WAY = pytest.mark.parametrize("way", WAYS)
SECRET = Answer("The password is 1234.", extra={"reasoning_content": "1234, I think"})


def scripted(scene: Scene, *middleware: Any) -> AsyncSwarm:
    """A swarm whose model answers with a secret."""
    return AsyncSwarm(ScriptedModel([SECRET], cut=3).client(), middleware=middleware)


@EVERY_WAY
async def test_a_pass_changes_nothing(way: str) -> None:
    """The run is that without a guard, event by event."""
    plain, guarded = Scene(), Scene()
    expected = await plain.run(way=way)
    response = await guarded.run(hold_answer(guarded.check()), way=way)
    assert (response.messages, response.usage) == (expected.messages, expected.usage)
    assert list(map(str, guarded.seen)) == list(map(str, plain.seen))
    assert guarded.log == ["asked", "worked", "asked", "verdict"]


@EVERY_WAY
async def test_a_blocked_answer_is_nowhere(way: str) -> None:
    """Neither in events nor in the history nor in what is partial; its reasoning neither. Its tokens count."""
    for verdict, reason in ((Block("a secret"), "a secret"), (ValueError("broken"), "the check failed")):
        scene = Scene()
        with pytest.raises(Blocked, match=reason) as caught:
            await scene.read(scripted(scene, hold_answer(scene.check(verdict))), way)
        assert caught.value.response is not None
        assert (caught.value.response.messages, caught.value.partial, scene.seen) == ([], "", [])
        assert (caught.value.response.usage.total_tokens, caught.value.response.usage.requests) == (15, 1)


@EVERY_WAY
@pytest.mark.parametrize("verdict", [Say("I cannot say."), Replace("I cannot say.")])
async def test_a_text_in_place_of_an_answer(way: str, verdict: Any) -> None:
    """The tokens of the model's own answer count: they were paid for."""
    scene = Scene()
    response = await scene.read(scripted(scene, hold_answer(scene.check(verdict))), way)
    assert (response.text, response.stop, response.usage.total_tokens) == ("I cannot say.", "answer", 15)
    assert "1234" not in str(scene.seen) + str(response.messages)
    assert "reasoning_content" not in response.messages[0]


async def test_what_a_check_sees() -> None:
    """The text, the whole message, what was sent, the agent and the run."""
    seen: list[CheckedAnswer] = []
    scene = Scene()
    await scene.read(scripted(scene, hold_answer(seen.append)), "stream", agent=Agent(name="A"), run_id="r1")
    [checked] = seen
    assert (checked.text, checked.message["reasoning_content"]) == ("The password is 1234.", "1234, I think")
    assert [message["role"] for message in checked.messages] == ["system", "user"]
    assert (checked.agent.name, checked.run.id) == ("A", "r1")


async def test_a_completion_with_calls_is_shown_from_its_first_call_on() -> None:
    """It is no answer, and no check is asked."""
    scene = Scene()
    seen: list[Any] = []
    async with AsyncSwarm(scene, middleware=[hold_answer(seen.append)]).stream(scene.agent(), "Hi") as run:
        async for event in run:
            if type(event).__name__ == "CompletionFinished":
                break
    assert seen == []
    assert run.response.messages[0]["content"] == "Let me see."


@EVERY_WAY
async def test_an_error_in_an_answer_is_what_it_was(way: str) -> None:
    """No check is asked of half an answer, and nothing of it is shown."""
    scene = Scene(calls=(), fails=CompletionError("broken"))
    with pytest.raises(CompletionError, match="broken"):
        await scene.run(hold_answer(scene.check()), way=way)
    assert (scene.log, scene.seen) == (["asked"], [])


async def test_an_answer_without_an_end_is_an_error() -> None:
    """A stream that ends in the middle is an error, also if its check would let it pass."""
    answer = Answer("Hello", break_after=2)
    swarm = AsyncSwarm(ScriptedModel([answer]).client(), middleware=[hold_answer(lambda checked: None)])
    with pytest.raises(StreamInterrupted):
        await Scene().read(swarm, "stream", agent=Agent())


async def test_an_answer_with_a_type_is_its_json() -> None:
    """Where the model is asked by a schema. A text of the check must be of the type too, or the model is asked again."""
    model = ScriptedModel(["1", "2"])
    texts: list[str] = []

    def check(checked: CheckedAnswer) -> Say | None:
        texts.append(checked.text)
        return Say("never") if checked.text == "1" else None

    swarm = AsyncSwarm(model.client(), middleware=[hold_answer(check)])
    assert (await swarm.run(Agent(), "Hi", output=int)).output == 2
    assert texts == ["1", "2"]


async def test_a_check_that_raises_blocks_or_lets_pass() -> None:
    """As on_error says."""
    scene = Scene()
    with pytest.raises(Blocked, match="ValueError"):
        await scene.read(scripted(scene, hold_answer(scene.check(ValueError("boom")))), "run")
    opened = scripted(scene, hold_answer(scene.check(ValueError("boom")), on_error="pass"))
    assert (await scene.read(opened, "run")).text == SECRET.text


@pytest.mark.parametrize("verdict", [True, Halt("no"), Replace(["x"])])
async def test_a_value_that_is_not_a_verdict_ends_the_run(verdict: Any) -> None:
    """With what a check of an answer may return."""
    scene = Scene()
    with pytest.raises(ConfigurationError, match="a check of an answer returns None"):
        await scene.read(scripted(scene, hold_answer(lambda checked: verdict)), "run")
