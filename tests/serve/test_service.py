"""`Service` as an object: its settings, its users, its lifespan, and the routes of a program."""

from __future__ import annotations

import asyncio
from inspect import signature
from pathlib import Path
from typing import Any, get_args, get_type_hints
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from aswarm import Agent, AsyncSwarm, ConfigurationError, StoreError, runs
from aswarm.conversations import MemoryStore
from aswarm.runs import Entry, Limits, LocalRuns, RequestRefused, show_answers_with, show_everything
from aswarm.serve import (
    NativeWire,
    Service,
    bearer,
    create_app,
    error_response,
    frames,
    local_only,
    respond,
    stream_response,
)
from aswarm.testing import ScriptedModel, call
from tests.support.runs.kept_runs import Workshop
from tests.support.serve.served import client, listening, served, service

pytestmark = pytest.mark.asyncio


def request_of(host: str | None) -> Request:
    client = None if host is None else (host, 1)
    return Request({"type": "http", "headers": [(b"host", b"localhost:8000")], "client": client})


async def test_auth_is_required_and_a_function() -> None:
    """A service without `auth`, and a wrong option, are mistakes."""
    with pytest.raises(TypeError):
        create_app(agents=Agent())  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match="bearer"):
        create_app(agents=Agent(), auth="token")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="origins must not contain"):
        create_app(agents=Agent(), auth=bearer("t"), origins=["*"])
    with pytest.raises(ConfigurationError, match=r"wires must be a list of .*, not 'ag-ui'"):
        create_app(agents=Agent(), auth=bearer("t"), wires=["ag-ui"])  # type: ignore[list-item]
    with pytest.raises(ConfigurationError, match=r"runs must be a Runs, .*, not Agent"):
        Service(Agent(), auth=bearer("t"))  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"needs a token, .*, not NoneType"):
        bearer(None)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="empty"):
        bearer({})
    with pytest.raises(ConfigurationError, match="empty"):
        bearer({"token": ""})


async def test_loopback_is_an_address_of_this_machine() -> None:
    """A host name, another address and a connection without an address are not of this machine."""
    users = {"127.0.0.1": "local", "::1": "local", "10.0.0.1": None, "testclient": None, None: None}
    for host, user in users.items():
        assert await local_only(request_of(host)) == user  # type: ignore[misc]


async def test_an_auth_function_may_be_plain() -> None:
    """A plain function returns the id of the user, or an empty text or None for nobody."""
    async with served([], auth=lambda request: request.headers.get("x-user", "")) as it:
        assert (await it.ann.get("/runs", headers={"x-user": "cleo"})).status_code == 200
        assert (await it.ann.get("/runs")).status_code == 401


async def test_auth_and_context_may_answer_themselves() -> None:
    """An HTTPException of `auth` or `context` is the response, as in any route of Starlette."""

    def auth(request: Request) -> str:
        if "x-banned" in request.headers:
            raise HTTPException(403, "banned")
        return "ann"

    async def context(request: Request) -> dict[str, Any]:
        raise HTTPException(402, "pay first")

    async with served([], auth=auth, context=context) as it:
        banned = await it.ann.get("/runs", headers={"x-banned": "1"})
        assert (banned.status_code, banned.text) == (403, "banned")
        assert (await it.ann.post("/conversations/c/runs", json={"text": "Hi!"})).status_code == 402


async def test_a_user_id_is_text(caplog: pytest.LogCaptureFixture) -> None:
    """Another value of `auth` is a fault of the service, and the log has the value."""
    async with served([], auth=lambda _: 7) as it:
        assert (await it.ann.get("/runs")).status_code == 500
        assert "auth must return the id of a user, a str or None, not 7" in caplog.text


async def test_a_request_needs_a_user() -> None:
    """The answer is 401 without a token, with a wrong token, and with another scheme; /health needs no token."""
    async with served(["Hello."]) as it, client(it.url, None) as nobody:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic token-of-ann"}):
            answer = await nobody.get("/conversations", headers=headers)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert (await nobody.get("/health")).json() == {"status": "ok"}
        it.service.runs._database._failed_at = float("inf")  # type: ignore[attr-defined]
        assert (await nobody.get("/health")).json() == {"status": "failing"}


OF_PROXIES = (
    *("forwarded", "via", "cdn-loop", "x-forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"),
    *("x-forwarded-port", "x-original-forwarded-for", "x-original-host", "x-envoy-external-address", "x-real-ip"),
    *("cf-connecting-ip", "true-client-ip", "x-client-ip", "client-ip", "fastly-client-ip", "x-cluster-client-ip"),
    *("x-azure-clientip", "x-appengine-user-ip", "do-connecting-ip"),
)


async def test_loopback_is_one_user_under_names_of_loopback() -> None:
    """`local_only` refuses requests of a proxy, and of a page of another name that resolves to this machine."""
    async with served(["Hello."], auth=local_only) as it, client(it.url, None) as local:
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
    """`hosts` lists names, in any case and with or without a port; a request under another name is 421."""
    async with served(["Hello."], hosts=["Chat.Example:8000"]) as it:
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
    """A page over HTTP is of another origin than a page over HTTPS, because anybody in the network can write it."""
    async with served(["Hello."]) as it:
        transport = httpx.ASGITransport(app=it.service)
        headers = {**it.ann.headers, "origin": origin, **({} if site is None else {"sec-fetch-site": site})}
        async with httpx.AsyncClient(transport=transport, base_url=f"{scheme}://chat.example", headers=headers) as page:
            answer = await page.post("/conversations/c/runs", json={"text": "Hi!"})
            assert answer.status_code == status
            if status == 403:
                assert "X-Forwarded-Proto" in answer.json()["error"]["message"]


async def test_a_page_of_another_origin_may_change_nothing() -> None:
    """A foreign `Origin` is 403, unless it is listed; the origin of the service is accepted."""
    async with served(lambda _: "Hello.", origins=["http://page.example"]) as it:
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


async def test_a_service_may_have_its_own_swarm_and_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lifespan opens and closes both, more than once; a path names an SQLite file."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    made = create_app(agents=Agent(), auth=bearer("t"), store=tmp_path / "chats.sqlite")
    for _ in range(2):
        async with made.lifespan():
            assert await made.runs.list(user="user") == []
    assert (tmp_path / "chats.sqlite").exists()


@pytest.mark.parametrize("swarm", [None, AsyncSwarm(), AsyncSwarm(transport="direct")])
async def test_a_service_without_a_key_does_not_start(swarm: AsyncSwarm | None) -> None:
    """The lifespan fails, also if the swarm was passed and was not entered."""
    made = create_app(swarm, agents=Agent(), auth=bearer("t"))
    with pytest.raises(ConfigurationError, match="set OPENAI_API_KEY"):
        async with made.lifespan():
            pytest.fail("the service has started")


async def test_the_short_way_takes_the_keywords_of_the_service() -> None:
    """`app` has each keyword of `Service`, and the rest of its keywords are of `LocalRuns`."""
    [settings] = get_args(get_type_hints(create_app)["settings"])
    assert set(signature(Service).parameters) - {"runs", "auth"} == set(settings.__annotations__)
    assert set(signature(create_app).parameters) - {"auth", "settings"} <= set(signature(LocalRuns).parameters)


async def test_open_runs_belong_to_their_owner(workshop: Workshop) -> None:
    """A service drains runs that are open already, and does not close them."""
    async with (
        AsyncSwarm(ScriptedModel(["Hello."]).client()) as swarm,
        MemoryStore() as store,
        LocalRuns(swarm, store=store, agents=workshop.agents()) as opened,
    ):
        made = Service(opened, auth=bearer("t"))
        async with made.lifespan():
            run = await made.start("Hi!", conversation="c", user="user")
            assert (await run.last_entry()).type == "RunFinished"
        assert (await opened.get(run.id, user="user")).status == "finished"


async def test_an_exception_in_the_lifespan_is_raised_as_itself() -> None:
    """The exception is not in a group."""
    made = service([])

    async def fail() -> None:
        async with made.lifespan():
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()


async def test_what_readers_get() -> None:
    """`show_everything` changes nothing; `show_answers_with` removes other variables, and the response of an agent as a tool."""
    changed = Entry(3, 0, "ContextChanged", {"agent": "A", "changes": {"a": 1, "b": 2}, "removed": ["c"], "by": []})
    nested = Entry(4, 0, "ToolProgress", {"value": {"type": "RunFinished", "response": {"secret": 1}}})
    error = Entry(5, 0, "ToolCallFinished", {"content": "Error", "error": "ValueError: secret"})
    show = show_answers_with(["a"])
    assert show_everything(changed) is changed
    assert show(Entry(2, 0, "RequestSent", {})) is None
    assert show(changed).fields["changes"] == {"a": 1}  # type: ignore[union-attr]
    assert show_answers_with()(changed) is None
    assert show(nested).fields == {"value": {"type": "RunFinished"}}  # type: ignore[union-attr]
    assert show(Entry(4, 0, "ToolProgress", {"value": 1})).fields == {"value": 1}  # type: ignore[union-attr]
    assert show(error).fields["error"] == "ValueError"  # type: ignore[union-attr]
    assert show_answers_with()(Entry(6, 0, "RunStopped", {"response": {}})).fields == {"response": {}}  # type: ignore[union-attr]
    image = [{"role": "tool", "content": [{"type": "image_url", "image_url": {"url": "https://x/1.png"}}]}]
    assert show(Entry(7, 0, "RunFinished", {"response": {"messages": image}})).fields["response"]["messages"] == image  # type: ignore[union-attr]


async def test_the_end_of_a_turn_shows_no_text_of_an_exception() -> None:
    """A tool message has the text of the exception too. Other entries have most results, so an item may be a position."""
    text = '(run with arguments changed by the user: {"n": 7})\nError: ValueError'
    entry = Entry(1, 0, "TurnFinished", {"turn": 0, "answers": [0, {"index": 1, "content": f"{text}: secret"}]})
    shown = show_answers_with()(entry)
    assert shown is not None
    assert shown.fields["answers"] == [0, {"index": 1, "content": text}]


async def test_a_filter_is_a_function(workshop: Workshop) -> None:
    """`show=None` is no filter: it could mean the default, and also that readers get everything."""
    nothing: Any = None
    made = service([call("look", number=1), "Done."], workshop)
    async with made.lifespan(), AsyncSwarm(ScriptedModel([]).client()) as swarm:
        run = await made.start("Hi!", conversation="c", user="ann")
        for refused in (
            lambda: create_app(agents=Agent(), auth=bearer("t"), show=nothing),
            lambda: respond(run, NativeWire(), request_of(None), show=nothing),
            lambda: stream_response(swarm.stream(Agent(), "Hi!"), NativeWire(), on_end=nothing, show=nothing),
        ):
            with pytest.raises(ConfigurationError, match="show must be a function, such as show_answers"):
                refused()
        with pytest.raises(ConfigurationError, match="show must be a function"):
            await anext(frames(run, NativeWire(), show=nothing))


# --- routes of a program ---


def _own_app(it: Service, framework: type[Starlette]) -> Starlette:
    async def ask(request: Request) -> Response:
        body = await request.json()
        run = await it.start(body.get("text"), conversation=body.get("conversation", "c"), user="ann", **body["more"])
        return respond(run, NativeWire(), request)

    async def read(request: Request) -> Response:
        return respond(await it.get_run(request.path_params["run"], user="ann"), NativeWire(), request)

    app = framework(lifespan=it.lifespan)
    app.add_route("/ask", ask, methods=["POST"])
    app.add_route("/runs/{run}", read)

    async def store(request: Request) -> Response:
        raise StoreError("the file s3cret cannot be read")

    app.add_route("/store", store)
    for kind in (RequestRefused, StoreError):
        app.add_exception_handler(kind, error_response)
    return app


@pytest.mark.parametrize("framework", ["starlette.applications:Starlette", "fastapi:FastAPI"])
async def test_a_route_of_a_program_answers_errors_as_the_service_does(framework: str, workshop: Workshop) -> None:
    """The exception handler `error_response` gives the same status and body as the ready routes, and no traceback."""
    module, _, name = framework.partition(":")
    kind = getattr(pytest.importorskip(module), name)
    made = service([call("slow")], workshop, limits=Limits(runs_per_user=1))
    bodies: list[tuple[dict[str, Any], int, str]] = [
        ({"text": "Hi!", "more": {}}, 409, "run_active"),
        ({"text": "Hi!", "conversation": "d", "more": {}}, 429, "too_many_runs"),
        ({"text": "Hi!", "conversation": "a/b", "more": {}}, 422, "invalid_request"),
        ({"text": "Hi!", "conversation": "d", "more": {"agent": "nobody"}}, 404, "agent_not_found"),
        ({"text": "Hello!", "more": {"key": "k"}}, 422, "key_reused"),
    ]
    async with listening(_own_app(made, kind)) as url, client(url, None) as browser:
        run = await made.start("Hi!", conversation="c", user="ann", key="k")
        await workshop.began.wait()
        for body, status, code in bodies:
            answer = await browser.post("/ask", json=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text
            if code == "run_active":
                assert answer.json()["error"]["run"] == run.id
            assert ("retry-after" in answer.headers) is (status == 429)
        assert (await browser.get("/runs/none")).json()["error"]["code"] == "run_not_found"
        broken = await browser.get("/store")
        assert (broken.status_code, broken.json()["error"]["code"]) == (503, "unavailable")
        assert "s3cret" not in broken.text
        await run.cancel()
        refused = await browser.post("/ask", json={"more": {"answers": ()}})
        assert refused.status_code == 500  # a fault of the program, which is no error of `Runs`


async def test_errors_of_runs_have_one_base() -> None:
    """One handler, and one `except`, is enough for all errors of runs."""
    errors = [each for each in vars(runs).values() if isinstance(each, type) and issubclass(each, Exception)]
    assert len(errors) > 5
    assert all(issubclass(each, RequestRefused) for each in errors)


async def test_local_only_checks_the_name_itself() -> None:
    """`local_only` works in another function: it refuses a page of another name that resolves to this machine."""

    async def logged(request: Request) -> Any:
        return await local_only(request)  # type: ignore[misc]

    async with served([], auth=logged) as it, client(it.url, None) as local:
        assert (await local.get("/runs")).status_code == 200
        refused = await local.get("/runs", headers={"host": "evil.example"})
        assert refused.status_code == 401
        assert "valid user: local_only accepts requests to localhost" in refused.json()["error"]["message"]
