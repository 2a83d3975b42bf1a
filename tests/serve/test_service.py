"""`Service` as an object: its settings, its lifespan, its page, and who may ask."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from inspect import signature
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from aswarm import Agent, AsyncSwarm, ConfigurationError, StoreError
from aswarm._record.entries import Entry
from aswarm._values.text import how_to_install
from aswarm.conversations import MemoryStore
from aswarm.runs import (
    AnswersRefused,
    ConversationNotFound,
    InvalidRequest,
    KeyReused,
    Limits,
    LocalRuns,
    RequestRefused,
    RunActive,
    RunNotFound,
    TooManyRuns,
    show_answers_with,
    show_everything,
)
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
from aswarm.serve._service import ServiceSettings
from aswarm.testing import ScriptedModel, call
from tests.support.runs.kept_runs import Workshop
from tests.support.serve.served import client, listening, served, service

pytestmark = pytest.mark.asyncio


def request_of(host: str | None) -> Request:
    client = None if host is None else (host, 1)
    scope: dict[str, Any] = {"type": "http", "headers": [(b"host", b"localhost:8000")], "client": client}
    return Request(scope)


async def test_auth_is_required_and_a_function() -> None:
    """There is no default, and a token alone is not a function."""
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
    """A name, another address and a connection without one are not."""
    for host, user in (
        ("127.0.0.1", "local"),
        ("::1", "local"),
        ("10.0.0.1", None),
        ("testclient", None),
        (None, None),
    ):
        assert await local_only(request_of(host)) == user  # type: ignore[misc]


async def test_local_only_checks_the_name_itself() -> None:
    """So it may be called by another function: a page of another name that resolves to this machine is refused."""

    async def logged(request: Request) -> Any:
        return await local_only(request)  # type: ignore[misc]

    async with served([], auth=logged) as it, client(it.url, None) as local:
        assert (await local.get("/runs")).status_code == 200
        refused = await local.get("/runs", headers={"host": "evil.example"})
        assert refused.status_code == 401
        assert "valid user: local_only accepts requests to localhost" in refused.json()["error"]["message"]


async def test_an_auth_function_may_be_plain() -> None:
    """It returns the id of the user, or an empty text or None for nobody."""
    async with served([], auth=lambda request: request.headers.get("x-user", "")) as it:
        assert (await it.ann.get("/runs", headers={"x-user": "cleo"})).status_code == 200
        assert (await it.ann.get("/runs")).status_code == 401


async def test_auth_and_context_may_answer_themselves() -> None:
    """An HTTPException of theirs is the answer, as in any route of Starlette."""

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
    """Another value of `auth` is a fault of the service, and the log says which."""
    async with served([], auth=lambda _: 7) as it:
        assert (await it.ann.get("/runs")).status_code == 500
        assert "auth must return the id of a user, a str or None, not 7" in caplog.text


async def test_a_service_may_have_its_own_swarm_and_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are opened and closed with its lifespan, more than once; a path is that of an SQLite file."""
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


async def test_the_short_way_takes_what_the_service_takes() -> None:
    """`app` has each keyword of `Service`, and the rest of its keywords are of `LocalRuns`."""
    of_service = set(signature(Service).parameters) - {"runs", "auth"}
    assert of_service == set(ServiceSettings.__annotations__)
    assert set(signature(create_app).parameters) - {"auth", "settings"} <= set(signature(LocalRuns).parameters)


async def test_open_runs_belong_to_their_owner(workshop: Workshop) -> None:
    """A service drains runs that are open already, and does not close them."""
    async with (
        AsyncSwarm(ScriptedModel(["Hello."]).client()) as swarm,
        MemoryStore() as store,
        LocalRuns(swarm, store=store, agents=workshop.agents()) as runs,
    ):
        made = Service(runs, auth=bearer("t"))
        async with made.lifespan():
            run = await made.start("Hi!", conversation="c", user="user")
            assert (await run.last_entry()).type == "RunFinished"
        assert (await runs.get(run.id, user="user")).status == "finished"


async def test_what_the_body_of_the_lifespan_raises_leaves_as_itself() -> None:
    """Not in a group."""
    made = service([])

    async def fail() -> None:
        async with made.lifespan():
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()


async def test_a_signal_begins_to_drain(workshop: Workshop) -> None:
    """At SIGTERM readers end with a hint to come back, new runs are refused, and the handler of the server is called too."""
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        made = service([call("slow"), "Done."], workshop, drain_seconds=5)
        async with listening(made) as url, client(url, "token-of-ann") as ann:
            run = (await ann.post("/conversations/c/runs", json={"text": "Hi!"})).json()["run"]
            await workshop.began.wait()
            async with asyncio.TaskGroup() as group:
                reading = group.create_task(ann.get(f"/runs/{run}/events"))
                while made._runs._live[run]._news is None:  # until the reader waits for entries
                    await asyncio.sleep(0.005)
                os.kill(os.getpid(), signal.SIGTERM)
            assert reading.result().text.endswith("retry: 1000\n\n")
            # The server takes no more connections; a service behind another one may still be asked.
            transport, headers = httpx.ASGITransport(app=made), dict(ann.headers)
            async with httpx.AsyncClient(transport=transport, base_url=url, headers=headers) as inside:
                assert (await inside.get("/health")).status_code == 503
                refused = await inside.post("/conversations/d/runs", json={"text": "Hi!"})
                assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
                assert (await inside.get(f"/runs/{run}/events")).text.endswith("retry: 1000\n\n")
            workshop.go.set()
        assert heard == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


async def test_a_client_that_takes_nothing_does_not_hold_the_end_up(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A response whose bytes nobody takes is left a moment after the service has begun to drain."""
    from aswarm.serve import NativeWire, respond

    monkeypatch.setattr("aswarm.serve._responses._GRACE", 0.02)
    made = service(["Hello."], workshop)
    async with made.lifespan():
        run = await made.start("Hi!", conversation="c", user="ann")
        scope: dict[str, Any] = {"type": "http", "method": "GET", "headers": [], "query_string": b""}

        async def receive() -> Any:
            await asyncio.sleep(60)

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                await asyncio.sleep(60)

        async with asyncio.timeout(10), asyncio.TaskGroup() as group:
            group.create_task(respond(run, NativeWire(), Request(scope))(scope, receive, send))
            await asyncio.sleep(0.05)
            run._draining.set()


async def test_the_page_loads_nothing_from_elsewhere() -> None:
    """Its files need no user, and have a policy that lets them load from this service only."""
    async with served([], page=True) as it, client(it.url, None) as nobody:
        answer = await nobody.get("/")
        assert answer.status_code == 200
        assert answer.headers["content-security-policy"].startswith("default-src 'self'")
        assert (await nobody.get("/page/../../_service.py")).status_code == 404


async def test_the_page_is_served_only_if_it_is_wanted() -> None:
    """Without `page` there is nothing at the root."""
    async with served([]) as it:
        assert (await it.ann.get("/")).status_code == 404


async def test_what_readers_get() -> None:
    """`show_everything` changes nothing; `show_answers_with` leaves what its keys do not name, and what an agent as a tool has left."""
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


@pytest.fixture
def workshop() -> Workshop:
    return Workshop()


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
    """`error_response` is the exception handler: the same status and the same body as the ready routes, and no traceback."""
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
        assert (broken.status_code, broken.json()["error"]["code"], "s3cret" in broken.text) == (
            503,
            "unavailable",
            False,
        )
        await run.cancel()
        refused = await browser.post("/ask", json={"more": {"answers": ()}})
        assert refused.status_code == 500  # a fault of the program, which is no error of `Runs`


async def test_errors_of_runs_have_one_base() -> None:
    """So one handler, and one `except`, is enough."""
    for each in (AnswersRefused, ConversationNotFound, KeyReused, InvalidRequest, RunActive, TooManyRuns, RunNotFound):
        assert issubclass(each, RequestRefused)


@pytest.mark.processes
async def test_the_extra_is_named_where_it_is_missing() -> None:
    """The import fails with the command that installs it."""
    code = (
        "import sys; sys.modules['starlette'] = None\n"
        "import aswarm.runs\n"
        "try:\n    import aswarm.serve\nexcept aswarm.ConfigurationError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    text = f"serving needs the package starlette: {how_to_install('serve')}"
    assert done.stdout.startswith(text)
