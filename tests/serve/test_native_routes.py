"""The native routes over a real socket: runs, readers that reconnect, conversations, users, and bad input."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import anyio
import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from aswarm import Agent, ConfigurationError, RunError, agent_tool
from aswarm.conversations import Conversation
from aswarm.runs import Limits, show_answers, show_everything
from aswarm.testing import Failure, ScriptedAnswer, call
from tests.support.runs.kept_runs import Workshop
from tests.support.serve.served import client, events_of, listening, served, service
from tests.support.serve.wire_checks import joined

pytestmark = pytest.mark.asyncio

LONG = [call("look", number=1), call("transfer_to_clerk"), ScriptedAnswer("All is well.")]
EVENTS = {"accept": "text/event-stream"}


async def test_a_run_is_started_and_read() -> None:
    """The answer is 202 with the place of the events; the stream has each entry as one event, with its number as the id."""
    async with served(LONG, show=show_everything) as it:
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
        log = (await it.service.get_run(answer.json()["run"], user="ann")).entries()
        replay = [json.loads(event["data"]) for event in events_of((await it.ann.get(place)).text)]
        assert replay == [entry.to_dict() for entry in joined([entry async for entry in log])]


async def test_a_reader_continues_at_its_position() -> None:
    """After `Last-Event-ID`, or `after`, each later entry comes once; 204 if no entry is left, so that a browser stops."""
    async with served(LONG) as it:
        place = f"/runs/{await it.say()}/events"
        last = int(events_of((await it.ann.get(place)).text)[-1]["id"])
        for kwargs in ({"headers": {"last-event-id": "4"}}, {"params": {"after": "4"}}):
            entries = [json.loads(each["data"]) for each in events_of((await it.ann.get(place, **kwargs)).text)]
            covered = [at for each in entries for at in range(each.get("first", each["seq"]), each["seq"] + 1)]
            assert covered == list(range(5, last + 1))
        for position in (last, last + 1, 10**9):
            assert (await it.ann.get(place, headers={"last-event-id": str(position)})).status_code == 204
        assert (await it.ann.get(place, headers={"last-event-id": "-1"})).status_code == 200
        for wrong in ("x", "1.5", "-2", "9" * 17, "٣"):
            assert (await it.ann.get(place, params={"after": wrong})).status_code == 400
        head = await it.ann.head(place)
        assert (head.status_code, head.content) == (200, b"")


async def test_a_reader_may_be_ahead_of_the_written_log(workshop: Workshop) -> None:
    """A reader may have entries of another process that are not in the file yet. It gets no 204 before the end of the run."""
    async with served([call("slow"), "Done."], workshop) as it:
        run = await it.say()
        await workshop.began.wait()
        async with it.ann.stream("GET", f"/runs/{run}/events", headers={"last-event-id": "1000"}) as stream:
            assert stream.status_code == 200
            workshop.go.set()
            await it.ended(run)
        assert (await it.ann.get(f"/runs/{run}/events", headers={"last-event-id": "1000"})).status_code == 204


async def test_the_answer_to_a_stop_has_the_end_of_the_run(workshop: Workshop) -> None:
    """The answer comes after the end of the tools, and names the call whose outcome is unknown."""
    async with served([call("slow"), "Go on."], workshop) as it:
        run = await it.say()
        await workshop.began.wait()
        state = (await it.ann.post(f"/runs/{run}/cancel")).json()
        assert (state["status"], state["reason"]) == ("stopped", "cancelled")
        assert state["result"]["response"]["unknown_calls"][0]["name"] == "slow"
        assert (await it.ann.post(f"/runs/{run}/cancel")).json() == state


async def test_a_request_that_is_sent_again_starts_nothing() -> None:
    """The same `Idempotency-Key` gets 200 and the same run. With another text it is 422."""
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
    """A fork has the first messages; a deleted conversation and its runs are 404."""
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
    """Many searches of one user do not delay the searches of other users."""
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


async def test_a_history_that_no_encoding_takes_can_be_read(workshop: Workshop) -> None:
    """Half of a surrogate pair, which a model may write, becomes another character; an infinity becomes text."""
    async with served(LONG, workshop) as it:
        messages = [{"role": "user", "content": "half \ud800", "rank": float("inf")}]
        runs = it.service.runs
        await Conversation(runs.store, "ann/c", runs.swarm, agent=workshop.agents()[0]).replace(messages)
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


async def test_a_conversation_that_no_path_can_name_is_not_made() -> None:
    """An id with a slash is 422 on every route that names a conversation."""
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
    """The run and the conversation of another user are 404 on every route, and no list has them."""
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


# --- readers ---------------------------------------------------------------------------------------------------------


async def test_readers_get_neither_context_nor_error_texts() -> None:
    """By default readers get no context variables, no error texts and no requests; `show_everything` shows them."""
    context = {"account": "s3cret", "name": "Ann"}

    async def of_request(request: Any) -> dict[str, Any]:
        return context

    for show, is_shown in ((show_answers, False), (show_everything, True)):
        async with served(["Hello.", Failure(400, "s3cret")], context=of_request, show=show) as it:
            for text in ("Hi!", "Again"):
                stream = await it.ann.post("/conversations/c/runs", json={"text": text}, headers=EVENTS)
                assert (stream.status_code, stream.headers["location"][:6]) == (200, "/runs/")
                assert ("s3cret" in stream.text) is is_shown
                assert ('"RequestSent"' in stream.text) is is_shown
            assert ("s3cret" in (await it.ann.get("/conversations/c")).text) is is_shown


async def test_requests_of_an_agent_as_a_tool_are_not_shown() -> None:
    """They are the requests of another run; its answer is the result of the call."""
    helper = Agent(name="Helper")
    script = [call("helper", request="Look!"), "Found.", "Done."]
    async with served(script, agents=[Agent(functions=[agent_tool(helper)])], show=show_everything) as it:
        stream = await it.ann.post("/conversations/c/runs", json={"text": "Hi!"}, headers=EVENTS)
    assert (stream.text.count('"RequestSent"'), len(it.model.requests)) == (2, 3)


async def test_some_context_may_be_shown() -> None:
    """`client_context` names the variables that clients may see."""

    async def of_request(request: Any) -> dict[str, Any]:
        return {"account": "s3cret", "name": "Ann"}

    async with served(["Hello."], context=of_request, client_context=["name"]) as it:
        await it.ended(await it.say())
        assert (await it.ann.get("/conversations/c")).json()["context_variables"] == {"name": "Ann"}


# --- bad input --------------------------------------------------------------------------------------------------------


async def test_other_refusals() -> None:
    """Each refusal has its status and a code."""
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
        keys = await it.ann.post("/conversations/c/fork", json={"at": 1})
        found = [plain, huge, long, agent, name, key, run, limit, fork, keys]
        assert [answer.status_code for answer in found] == [415, 413, 413, 404, 422, 422, 404, 422, 422, 422]
        assert all(answer.json()["error"]["code"] for answer in found)


async def test_an_unknown_route_is_answered_with_json() -> None:
    """Unknown paths and methods, and refusals before any route, have the form of the API of the path."""
    async with served([], wires=["openai"], hosts=["127.0.0.1"]) as it:
        for prefix, keys in (("", {"code", "message"}), ("/v1", {"code", "message", "type", "param"})):
            place = "/v1/chat/completions" if prefix else "/runs/x/cancel"
            unknown = await it.ann.get(f"{prefix}/nothing")
            method = await it.ann.get(place)
            host = await it.ann.get(place, headers={"host": "other"})
            origin = await it.ann.post(place, headers={"origin": "http://other"})
            found = [unknown, method, host, origin]
            assert [answer.status_code for answer in found] == [404, 405, 421, 403]
            assert all(set(answer.json()["error"]) == keys for answer in found)
            assert method.headers["allow"] == "POST"
    parent = httpx.ASGITransport(Starlette(routes=[Mount("/agents", it.service)]))
    async with httpx.AsyncClient(transport=parent, base_url="http://127.0.0.1") as client:
        assert set((await client.get("/agents/v1/nothing")).json()["error"]) == keys


async def test_a_redirect_has_no_host() -> None:
    """A path with or without a slash at its end is redirected below the app, with any `Host` and any headers of proxies."""
    async with served([], page=True) as it:
        other = {"host": "evil.test", "x-forwarded-host": "evil.test", "forwarded": "host=evil.test"}
        for path, place in (
            ("/conversations/", "/conversations"),
            ("/conversations//?search=a%20b", "/conversations?search=a%20b"),
            ("/conversations/a%20b%3F/", "/conversations/a%20b%3F"),
            ("/page", "/page/"),
        ):
            answer = await it.ann.get(path, headers=other)
            assert (answer.status_code, answer.headers["location"], answer.content) == (307, place, b"")
        started = await it.ann.post("/conversations/c/runs/", json={"text": "Hi!"}, headers=other)
        assert (started.status_code, started.headers["location"]) == (307, "/conversations/c/runs")
        for path in ("//evil.test/conversations/", "/nothing/", "//", "/page/nothing.js"):
            assert (await it.ann.get(f"{it.url}{path}")).status_code == 404
    parent = httpx.ASGITransport(Starlette(routes=[Mount("/agents", it.service)]))
    async with httpx.AsyncClient(transport=parent, base_url="http://127.0.0.1") as client:
        assert (await client.get("/agents/conversations/")).headers["location"] == "/agents/conversations"


async def test_a_body_that_ends_too_early_is_refused() -> None:
    """A client that disconnects in the middle of its body gets 400, and starts nothing."""
    sent: list[Any] = []

    async def disconnect() -> Any:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"content-type", b"application/json"), (b"authorization", b"Bearer token-of-ann")]
    scope = {"type": "http", "method": "POST", "path": "/conversations/c/runs", "query_string": b"", "headers": headers}
    made = service(LONG)
    async with made.lifespan():
        await made(scope, disconnect, send)
        assert (sent[0]["status"], b'"incomplete"' in sent[1]["body"]) == (400, True)
        assert await made.runs.list(user="ann") == []


async def test_ids_that_no_store_takes_are_refused() -> None:
    """A wrong id of a conversation is 422; a wrong id of a user comes from `auth`, so it is a fault of the service."""
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


async def test_a_service_that_has_not_started_answers_500() -> None:
    """A mounted service whose lifespan does not run answers 500, and `runs` raises an error with the remedy."""
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


async def test_a_failing_store_is_a_503() -> None:
    """The client does not get the reason."""
    async with served(LONG) as it:

        async def fail(*_: Any, **__: Any) -> Any:
            raise RunError("the disk s3cret is full")

        it.service.runs.store.list = fail  # type: ignore[method-assign]
        answer = await it.ann.get("/conversations")
        assert answer.status_code == 503
        assert "s3cret" not in answer.text


async def test_too_many_runs_are_refused(workshop: Workshop) -> None:
    """The limit of a user is 429 with `Retry-After`, the limit of the service 503."""
    async with served(lambda _: call("slow"), workshop, limits=Limits(runs_per_user=1, runs=1), drain_seconds=0) as it:
        await it.say(conversation="1")
        of_user = await it.ann.post("/conversations/2/runs", json={"text": "Hi!"})
        of_service = await it.bob.post("/conversations/2/runs", json={"text": "Hi!"})
        assert (of_user.status_code, of_service.status_code) == (429, 503)
        assert of_user.headers["retry-after"]
