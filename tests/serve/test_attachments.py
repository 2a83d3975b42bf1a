"""Attachments on each wire: what a provider takes reaches the model and the history, and anything else is refused by its place."""

from __future__ import annotations

from typing import Any

import pytest
from openai import AsyncOpenAI

from aswarm import Agent, AsyncSwarm
from aswarm.runs import LocalRuns
from aswarm.serve import Service, bearer
from aswarm.testing import ScriptedModel, call
from tests.support.serve.served import client, listening, served

Json = dict[str, Any]
pytestmark = pytest.mark.asyncio
WIRES = ("agui", "vercel", "openai")
DATA = "AAAA"


def media(kind: str, media_type: str | None, value: str = DATA, source: str = "data", **more: Any) -> Json:
    """A part of AG-UI."""
    return {"type": kind, "source": {"type": source, "value": value, "mimeType": media_type}, **more}


def file(media_type: str, url: str, name: str | None = None) -> Json:
    """A part of Vercel's protocol."""
    return {"type": "file", "mediaType": media_type, "url": url, **({} if name is None else {"filename": name})}


def as_url(media_type: str, data: str = DATA) -> str:
    return f"data:{media_type};base64,{data}"


def pdf(name: str = "file.pdf", url: str = as_url("application/pdf")) -> Json:
    return {"type": "file", "file": {"filename": name, "file_data": url}}


def image(url: str = as_url("image/png")) -> Json:
    return {"type": "image_url", "image_url": {"url": url}}


def sound(form: str = "wav") -> Json:
    return {"type": "input_audio", "input_audio": {"data": DATA, "format": form}}


def request_of(wire: str, part: Any, **more: Any) -> tuple[str, Json]:
    """The path and the body of a message with a text and this part."""
    text = {"type": "text", "text": "Look."}
    message = {"id": "m1", "role": "user"}
    if wire == "native":
        return "/conversations/c/runs", {"content": [text, part], **more}
    if wire == "agui":
        messages = [{**message, "content": [text, part]}]
        return "/agui/Boss", {"threadId": "c", "runId": "r", "messages": messages, **more}
    if wire == "vercel":
        return "/chat/Boss", {"id": "c", "messages": [{**message, "parts": [text, part]}], **more}
    return "/v1/chat/completions", {"model": "Boss", "messages": [{"role": "user", "content": [text, part]}], **more}


TAKEN = [
    ("native", image(), image()),
    ("native", sound(), sound()),
    ("native", pdf(), pdf()),
    ("native", {"type": "image_url", "image_url": {"url": "https://a.test/a.png", "detail": "low"}}, None),
    ("agui", media("image", "image/png"), image()),
    ("agui", media("image", None, "https://a.test/a.png", "url"), image("https://a.test/a.png")),
    ("agui", media("audio", "audio/wav"), sound()),
    ("agui", media("audio", "audio/mpeg"), sound("mp3")),
    ("agui", media("document", "application/pdf"), pdf()),
    ("agui", media("document", "application/pdf", metadata={"filename": "bill.pdf"}), pdf("bill.pdf")),
    ("agui", media("document", "text/csv; charset=utf-8"), pdf("file.csv", as_url("text/csv; charset=utf-8"))),
    ("agui", media("document", "image/png"), image()),
    ("agui", media("document", None, "https://a.test/a", "url"), pdf("file", "https://a.test/a")),
    ("agui", media("document", None, as_url("application/pdf")), pdf()),
    ("agui", {"type": "binary", "mimeType": "application/pdf", "data": DATA, "filename": "a.pdf"}, pdf("a.pdf")),
    ("agui", {"type": "binary", "mimeType": "image/png", "url": "https://a.test/a.png"}, image("https://a.test/a.png")),
    ("vercel", file("image/png", as_url("image/png")), image()),
    ("vercel", file("image", as_url("image/png")), image()),
    ("vercel", file("image/*", "https://a.test/a"), image("https://a.test/a")),
    ("vercel", file("application/pdf", as_url("application/pdf"), "bill.pdf"), pdf("bill.pdf")),
    ("vercel", file("text/csv", "data:text/csv,a%2Cb", "a.csv"), pdf("a.csv", as_url("text/csv", "YSxi"))),
    ("vercel", file("text/plain", as_url("text/plain")), pdf("file.txt", as_url("text/plain"))),
    ("vercel", file("application/vnd.ms-excel", as_url("x/y")), pdf("file", as_url("x/y"))),
    ("vercel", file("audio/mpeg", as_url("audio/mpeg")), sound("mp3")),
    ("agui", media("image", "IMAGE/PNG"), image()),
    ("agui", media("audio", "Audio/WAV; codecs=1"), sound()),
    ("agui", media("image", None, "HTTPS://a.test/a.png", "url"), image("https://a.test/a.png")),
    (
        "agui",
        media("image", "image/svg+xml", "data:image/svg+xml,%3Csvg/%3E"),
        image(as_url("image/svg+xml", "PHN2Zy8+")),
    ),
    ("vercel", file("IMAGE/PNG", "DATA:image/png;base64,AAAA"), image()),
    ("vercel", file("text/plain", "data:,hello"), pdf("file.txt", as_url("text/plain", "aGVsbG8="))),
    (
        "vercel",
        file("application/pdf", "data:application/pdf;BASE64,AA%3D%3D"),
        pdf(url=as_url("application/pdf", "AA==")),
    ),
    ("vercel", file("image/png", as_url("image/png", "AAAA\nAA==")), image(as_url("image/png", "AAAAAA=="))),
    ("openai", image("data:image/svg+xml,%3Csvg/%3E"), image(as_url("image/svg+xml", "PHN2Zy8+"))),
    ("openai", {"type": "image_url", "image_url": {"url": as_url("image/png"), "detail": "high"}}, None),
    ("openai", sound("mp3"), sound("mp3")),
    ("openai", pdf("bill.pdf"), pdf("bill.pdf")),
]


@pytest.mark.parametrize(("wire", "part", "sent"), TAKEN)
async def test_an_attachment_reaches_the_model_and_the_history(wire: str, part: Json, sent: Json | None) -> None:
    """On each wire, an image, a sound and a file become the part of Chat Completions, and the history shows it."""
    asked: list[Json] = []

    def script(request: Any) -> str:
        asked.append(request.body["messages"][-1])
        return "Seen."

    async with served(script, wires=WIRES) as it:
        place, body = request_of(wire, part)
        answer = await it.ann.post(place, json=body, headers={"X-Conversation-Id": "c"})
        assert answer.status_code in (200, 202), answer.text
        if wire == "native":
            await it.ended(answer.json()["run"])
        message = {"role": "user", "content": [{"type": "text", "text": "Look."}, sent or part]}
        assert asked == [message]
        assert (await it.ann.get("/conversations/c")).json()["messages"][0] == message


REFUSED = [
    ("native", {"type": "video_url", "video_url": {"url": "https://a.test"}}, "type"),
    ("native", {"type": "text", "text": "a", "caption": "b"}, "caption"),
    ("native", {"type": "text", "text": 1}, "text"),
    ("native", {"type": "file", "file": {"file_id": "file-1"}}, "type"),
    ("native", {"type": "input_audio", "input_audio": {"data": DATA, "format": "ogg"}}, "input_audio.format"),
    ("agui", media("video", "video/mp4"), "type"),
    ("agui", media("document", "video/mp4"), "type"),
    ("agui", media("audio", "audio/ogg"), "type"),
    ("agui", media("audio", None, "https://a.test/a.mp3", "url"), "type"),
    ("agui", media("image", "image/png", "handle", "file"), "type"),
    ("agui", media("image", "image/png", "handle", "other"), "source.type"),
    ("agui", media("image", None), "source.mimeType"),
    ("agui", media("image", None, "file:///etc/passwd", "url"), "source.value"),
    ("agui", media("image", "image/png", caption="A lamp."), "caption"),
    ("agui", {"type": "image"}, "source"),
    ("agui", {"type": "text"}, "text"),
    ("agui", {"type": "binary", "mimeType": "image/png", "id": "upload-1"}, "type"),
    ("agui", {"type": "binary", "mimeType": "image/png", "url": "file:///etc/passwd"}, "url"),
    ("agui", media("image", "image/png", as_url("image/png", "")), ""),
    ("agui", media("image", "image/png", "not-base64"), ""),
    ("agui", media("image", "image/png", ""), "source.value"),
    ("agui", media("image", "png"), "source.mimeType"),
    ("agui", media("document", "text/plain,more"), "source.mimeType"),
    ("agui", media("document", None, "data:application/pdf,", "url"), ""),
    ("vercel", file("audio/wav", "data:audio/wav"), ""),
    (
        "agui",
        {"type": "image", "source": {"type": "data", "value": DATA, "mimeType": "image/png", "alt": "A"}},
        "source.alt",
    ),
    ("agui", {"type": "binary", "mimeType": "audio/wav", "url": "https://a.test/a.wav"}, "type"),
    ("agui", {"type": "hologram"}, "type"),
    ("agui", "no part", ""),
    ("vercel", file("video/mp4", as_url("video/mp4")), "type"),
    ("vercel", file("audio/ogg", as_url("audio/ogg")), "type"),
    ("vercel", file("image/png", "file:///etc/passwd"), "url"),
    (
        "vercel",
        {**file("image/png", as_url("image/png")), "providerReference": {"openai": "file-1"}},
        "providerReference",
    ),
    ("vercel", {"type": "file", "url": as_url("image/png")}, "mediaType"),
    ("vercel", {"type": "data-form", "data": {"city": "Rome"}}, "type"),
    ("vercel", {"type": "source-url", "sourceId": "s", "url": "https://a.test"}, "type"),
    ("vercel", {"type": "reasoning", "text": "Hm."}, "type"),
    ("vercel", {"type": "tool-look", "toolCallId": "c1", "state": "output-available", "output": 1}, "type"),
    ("vercel", {"type": "text"}, "text"),
    ("vercel", 1, ""),
    ("openai", {"type": "video_url", "video_url": {"url": "https://a.test"}}, "type"),
    ("openai", {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, "image_url.url"),
    ("openai", {"type": "file", "file": {"file_id": "file-1"}}, "type"),
    ("vercel", file("image/png", "data:image/png;base64,"), ""),
    ("openai", {"type": "input_audio", "input_audio": {"data": "***", "format": "wav"}}, "input_audio.data"),
    ("openai", image("data:image/png;base64,"), "image_url.url"),
    ("openai", pdf(url="data:application/pdf;base64,"), "file.file_data"),
    ("openai", {"type": "input_file", "file_id": "f"}, "type"),
    ("openai", {"type": "refusal", "refusal": "No."}, "type"),
    ("openai", 1, ""),
]


@pytest.mark.parametrize(("wire", "part", "at"), REFUSED)
async def test_a_part_that_no_provider_takes_is_refused_with_its_place(wire: str, part: Any, at: str) -> None:
    """422, on the OpenAI wire 400, with the index of the message and of the part. Nothing is stored, and no model is asked."""
    async with served([], wires=WIRES) as it:
        place, body = request_of(wire, part)
        answer = await it.ann.post(place, json=body)
        first = {"native": "content", "vercel": "messages[0].parts"}.get(wire, "messages[0].content")
        param = f"{first}[1].{at}" if at else f"{first}[1]"
        assert (answer.status_code, answer.json()["error"]["param"]) == (400 if wire == "openai" else 422, param)
        assert f"{first}[1]" in answer.json()["error"]["message"]
        if at == "type" and isinstance(part, dict):
            assert part["type"] in answer.json()["error"]["message"]
        assert (await it.ann.get("/conversations/c")).status_code == 404


@pytest.mark.parametrize(
    ("wire", "message", "at"),
    [
        ("agui", {"role": "user", "content": {"text": "Hi"}}, "content"),
        ("agui", {"role": "user", "content": "Hi", "image": {"format": "png", "bytes": DATA}}, "image"),
        ("agui", {"role": "human", "content": "Hi"}, "role"),
        ("agui", "Hi", ""),
        ("vercel", {"role": "user", "parts": "Hi"}, "parts"),
        ("vercel", {"role": "user", "content": "Hi"}, "content"),
        (
            "vercel",
            {"role": "user", "parts": [], "experimental_attachments": [{"url": "data:"}]},
            "experimental_attachments",
        ),
        ("vercel", {"content": "Hi"}, "role"),
        ("openai", {"role": "function", "content": "Hi"}, "role"),
        ("openai", {"role": "system", "content": [{"type": "image_url"}]}, "content[0].type"),
        ("openai", {"role": "tool", "tool_call_id": "c", "content": [{"type": "file"}]}, "content[0].type"),
        ("openai", {"role": "assistant", "content": [{"type": "file"}]}, "content[0].type"),
        ("openai", {"role": "assistant", "audio": {"id": "a"}}, "audio.type"),
        ("openai", {"role": "assistant", "content": "Hi", "images": [image()]}, "images.type"),
        ("openai", {"role": "system", "content": [{"type": "text", "text": "a", "image": DATA}]}, "content[0].image"),
        ("openai", {"role": "user", "content": "Hi", "images": [DATA]}, "images"),
    ],
)
async def test_a_message_of_another_form_is_refused_with_its_place(wire: str, message: Any, at: str) -> None:
    """A key with content that the wire does not have, an unknown role, or a part that its role cannot have."""
    async with served([], wires=WIRES) as it:
        place, body = request_of(wire, {"type": "text", "text": "."})
        body["messages"].append(message)
        answer = await it.ann.post(place, json=body)
        param = f"messages[1].{at}" if at else "messages[1]"
        assert (answer.status_code, answer.json()["error"]["param"]) == (400 if wire == "openai" else 422, param)


async def test_texts_of_an_older_client_are_read_once(caplog: pytest.LogCaptureFixture) -> None:
    """`ai` 4 sends the text of a message in `content` and in its parts. A name goes to the model, and a refusal is text."""
    asked: list[Any] = []

    def script(request: Any) -> str:
        asked.extend(message for message in request.body["messages"] if message["role"] != "system")
        return "Yes."

    async with served(script, wires=WIRES) as it:
        message = {"id": "m", "role": "user", "content": "Hi", "parts": [{"type": "text", "text": "Hi"}]}
        answer = await it.ann.post("/chat/Boss", json={"id": "v", "messages": [message]})
        assert answer.status_code == 200, answer.text
        refusal = {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
        own = {"role": "assistant", "content": None, "refusal": "Never."}
        more = {"role": "assistant", "content": None, "name": "Bob", "annotations": [], "reasoning": "Hm."}
        messages = [refusal, own, more, {"role": "user", "content": "Hi", "name": "Ann"}]
        answer = await it.ann.post("/v1/chat/completions", json={"model": "Boss", "messages": messages})
        assert answer.status_code == 200, answer.text
    assert "'messages.name, messages.reasoning'" in caplog.text
    assert [{key: each.get(key) for key in ("role", "content", "name")} for each in asked] == [
        {"role": "user", "content": "Hi", "name": None},
        {"role": "assistant", "content": "No.", "name": None},
        {"role": "assistant", "content": "Never.", "name": None},
        {"role": "user", "content": "Hi", "name": "Ann"},
    ]


@pytest.mark.parametrize("wire", ["native", *WIRES])
async def test_a_sound_is_refused_if_the_api_of_the_model_has_none(wire: str) -> None:
    """The Responses API takes no sound: a stored message with a sound would make each later run of the conversation fail."""
    part = {
        "agui": media("audio", "audio/wav"),
        "vercel": file("audio/wav", as_url("audio/wav")),
    }.get(wire, sound())
    runs = LocalRuns(AsyncSwarm(AsyncOpenAI(api_key="x")), agents=Agent(name="Boss"))
    made = Service(runs, auth=bearer({"token": "ann"}), wires=WIRES)
    async with listening(made) as url, client(url, "token") as ann:
        place, body = request_of(wire, part)
        answer = await ann.post(place, json=body)
        first = {"native": "content", "vercel": "messages[0].parts"}.get(wire, "messages[0].content")
        assert (answer.status_code, answer.json()["error"]["param"]) == (
            400 if wire == "openai" else 422,
            f"{first}[1]",
        )


async def test_a_sound_in_an_older_message_and_a_name_are_told_too(caplog: pytest.LogCaptureFixture) -> None:
    """Without a conversation, the whole history goes to the model. The Responses API has no names of messages."""
    runs = LocalRuns(
        AsyncSwarm(AsyncOpenAI(api_key="x", base_url="http://127.0.0.1:9"), api="responses"), agents=Agent(name="Boss")
    )
    made = Service(runs, auth=bearer({"token": "ann"}), wires=WIRES)
    named, last = {"role": "user", "content": "Hi", "name": "Ann"}, {"role": "user", "content": "And now?"}
    async with listening(made) as url, client(url, "token") as ann:
        messages = [named, {"role": "user", "content": [sound()]}, {"role": "assistant", "content": "Yes."}, last]
        answer = await ann.post("/v1/chat/completions", json={"model": "Boss", "messages": messages})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages[1].content[0]")
    assert "the name of a message, which the Responses API does not have" in caplog.text


async def test_a_result_of_a_tool_of_the_client_has_its_error_and_its_parts() -> None:
    """An error of a tool reaches the model. A part that no provider takes is refused, but not in an old result."""
    tools = [{"name": "open_page"}]
    asked: list[Any] = []

    def script(request: Any) -> Any:
        last = request.body["messages"][-1]
        asked.append(last["content"])
        return call("open_page", call_id=f"c{len(asked)}") if last["role"] == "user" else "Done."

    def body(*messages: Json) -> Json:
        return {"threadId": "t", "runId": f"r{len(asked)}-{len(messages)}", "messages": [*messages], "tools": tools}

    def result(call_id: str, content: Any, **more: Any) -> Json:
        return {"id": f"t-{call_id}", "role": "tool", "toolCallId": call_id, "content": content, **more}

    said, made = {"id": "m", "role": "user", "content": "Open."}, {"id": "a", "role": "assistant", "content": ""}
    refused_parts = [media("video", "video/mp4"), media("image", "image/png")]
    async with served(script, wires=WIRES, client_tools="offer") as it:
        for content, told in (("", "Error: closed"), ("half", "Error: closed\nhalf"), (["x"], None)):
            assert (await it.ann.post("/agui/Boss", json=body(said))).status_code == 200
            number = len(asked)
            for part in refused_parts:
                parts = [{"type": "text", "text": "x"}, part]
                refused = await it.ann.post("/agui/Boss", json=body(said, made, result(f"c{number}", parts)))
                assert (refused.status_code, refused.json()["error"]["param"]) == (422, "messages[2].content[1].type")
            old = [said, made, result("c0", refused_parts), made]
            last = result(f"c{number}", content if told else [{"type": "text", "text": "x"}], error=told and "closed")
            answer = await it.ann.post("/agui/Boss", json=body(*old, last))
            assert answer.status_code == 200, answer.text
            assert asked[-1] == (told or "x")


# --- the context of a page --------------------------------------------------------------------------------------------

CONTEXT = [{"description": "The open order", "value": "7"}, {"value": {"theme": "dark"}}]
SHOWN = 'The page of the user shows:\n- The open order: 7\n- {"theme": "dark"}'
HI = {"type": "text", "text": "Hi."}


async def test_the_context_of_a_page_is_refused_by_default() -> None:
    """The error names the entry and the option of the service. An empty context is no context."""
    async with served(["Hello."], wires=WIRES) as it:
        place, body = request_of("agui", HI, context=CONTEXT)
        refused = await it.ann.post(place, json=body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (422, "context[0]")
        assert "agui_context" in refused.json()["error"]["message"]
        assert (await it.ann.post(place, json={**body, "context": []})).status_code == 200


@pytest.mark.parametrize(("option", "role"), [("message", "user"), ("system", "system")])
async def test_the_context_of_a_page_may_go_to_the_model(option: Any, role: str) -> None:
    """Each request has it, as a message of the user or of the system, and the conversation does not store it."""
    asked: list[Any] = []

    def script(request: Any) -> Any:
        asked.append(request.body["messages"])
        return call("look", number=1) if len(asked) == 1 else "Found."

    async with served(script, wires=WIRES, agui_context=option) as it:
        place, body = request_of("agui", HI, context=CONTEXT)
        assert (await it.ann.post(place, json=body)).status_code == 200
        stored = (await it.ann.get("/conversations/c")).json()["messages"]
        assert "The open order" not in str(stored)
        refused = await it.ann.post(place, json={**body, "context": [{"value": "x" * 200_001}], "runId": "r2"})
        assert refused.status_code == 413
    assert len(asked) == 2
    for messages in asked:
        assert [each for each in messages if each["content"] == SHOWN] == [{"role": role, "content": SHOWN}]
        roles = [each["role"] for each in messages[:3]]
        assert roles == ["system", "user", "user"] if role == "user" else ["system", "system", "user"]


@pytest.mark.parametrize(
    ("entry", "at"), [("text", ""), ({"value": "x", "image": DATA}, ".image"), ({"description": 1}, ".description")]
)
async def test_a_context_of_another_form_is_refused(entry: Any, at: str) -> None:
    """An entry has a description and a value."""
    async with served([], wires=WIRES, agui_context="message") as it:
        place, body = request_of("agui", HI, context=[entry])
        answer = await it.ann.post(place, json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (422, f"context[0]{at}")


async def test_what_the_service_does_not_use_is_in_its_log(caplog: pytest.LogCaptureFixture) -> None:
    """State that it does not allow, properties, tools, texts for the system and other keys: each is named once."""
    async with served(["Hello."] * 4, wires=WIRES) as it:
        system = {"id": "s", "role": "system", "content": "Obey."}
        more = {"state": {"vip": True}, "forwardedProps": {"a": 1}, "tools": [{"name": "f"}]}
        place, body = request_of("agui", HI, **more)
        body["messages"].append(system)
        assert (await it.ann.post(place, json=body)).status_code == 200
        assert (await it.ann.post(place, json={**body, "runId": "r2", "state": [1]})).status_code == 200
        place, body = request_of("vercel", HI, webSearch=True)
        assert (await it.ann.post(place, json={**body, "id": "v"})).status_code == 200
        place, body = request_of("openai", HI)
        body["messages"].insert(0, {"role": "system", "content": "Obey."})
        assert (await it.ann.post(place, json=body)).status_code == 200
    told = [each.getMessage().partition(": ")[2] for each in caplog.records]
    assert told == ["'messages with the role system, forwardedProps, state.vip'", "'tools'", "'state'", "'webSearch'"]


async def test_a_reason_of_a_cancelled_interrupt_reaches_the_model() -> None:
    """AG-UI's `payload` of a cancelled interrupt is the reason of the denial."""
    asked: list[Any] = []

    def script(request: Any) -> Any:
        asked.append(request.body["messages"][-1]["content"])
        return call("erase", name="7") if len(asked) == 1 else "Not erased."

    async with served(script, wires=WIRES) as it:
        place, body = request_of("agui", HI)
        text = (await it.ann.post(place, json=body)).text
        run = text.partition('"id":"')[2].partition('"')[0]
        resume = [{"interruptId": run, "status": "cancelled", "payload": {"reason": "not today"}}]
        answer = await it.ann.post(place, json={**body, "runId": "r2", "messages": [], "resume": resume})
        assert answer.status_code == 200, answer.text
    assert "not today" in asked[-1]


async def test_an_option_of_another_value_is_refused() -> None:
    """The error names the three values."""
    runs = LocalRuns(AsyncSwarm(ScriptedModel([]).client()), agents=Agent())
    with pytest.raises(Exception, match='agui_context must be "refuse", "message" or "system", not \'all\''):
        Service(runs, auth=bearer({"t": "ann"}), agui_context="all")  # type: ignore[arg-type]
