"""The routes of AG-UI, Vercel and Chat Completions over a real socket; their frames have tests of their own."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from aswarm import Agent, Hold, ToolError, agent_tool, current_call, tool
from aswarm.runs import LocalRuns
from aswarm.testing import Failure, call
from tests.support.runs.kept_runs import Workshop
from tests.support.serve.served import Served, events_of, message_on, served

pytestmark = pytest.mark.asyncio

WIRES = ("agui", "vercel", "openai")


def said(text: str, thread: str = "t", run: str = "r1", **more: Any) -> dict[str, Any]:
    """Return a RunAgentInput with one message."""
    return message_on("agui", text, thread, runId=run, **more)[1]


def chatted(text: str, chat: str = "v", **more: Any) -> dict[str, Any]:
    """Return a request of `useChat` with one message."""
    return message_on("vercel", text, chat, **more)[1]


def resuming(run: str, entry: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a RunAgentInput that answers an interrupt."""
    return said("", run=run, **{"messages": [], "resume": [entry], **more})


def approved(interrupt: dict[str, Any], **payload: Any) -> dict[str, Any]:
    return {"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True, **payload}}


class AguiClient:
    """The messages of a client of AG-UI: it adds every message that starts, and each piece to the first message of its id."""

    def __init__(self, messages: list[dict[str, Any]]) -> None:
        self.messages = [dict(each) for each in messages]

    def read(self, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for event in events:
            match event["type"]:
                case "MESSAGES_SNAPSHOT":
                    self.messages = list(event["messages"])
                case "TEXT_MESSAGE_START":
                    self.messages.append({"id": event["messageId"], "role": "assistant", "content": ""})
                case "TEXT_MESSAGE_CONTENT":
                    shown = next(each for each in self.messages if each["id"] == event["messageId"])
                    shown["content"] += event["delta"]
                case "TOOL_CALL_RESULT":
                    result = {"id": event["messageId"], "role": "tool", "toolCallId": event["toolCallId"]}
                    self.messages.append({**result, "content": event["content"]})
        return events


async def agui(it: Served, body: dict[str, Any], agent: str = "Boss") -> list[dict[str, Any]]:
    answer = await it.ann.post(f"/agui/{agent}", json=body)
    assert answer.status_code == 200, answer.text
    return [json.loads(event["data"]) for event in events_of(answer.text)]


async def vercel(it: Served, body: dict[str, Any]) -> list[dict[str, Any]]:
    answer = await it.ann.post("/chat/Boss", json=body)
    assert answer.status_code == 200, answer.text
    return [json.loads(event["data"]) for event in events_of(answer.text) if event["data"] != "[DONE]"]


# --- AG-UI ------------------------------------------------------------------------------------------------------------


async def test_agui_runs_a_thread_and_replays_it() -> None:
    """The events have the ids of the client; a replay gives the whole last run with the same ids."""
    async with served([call("look", number=1), "Found."], wires=WIRES) as it:
        events = await agui(it, said("Hi!"))
        assert (events[0]["type"], events[-1]["type"]) == ("RUN_STARTED", "RUN_FINISHED")
        assert {(event["threadId"], event["runId"]) for event in (events[0], events[-1])} == {("t", "r1")}
        replay = await it.ann.get("/agui/Boss/t/events")
        again = [json.loads(event["data"]) for event in events_of(replay.text)]
        assert (again[0], again[-1]) == (events[0], events[-1])
        assert (await it.ann.get("/agui/Boss/none/events")).status_code == 404
        assert (await it.bob.get("/agui/Boss/t/events")).status_code == 404
        assert (await it.ann.post("/agui/Nobody", json=said("Hi!", "u"))).status_code == 404


@pytest.mark.parametrize("wire", ["native", "agui", "vercel"])
async def test_a_message_loads_its_history_once(wire: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long history costs a database more than all the rest."""
    statements, connect = list[str](), sqlite3.connect

    def traced(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **options)
        connection.set_trace_callback(statements.append)
        return connection

    monkeypatch.setattr(sqlite3, "connect", traced)
    async with served(["One.", "Two."], wires=WIRES, store=tmp_path / "chats.sqlite") as it:
        await (await it.service.start("Hi!", conversation="c", user="ann")).result()
        statements.clear()
        place, body = message_on(wire, "And?")
        answer = await it.ann.post(place, json=body)
        if wire == "native":
            await it.ended(answer.json()["run"])
        assert len([each for each in statements if each.startswith("SELECT data, ") and "aswarm_message" in each]) == 1


async def test_runs_that_cannot_be_reached_are_a_503(monkeypatch: pytest.MonkeyPatch) -> None:
    """An OSError of another implementation of `Runs` is not taken for a client that disconnected."""

    async def fail(*_: Any) -> None:
        raise ConnectionError("nothing listens")

    async with served([], wires=WIRES) as it:
        monkeypatch.setattr(LocalRuns, "start", fail)
        answer = await it.ann.post("/chat/Boss", json=chatted("Hi!"))
        assert answer.status_code == 503


async def test_agui_interrupts_and_resumes(workshop: Workshop) -> None:
    """An approval is an interrupt; a new message before the answer is a RUN_ERROR, as is an answer to another interrupt."""
    async with served([call("erase", call_id="x/y", name="draft"), "It is gone."], workshop, wires=WIRES) as it:
        finished = (await agui(it, said("Erase it.")))[-1]
        [interrupt] = finished["outcome"]["interrupts"]
        early = await agui(it, said("Hello?", run="r2"))
        assert [event["type"] for event in early] == ["RUN_STARTED", "RUN_ERROR"]
        assert early[-1]["code"] == "interrupt_open"
        for number, wrong in enumerate(("none", f"run0/{interrupt['toolCallId']}")):
            body = resuming(f"r3{number}", {"interruptId": wrong, "status": "cancelled"})
            assert (await agui(it, body))[-1]["type"] == "RUN_ERROR"
        old = {"id": "o", "role": "tool", "toolCallId": "x/y", "content": "forged"}
        resumed = await agui(it, resuming("r4", approved(interrupt), messages=[old]))
        assert resumed[-1]["outcome"] == {"type": "success"}
        assert workshop.erased == ["draft"]


async def test_agui_resumes_for_a_client_that_only_has_its_own_message(workshop: Workshop) -> None:
    """Beside `resume`, a message that the thread has is not new; another message is refused."""
    async with served([call("erase", call_id="e", name="draft"), "It is gone."], workshop, wires=WIRES) as it:
        [interrupt] = (await agui(it, said("Erase it.")))[-1]["outcome"]["interrupts"]
        resume = [approved(interrupt)]
        both = await agui(it, said("And that.", run="r2", resume=resume))
        assert both[-1]["code"] == "interrupt_open"
        assert "cannot have a new message" in both[-1]["message"]
        resumed = await agui(it, said("Erase it.", run="r3", resume=resume))
        assert resumed[-1]["outcome"] == {"type": "success"}
        again = await agui(it, said("Erase it.", run="r3", resume=resume))
        assert (again[0], again[-1]) == (resumed[0], resumed[-1])
        other = [{**resume[0], "payload": {"approved": False}}]
        late = await agui(it, said("Erase it.", run="r4", resume=other))
        assert late[-1]["code"] == "call_not_open"
        assert workshop.erased == ["draft"]
        assert [message["role"] for message in (await it.stored("t")).messages].count("user") == 1


async def test_agui_shows_nothing_twice_to_a_client_that_resumes_again(workshop: Workshop) -> None:
    """The client has messages of the run, whole or cut. They are removed before the run is sent again."""
    script = [call("erase", call_id="e", name="draft"), "It is gone."]
    async with served(script, workshop, wires=WIRES) as it:
        reader = AguiClient(said("Erase it.")["messages"])
        [interrupt] = reader.read(await agui(it, said("Erase it.")))[-1]["outcome"]["interrupts"]
        before = list(reader.messages)
        events = await agui(it, resuming("r2", approved(interrupt), messages=reader.messages))
        assert "MESSAGES_SNAPSHOT" not in [event["type"] for event in events]
        for length in (len(events), len(events) // 2, 6):
            reader.messages = json.loads(json.dumps(before))
            reader.read(events[:length])
            reader.read(await agui(it, resuming("r2", approved(interrupt), messages=reader.messages)))
            assert [each.get("content") for each in reader.messages].count("It is gone.") == 1
            ids = [each["id"] for each in reader.messages]
            assert len(ids) == len(set(ids))
            assert [each["role"] for each in reader.messages].count("tool") == 1
        assert workshop.erased == ["draft"]


# --- Vercel -----------------------------------------------------------------------------------------------------------


async def test_a_chat_is_streamed_and_resumed(workshop: Workshop) -> None:
    """A page that is loaded again in the middle gets the whole run from its start; after the end of the run it gets 204."""
    async with served([call("slow"), "Done."], workshop, wires=WIRES) as it:
        async with asyncio.TaskGroup() as group:
            first = group.create_task(vercel(it, chatted("Hi!")))
            await workshop.began.wait()
            second = group.create_task(it.ann.get("/chat/Boss/v/stream"))
            await asyncio.sleep(0.05)
            workshop.go.set()
        answer = second.result()
        assert answer.headers["x-vercel-ai-ui-message-stream"] == "v1"
        assert json.loads(events_of(answer.text)[0]["data"])["type"] == "start"
        assert first.result()[-1]["finishReason"] == "stop"
        assert answer.text.endswith("data: [DONE]\n\n")
        assert (await it.ann.get("/chat/Boss/v/stream")).status_code == 204
        assert (await it.ann.get("/chat/Boss/none/stream")).status_code == 204


async def test_a_chat_approves_a_call(workshop: Workshop) -> None:
    """The approval is a part of the last message; a second request with it after the end starts nothing new."""
    async with served([call("erase", call_id="e", name="draft"), "It is gone."], workshop, wires=WIRES) as it:
        parts = await vercel(it, chatted("Erase it."))
        [asked] = [part for part in parts if part["type"] == "tool-approval-request"]
        part = {
            "type": "dynamic-tool",
            "toolName": "erase",
            "toolCallId": asked["toolCallId"],
            "state": "approval-responded",
            "approval": {"id": asked["approvalId"], "approved": True},
        }
        body = chatted("Erase it.")
        body["messages"].append({"id": parts[0]["messageId"], "role": "assistant", "parts": [part]})
        answered = await vercel(it, body)
        assert "".join(part.get("delta", "") for part in answered if part["type"] == "text-delta") == "It is gone."
        assert (await vercel(it, body))[-1] == answered[-1]
        assert workshop.erased == ["draft"]


async def test_an_answer_is_made_again() -> None:
    """`regenerate-message` removes the messages after the last message of the user, and asks the model again."""
    async with served(["One.", "Two."], wires=WIRES) as it:
        await vercel(it, chatted("Hi!"))
        parts = await vercel(it, chatted("Hi!", trigger="regenerate-message"))
        assert parts[-1]["finishReason"] == "stop"
        assert [message["content"] for message in (await it.stored("v")).messages] == ["Hi!", "Two."]
        nothing = await it.ann.post("/chat/Boss", json=chatted("Hi!", "new", trigger="regenerate-message", messages=[]))
        assert nothing.status_code == 409


async def test_a_message_that_is_sent_again_is_no_second_message() -> None:
    """After a run that failed, the client sends the message again with the next one."""
    async with served([Failure(400), "Two."], wires=WIRES) as it:
        assert (await vercel(it, chatted("One?")))[-1]["type"] == "error"
        body = chatted("One?")
        body["messages"] += chatted("Two?")["messages"]
        await vercel(it, body)
        assert [message["content"] for message in (await it.stored("v")).messages] == ["One?", "Two?", "Two."]


async def test_the_same_message_after_a_failure_is_a_second_attempt() -> None:
    """If nothing is new and the last message has no answer, the model is asked again."""
    async with served([Failure(400), "Yes."], wires=WIRES) as it:
        await vercel(it, chatted("One?"))
        await vercel(it, chatted("One?"))
        assert [message["content"] for message in (await it.stored("v")).messages] == ["One?", "Yes."]


# --- answers and exceptions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inside", [False, True], ids=["function", "agent tool"])
async def test_the_text_of_an_exception_reaches_no_reader(inside: bool) -> None:
    """No wire sends the text, live or later. The text of a ToolError is sent, because it is written for the model."""

    async def look() -> str:
        """Look."""
        raise RuntimeError("password=hunter2\nand more of hunter2")

    async def find() -> str:
        """Find."""
        raise ToolError("No such order.")

    calls = [call("look", call_id="l"), call("find", call_id="f")]
    worker = Agent(name="Worker", instructions="inner", functions=[look, find])
    boss = Agent(name="Boss", functions=[agent_tool(worker)]) if inside else Agent(name="Boss", functions=[look, find])
    outer = [call("worker", call_id="w", request="Work")] if inside else calls

    def script(request: Any) -> Any:
        is_inner = request.messages[0]["content"] == "inner"
        if any(message["role"] == "tool" for message in request.messages):
            return "Done."
        return calls if is_inner else outer

    async with served(script, wires=WIRES, agents=boss) as it:
        run = await it.say("Go.", "n")
        await it.ended(run)
        texts = [json.dumps(await agui(it, said("Go."))), json.dumps(await vercel(it, chatted("Go.")))]
        places = (f"/runs/{run}/events", f"/runs/{run}", "/conversations/n", "/agui/Boss/t/events", "/conversations/t")
        texts += [(await it.ann.get(place)).text for place in places]
        body = {"model": "Boss", "messages": [{"role": "user", "content": "Go."}], "stream": True}
        texts.append((await it.ann.post("/v1/chat/completions", json=body)).text)
        assert not [text for text in texts if "hunter2" in text]
        assert sum("No such order." in text for text in texts) >= (0 if inside else 4)
        assert "password=hunter2" in json.dumps((await it.stored("n")).messages) or inside


async def read_everywhere(it: Served, body: dict[str, Any]) -> str:
    """Start a run over AG-UI, and read it by every route."""
    texts = [json.dumps(await agui(it, body))]
    (run, *_) = await it.service.runs.list(user="ann")
    paths = (f"/runs/{run.id}/events", f"/runs/{run.id}", "/conversations/t", "/agui/Boss/t/events")
    return "\n".join([*texts, *[(await it.ann.get(path)).text for path in paths]])


async def test_an_exception_in_an_agent_tool_of_an_agent_tool() -> None:
    """Neither the progress nor the data of the waiting call shows the exception or the context variables of the inner run."""

    async def look() -> str:
        """Look."""
        raise RuntimeError("password=hunter2")

    async def ask(context_variables: dict[str, Any]) -> str:
        """Ask."""
        context_variables["secret"] = "hunter2"
        if current_call().answer is None:
            raise Hold("Which day?")
        return "asked"

    worker = Agent(name="Worker", instructions="worker", functions=[look, ask])
    clerk = Agent(name="Clerk", instructions="clerk", functions=[agent_tool(worker)])
    boss = Agent(name="Boss", instructions="boss", functions=[agent_tool(clerk)])

    def script(request: Any) -> Any:
        own, last = request.messages[0]["content"], request.messages[-1]
        if own == "worker":
            return call("look") if last["role"] == "user" else call("ask", call_id="a")
        return call("clerk" if own == "boss" else "worker", call_id=own, request="Work")

    async with served(script, wires=WIRES, agents=boss) as it:
        text = await read_everywhere(it, said("Go."))
        assert "Which day?" in text
        assert "hunter2" not in text
        assert "hunter2" in json.dumps((await it.stored("t")).messages)


async def test_an_exception_of_a_call_whose_arguments_were_changed() -> None:
    """The note about the arguments stands before the text of the exception."""

    @tool(approve=True)
    async def look(where: str) -> str:
        """Look."""
        raise RuntimeError(f"password=hunter2\nin {where}")

    agent = Agent(name="Boss", functions=[look])
    async with served([call("look", call_id="l", where="here"), "Done."], wires=WIRES, agents=agent) as it:
        [interrupt] = (await agui(it, said("Go.")))[-1]["outcome"]["interrupts"]
        text = await read_everywhere(it, resuming("r2", approved(interrupt, arguments={"where": "there"})))
        assert "changed by the user" in text
        assert "hunter2" not in text
