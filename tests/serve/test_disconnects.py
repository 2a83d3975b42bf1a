"""Clients that disconnect, on servers that report it in different ways, and the effect on the run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route

from aswarm import Agent, AsyncSwarm, ConfigurationError, Response
from aswarm.conversations import Conversation, MemoryStore, SQLiteStore
from aswarm.serve import NativeWire, frames, respond, stream_response
from aswarm.testing import ScriptedAnswer, ScriptedModel, call
from tests.support.runs.kept_runs import Workshop
from tests.support.serve.served import client, listening, message_on, served, service

pytestmark = pytest.mark.asyncio

WIRES = ["agui", "vercel", "openai"]
GET = {"type": "http", "method": "GET"}
REQUEST = Request({**GET, "path": "/", "headers": [], "query_string": b""})
CHAT = {"model": "Boss", "messages": [{"role": "user", "content": "Hi!"}]}


async def silence() -> Any:
    """A client that neither sends nor disconnects."""
    await asyncio.sleep(60)


async def ignore(message: Any) -> None:
    """A client that reads everything."""


async def ended_run(browser: httpx.AsyncClient) -> dict[str, Any]:
    """Wait for the end of the only run."""
    while (run := await only_run(browser))["status"] == "running":
        await asyncio.sleep(0.01)
    return run


def of_version(app: Any, version: str | None) -> Any:
    """Return the app on a server with this version of ASGI."""

    async def versioned(scope: Any, receive: Any, send: Any) -> None:
        if version is not None and scope["type"] == "http":
            scope["asgi"] = {**scope["asgi"], "spec_version": version}
        await app(scope, receive, send)

    return versioned


async def leave_in_the_middle(
    browser: httpx.AsyncClient, method: str, place: str, workshop: Workshop, **more: Any
) -> None:
    """Read a stream until the slow function runs, and close the connection."""
    async with browser.stream(method, place, **more) as stream:
        async for _ in stream.aiter_lines():
            if workshop.began.is_set():
                break


async def only_run(browser: httpx.AsyncClient) -> dict[str, Any]:
    [run] = (await browser.get("/runs")).json()["runs"]
    found: dict[str, Any] = run
    return found


@pytest.mark.parametrize("version", [None, "2.4"])
async def test_a_run_ends_with_its_reader(workshop: Workshop, version: str | None) -> None:
    """With "cancel", a client that disconnects during a silent tool stops the run, on any version of ASGI."""
    made = service([call("slow")], workshop)
    async with listening(of_version(made, version)) as url, client(url, "token-of-ann") as ann:
        body = {"text": "Hi!", "on_disconnect": "cancel"}
        headers = {"accept": "text/event-stream"}
        await leave_in_the_middle(ann, "POST", "/conversations/c/runs", workshop, json=body, headers=headers)
        run = await ended_run(ann)
        assert (run["status"], run["reason"]) == ("stopped", "no_reader")


@pytest.mark.parametrize("version", [None, "2.4"])
async def test_a_stream_of_chat_completions_ends_with_its_client(workshop: Workshop, version: str | None) -> None:
    """A client of that API has no other way to stop. The run of a conversation goes on."""
    made = service(lambda _: call("slow"), workshop, wires=WIRES, drain_seconds=0, heartbeat_seconds=0.02)
    async with listening(of_version(made, version)) as url, client(url, "token-of-ann") as ann:
        body = {**CHAT, "stream": True}
        await leave_in_the_middle(ann, "POST", "/v1/chat/completions", workshop, json=body)
        assert (await ended_run(ann))["reason"] == "no_reader"
        named = {"x-conversation-id": "c"}
        await leave_in_the_middle(ann, "POST", "/v1/chat/completions", workshop, json=body, headers=named)
        await asyncio.sleep(0.1)
        assert [run["status"] for run in (await ann.get("/runs?conversation=c")).json()["runs"]] == ["running"]


async def test_a_whole_answer_is_not_made_without_its_client(workshop: Workshop) -> None:
    """A client that cancels a request without a stream stops its run too."""
    async with served([call("slow")], workshop, wires=WIRES) as it:
        request = asyncio.create_task(it.ann.post("/v1/chat/completions", json=CHAT, timeout=60))
        await workshop.began.wait()
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        assert (await ended_run(it.ann))["reason"] == "no_reader"


async def test_a_server_may_raise_at_a_dead_client(workshop: Workshop) -> None:
    """With ASGI 2.4 `send` raises OSError. The response ends without an error, and the run has no reader."""
    made = service([ScriptedAnswer("Hello.")], workshop)
    async with made.lifespan():
        run = await made.start("Hi!", conversation="c", user="ann", on_disconnect="cancel")
        response = respond(run, NativeWire(), REQUEST)
        sent = []

        async def send(message: Any) -> None:
            sent.append(message)
            if len(sent) > 1:
                raise OSError("the connection is closed")

        await response(GET, silence, send)
        assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]


@pytest.mark.parametrize("error", [FileNotFoundError("names.txt"), ValueError("names")])
@pytest.mark.parametrize("place", ["show", "wire"])
async def test_an_error_of_the_program_is_no_client_that_disconnects(place: str, error: Exception) -> None:
    """An OSError of `show`, or of a wire, is raised like any other exception, so that the server logs it."""

    class Broken(NativeWire):
        def encode(self, entry: Any) -> list[bytes]:
            raise error

    def show(entry: Any) -> Any:
        if place == "show":
            raise error
        return entry

    made = service([ScriptedAnswer("Hello.")])
    async with made.lifespan():
        run = await made.start("Hi!", conversation="c", user="ann")
        wire = Broken() if place == "wire" else NativeWire()
        with pytest.raises(type(error), match="names"):
            await respond(run, wire, REQUEST, show=show)(GET, silence, ignore)


async def test_a_client_that_disconnects_before_the_head_was_a_reader(workshop: Workshop) -> None:
    """With ASGI 2.4 `send` raises OSError for the head too. A run with "cancel" is stopped, and the response has no error."""
    made = service([call("slow")], workshop)
    async with made.lifespan():
        run = await made.start("Hi!", conversation="c", user="ann", on_disconnect="cancel")

        async def send(_: Any) -> None:
            raise OSError("the connection is closed")

        await respond(run, NativeWire(), REQUEST)({"type": "http", "method": "HEAD"}, silence, send)
        await workshop.began.wait()
        assert (await made.get_run(run.id, user="ann")).record.is_running
        await respond(run, NativeWire(), REQUEST)(GET, silence, send)
        async with asyncio.timeout(10):
            assert (await run.last_entry()).fields["reason"] == "no_reader"


# --- routes of one's own ----------------------------------------------------------------------------------------------


async def test_frames_are_bytes_for_any_framework(workshop: Workshop) -> None:
    """`frames` yields the frames of the whole run, with comments in silence."""
    made = service([call("slow"), "Done."], workshop)
    async with made.lifespan():
        run = await made.start("Hi!", conversation="c", user="ann")
        found = []
        async for piece in frames(run, NativeWire(), heartbeat_seconds=0.02):
            found.append(piece)
            if piece.startswith(b":"):
                workshop.go.set()
        assert b'"RunFinished"' in found[-1]


async def test_frames_refuse_a_stream_of_a_swarm(workshop: Workshop) -> None:
    """The error contains the function that takes such a stream."""
    run: Any = AsyncSwarm(ScriptedModel([]).client()).stream(workshop.agents()[0], "Hi!")
    with pytest.raises(ConfigurationError, match="needs a Run, not EventStream; stream_response"):
        await anext(frames(run, NativeWire()))


@pytest.mark.parametrize("wire", ["native", *WIRES])
async def test_a_message_that_waits_is_left_with_its_client(workshop: Workshop, wire: str) -> None:
    """If the client disconnects before its run starts, no run follows the active run."""
    place, body = message_on(wire, "And?")
    made = service([call("slow"), "Done.", "Later."], workshop, wires=WIRES, while_running="wait")
    async with listening(made) as url, client(url, "token-of-ann") as ann:
        headers = {"x-conversation-id": "c"}
        run = (await ann.post("/conversations/c/runs", json={"text": "Hi!"})).json()["run"]
        await workshop.began.wait()
        waiting = asyncio.create_task(ann.post(place, json=body, headers=headers))
        waits: Any = made.runs
        async with asyncio.timeout(60):
            while not waits._waiting["ann"]:
                await asyncio.sleep(0.01)
            waiting.cancel()
            while waits._waiting["ann"]:
                await asyncio.sleep(0.01)
        workshop.go.set()
        assert (await (await made.get_run(run, user="ann")).last_entry()).type == "RunFinished"
        assert [each["id"] for each in (await ann.get("/runs")).json()["runs"]] == [run]
        assert (await ann.post(place, json=body, headers=headers)).is_success  # sent again, it is a run
        assert len((await ann.get("/runs")).json()["runs"]) == 2


def bound_app(script: Any, workshop: Workshop, kept: list[Response]) -> Starlette:
    swarm = AsyncSwarm(ScriptedModel(script, cut=4).client())
    agent: Agent = workshop.agents()[0]

    async def keep(response: Response) -> None:
        kept.append(response)

    async def say(request: Request) -> Any:
        return stream_response(swarm.stream(agent, "Hi!"), NativeWire(), on_end=keep)

    return Starlette(routes=[Route("/say", say)])


async def test_a_run_without_a_service_is_bound_to_its_request(workshop: Workshop) -> None:
    """`stream_response` sends the whole run as frames, and passes the response to `on_end`."""
    kept: list[Response] = []
    async with listening(bound_app(["Hello."], workshop, kept)) as url, client(url, None) as browser:
        assert '"RunFinished"' in (await browser.get("/say")).text
        assert (await browser.head("/say")).content == b""
    assert [response.stop for response in kept] == ["answer"]


async def test_a_run_without_a_service_ends_with_its_client(workshop: Workshop) -> None:
    """If the client disconnects, the run is cancelled, and `on_end` gets its partial response."""
    kept: list[Response] = []
    async with listening(bound_app([call("slow")], workshop, kept)) as url, client(url, None) as browser:
        await leave_in_the_middle(browser, "GET", "/say", workshop)
        while not kept:
            await asyncio.sleep(0.01)
    assert kept[0].stop == "cancelled"
    assert kept[0].messages[-1]["content"] == "cancelled; its outcome is unknown"


async def test_a_run_without_a_service_that_cannot_start(
    workshop: Workshop, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The client gets RunFailed alone, the log has the error, and `on_end` is not called."""
    kept: list[Response] = []
    sent: list[bytes] = []

    async def keep(response: Response) -> None:
        kept.append(response)

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    swarm = AsyncSwarm(ScriptedModel([]).client())
    chat = Conversation(SQLiteStore(tmp_path / "chats.sqlite"), "c", swarm, agent=workshop.agents()[0])
    answer = stream_response(chat.stream("Hi!"), NativeWire(), on_end=keep)
    await answer(GET, silence, send)
    assert b'"RunFailed"' in b"".join(sent)
    assert "is not open" in caplog.text
    assert kept == []


async def test_a_stream_of_a_conversation_needs_no_on_end(workshop: Workshop) -> None:
    """The conversation stores the run, also after a disconnect; without a conversation, the history would be lost."""
    sent: list[bytes] = []
    started = asyncio.Event()

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))
        if b'"TurnStarted"' in sent[-1]:
            started.set()

    async def disconnect() -> Any:
        await started.wait()
        return {"type": "http.disconnect"}

    swarm, agent = (
        AsyncSwarm(ScriptedModel(["Hello.", ScriptedAnswer("Hello.", delay=60)]).client()),
        workshop.agents()[0],
    )
    with pytest.raises(ConfigurationError, match="needs on_end="):
        stream_response(swarm.stream(agent, "Hi!"), NativeWire())
    async with MemoryStore() as store:
        chat = store.conversation("c", swarm, agent=agent)
        await stream_response(chat.stream("Hi!"), NativeWire())(GET, silence, send)
        assert b'"RunFinished"' in b"".join(sent)
        started.clear()
        await stream_response(chat.stream("Hi again!"), NativeWire())(GET, disconnect, send)
        stored = await chat.load()
    assert [message["content"] for message in stored.messages] == ["Hi!", "Hello.", "Hi again!"]


async def test_an_exception_of_on_end_is_raised_as_itself(workshop: Workshop) -> None:
    """The exception reaches the server without a group, after the client has the whole run."""
    sent: list[bytes] = []

    async def fail(response: Response) -> None:
        raise ZeroDivisionError

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    swarm = AsyncSwarm(ScriptedModel(["Hello."]).client())
    answer = stream_response(swarm.stream(workshop.agents()[0], "Hi!"), NativeWire(), on_end=fail)
    with pytest.raises(ZeroDivisionError):
        await answer(GET, silence, send)
    assert b'"RunFinished"' in b"".join(sent)


async def test_a_run_without_a_service_reports_an_error(workshop: Workshop, caplog: pytest.LogCaptureFixture) -> None:
    """The stream ends with RunFailed and its public text, `on_end` gets the partial response, and the log has the error."""
    kept: list[Response] = []
    async with listening(bound_app([call("look", number=1)], workshop, kept)) as url, client(url, None) as browser:
        text = (await browser.get("/say")).text
        assert '"RunFailed"' in text
        assert "the script has no answer" not in text
    assert "the script has no answer" in caplog.text
    assert kept[0].stop == "error"
