"""The same scripted conversation gives the same messages over both APIs, whole and streamed."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aswarm import Agent, AsyncSwarm, File, Image, Response, Result, ToolError
from aswarm.testing import ScriptedAnswer, ScriptedModel, call, check_history
from tests.support.providers.faces import respond
from tests.support.values.histories import USER
from tests.support.wire.response_bodies import check_body

Api = Literal["chat", "responses"]
APIS: list[Api] = ["chat", "responses"]
WAYS = ["run", "run(stream=True)", "stream"]


def agents() -> Agent:
    """Two agents with tools of every kind: text, media, context, an error, and a handoff there and back."""

    async def look_up(city: str) -> str:
        return f"sunny in {city}"

    async def picture() -> list[Any]:
        return ["Here it is.", Image(b"\x89PNG", detail="low"), File(b"%PDF", name="a.pdf")]

    async def remember(city: str) -> Result:
        return Result(value="ok", context_variables={"city": city})

    async def fail() -> str:
        raise ToolError("closed")

    def to_second() -> Agent:
        return second

    def to_first() -> Agent:
        return first

    second = Agent(name="Second", instructions="You are the second.", functions=[look_up, picture, to_first])
    first = Agent(name="First", tool_choice="required", functions=[look_up, picture, remember, fail, to_second])
    return first


texts = st.text(max_size=12)
arguments = st.one_of(
    texts.map(lambda city: {"city": city}),
    st.just({}),
    st.sampled_from(["{", "", "[]", "null"]).map(lambda text: {"arguments": text}),
)
names = st.sampled_from(["look_up", "picture", "remember", "fail", "to_second", "to_first", "nothing"])
extras = st.fixed_dictionaries({}, optional={"reasoning_content": st.text(min_size=1, max_size=12)})
usages = st.none() | st.just({"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10})


@st.composite
def conversations(draw: st.DrawFn) -> list[ScriptedAnswer]:
    """Turns with one call or several together, with and without text and reasoning; then a text, a refusal, or nothing."""
    turns: list[ScriptedAnswer] = []
    for turn in range(draw(st.integers(0, 4))):
        drawn = draw(st.lists(st.tuples(names, arguments), min_size=1, max_size=3))
        calls = [call(name, call_id=f"c{turn}_{at}", **given) for at, (name, given) in enumerate(drawn)]
        turns.append(ScriptedAnswer(draw(st.none() | texts), calls, draw(extras), usage=draw(usages)))
    ending = draw(st.sampled_from(["text", "refusal", "cut"]))
    refusal = {"refusal": "I cannot."} if ending == "refusal" else {}
    text = None if refusal else draw(st.none() | texts)
    reason = "length" if ending == "cut" else None
    return [*turns, ScriptedAnswer(text, extra={**draw(extras), **refusal}, finish_reason=reason, usage=draw(usages))]


def common(response: Response) -> Any:
    """Return the results of a run, without the items of the Responses API."""
    messages = [
        {key: value for key, value in message.items() if key != "responses_output"} for message in response.messages
    ]
    return messages, response.agent.name, response.context_variables, response.usage, response.stop


@pytest.mark.slow
@given(conversations(), st.integers(1, 5))
def test_a_drawn_conversation_is_the_same_over_both(script: list[ScriptedAnswer], cut: int) -> None:
    """Messages, agent, context, usage and stop of six runs; every body fits the SDK's types, every history is valid."""

    async def main() -> list[Any]:
        left: list[Any] = []
        for api in APIS:
            for way in WAYS:
                model = ScriptedModel(script, cut=cut, api=api)
                response = await respond(AsyncSwarm(model.client()), way, agents(), [USER])
                check_history(response.messages)
                assert len(model.requests) == len(script)
                for request in model.requests if api == "responses" else ():
                    check_body(request.body)
                left.append(common(response))
        return left

    first, *rest = asyncio.run(main())
    for other in rest:
        assert other == first
