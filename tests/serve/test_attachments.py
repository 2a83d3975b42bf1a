"""Attachments on each wire reach the model and the history, or are refused with their place; and the context of a page."""

from __future__ import annotations

from itertools import count
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI

from aswarm import Agent, AsyncSwarm
from aswarm.runs import LocalRuns
from aswarm.serve import Service, bearer
from aswarm.testing import ScriptedModel, call
from tests.support.serve.served import client, listening, message_on, served

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


def request_of(wire: str, *parts: Any, conversation: str = "c", **more: Any) -> tuple[str, Json]:
    """Return the path and the body of a message with a text and these parts."""
    content = [{"type": "text", "text": "Look."}, *parts]
    place, body = message_on(wire, "", conversation, **more)
    if wire == "native":
        return place, {"content": content, **more}
    if wire == "vercel":
        body["messages"][0]["parts"] = [*content, {"type": "step-start"}]
    else:
        body["messages"][0]["content"] = content
    return place, body


def place_of(wire: str, at: str = "") -> tuple[int, str]:
    """Return the status and the place of the second part in an error."""
    first = {"native": "content", "vercel": "messages[0].parts"}.get(wire, "messages[0].content")
    return 400 if wire == "openai" else 422, f"{first}[1].{at}" if at else f"{first}[1]"


def refusal(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["param"]


def of_responses() -> Service:
    """Return a service whose model is called over the Responses API."""
    client = AsyncOpenAI(api_key="x", base_url="http://127.0.0.1:9")
    runs = LocalRuns(AsyncSwarm(client, api="responses"), agents=Agent(name="Boss"))
    return Service(runs, auth=bearer({"token": "ann"}), wires=WIRES)


PDF, SVG, SVG_64 = "application/pdf", "data:image/svg+xml,%3Csvg/%3E", as_url("image/svg+xml", "PHN2Zy8+")
PNG_FILE = file("image/png", as_url("image/png"))
TAKEN: list[tuple[str, Json, Json | None]] = [
    ("native", image(), image()),
    ("native", {**image(), "role": "system"}, image()),
    ("native", sound(), sound()),
    ("native", pdf(), pdf()),
    ("native", {"type": "image_url", "image_url": {"url": "https://a.test/a.png", "detail": "low"}}, None),
    ("agui", media("image", "image/png"), image()),
    ("agui", media("image", None, "https://a.test/a.png", "url"), image("https://a.test/a.png")),
    ("agui", media("audio", "audio/wav"), sound()),
    ("agui", media("document", PDF), pdf()),
    ("agui", media("document", PDF, metadata={"filename": "bill.pdf"}), pdf("bill.pdf")),
    ("agui", media("document", "text/csv; charset=utf-8"), pdf("file.csv", as_url("text/csv; charset=utf-8"))),
    ("agui", media("document", "image/png"), image()),
    ("agui", media("document", None, "https://a.test/a", "url"), pdf("file", "https://a.test/a")),
    ("agui", media("document", None, as_url("application/pdf")), pdf()),
    ("agui", {"type": "binary", "mimeType": PDF, "data": DATA, "filename": "a.pdf"}, pdf("a.pdf")),
    ("agui", {"type": "binary", "mimeType": "image/png", "url": "https://a.test/a.png"}, image("https://a.test/a.png")),
    ("vercel", PNG_FILE, image()),
    ("vercel", file("image/*", "https://a.test/a"), image("https://a.test/a")),
    ("vercel", file("text/csv", "data:text/csv,a%2Cb", "a.csv"), pdf("a.csv", as_url("text/csv", "YSxi"))),
    ("vercel", file("application/vnd.ms-excel", as_url("x/y")), pdf("file", as_url("x/y"))),
    ("vercel", file("audio/mpeg", as_url("audio/mpeg")), sound("mp3")),
    ("agui", media("image", "IMAGE/PNG"), image()),
    ("agui", media("image", None, "HTTPS://a.test/a.png", "url"), image("https://a.test/a.png")),
    ("agui", media("image", "image/svg+xml", SVG), image(SVG_64)),
    ("vercel", file("IMAGE/PNG", "DATA:image/png;base64,AAAA"), image()),
    ("vercel", file("text/plain", "data:,hello"), pdf("file.txt", as_url("text/plain", "aGVsbG8="))),
    ("vercel", file("application/pdf", "data:application/pdf;BASE64,AA%3D%3D"), pdf(url=as_url(PDF, "AA=="))),
    ("vercel", file("image/png", as_url("image/png", "AAAA\nAA==")), image(as_url("image/png", "AAAAAA=="))),
    ("openai", image(SVG), image(SVG_64)),
    ("openai", {"type": "image_url", "image_url": {"url": as_url("image/png"), "detail": "high"}}, None),
    ("openai", sound("mp3"), sound("mp3")),
    ("openai", pdf("bill.pdf"), pdf("bill.pdf")),
]


@pytest.mark.parametrize("wire", ["native", *WIRES])
async def test_an_attachment_reaches_the_model_and_the_history(wire: str) -> None:
    """On each wire, an image, a sound and a file become the part of Chat Completions, and the history shows it."""
    async with served(lambda _: "Seen.", wires=WIRES) as it:
        for number, (part, sent) in enumerate((part, sent) for name, part, sent in TAKEN if name == wire):
            place, body = request_of(wire, part, conversation=f"c{number}")
            answer = await it.ann.post(place, json=body, headers={"X-Conversation-Id": f"c{number}"})
            assert answer.status_code in (200, 202), answer.text
            if wire == "native":
                await it.ended(answer.json()["run"])
            message = {"role": "user", "content": [{"type": "text", "text": "Look."}, sent or part]}
            assert it.sent()[-1][-1] == message
            assert (await it.ann.get(f"/conversations/c{number}")).json()["messages"][0] == message


REFUSED: list[tuple[str, Any, str]] = [
    ("native", {"type": "video_url", "video_url": {"url": "https://a.test"}}, "type"),
    ("native", {"type": "text", "text": "a", "caption": "b"}, "caption"),
    ("native", {"type": "text", "text": 1}, "text"),
    ("openai", {"type": "text", "text": 1}, "text"),
    ("native", {"type": "text", "text": ""}, "text"),
    ("native", "text", ""),
    ("native", {"type": "input_audio"}, "input_audio"),
    ("native", {"type": "image_url", "image_url": "data:"}, "image_url"),
    ("native", image("file:///etc/passwd"), "image_url.url"),
    ("native", {"type": "file", "file": {"file_data": "data:"}}, "file.filename"),
    ("native", {"type": "file", "file": {"filename": "a", "file_data": 1}}, "file.file_data"),
    ("native", {"type": "file", "file": {"file_id": "file-1"}}, "type"),
    ("native", {"type": "input_audio", "input_audio": {"data": DATA, "format": "ogg"}}, "input_audio.format"),
    ("agui", media("video", "video/mp4"), "type"),
    ("agui", media("audio", "audio/ogg"), "type"),
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
    ("agui", {"type": "image", "source": {**media("image", "image/png")["source"], "alt": "A"}}, "source.alt"),
    ("agui", {"type": "hologram"}, "type"),
    ("agui", "no part", ""),
    ("vercel", file("audio/ogg", as_url("audio/ogg")), "type"),
    ("vercel", file("image/png", "file:///etc/passwd"), "url"),
    ("vercel", {**PNG_FILE, "providerReference": {"openai": "file-1"}}, "providerReference"),
    ("vercel", {"type": "file", "url": as_url("image/png")}, "mediaType"),
    ("vercel", {"type": "data-form", "data": {"city": "Rome"}}, "type"),
    ("vercel", {"type": "source-url", "sourceId": "s", "url": "https://a.test"}, "type"),
    ("vercel", {"type": "tool-look", "toolCallId": "c1", "state": "output-available", "output": 1}, "type"),
    ("vercel", {"type": "text"}, "text"),
    ("vercel", 1, ""),
    ("openai", {"type": "video_url", "video_url": {"url": "https://a.test"}}, "type"),
    ("openai", {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, "image_url.url"),
    ("vercel", file("image/png", "data:image/png;base64,"), ""),
    ("openai", {"type": "input_audio", "input_audio": {"data": "***", "format": "wav"}}, "input_audio.data"),
    ("openai", {"type": "refusal", "refusal": "No."}, "type"),
]


@pytest.mark.parametrize("wire", ["native", *WIRES])
async def test_a_part_that_no_provider_takes_is_refused_with_its_place(wire: str) -> None:
    """The answer is 422, on the OpenAI wire 400, with the indexes of the message and the part, and nothing is stored."""
    async with served([], wires=WIRES) as it:
        for part, at in [(part, at) for name, part, at in REFUSED if name == wire]:
            place, body = request_of(wire, part)
            answer = await it.ann.post(place, json=body)
            assert refusal(answer) == place_of(wire, at), part
            assert place_of(wire)[1] in answer.json()["error"]["message"]
            if at == "type" and isinstance(part, dict):
                assert part["type"] in answer.json()["error"]["message"]
        assert (await it.ann.get("/conversations/c")).status_code == 404


OTHER_FORMS: list[tuple[str, Any, str]] = [
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
    ("openai", {"role": "function", "content": "Hi"}, "role"),
    ("openai", {"role": "system", "content": [{"type": "image_url"}]}, "content[0].type"),
    ("openai", {"role": "tool", "tool_call_id": "c", "content": [{"type": "file"}]}, "content[0].type"),
    ("openai", {"role": "assistant", "content": [{"type": "file"}]}, "content[0].type"),
    ("openai", {"role": "assistant", "audio": {"id": "a"}}, "audio.type"),
    ("openai", {"role": "assistant", "content": "Hi", "images": [image()]}, "images.type"),
    ("openai", {"role": "system", "content": [{"type": "text", "text": "a", "image": DATA}]}, "content[0].image"),
    ("openai", {"role": "user", "content": "Hi", "images": [DATA]}, "images"),
]


async def test_a_message_of_another_form_is_refused_with_its_place() -> None:
    """A key with content that the wire does not have, an unknown role, or a part that its role cannot have is refused."""
    async with served([], wires=WIRES) as it:
        for wire, message, at in OTHER_FORMS:
            place, body = request_of(wire)
            body["messages"].append(message)
            param = f"messages[1].{at}" if at else "messages[1]"
            assert refusal(await it.ann.post(place, json=body)) == (400 if wire == "openai" else 422, param)


async def test_texts_of_an_older_client_are_read_once(caplog: pytest.LogCaptureFixture) -> None:
    """`ai` 4 sends the text of a message in `content` and in its parts. A name goes to the model, and a refusal is text."""
    async with served(["Yes.", "Yes."], wires=WIRES) as it:
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
    sent = [each for messages in it.sent() for each in messages if each["role"] != "system"]
    assert [(each["role"], each["content"], each.get("name")) for each in sent] == [
        ("user", "Hi", None),
        ("assistant", "No.", None),
        ("assistant", "Never.", None),
        ("user", "Hi", "Ann"),
    ]


@pytest.mark.parametrize("wire", ["native", *WIRES])
async def test_a_sound_is_refused_if_the_api_of_the_model_has_none(wire: str) -> None:
    """The Responses API takes no sound: a stored message with a sound would make each later run of the conversation fail."""
    own = {"agui": media("audio", "audio/wav"), "vercel": file("audio/wav", as_url("audio/wav"))}
    async with listening(of_responses()) as url, client(url, "token") as ann:
        place, body = request_of(wire, own.get(wire, sound()))
        assert refusal(await ann.post(place, json=body)) == place_of(wire)


async def test_a_sound_in_an_older_message_is_refused_and_a_name_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Without a conversation, the whole history goes to the model. The Responses API has no names of messages."""
    named, last = {"role": "user", "content": "Hi", "name": "Ann"}, {"role": "user", "content": "And now?"}
    async with listening(of_responses()) as url, client(url, "token") as ann:
        messages = [named, {"role": "user", "content": [sound()]}, {"role": "assistant", "content": "Yes."}, last]
        answer = await ann.post("/v1/chat/completions", json={"model": "Boss", "messages": messages})
        assert refusal(answer) == (400, "messages[1].content[0]")
    assert "the name of a message, which the Responses API does not have" in caplog.text


async def test_a_result_of_a_tool_of_the_client_has_its_error_and_its_parts() -> None:
    """An error of a tool reaches the model. A part that no provider takes is refused, but not in an old result."""
    tools = [{"name": "open_page"}]
    numbers = count(1)

    def script(request: Any) -> Any:
        number = next(numbers)
        return call("open_page", call_id=f"c{number}") if request.messages[-1]["role"] == "user" else "Done."

    def body(*messages: Json) -> Json:
        run = f"r{len(it.model.requests)}-{len(messages)}"
        return {"threadId": "t", "runId": run, "messages": [*messages], "tools": tools}

    def result(call_id: str, content: Any, **more: Any) -> Json:
        return {"id": f"t-{call_id}", "role": "tool", "toolCallId": call_id, "content": content, **more}

    said, made = {"id": "m", "role": "user", "content": "Open."}, {"id": "a", "role": "assistant", "content": ""}
    refused_parts = [media("video", "video/mp4"), media("image", "image/png")]
    async with served(script, wires=WIRES, client_tools="offer") as it:
        for content, expected in (("", "Error: closed"), ("half", "Error: closed\nhalf"), (["x"], None)):
            assert (await it.ann.post("/agui/Boss", json=body(said))).status_code == 200
            number = len(it.model.requests)
            for part in refused_parts:
                parts = [{"type": "text", "text": "x"}, part]
                refused = await it.ann.post("/agui/Boss", json=body(said, made, result(f"c{number}", parts)))
                assert refusal(refused) == (422, "messages[2].content[1].type")
            old = [said, made, result("c0", refused_parts), made]
            last = result(
                f"c{number}", content if expected else [{"type": "text", "text": "x"}], error=expected and "closed"
            )
            answer = await it.ann.post("/agui/Boss", json=body(*old, last))
            assert answer.status_code == 200, answer.text
            assert it.sent()[-1][-1]["content"] == (expected or "x")


# --- the context of a page --------------------------------------------------------------------------------------------

CONTEXT = [{"description": "The open order", "value": "7"}, {"value": {"theme": "dark"}}]
SHOWN = 'The page of the user shows:\n- The open order: 7\n- {"theme": "dark"}'


async def test_the_context_of_a_page_is_refused_by_default() -> None:
    """The error names the entry and the option of the service. An empty context is no context."""
    async with served(["Hello."], wires=WIRES) as it:
        place, body = request_of("agui", context=CONTEXT)
        refused = await it.ann.post(place, json=body)
        assert refusal(refused) == (422, "context[0]")
        assert "agui_context" in refused.json()["error"]["message"]
        assert (await it.ann.post(place, json={**body, "context": []})).status_code == 200


@pytest.mark.parametrize(("option", "role"), [("message", "user"), ("system", "system")])
async def test_the_context_of_a_page_may_go_to_the_model(option: Any, role: str) -> None:
    """Each request has it, as a message of the user or of the system, and the conversation does not store it."""
    async with served([call("look", number=1), "Found."], wires=WIRES, agui_context=option) as it:
        place, body = request_of("agui", context=CONTEXT)
        assert (await it.ann.post(place, json=body)).status_code == 200
        stored = (await it.ann.get("/conversations/c")).json()["messages"]
        assert "The open order" not in str(stored)
        refused = await it.ann.post(place, json={**body, "context": [{"value": "x" * 200_001}], "runId": "r2"})
        assert refused.status_code == 413
        sent = it.sent()
    assert len(sent) == 2
    for messages in sent:
        assert [each for each in messages if each["content"] == SHOWN] == [{"role": role, "content": SHOWN}]
        roles = [each["role"] for each in messages[:3]]
        assert roles == ["system", "user", "user"] if role == "user" else ["system", "system", "user"]


@pytest.mark.parametrize(
    ("entry", "at"), [("text", ""), ({"value": "x", "image": DATA}, ".image"), ({"description": 1}, ".description")]
)
async def test_a_context_of_another_form_is_refused(entry: Any, at: str) -> None:
    """An entry has a description and a value."""
    async with served([], wires=WIRES, agui_context="message") as it:
        place, body = request_of("agui", context=[entry])
        assert refusal(await it.ann.post(place, json=body)) == (422, f"context[0]{at}")


async def test_unused_parts_of_requests_are_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Other state, properties, tools, texts for the system and other keys are each named once."""
    async with served(["Hello."] * 4, wires=WIRES) as it:
        system = {"id": "s", "role": "system", "content": "Obey."}
        more = {"state": {"vip": True}, "forwardedProps": {"a": 1}, "tools": [{"name": "f"}]}
        place, body = request_of("agui", **more)
        body["messages"].append(system)
        assert (await it.ann.post(place, json=body)).status_code == 200
        assert (await it.ann.post(place, json={**body, "runId": "r2", "state": [1]})).status_code == 200
        place, body = request_of("vercel", webSearch=True)
        assert (await it.ann.post(place, json={**body, "id": "v"})).status_code == 200
        place, body = request_of("openai")
        body["messages"].insert(0, {"role": "system", "content": "Obey."})
        assert (await it.ann.post(place, json=body)).status_code == 200
    expected = [each.getMessage().partition(": ")[2] for each in caplog.records]
    assert expected == [
        "'messages with the role system, forwardedProps, state.vip'",
        "'tools'",
        "'state'",
        "'webSearch'",
    ]


async def test_a_reason_of_a_cancelled_interrupt_reaches_the_model() -> None:
    """AG-UI's `payload` of a cancelled interrupt is the reason of the denial."""
    async with served([call("erase", name="7"), "Not erased."], wires=WIRES) as it:
        place, body = request_of("agui")
        text = (await it.ann.post(place, json=body)).text
        run = text.partition('"id":"')[2].partition('"')[0]
        resume = [{"interruptId": run, "status": "cancelled", "payload": {"reason": "not today"}}]
        answer = await it.ann.post(place, json={**body, "runId": "r2", "messages": [], "resume": resume})
        assert answer.status_code == 200, answer.text
        assert "not today" in it.sent()[-1][-1]["content"]


async def test_an_option_of_another_value_is_refused() -> None:
    """The error names the three values."""
    runs = LocalRuns(AsyncSwarm(ScriptedModel([]).client()), agents=Agent())
    with pytest.raises(Exception, match='agui_context must be "refuse", "message" or "system", not \'all\''):
        Service(runs, auth=bearer({"t": "ann"}), agui_context="all")  # type: ignore[arg-type]
