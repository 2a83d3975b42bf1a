"""The native routes over a real socket: runs, reattaching, conversations, and what bad input gets."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx
import pytest
from starlette.requests import Request

from aswarm import Agent, ConfigurationError, agent_tool, tool
from aswarm.conversations import Conversation
from aswarm.runs import Limits, show_answers, show_everything
from aswarm.serve import local_only
from aswarm.serve._endpoints import Refusal, read_json
from aswarm.testing import Failure, ScriptedAnswer, call
from tests.support.runs.kept_runs import Workshop
from tests.support.serve.served import client, events_of, listening, served, service

pytestmark = pytest.mark.asyncio

LONG = [call("look", number=1), call("transfer_to_clerk"), ScriptedAnswer("All is well.")]
EVENTS = {"accept": "text/event-stream"}


async def test_a_run_is_started_and_read() -> None:
    """202 with the place of the events; the stream has each entry as one event, with its number as the id."""
    async with served(LONG) as it:
        answer = await it.ann.post("/conversations/c/runs", json={"text": "Hi!"})
        assert answer.status_code == 202
        place = answer.headers["location"]
        assert answer.json() == {"run": place.split("/")[2], "conversation": "c", "events": place}
        stream = await it.ann.get(place)
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert stream.headers["cache-control"] == "no-store, no-transform"
        assert stream.headers["x-accel-buffering"] == "no"
        entries = [json.loads(event["data"]) for event in events_of(stream.text)]
        assert [event["id"] for event in events_of(stream.text)] == [str(entry["seq"]) for entry in entries]
        assert (entries[0]["type"], entries[-1]["type"]) == ("RunStarted", "RunFinished")
        assert "\r" not in stream.text
        state = await it.state(answer.json()["run"])
        assert (state["status"], state["result"]["type"]) == ("finished", "RunFinished")


async def test_a_run_may_be_streamed_at_once() -> None:
    """A client that accepts events gets the stream as the answer, and the place to come back to."""
    async with served(LONG) as it:
        answer = await it.ann.post("/conversations/c/runs", json={"text": "Hi!"}, headers=EVENTS)
        assert answer.status_code == 200
        assert json.loads(events_of(answer.text)[-1]["data"])["type"] == "RunFinished"
        assert answer.headers["location"].startswith("/runs/")


async def test_a_reader_comes_back_where_it_was() -> None:
    """After `Last-Event-ID`, or `after`, each later entry comes once; 204 if nothing is to come, so that a browser stops."""
    async with served(LONG) as it:
        run = await it.say()
        place = f"/runs/{run}/events"
        last = int(events_of((await it.ann.get(place)).text)[-1]["id"])
        for kwargs in ({"headers": {"last-event-id": "4"}}, {"params": {"after": "4"}}):
            numbers = [int(event["id"]) for event in events_of((await it.ann.get(place, **kwargs)).text)]
            covered = {
                number
                for event in events_of((await it.ann.get(place, **kwargs)).text)
                for number in range(json.loads(event["data"]).get("first", int(event["id"])), int(event["id"]) + 1)
            }
            assert numbers == sorted(numbers)
            assert covered == set(range(5, last + 1))
        for position in (last, last + 1, 10**9):
            assert (await it.ann.get(place, headers={"last-event-id": str(position)})).status_code == 204
        assert (await it.ann.get(place, headers={"last-event-id": "-1"})).status_code == 200


async def test_a_reader_that_is_ahead_of_the_written_log_comes_back(workshop: Workshop) -> None:
    """Another process has shown it entries that are not in the file yet. It is no 204 before the run has ended."""
    async with served([call("slow"), "Done."], workshop) as it:
        run = await it.say()
        await workshop.began.wait()
        async with it.ann.stream("GET", f"/runs/{run}/events", headers={"last-event-id": "1000"}) as stream:
            assert stream.status_code == 200
            workshop.go.set()
            await it.ended(run)
        assert (await it.ann.get(f"/runs/{run}/events", headers={"last-event-id": "1000"})).status_code == 204


@pytest.mark.parametrize("position", ["x", "1.5", "-2", "9" * 17, "٣"])
async def test_a_position_is_a_number(position: str) -> None:
    """400 for anything else."""
    async with served(LONG) as it:
        run = await it.say()
        assert (await it.ann.get(f"/runs/{run}/events", params={"after": position})).status_code == 400


async def test_a_client_may_go_and_another_reads_on(workshop: Workshop) -> None:
    """The run belongs to the service: a reader that is cut in the middle is followed by one that gets the rest."""
    async with served([call("slow"), "Done."], workshop) as it:
        run = await it.say()
        seen = []
        async with it.ann.stream("GET", f"/runs/{run}/events") as stream:
            async for line in stream.aiter_lines():
                if line.startswith("id: "):
                    seen.append(int(line[4:]))
                if '"ToolCallStarted"' in line:
                    break
        workshop.go.set()
        rest = await it.ann.get(f"/runs/{run}/events", headers={"last-event-id": str(seen[-1])})
        assert json.loads(events_of(rest.text)[0]["data"]).get("first", seen[-1] + 1) == seen[-1] + 1
        assert (await it.ended(run))["status"] == "finished"


async def test_a_head_request_gets_no_stream() -> None:
    """HEAD is answered with the head of a stream, and ends."""
    async with served(LONG) as it:
        run = await it.say()
        answer = await it.ann.head(f"/runs/{run}/events")
        assert (answer.status_code, answer.content) == (200, b"")


async def test_silence_is_filled_with_comments(workshop: Workshop) -> None:
    """A proxy closes a connection that says nothing, so a comment comes now and then."""
    async with served([call("slow"), "Done."], workshop, heartbeat_seconds=0.02) as it:
        run = await it.say()
        async with it.ann.stream("GET", f"/runs/{run}/events") as stream:
            comments = 0
            async for line in stream.aiter_lines():
                comments += line.startswith(":")
                if comments == 3:
                    workshop.go.set()
        assert comments >= 3


async def test_stopping_answers_what_happened(workshop: Workshop) -> None:
    """The answer comes once the tools have ended, and names the call whose outcome is unknown."""
    async with served([call("slow"), "Go on."], workshop) as it:
        run = await it.say()
        await workshop.began.wait()
        state = (await it.ann.post(f"/runs/{run}/cancel")).json()
        assert (state["status"], state["reason"]) == ("stopped", "cancelled")
        assert state["result"]["response"]["unknown_calls"][0]["name"] == "slow"
        assert (await it.ann.post(f"/runs/{run}/cancel")).json() == state


async def test_a_conversation_has_one_run_at_a_time(workshop: Workshop) -> None:
    """409 with the id of the active run, so that a second tab can attach to it."""
    async with served([call("slow"), "Done."], workshop) as it:
        run = await it.say()
        answer = await it.ann.post("/conversations/c/runs", json={"text": "Hello?"})
        assert answer.status_code == 409
        assert answer.json()["error"]["run"] == run
        assert (await it.ann.get("/conversations/c")).json()["active_run"] == run
        workshop.go.set()
        await it.ended(run)


async def test_a_request_that_is_sent_again_starts_nothing() -> None:
    """The same `Idempotency-Key`: 200 and the same run. With another text it is 422."""
    async with served(LONG) as it:
        headers = {"idempotency-key": "k1"}
        first = await it.ann.post("/conversations/c/runs", json={"text": "Hi!"}, headers=headers)
        again = await it.ann.post("/conversations/c/runs", json={"text": "Hi!"}, headers=headers)
        assert (first.status_code, again.status_code) == (202, 200)
        assert first.json() == again.json()
        other = await it.ann.post("/conversations/c/runs", json={"text": "Other"}, headers=headers)
        assert (other.status_code, other.json()["error"]["code"]) == (422, "key_reused")


# --- conversations ----------------------------------------------------------------------------------------------------


async def test_conversations_are_listed_read_forked_and_deleted() -> None:
    """The list is the user's; a fork has the first messages; what is deleted is gone with its runs."""
    async with served([*LONG, "Forked."]) as it:
        run = await it.say()
        await it.ended(run)
        [line] = (await it.ann.get("/conversations")).json()["conversations"]
        assert (line["id"], line["agent"], line["length"]) == ("c", "Clerk", 6)
        whole = (await it.ann.get("/conversations/c")).json()
        assert [message["role"] for message in whole["messages"]][:2] == ["user", "assistant"]
        assert (whole["active_run"], whole["waiting"], whole["stop"]) == (None, [], "answer")
        fork = await it.ann.post("/conversations/c/fork", json={"after": 1, "id": "d"})
        assert (fork.status_code, fork.headers["location"]) == (201, "/conversations/d")
        assert (await it.ann.post("/conversations/c/fork", json={"id": "d"})).status_code == 409
        assert (await it.ann.get("/conversations/d")).json()["messages"] == whole["messages"][:1]
        assert (await it.ann.delete("/conversations/c")).status_code == 204
        for path in ("/conversations/c", f"/runs/{run}", f"/runs/{run}/events"):
            assert (await it.ann.get(path)).status_code == 404
        assert (await it.ann.delete("/conversations/c")).status_code == 404
        assert (await it.ann.post("/conversations/d/fork", json={"after": 9})).status_code == 422
        assert (await it.ann.post("/conversations/d/fork", json={})).status_code == 201


async def test_conversations_are_renamed_and_searched() -> None:
    """Each user finds and renames their own; a title is a text of at most 200 characters."""
    async with served(["A lamp.", "A chair."]) as it:
        for text, name in (("What shines?", "c"), ("What stands?", "d")):
            await it.ended(await it.say(text, name))

        async def titles(who: httpx.AsyncClient, search: str) -> list[str]:
            found = (await who.get("/conversations", params={"search": search})).json()["conversations"]
            return [each["title"] for each in found]

        assert await titles(it.ann, "") == ["What stands?", "What shines?"]
        assert await titles(it.ann, "LAMP") == ["What shines?"]
        assert await titles(it.bob, "lamp") == []
        assert (await it.ann.patch("/conversations/c", json={"title": "Light"})).status_code == 204
        assert await titles(it.ann, "light") == ["Light"]
        for body in ({}, {"title": None}, {"title": 1}, {"title": "x" * 201}, {"title": "\0"}, []):
            refused = await it.ann.patch("/conversations/c", json=body)
            assert (refused.status_code, refused.json()["error"]["code"]) == (422, "invalid_request"), body
        assert (await it.bob.patch("/conversations/c", json={"title": "Mine"})).status_code == 404
        assert (await it.ann.patch("/conversations/c", json={"title": ""})).status_code == 204
        assert await titles(it.ann, "shines") == ["What shines?"]


async def test_searches_of_a_user_run_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that many searches of one user do not delay those of others."""
    async with served(["A lamp."]) as it:
        store, free, running = it.service.runs.store, anyio.Event(), list[str]()
        search = store.list

        async def slow(*, prefix: str, **options: Any) -> Any:
            running.append(prefix)
            await free.wait()
            return await search(prefix=prefix, **options)

        monkeypatch.setattr(store, "list", slow)
        async with anyio.create_task_group() as tasks:
            for who in (it.ann, it.ann, it.ann, it.bob):
                tasks.start_soon(partial(who.get, "/conversations", params={"search": "lamp"}))
            with anyio.fail_after(60):
                while len(running) < 2:
                    await anyio.sleep(0.01)
            assert sorted(running) == ["ann/", "bob/"]
            free.set()
        assert sorted(running) == ["ann/", "ann/", "ann/", "bob/"]


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
FILE = {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}}


async def test_a_message_may_have_images_and_files() -> None:
    """They are in the history in the form of Chat Completions; fields that the form does not have are left out."""
    async with served(["A lamp."]) as it:
        content = [{"type": "text", "text": "What is this?", "cache": 1}, {**IMAGE, "role": "system"}, FILE]
        answer = await it.ann.post("/conversations/c/runs", json={"content": content})
        await it.ended(answer.json()["run"])
        [message, _] = (await it.ann.get("/conversations/c")).json()["messages"]
        assert message == {"role": "user", "content": [{"type": "text", "text": "What is this?"}, IMAGE, FILE]}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"content": "text"}, "content"),
        ({"content": []}, "text"),
        ({"content": [IMAGE], "text": "both"}, "text"),
        ({"content": ["text"]}, "content[0]"),
        ({"content": [IMAGE, {"type": "text", "text": ""}]}, "content[1].text"),
        ({"content": [{"type": "input_audio"}]}, "content[0].input_audio"),
        ({"content": [{"type": "video_url"}]}, "content[0].type"),
        ({"content": [{"type": "image_url", "image_url": "data:"}]}, "content[0].image_url"),
        ({"content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}, "content[0].image_url.url"),
        ({"content": [{"type": "file", "file": {"file_data": "data:"}}]}, "content[0].file.filename"),
        ({"content": [{"type": "file", "file": {"filename": "a", "file_data": 1}}]}, "content[0].file.file_data"),
    ],
)
async def test_parts_of_another_form_are_refused(body: dict[str, Any], param: str) -> None:
    """The error names the place; nothing is stored."""
    async with served([]) as it:
        refused = await it.ann.post("/conversations/c/runs", json=body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (422, param)
        assert (await it.ann.get("/conversations/c")).status_code == 404


async def test_a_history_that_no_encoding_takes_can_be_read() -> None:
    """Half of a surrogate pair, which a model may write, is another sign; an infinity is text."""
    async with served(LONG) as it:
        messages = [{"role": "user", "content": "half \ud800", "rank": float("inf")}]
        runs = it.service.runs
        await Conversation(runs.store, "ann/c", runs.swarm, agent=runs._known_agents["Boss"]).replace(messages)
        [message] = (await it.ann.get("/conversations/c")).json()["messages"]
        assert message == {"role": "user", "content": "half \ufffd", "rank": "inf"}


async def test_the_place_of_a_fork_is_a_path() -> None:
    """A name with a line break or another alphabet is quoted in `Location`, and so is the path of a mounted app."""
    async with served(LONG) as it:
        await it.ended(await it.say())
        name = "ab?\r\nx-evil: 1 \N{GREEK SMALL LETTER ALPHA}"
        fork = await it.ann.post("/conversations/c/fork", json={"id": name})
        assert fork.headers["location"] == "/conversations/ab%3F%0D%0Ax-evil%3A%201%20%CE%B1"
        assert "x-evil" not in fork.headers
        transport = httpx.ASGITransport(app=it.service, root_path="/\N{GREEK SMALL LETTER ALPHA}")
        async with httpx.AsyncClient(transport=transport, base_url=it.url, headers=it.ann.headers) as mounted:
            answer = await mounted.post("/\N{GREEK SMALL LETTER ALPHA}/conversations/d/runs", json={"text": "Hi!"})
            assert answer.headers["location"].startswith("/%CE%B1/runs/")


async def test_answers_to_calls_are_decisions(workshop: Workshop) -> None:
    """The page reads what waits, and sends answers; a second click gets the same run; a wrong id is 409."""
    async with served([call("erase", call_id="e", name="draft"), "It is gone."], workshop) as it:
        await it.ended(await it.say("Erase it."))
        [waiting] = (await it.ann.get("/conversations/c")).json()["waiting"]
        assert (waiting["call_id"], waiting["name"], waiting["kind"]) == ("e", "erase", "approval")
        run = waiting["run"]
        answers = {"answers": [{"call": "e", "run": run, "approve": True, "arguments": {"name": "copy"}}]}
        wrong = {"answers": [{"call": "f", "run": run, "approve": True}]}
        assert (await it.ann.post("/conversations/c/runs", json=wrong)).status_code == 409
        first = await it.ann.post("/conversations/c/runs", json=answers)
        again = await it.ann.post("/conversations/c/runs", json=answers)
        assert (first.status_code, again.status_code) == (202, 200)
        assert first.json()["run"] == again.json()["run"]
        await it.ended(first.json()["run"])
        assert workshop.erased == ["copy"]
        assert (await it.ann.post("/conversations/none/runs", json=answers)).status_code == 404


@pytest.mark.parametrize("show", [show_answers, show_everything])
async def test_a_run_that_waits_inside_a_call(show: Any) -> None:
    """A reader gets the open calls inside. The messages and the context variables of the inner run are for the store."""
    refunded: list[int] = []

    def sign(context_variables: dict[str, Any]) -> str:
        context_variables["clerk"] = "secret"
        return "signed"

    @tool(approve=True)
    async def refund(order: int) -> str:
        refunded.append(order)
        return "refunded"

    payer = agent_tool(Agent(name="Payer", functions=[sign, refund]))
    steps = [call("payer", request="Pay"), call("sign"), call("refund", call_id="r", order=7), "Paid.", "All paid."]
    async with served(steps, agents=[Agent(name="Boss", functions=[payer])], show=show) as it:
        run = await it.say("Pay.")
        await it.ended(run)
        page = await it.ann.get("/conversations/c")
        (waiting,) = page.json()["waiting"]
        assert [each["arguments"] for each in waiting["data"]["waiting"]] == ['{"order": 7}']
        events = (await it.ann.get(f"/runs/{run}/events")).text
        marks = [json.loads(event["data"]) for event in events_of(events) if "CallWaiting" in event["data"]]
        assert marks[-1]["data"] == waiting["data"]
        if show is show_answers:
            assert "secret" not in page.text
            assert "secret" not in events, events[max(0, events.index("secret") - 900) : events.index("secret") + 50]
        answers = {"answers": [{"call": waiting["call_id"], "run": run, "content": {"r": True}}]}
        answered = await it.ann.post("/conversations/c/runs", json=answers)
        assert (await it.ended(answered.json()["run"]))["status"] == "finished"
        assert refunded == [7]


async def test_a_history_without_an_answer_is_continued() -> None:
    """After the answer of a tool, or a message of the user, the model is asked again; after its answer it is 409."""
    async with served([call("look", number=1), "One.", "Two.", Failure(400), "Three."]) as it:
        await it.ended(await it.say())
        await it.ann.post("/conversations/c/fork", json={"after": 3, "id": "d"})
        continued = await it.ann.post("/conversations/d/runs", json={"continue": True})
        state = await it.ended(continued.json()["run"])
        assert state["result"]["response"]["text"] == "Two."
        assert len((await it.ann.get("/conversations/d")).json()["messages"]) == 4
        refused = await it.ann.post("/conversations/d/runs", json={"continue": True})
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "nothing_new")
        assert (await it.ended(await it.say(conversation="e")))["status"] == "failed"
        again = await it.ann.post("/conversations/e/runs", json={"continue": True})
        assert (await it.ended(again.json()["run"]))["result"]["response"]["text"] == "Three."
        both = await it.ann.post("/conversations/e/runs", json={"continue": True, "text": "Hi!"})
        assert both.status_code == 422


async def test_an_answer_is_made_again_on_the_native_route() -> None:
    """What followed the last message of the user is taken back; it cannot stand beside a text."""
    async with served([call("look", number=1), "One.", "Two."]) as it:
        await it.ended(await it.say())
        again = await it.ann.post("/conversations/c/runs", json={"regenerate": True})
        assert (await it.ended(again.json()["run"]))["result"]["response"]["text"] == "Two."
        messages = (await it.ann.get("/conversations/c")).json()["messages"]
        assert [message["content"] for message in messages] == ["Hi!", "Two."]
        both = await it.ann.post("/conversations/c/runs", json={"regenerate": True, "text": "Hi!"})
        assert (both.status_code, "one of the keys text, content, answers" in both.text) == (422, True)


async def test_a_conversation_that_no_path_can_name_is_not_made() -> None:
    """An id with a slash is 422 wherever a client names a conversation."""
    async with served(LONG, wires=("agui", "openai")) as it:
        await it.ended(await it.say())
        fork = await it.ann.post("/conversations/c/fork", json={"id": "a/b"})
        run = {"threadId": "a/b", "runId": "r", "messages": [{"id": "m", "role": "user", "content": "Hi!"}]}
        thread = await it.ann.post("/agui/Boss", json=run)
        body = {"model": "Boss", "messages": [{"role": "user", "content": "Hi!"}]}
        chat = await it.ann.post("/v1/chat/completions", json=body, headers={"x-conversation-id": "a/b"})
        assert [answer.status_code for answer in (fork, thread, chat)] == [422, 422, 400]
        assert all("slash" in answer.json()["error"]["message"] for answer in (fork, thread, chat))
        assert len((await it.ann.get("/conversations")).json()["conversations"]) == 1


async def test_users_see_nothing_of_each_other() -> None:
    """The run and the conversation of another user are 404 on every route; lists are empty."""
    async with served(LONG) as it:
        run = await it.say()
        await it.ended(run)
        for path in (f"/runs/{run}", f"/runs/{run}/events", "/conversations/c"):
            assert (await it.bob.get(path)).status_code == 404, path
        assert (await it.bob.post(f"/runs/{run}/cancel")).status_code == 404
        assert (await it.bob.delete("/conversations/c")).status_code == 404
        assert (await it.bob.post("/conversations/c/fork", json={})).status_code == 404
        assert (await it.bob.get("/conversations")).json() == {"conversations": []}
        assert (await it.bob.get("/runs")).json() == {"runs": []}
        assert len((await it.ann.get("/runs", params={"conversation": "c"})).json()["runs"]) == 1


async def test_the_graph_of_the_agents_is_data() -> None:
    """Nodes, handoffs and Mermaid, for each agent that a client may name."""
    async with served(LONG) as it:
        graph = (await it.ann.get("/graph")).json()
        assert graph["agents"] == ["Boss", "Clerk"]
        assert [node["name"] for node in graph["graphs"]["Boss"]["agents"]] == ["Boss", "Clerk"]
        assert graph["graphs"]["Boss"]["handoffs"][0]["function"] == "transfer_to_clerk"


# --- what readers get -------------------------------------------------------------------------------------------------


async def test_readers_get_neither_context_nor_error_texts() -> None:
    """By default; `show_everything` shows them."""
    context = {"account": "s3cret", "name": "Ann"}

    async def of_request(request: Any) -> dict[str, Any]:
        return context

    for show, is_shown in ((show_answers, False), (show_everything, True)):
        async with served(["Hello.", Failure(400, "s3cret")], context=of_request, show=show) as it:
            for text in ("Hi!", "Again"):
                stream = await it.ann.post("/conversations/c/runs", json={"text": text}, headers=EVENTS)
                assert ("s3cret" in stream.text) is is_shown
            assert ("s3cret" in (await it.ann.get("/conversations/c")).text) is is_shown


async def test_some_context_may_be_shown() -> None:
    """`client_context` names the variables that clients may see."""

    async def of_request(request: Any) -> dict[str, Any]:
        return {"account": "s3cret", "name": "Ann"}

    async with served(["Hello."], context=of_request, client_context=["name"]) as it:
        await it.ended(await it.say())
        assert (await it.ann.get("/conversations/c")).json()["context_variables"] == {"name": "Ann"}


# --- who may ask ------------------------------------------------------------------------------------------------------


async def test_a_request_needs_a_user() -> None:
    """401 without a token, with a wrong one, and with another scheme; /health needs none."""
    async with served(LONG) as it, client(it.url, None) as nobody:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic token-of-ann"}):
            answer = await nobody.get("/conversations", headers=headers)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert (await nobody.get("/health")).json() == {"status": "ok"}


OF_PROXIES = (
    *("forwarded", "via", "cdn-loop", "x-forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"),
    *("x-forwarded-port", "x-original-forwarded-for", "x-original-host", "x-envoy-external-address", "x-real-ip"),
    *("cf-connecting-ip", "true-client-ip", "x-client-ip", "client-ip", "fastly-client-ip", "x-cluster-client-ip"),
    *("x-azure-clientip", "x-appengine-user-ip", "do-connecting-ip"),
)


async def test_loopback_is_one_user_under_names_of_loopback() -> None:
    """`local_only`: no proxy in between, and no page of another name that resolves to this machine."""
    async with served(LONG, auth=local_only) as it, client(it.url, None) as local:
        assert (await local.get("/conversations")).status_code == 200
        for name in OF_PROXIES:
            refused = await local.get("/conversations", headers={name: "1.2.3.4"})
            assert (refused.status_code, name in refused.text) == (401, True), name
        refused = await local.get("/conversations", headers={"host": "evil.example"})
        assert (refused.status_code, "evil.example" in refused.json()["error"]["message"]) == (401, True)
        for name in ("user-agent", "x-forward", "x-ip", "viable"):
            assert (await local.get("/conversations", headers={name: "1"})).status_code == 200, name
        assert (await local.get("/conversations", headers={"host": "localhost:8000"})).status_code == 200


async def test_a_service_has_names() -> None:
    """`hosts` lists them, in any case and with or without a port; a request under another one is 421."""
    async with served(LONG, hosts=["Chat.Example:8000"]) as it:
        for host, status in (("chat.example", 200), ("CHAT.example:9", 200), ("evil.example", 421)):
            assert (await it.ann.get("/conversations", headers={"host": host})).status_code == status, host


@pytest.mark.parametrize(
    ("scheme", "origin", "site", "status"),
    [
        ("https", "https://chat.example", None, 202),
        ("https", "http://chat.example", None, 403),
        ("http", "https://chat.example", None, 403),
        ("http", "https://chat.example", "same-origin", 202),  # behind a proxy that speaks HTTPS, and does not name it
        ("http", "http://chat.example", "cross-site", 403),  # the same proxy, and a page over HTTP
        ("http", "http://evil.example", "same-origin", 403),
    ],
)
async def test_an_origin_has_a_scheme(scheme: str, origin: str, site: str | None, status: int) -> None:
    """Anybody in the network can write a page of the same name over HTTP, so it is of another origin than one over HTTPS."""
    async with served(LONG) as it:
        transport = httpx.ASGITransport(app=it.service)
        headers = {**it.ann.headers, "origin": origin, **({} if site is None else {"sec-fetch-site": site})}
        async with httpx.AsyncClient(transport=transport, base_url=f"{scheme}://chat.example", headers=headers) as page:
            answer = await page.post("/conversations/c/runs", json={"text": "Hi!"})
            assert answer.status_code == status
            if status == 403:
                assert "X-Forwarded-Proto" in answer.json()["error"]["message"]


async def test_a_page_of_another_origin_may_change_nothing() -> None:
    """403 for a foreign `Origin`, unless it is listed; the own one is fine."""
    async with served([*LONG, "b", "c"], origins=["http://page.example"]) as it:
        body = {"text": "Hi!"}
        for origin, status in (
            ("http://evil.example", 403),
            ("null", 403),
            ("http://[::1", 403),
            (it.url.replace("http", "https"), 403),
            ("http://page.example", 202),
            (it.url, 202),
        ):
            headers = {"origin": origin}
            answer = await it.ann.post(f"/conversations/{status}{len(origin)}/runs", json=body, headers=headers)
            assert answer.status_code == status, origin
        without_host = b"POST /conversations/n/runs HTTP/1.0\r\norigin: null\r\n\r\n"
        address = urlsplit(it.url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(without_host)
        assert b" 403 " in await reader.readline()
        writer.close()
        preflight = {"origin": "http://page.example", "access-control-request-method": "POST"}
        answer = await it.ann.options("/conversations/c/runs", headers=preflight)
        assert answer.headers["access-control-allow-origin"] == "http://page.example"


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", "invalid_request"),
        (b"", "invalid_request"),
        (b"[]", "invalid_request"),
        (b"{}", "invalid_request"),
        (b'{"text": ""}', "invalid_request"),
        (b'{"text": 1}', "invalid_request"),
        (b'{"text": "a", "answers": [{"call": "c", "approve": true}]}', "invalid_request"),
        (b'{"answers": [{}]}', "invalid_request"),
        (b'{"answers": [{"call": "c"}]}', "invalid_request"),
        (b'{"answers": "x"}', "invalid_request"),
        (b'{"text": "a", "on_disconnect": "never"}', "invalid_request"),
        (b'{"text": "a", "on_disconnect": -1}', "invalid_request"),
        (b'{"text": "a", "on_disconnect": 1e99}', "invalid_request"),
        (b'{"text": "a", "on_disconnect": true}', "invalid_request"),
        (b"[" * 100_000, "invalid_request"),
        (b'{"text": NaN}', "invalid_request"),
    ],
)
async def test_a_body_that_is_no_request_is_refused(body: bytes, code: str) -> None:
    """422 with a code and a text, before anything begins."""
    async with served(LONG) as it:
        headers = {"content-type": "application/json"}
        answer = await it.ann.post("/conversations/c/runs", content=body, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, code)
        assert answer.json()["error"]["message"]
        assert (await it.ann.get("/runs")).json() == {"runs": []}


async def test_other_refusals() -> None:
    """415, 413, 404 and 422: each with a code."""
    limits = {"body_bytes": 200, "text_characters": 20}
    async with served(LONG, **limits) as it:
        place, text = "/conversations/c/runs", {"text": "Hi!"}
        plain = await it.ann.post(place, content=b"{}", headers={"content-type": "text/plain"})
        huge = await it.ann.post(place, json={"text": "x" * 300})
        long = await it.ann.post(place, json={"text": "x" * 30})
        agent = await it.ann.post(place, json={**text, "agent": "Nobody"})
        name = await it.ann.post(f"/conversations/{'x' * 201}/runs", json=text)
        key = await it.ann.post(place, json=text, headers={"idempotency-key": "k" * 300})
        run = await it.ann.get("/runs/none")
        limit = await it.ann.get("/conversations", params={"limit": "x"})
        fork = await it.ann.post("/conversations/c/fork", json={"after": -1})
        found = [plain, huge, long, agent, name, key, run, limit, fork]
        assert [answer.status_code for answer in found] == [415, 413, 413, 404, 422, 422, 404, 422, 422]
        assert all(answer.json()["error"]["code"] for answer in found)


async def test_a_body_that_ends_too_early_is_refused() -> None:
    """400: the client has gone in the middle of it."""

    async def gone() -> Any:
        return {"type": "http.disconnect"}

    headers = [(b"content-type", b"application/json")]
    with pytest.raises(Refusal) as refused:
        await read_json(Request({"type": "http", "method": "POST", "headers": headers}, gone), 100)
    assert (refused.value.status_code, refused.value.code) == (400, "incomplete")


async def test_ids_that_no_store_takes_are_refused() -> None:
    """422 for the id of a conversation; the id of a user is that of `auth`, so it is a fault of the service."""
    async with served(LONG) as it:
        nul = await it.ann.post("/conversations/a%00b/runs", json={"text": "Hi!"})
        assert (nul.status_code, nul.json()["error"]["param"]) == (422, "conversation")
    async with served(LONG, auth=lambda _: "u" * 201) as it:
        assert (await it.ann.get("/conversations/c")).status_code == 500


async def test_a_fault_of_the_service_is_not_told_to_clients(caplog: pytest.LogCaptureFixture) -> None:
    """A ConfigurationError from inside is a 500 without its text, and the log has it."""

    async def context(request: Any) -> dict[str, Any]:
        raise ConfigurationError("the table s3cret is missing")

    async with served(LONG, context=context) as it:
        answer = await it.ann.post("/conversations/c/runs", json={"text": "Hi!"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal")
        assert "s3cret" not in answer.text
        assert "s3cret" in caplog.text


async def test_too_many_runs_are_refused(workshop: Workshop) -> None:
    """429 with `Retry-After` for a user, 503 for the service."""
    async with served(lambda _: call("slow"), workshop, limits=Limits(runs_per_user=1, runs=1), drain_seconds=0) as it:
        await it.say(conversation="1")
        of_user = await it.ann.post("/conversations/2/runs", json={"text": "Hi!"})
        of_service = await it.bob.post("/conversations/2/runs", json={"text": "Hi!"})
        assert (of_user.status_code, of_service.status_code) == (429, 503)
        assert of_user.headers["retry-after"]


async def test_a_service_that_has_not_started_says_so() -> None:
    """A mounted app whose lifespan does not run answers 500, and the log says what to do."""
    made = service(LONG)

    async def without_lifespan(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
        else:
            await made(scope, receive, send)

    async with listening(without_lifespan) as url, client(url, "token-of-ann") as ann:
        answer = await ann.get("/runs")
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal")
    with pytest.raises(RuntimeError, match="lifespan"):
        _ = made.runs


async def test_a_service_is_mounted_in_an_app() -> None:
    """With its lifespan in that of the app, under a path of its own; places in answers have the path."""
    from contextlib import asynccontextmanager

    from starlette.applications import Starlette
    from starlette.routing import Mount

    made = service(LONG)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> Any:
        async with made.lifespan(app):
            yield

    app = Starlette(routes=[Mount("/agents", made)], lifespan=lifespan)
    async with listening(app) as url, client(url, "token-of-ann") as ann:
        answer = await ann.post("/agents/conversations/c/runs", json={"text": "Hi!"})
        assert answer.headers["location"].startswith("/agents/runs/")
        assert '"RunFinished"' in (await ann.get(answer.headers["location"])).text


@pytest.fixture
def workshop() -> Workshop:
    return Workshop()


async def test_a_failing_store_is_a_503() -> None:
    """The client is told to come back, and nothing of the reason."""
    async with served(LONG) as it:

        async def fail(*_: Any, **__: Any) -> Any:
            from aswarm import RunError

            raise RunError("the disk s3cret is full")

        it.service.runs.store.list = fail  # type: ignore[method-assign]
        answer = await it.ann.get("/conversations")
        assert answer.status_code == 503
        assert "s3cret" not in answer.text


_ = asyncio
