"""`guard_answer`: nothing of an answer is shown before its check has seen all of it."""

from __future__ import annotations

from typing import Any

import pytest

from aswarm import Agent, Approve, AsyncSwarm, tool
from aswarm.errors import StreamInterrupted
from aswarm.guards import Block, Blocked, CheckedAnswer, Replace, Say, guard_answer
from aswarm.testing import ScriptedAnswer, ScriptedModel, call
from tests.support.guards.guarded import WAYS, Scene

EVERY_WAY = pytest.mark.parametrize("way", WAYS)
YES = [{"type": "text", "text": "Yes"}]
SECRET = ScriptedAnswer("The password is 1234.", extra={"reasoning_content": "1234, I think"})


def scripted(scene: Scene, *middleware: Any) -> AsyncSwarm:
    """A swarm whose model answers with a secret."""
    return AsyncSwarm(ScriptedModel([SECRET], cut=3).client(), middleware=middleware)


@EVERY_WAY
async def test_a_pass_changes_nothing(way: str) -> None:
    """A run whose guard lets everything pass is equal to a run without a guard, event by event."""
    plain, guarded = Scene(), Scene()
    expected = await plain.run(way=way)
    response = await guarded.run(guard_answer(guarded.check()), way=way)
    assert (response.messages, response.usage) == (expected.messages, expected.usage)
    assert list(map(str, guarded.seen)) == list(map(str, plain.seen))
    assert guarded.log == ["asked", "verdict", "worked", "asked", "verdict"]


@EVERY_WAY
async def test_a_blocked_answer_is_nowhere(way: str) -> None:
    """No event, no history and no partial text has the answer or its reasoning. Its tokens count."""
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
    """The text replaces the answer in the response and in the events. The tokens of the model's answer count."""
    scene = Scene()
    response = await scene.read(scripted(scene, guard_answer(scene.check(verdict))), way)
    assert (response.text, response.stop, response.usage.total_tokens) == ("I cannot say.", "answer", 15)
    assert "1234" not in str(scene.seen) + str(response.messages)
    assert "reasoning_content" not in response.messages[0]


async def test_a_check_sees_the_answer_and_its_request() -> None:
    """A check sees the text, the whole message, the messages of the request, the agent and the run."""
    seen: list[CheckedAnswer] = []
    scene = Scene()
    await scene.read(scripted(scene, guard_answer(seen.append)), "stream", agent=Agent(name="A"), run_id="r1")
    [checked] = seen
    assert checked.text == "The password is 1234.\n1234, I think"
    assert checked.message["content"] == "The password is 1234."
    assert checked.message["reasoning_content"] == "1234, I think"
    assert [message["role"] for message in checked.messages] == ["system", "user"]
    assert (checked.agent.name, checked.run.run_id) == ("A", "r1")


@EVERY_WAY
async def test_a_text_in_place_of_a_text_beside_calls(way: str) -> None:
    """The calls run, each with its own id and arguments; the reasoning of the model is removed."""

    @tool(approve=True)
    async def pay(amount: int) -> str:
        return f"paid {amount}"

    calls = [call("pay", call_id="c", amount=1), call("pay", call_id="c", amount=2)]
    model = ScriptedModel([ScriptedAnswer("1234", calls, extra={"reasoning_content": "It is 1234"}), "Paid."], cut=3)
    guard = guard_answer(lambda checked: Say("...") if "1234" in checked.text else None)
    swarm = AsyncSwarm(model.client(), middleware=[guard])
    scene, agent = Scene(), Agent(functions=[pay])
    asked = await scene.read(swarm, way, agent=agent)
    assert (asked.text, asked.stop) == ("...", "waiting")
    assert "1234" not in str(scene.seen) + str(asked.messages)
    history = [{"role": "user", "content": "Hi"}, *asked.messages]
    response = await scene.read(swarm, way, history, agent=agent, resume=Approve.all())
    assert [each["content"] for each in response.messages] == ["paid 1", "paid 2", "Paid."]


async def test_calls_without_a_text_are_not_judged() -> None:
    """A completion that has only calls is not judged."""
    scene = Scene(text="")
    await scene.run(guard_answer(scene.check()))
    assert scene.log == ["asked", "worked", "asked", "verdict"]


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("with_call", [True, False])
@pytest.mark.parametrize("key", ["refusal", "reasoning_content"])
async def test_refusal_and_reasoning_are_judged(key: str, with_call: bool, api: Any) -> None:
    """A refusal and a reasoning are judged, because readers see both."""
    extra: dict[str, Any] = {key: "It is 1234"}
    calls = [call("work")] if with_call else []
    answer = ScriptedAnswer("" if key == "refusal" else "No.", calls, extra=extra)
    model = ScriptedModel([answer, "Done."], api=api, cut=3)
    scene = Scene()
    guard = guard_answer(lambda checked: Block() if "1234" in checked.text else None)
    with pytest.raises(Blocked):
        await scene.read(AsyncSwarm(model.client(), middleware=[guard]), "stream", agent=scene.agent())
    assert (scene.seen, scene.worked) == ([], 0)


@pytest.mark.parametrize(
    "more",
    [
        {"content": [*YES, {"type": "refusal", "refusal": "1234"}]},
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "1234"}]}, *YES]},
        {"reasoning_details": [{"type": "reasoning.summary", "summary": "1234", "index": 0}]},
        {"audio": {"id": "a", "data": "AAAA", "transcript": "1234"}},
        {"annotations": [{"type": "url_citation", "url_citation": {"url": "https://host/?key=1234"}}]},
    ],
    ids=lambda more: next(iter(more)),
)
async def test_texts_of_a_provider_are_judged(more: dict[str, Any]) -> None:
    """Every field with a text of the model is judged; bytes are no text."""
    scene, texts = Scene(), list[str]()
    answer = ScriptedAnswer("Yes", extra={"images": [{"image_url": {"url": "data:image/png;base64,QUJD"}}], **more})
    guard = guard_answer(lambda checked: texts.append(checked.text))
    await scene.read(AsyncSwarm(ScriptedModel([answer]).client(), middleware=[guard]), "run")
    assert texts[0].startswith("Yes\n")
    assert "1234" in texts[0]
    assert "data:" not in texts[0]
    assert "AAAA" not in texts[0]


async def test_an_answer_without_an_end_is_an_error() -> None:
    """A stream that ends in the middle is an error, also if the check would let it pass."""
    answer = ScriptedAnswer("Hello", break_after=2)
    swarm = AsyncSwarm(ScriptedModel([answer]).client(), middleware=[guard_answer(lambda checked: None)])
    with pytest.raises(StreamInterrupted):
        await Scene().read(swarm, "stream", agent=Agent())


async def test_an_answer_with_a_type_is_its_json() -> None:
    """A structured output is judged as its JSON. A text of the check must be of the type too, or the model is asked again."""
    model = ScriptedModel(["1", "2"])
    texts: list[str] = []

    def check(checked: CheckedAnswer) -> Say | None:
        texts.append(checked.text)
        return Say("never") if checked.text == "1" else None

    swarm = AsyncSwarm(model.client(), middleware=[guard_answer(check)])
    assert (await swarm.run(Agent(), "Hi", output=int)).output == 2
    assert texts == ["1", "2"]
