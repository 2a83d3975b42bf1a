"""Functions that return images and files: the history has them whole, and each API gets them in its own form."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import pytest

from aswarm import Agent, AsyncSwarm, File, Image, Result, ToolCallFinished
from aswarm.sources import CompletionRequest
from aswarm.testing import ScriptedModel, call, check_history

PIXEL = b"\x89PNG"
URL = "data:image/png;base64,iVBORw=="


def screenshot() -> Image:
    """Take a screenshot."""
    return Image(PIXEL, detail="low")


async def report() -> list[Any]:
    """Write a report."""
    return ["The report of", {"year": 2026}, File(b"%PDF", name="report.pdf")]


async def plain() -> str:
    """Say something."""
    return "plain"


def agent() -> Agent:
    return Agent(model="gpt-6-luna", functions=[screenshot, report, plain])


def model(api: Any) -> ScriptedModel:
    calls = [call("screenshot", call_id="c1"), call("report", call_id="c2"), call("plain", call_id="c3")]
    return ScriptedModel([calls, "Done"], api=api)


RECORDED = [
    [{"type": "image_url", "image_url": {"url": URL, "detail": "low"}}],
    [
        {"type": "text", "text": "The report of"},
        {"type": "text", "text": '{"year": 2026}'},
        {"type": "file", "file": {"filename": "report.pdf", "file_data": "data:application/pdf;base64,JVBERg=="}},
    ],
    "plain",
]


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_the_history_has_the_parts(api: str) -> None:
    """The history has the parts whole, as JSON, and the next run can continue with it."""
    response = await AsyncSwarm(model(api).client()).run(agent(), "Look.")
    assert [message["content"] for message in response.messages if message["role"] == "tool"] == RECORDED
    check_history(response.messages)
    history = [{"role": "user", "content": "Look."}, *json.loads(json.dumps(response.messages))]
    again = ScriptedModel(["Yes"], api=api)  # type: ignore[arg-type]
    assert (await AsyncSwarm(again.client()).run(agent(), [*history, {"role": "user", "content": "?"}])).text == "Yes"


async def test_over_chat_completions_images_follow_the_answers() -> None:
    """A tool message has only text there, and one user message after the whole block has the images and files."""
    asked = model("chat")
    await AsyncSwarm(asked.client()).run(agent(), "Look.")
    first, second, third, user = asked.requests[1].messages[-4:]
    assert [message["content"] for message in (first, second, third)] == [
        "[image]",
        'The report of {"year": 2026} [file report.pdf]',
        "plain",
    ]
    assert user == {
        "role": "user",
        "content": [
            {"type": "text", "text": "From the result of the tool call c1:"},
            RECORDED[0][0],
            {"type": "text", "text": "From the result of the tool call c2:"},
            RECORDED[1][2],
        ],
    }


async def test_a_source_gets_a_body_for_chat_completions() -> None:
    """`chat_body` leaves out items and moves images, `body` keeps both, and a body without them is the same dict."""
    bodies: list[tuple[Any, Any]] = []

    class Source:
        async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            bodies.append((request.body, request.chat_body()))
            yield {"choices": [{"message": {"role": "assistant", "content": "Done"}, "finish_reason": "stop"}]}

    first = await AsyncSwarm(model("responses").client()).run(agent(), "Look.")
    await AsyncSwarm(Source()).run(agent(), [{"role": "user", "content": "Look."}, *first.messages])
    await AsyncSwarm(Source()).run(agent(), "Look.")
    (body, chat), (plain_body, plain_chat) = bodies
    assert "responses_output" in body["messages"][2]
    assert body["messages"][3]["content"] == RECORDED[0]
    assert not any("responses_output" in message for message in chat["messages"])
    assert next(message["content"] for message in chat["messages"] if message["role"] == "tool") == "[image]"
    assert {**chat, "messages": ...} == {**body, "messages": ...}
    assert plain_chat is plain_body


async def test_over_the_responses_api_images_are_in_the_output() -> None:
    asked = model("responses")
    await AsyncSwarm(asked.client()).run(agent(), "Look.")
    outputs = [item["output"] for item in asked.requests[1].body["input"] if item.get("type") == "function_call_output"]
    assert outputs == [
        [{"type": "input_image", "image_url": URL, "detail": "low"}],
        [
            {"type": "input_text", "text": "The report of"},
            {"type": "input_text", "text": '{"year": 2026}'},
            {"type": "input_file", "filename": "report.pdf", "file_data": "data:application/pdf;base64,JVBERg=="},
        ],
        "plain",
    ]


async def test_the_content_of_an_event_names_images_and_files() -> None:
    async with AsyncSwarm(model("chat").client()).stream(agent(), "Look.") as run:
        shown = [event.content async for event in run if isinstance(event, ToolCallFinished)]
    assert sorted(shown) == ['The report of {"year": 2026} [file report.pdf]', "[image]", "plain"]


async def test_an_image_with_a_handoff() -> None:
    """A `Result` may have an image, and the note about a replaced handoff is a part after it."""
    second, third = Agent(name="Second"), Agent(name="Third")

    def to_second() -> Result:
        return Result(value=Image("https://example.com/a.png"), agent=second)

    def to_third() -> Result:
        return Result(value=Image(URL), agent=third)

    asked = ScriptedModel([[call("to_second"), call("to_third")], "Done"])
    response = await AsyncSwarm(asked.client()).run(Agent(functions=[to_second, to_third]), "Go.")
    assert response.agent is third
    assert response.messages[1]["content"] == [{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]
    assert response.messages[2]["content"] == [
        {"type": "image_url", "image_url": {"url": URL}},
        {"type": "text", "text": " (replaces the handoff to Second)"},
    ]


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_a_user_sends_images_and_files(api: Any) -> None:
    """`part` of an image or a file is a content part for both APIs."""
    asked = ScriptedModel(["A pixel."], api=api)
    content = [{"type": "text", "text": "What is this?"}, Image(PIXEL).part, File(b"x", name="a.pdf").part]
    await AsyncSwarm(asked.client()).run(Agent(model="gpt-6-luna"), [{"role": "user", "content": content}])
    sent = asked.requests[0].messages[-1]["content"]
    kinds = {"chat": ["text", "image_url", "file"], "responses": ["input_text", "input_image", "input_file"]}
    assert [part["type"] for part in sent] == kinds[api]
