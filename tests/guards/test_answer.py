"""`guard_answer`: nothing of an answer is shown before its check has seen all of it."""

from __future__ import annotations

from typing import Any

import pytest

from aswarm import Agent, AsyncSwarm, CompletionError, ConfigurationError, StreamInterrupted, tool
from aswarm.guards import Block, Blocked, CheckedAnswer, Halt, Replace, Say, guard_answer
from aswarm.testing import ScriptedAnswer, ScriptedModel, call
from tests.support.guards.guarded import WAYS, Scene

pytestmark = pytest.mark.anyio
EVERY_WAY = pytest.mark.parametrize("way", WAYS)
SECRET = ScriptedAnswer("The password is 1234.", extra={"reasoning_content": "1234, I think"})


def scripted(scene: Scene, *middleware: Any) -> AsyncSwarm:
    """A swarm whose model answers with a secret."""
    return AsyncSwarm(ScriptedModel([SECRET], cut=3).client(), middleware=middleware)


@EVERY_WAY
async def test_a_pass_changes_nothing(way: str) -> None:
    """The run is that without a guard, event by event."""
    plain, guarded = Scene(), Scene()
    expected = await plain.run(way=way)
    response = await guarded.run(guard_answer(guarded.check()), way=way)
    assert (response.messages, response.usage) == (expected.messages, expected.usage)
    assert list(map(str, guarded.seen)) == list(map(str, plain.seen))
    assert guarded.log == ["asked", "verdict", "worked", "asked", "verdict"]


@EVERY_WAY
async def test_a_blocked_answer_is_nowhere(way: str) -> None:
    """Neither in events nor in the history nor in what is partial; its reasoning neither. Its tokens count."""
    for verdict, reason in ((Block("a secret"), "a secret"), (ValueError("broken"), "the check failed")):
        scene = Scene()
        with pytest.raises(Blocked, match=reason) as caught:
            await scene.read(scripted(scene, guard_answer(scene.check(verdict))), way)
        assert caught.value.response is not None
        assert (caught.value.response.messages, caught.value.partial, scene.seen) == ([], "", [])
        assert (caught.value.response.usage.total_tokens, caught.value.response.usage.requests) == (15, 1)


@EVERY_WAY
@pytest.mark.parametrize("verdict", [Say("I cannot say."), Replace("I cannot say.")])
async def test_a_text_in_place_of_an_answer(way: str, verdict: Any) -> None:
    """The tokens of the model's own answer count: they were paid for."""
    scene = Scene()
    response = await scene.read(scripted(scene, guard_answer(scene.check(verdict))), way)
    assert (response.text, response.stop, response.usage.total_tokens) == ("I cannot say.", "answer", 15)
    assert "1234" not in str(scene.seen) + str(response.messages)
    assert "reasoning_content" not in response.messages[0]


async def test_what_a_check_sees() -> None:
    """The text, the whole message, what was sent, the agent and the run."""
    seen: list[CheckedAnswer] = []
    scene = Scene()
    await scene.read(scripted(scene, guard_answer(seen.append)), "stream", agent=Agent(name="A"), run_id="r1")
    [checked] = seen
    assert checked.text == "The password is 1234.\n1234, I think"
    assert (checked.message["content"], checked.message["reasoning_content"]) == (
        "The password is 1234.",
        "1234, I think",
    )
    assert [message["role"] for message in checked.messages] == ["system", "user"]
    assert (checked.agent.name, checked.run.run_id) == ("A", "r1")


@EVERY_WAY
async def test_a_text_beside_calls_is_judged_too(way: str) -> None:
    """It is shown, and is the last text of a run that stops there. Nothing of a blocked one is shown, and no call of it runs."""
    scene = Scene()
    with pytest.raises(Blocked) as caught:
        await scene.run(
            guard_answer(scene.check(lambda checked: Block() if checked.text == "Let me see." else None)), way=way
        )
    assert caught.value.response is not None
    assert (scene.seen, scene.worked, caught.value.response.messages) == ([], 0, [])
    assert caught.value.response.usage.requests == 1


@EVERY_WAY
async def test_a_text_in_place_of_a_text_beside_calls(way: str) -> None:
    """The calls run, each with its own id and arguments; the provider's other texts are gone."""

    @tool(approve=True)
    async def pay(amount: int) -> str:
        return f"paid {amount}"

    calls = [call("pay", call_id="c", amount=1), call("pay", call_id="c", amount=2)]
    model = ScriptedModel([ScriptedAnswer("1234", calls, extra={"reasoning_content": "It is 1234"}), "Paid."], cut=3)
    swarm = AsyncSwarm(
        model.client(), middleware=[guard_answer(lambda checked: Say("...") if "1234" in checked.text else None)]
    )
    scene, agent = Scene(), Agent(functions=[pay])
    asked = await scene.read(swarm, way, agent=agent)
    assert (asked.text, asked.stop) == ("...", "waiting")
    assert "1234" not in str(scene.seen) + str(asked.messages)
    history = [{"role": "user", "content": "Hi"}, *asked.messages]
    response = await scene.read(swarm, way, history, agent=agent, resume=True)
    assert [each["content"] for each in response.messages] == ["paid 1", "paid 2", "Paid."]


async def test_a_text_beside_calls_at_the_end_of_the_turns() -> None:
    """`max_turns` makes it the text of the response."""
    scene = Scene()
    response = await scene.run(guard_answer(scene.check(Say("..."))), max_turns=1)
    assert (response.text, response.stop) == ("...", "max_turns")


async def test_calls_without_a_text_are_not_judged() -> None:
    """There is nothing to read."""
    scene = Scene(text="")
    await scene.run(guard_answer(scene.check()))
    assert scene.log == ["asked", "worked", "asked", "verdict"]


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("with_call", [True, False])
@pytest.mark.parametrize("key", ["refusal", "reasoning_content"])
async def test_refusal_and_reasoning_are_judged(key: str, with_call: bool, api: Any) -> None:
    """Readers see both."""
    extra: dict[str, Any] = {key: "It is 1234"}
    calls = [call("work")] if with_call else []
    model = ScriptedModel(
        [ScriptedAnswer("" if key == "refusal" else "No.", calls, extra=extra), "Done."], api=api, cut=3
    )
    scene = Scene()
    guard = guard_answer(lambda checked: Block() if "1234" in checked.text else None)
    with pytest.raises(Blocked):
        await scene.read(AsyncSwarm(model.client(), middleware=[guard]), "stream", agent=scene.agent())
    assert (scene.seen, scene.worked) == ([], 0)


@pytest.mark.parametrize(
    "more",
    [
        {"content": [{"type": "text", "text": "Yes"}, {"type": "refusal", "refusal": "1234"}]},
        {
            "content": [
                {"type": "thinking", "thinking": [{"type": "text", "text": "1234"}]},
                {"type": "text", "text": "Yes"},
            ]
        },
        {"reasoning_details": [{"type": "reasoning.summary", "summary": "1234", "index": 0}]},
        {"audio": {"id": "a", "data": "AAAA", "transcript": "1234"}},
        {"annotations": [{"type": "url_citation", "url_citation": {"url": "https://host/?key=1234"}}]},
    ],
    ids=lambda more: next(iter(more)),
)
async def test_texts_of_a_provider_are_judged(more: dict[str, Any]) -> None:
    """Wherever the provider puts them; bytes are no text."""
    scene, texts = Scene(), list[str]()
    answer = ScriptedAnswer("Yes", extra={"images": [{"image_url": {"url": "data:image/png;base64,QUJD"}}], **more})
    swarm = AsyncSwarm(
        ScriptedModel([answer]).client(), middleware=[guard_answer(lambda checked: texts.append(checked.text))]
    )
    await scene.read(swarm, "run")
    assert texts[0].startswith("Yes\n")
    assert "1234" in texts[0]
    assert "data:" not in texts[0]
    assert "AAAA" not in texts[0]


@EVERY_WAY
async def test_an_error_in_an_answer_is_what_it_was(way: str) -> None:
    """No check is asked of half an answer, and nothing of it is shown."""
    scene = Scene(calls=(), fails=CompletionError("broken"))
    with pytest.raises(CompletionError, match="broken"):
        await scene.run(guard_answer(scene.check()), way=way)
    assert (scene.log, scene.seen) == (["asked"], [])


async def test_an_answer_without_an_end_is_an_error() -> None:
    """A stream that ends in the middle is an error, also if its check would let it pass."""
    answer = ScriptedAnswer("Hello", break_after=2)
    swarm = AsyncSwarm(ScriptedModel([answer]).client(), middleware=[guard_answer(lambda checked: None)])
    with pytest.raises(StreamInterrupted):
        await Scene().read(swarm, "stream", agent=Agent())


async def test_an_answer_with_a_type_is_its_json() -> None:
    """Where the model is asked by a schema. A text of the check must be of the type too, or the model is asked again."""
    model = ScriptedModel(["1", "2"])
    texts: list[str] = []

    def check(checked: CheckedAnswer) -> Say | None:
        texts.append(checked.text)
        return Say("never") if checked.text == "1" else None

    swarm = AsyncSwarm(model.client(), middleware=[guard_answer(check)])
    assert (await swarm.run(Agent(), "Hi", output=int)).output == 2
    assert texts == ["1", "2"]


async def test_a_check_that_raises_blocks_or_lets_pass() -> None:
    """As on_error says."""
    scene = Scene()
    with pytest.raises(Blocked, match="ValueError"):
        await scene.read(scripted(scene, guard_answer(scene.check(ValueError("boom")))), "run")
    opened = scripted(scene, guard_answer(scene.check(ValueError("boom")), on_error="pass"))
    assert (await scene.read(opened, "run")).text == SECRET.text


@pytest.mark.parametrize("verdict", [True, Halt("no"), Replace(["x"])])
async def test_a_value_that_is_not_a_verdict_ends_the_run(verdict: Any) -> None:
    """With what a check of an answer may return."""
    scene = Scene()
    with pytest.raises(ConfigurationError, match="a check of an answer must return None"):
        await scene.read(scripted(scene, guard_answer(lambda checked: verdict)), "run")
