"""`Service` is an ASGI app over `Runs`. `create_app` makes both. The service runs alone, or mounted in Starlette or FastAPI.

`Service` decides which requests are accepted (`auth`, `Host`, `Origin`), and handles the start and the end of the process.
`Runs` has the agents, the conversations and the limits, and decides everything about runs.

Security: A user reads and changes only their own runs and conversations; for all others the response is 404.

Security: `Service` bounds the bytes of a request and the characters of a message.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Literal, TypedDict, Unpack, get_args
from urllib.parse import quote

import anyio
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from aswarm._record.entry_maker import ErrorText
from aswarm._swarm import AsyncSwarm
from aswarm._values.agent import Agent
from aswarm._values.errors import ConfigurationError
from aswarm._values.text import NO_RUN
from aswarm.conversations import Store
from aswarm.runs import (
    CallAnswer,
    DisconnectPolicy,
    Limits,
    LocalRuns,
    NewRun,
    Run,
    Runs,
    Show,
    WhileRunning,
    show_answers,
    show_answers_with,
    show_everything,
)
from aswarm.runs.executors import check_show

from ._auth import Auth, host_name, is_origin_allowed, without_port
from ._endpoints import Refusal, json_response, refusal_response
from ._page_routes import conversation_routes, page_routes
from ._responses import on_shutdown_signal
from ._served import ClientNotes, ContextHook, Playground, Served, WireName, playground_of
from .wires.agui.routes import agui_routes
from .wires.native.routes import native_routes
from .wires.openai.routes import openai_error, openai_routes
from .wires.vercel.routes import vercel_routes

logger = logging.getLogger("aswarm")

_EXPECTED_LIMITS = ("runs_per_user", "run_seconds", "max_turns")
_SAFE = ("GET", "HEAD", "OPTIONS")  # https://www.rfc-editor.org/rfc/rfc9110#section-9.2.1


class Service:
    """ASGI app that serves runs: `uvicorn module:service`, or `Mount("/agents", service)`.

    An app that mounts the service must enter `service.lifespan` in its own lifespan.

    Args:
        runs: `LocalRuns` or `DurableRuns`. The service opens and closes this object. If the object is already open when the
            service starts, the service only drains it at the end.
        auth: A plain or async function that gets a request and returns the id of its user, or None to refuse the request with
            401. `bearer(...)` and `local_only` are ready-made.
        wires: Protocols to serve in addition to the native routes: "agui", "vercel", "openai".
        page: Whether to serve the playground, a page for developers, at the root; or a `Playground` with the rights of its
            users. With `show=show_everything` the page also shows requests to the model, context variables and error texts.
        context: An async function that gets the request of a new conversation and returns its context variables.
        client_context: Names of the context variables that a client may see. A client may also set them, if its protocol has
            a state.
        show: A function that gets an entry of the log and returns the entry for readers, or None to hide it. With
            `show_answers`, readers get answers, calls and results of functions, but no error texts, and only the context
            variables in `client_context`. `show_everything` shows all entries, and also the requests to the model. `show` does
            not filter `GET /conversations/{c}`.
        on_disconnect: What happens to a run when its last reader disconnects. "finish": it continues to its end. "cancel": it is
            cancelled. A number: it is cancelled after this number of seconds without a reader.
        while_running: What happens to a new message while a run of its conversation is active. "refuse": the request gets 409,
            with the id of the active run. "wait": the message waits for the end of the active run. "replace": the active run is
            stopped.
        heartbeat_seconds: Seconds of silence before a stream sends a comment.
        drain_seconds: Seconds in which running runs can finish when the process shuts down.
        origins: Origins of other sites whose pages may use the service, such as "https://shop.example".
        hosts: Accepted host names; by default all.
        activity: Whether to show calls and handoffs as reasoning on the OpenAI wire.
        client_tools: What happens to functions that a client sends on the OpenAI and AG-UI wires. "ignore": nothing. "offer":
            the model may call them, and the client runs them.
        client_system: Whether to add the system text of a client to the history. It applies only to requests without a
            conversation on the OpenAI wire.
        agui_context: What happens to the `context` of a request of AG-UI, the texts of a page for the model
            (`useAgentContext`). "refuse": the request gets 422. "message": each request to the model has them as a message
            of the user. "system": as a system message; use it only if you trust the text of every client. They are not
            stored in the conversation.
        body_bytes: The limit for the bytes of a request. A larger request gets 413.
        text_characters: The limit for the characters of a message. A longer message gets 413.

    The limits of the runs belong to `runs`. A service logs one warning if its runs have no limit for the runs of a user, for the
    seconds or for the completions of a run. `Limits.web()` has such limits.

    Raises:
        ConfigurationError: If an argument is invalid.
    """

    def __init__(
        self,
        runs: Runs,
        *,
        auth: Auth,
        wires: Collection[WireName] = (),
        page: bool | Playground = False,
        context: ContextHook | None = None,
        client_context: Collection[str] = (),
        show: Show = show_answers,
        on_disconnect: DisconnectPolicy = "finish",
        while_running: WhileRunning = "refuse",
        heartbeat_seconds: float = 15,
        drain_seconds: float = 20,
        origins: Sequence[str] = (),
        hosts: Sequence[str] = (),
        activity: bool = False,
        client_tools: Literal["ignore", "offer"] = "ignore",
        client_system: bool = False,
        agui_context: ClientNotes = "refuse",
        body_bytes: int = 1_000_000,
        text_characters: int = 100_000,
    ) -> None:
        _check(runs, auth, wires, origins, agui_context)
        _warn_without_limits(runs)
        check_show(show)
        self._served = Served(
            all_runs=runs, auth=auth, wires=frozenset(wires), page=playground_of(page), context=context,
            client_context=frozenset(client_context),
            show=show_answers_with(client_context) if show is show_answers else show, on_disconnect=on_disconnect,
            while_running=while_running, heartbeat_seconds=heartbeat_seconds, drain_seconds=drain_seconds, activity=activity,
            client_tools=client_tools, client_system=client_system, agui_context=agui_context, body_bytes=body_bytes,
            text_characters=text_characters,
        )  # fmt: skip
        self._origins, self._hosts = frozenset(origins), frozenset(map(without_port, hosts))
        if show is show_everything:
            runs.log_requests()
        self._app = self._make_app()

    def _make_app(self) -> ASGIApp:
        handlers: dict[Any, Any] = {404: _no_route, 405: _no_route}
        starlette = Starlette(routes=routes_of(self), lifespan=self.lifespan, exception_handlers=handlers)
        # Starlette's redirect has the `Host` of the request; see `_other_path`.
        starlette.router.redirect_slashes = False
        app: ASGIApp = starlette
        if self._origins:
            app = CORSMiddleware(
                app,
                allow_origins=sorted(self._origins),
                allow_methods=["GET", "POST", "PATCH", "DELETE"],
                allow_headers=[
                    "authorization",
                    "content-type",
                    "idempotency-key",
                    "last-event-id",
                    "x-conversation-id",
                ],
                expose_headers=["location", "retry-after"],
            )
        return app

    # --- start and shutdown ---

    @property
    def runs(self) -> Runs:
        """The runs. Raises RuntimeError outside of the lifespan."""
        return self._served.runs

    @asynccontextmanager
    async def lifespan(self, app: Any = None) -> AsyncGenerator[None]:  # noqa: ARG002 - frameworks pass their app
        """Open the runs. At the end of the block, drain and close them. An app that mounts the service enters this block."""
        served, runs = self._served, self._served.all_runs
        async with AsyncExitStack() as stack:
            if not runs.is_open:
                await stack.enter_async_context(runs)
            tasks = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(tasks.cancel_scope.cancel)
            tasks.start_soon(self._drain_on, signalled := anyio.Event())
            stack.enter_context(on_shutdown_signal(signalled.set))
            resources = stack.pop_all()
        served.has_started = True
        try:
            yield
        finally:
            await runs.drain(served.drain_seconds)
            served.has_started = False
            await resources.aclose()  # not with `async with`: the task group would wrap an exception of the block

    async def _drain_on(self, signalled: anyio.Event) -> None:
        # The handler of a signal cannot start a task, so this task waits for the signal.
        await signalled.wait()
        await self._served.all_runs.drain(self._served.drain_seconds)

    # --- requests ---

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI app."""
        refused = self._refusal(scope) if scope["type"] == "http" else None
        await (self._app if refused is None else _refuse(scope, refused))(scope, receive, send)

    def _refusal(self, scope: Scope) -> Refusal | None:
        headers = Headers(scope=scope)
        if self._hosts and host_name(headers) not in self._hosts:
            # RFC 9110, section 15.5.20: the request was sent to the wrong server.
            return Refusal(
                421, "wrong_host", "the service does not accept this host name; add it to hosts= of the service"
            )
        if scope["method"] not in _SAFE and not is_origin_allowed(headers, scope.get("scheme", "http"), self._origins):
            text = (
                "a page of another origin may not send this request; add its origin to origins= of the service. Behind an "
                "HTTPS proxy, let the server trust the header X-Forwarded-Proto"
            )
            return Refusal(403, "wrong_origin", text)
        return None

    # --- for your own routes ---

    async def start(
        self,
        text: str | None = None,
        *,
        conversation: str,
        user: str,
        answers: Sequence[CallAnswer] = (),
        agent: str | None = None,
        key: str | None = None,
        context_variables: Mapping[str, Any] | None = None,
        on_disconnect: DisconnectPolicy | None = None,
    ) -> Run:
        """Start a run of a conversation with a message of the user, or with answers to its open calls.

        Args:
            text: The message of the user, or None.
            conversation: The id of a new or existing conversation of the user.
            user: The id of the user.
            answers: Answers to open calls.
            agent: The name of the first agent of a new conversation.
            key: An idempotency key: a second call with the same key returns the same run.
            context_variables: The context variables of a new conversation.
            on_disconnect: Overrides the setting of the service.

        Raises the same errors as `Runs.start`.
        """
        new = NewRun(
            user,
            conversation,
            () if text is None else text,
            answers=answers,
            agent=agent,
            key=key,
            context_variables=context_variables,
            on_disconnect=self._served.on_disconnect if on_disconnect is None else on_disconnect,
            while_running=self._served.while_running,
        )
        return await self.runs.start(new)

    async def get_run(self, run_id: str, *, user: str) -> Run:
        """Return a run of a user. Raises RunNotFound."""
        return await self.runs.get_run(run_id, user=user)


def _check(
    runs: object, auth: object, wires: Collection[str], origins: Sequence[str], agui_context: ClientNotes
) -> None:
    if not callable(getattr(runs, "start", None)):
        raise ConfigurationError(
            f"runs must be a Runs, such as LocalRuns(swarm, agents=[...]), not {type(runs).__name__}"
        )
    if not callable(auth):
        raise ConfigurationError(
            "auth must be a function that returns the user id of a request: bearer(token), local_only, or your own"
        )
    if unknown := sorted({*wires} - {*get_args(WireName)}):
        raise ConfigurationError(
            f"wires must be a list of 'agui', 'vercel' and 'openai', not {', '.join(map(repr, unknown))}"
        )
    if agui_context not in get_args(ClientNotes):
        raise ConfigurationError(f'agui_context must be "refuse", "message" or "system", not {agui_context!r}')
    if "*" in origins:
        raise ConfigurationError('origins must not contain "*"; list each origin, such as "https://example.com"')


def _warn_without_limits(runs: Runs) -> None:
    missing = [name for name in _EXPECTED_LIMITS if getattr(runs.limits, name) is None]
    if missing:
        logger.warning(
            "the runs of this service have no limit for %s, so one user can use the whole service; pass limits=Limits.web() to the "
            "runs, or your own values",
            ", ".join(missing),
            extra=NO_RUN,
        )


# --- a service in one call ---


class ServiceSettings(TypedDict, total=False):
    """Optional keywords of `Service`."""

    wires: Collection[WireName]
    page: bool | Playground
    context: ContextHook | None
    client_context: Collection[str]
    show: Show
    on_disconnect: DisconnectPolicy
    while_running: WhileRunning
    heartbeat_seconds: float
    drain_seconds: float
    origins: Sequence[str]
    hosts: Sequence[str]
    activity: bool
    client_tools: Literal["ignore", "offer"]
    client_system: bool
    agui_context: ClientNotes
    body_bytes: int
    text_characters: int


def create_app(
    swarm: AsyncSwarm | None = None,
    *,
    agents: Agent | Iterable[Agent] | Mapping[str, Agent],
    auth: Auth,
    store: Store | str | os.PathLike[str] | None = None,
    limits: Limits = Limits.web(),  # noqa: B008 - frozen
    error_text: ErrorText | None = None,
    task_agent: Agent | None = None,
    **settings: Unpack[ServiceSettings],
) -> Service:
    """Return `Service(LocalRuns(...), auth=auth, **settings)`, an ASGI app that runs agents as tasks of its process.

    Args:
        swarm: The swarm that runs the agents; by default an `AsyncSwarm()` that the service closes.
        agents: The agents that clients may name. A conversation starts with the first agent.
        auth: See `Service`.
        store: The place for the conversations and the runs: the path of a SQLite file, a store that you open and close, or
            None for memory.
        limits: The limits of the runs; by default the values for a web service.
        error_text: A function that gets an exception and returns the error text for readers.
        task_agent: An agent for titles and similar tasks; the OpenAI wire offers it as the model "helper".
        settings: Keywords of `Service`.

    Raises:
        ConfigurationError: If an argument is invalid.
    """
    runs = LocalRuns(
        swarm,
        agents=agents,
        store=store,
        limits=limits,
        error_text=error_text,
        task_agent=task_agent,
    )
    return Service(runs, auth=auth, **settings)


# --- routes ---


def routes_of(service: Service) -> list[BaseRoute]:
    served = service._served
    return [
        Route("/health", _health_of(served)),
        *native_routes(served),
        *conversation_routes(served),
        *(agui_routes(served) if "agui" in served.wires else ()),
        *(vercel_routes(served) if "vercel" in served.wires else ()),
        *(openai_routes(served) if "openai" in served.wires else ()),
        *page_routes(served),
    ]


def _refuse(scope: Scope, refusal: Refusal) -> Response:
    """Return the response to a request that reaches no endpoint. The path decides the protocol of the response."""
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    return (openai_error if path.startswith("/v1/") else refusal_response)(refusal)


async def _no_route(request: Request, error: Exception) -> Response:
    """Respond to an unknown path, or to a method that the path does not have."""
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for the statuses of this exception
    if (other := _other_path(request)) is not None:
        query = request.scope["query_string"].decode("latin-1")
        return Response(status_code=307, headers={"location": f"{quote(other)}?{query}" if query else quote(other)})
    code = {404: "not_found", 405: "method_not_allowed"}[error.status_code]
    text = f"there is no {request.method} {request.url.path} here; see the routes in the documentation"
    return _refuse(request.scope, Refusal(error.status_code, code, text, headers=error.headers))


def _other_path(request: Request) -> str | None:
    """Return the path with or without a slash at its end, if only this path has a route.

    It has no host: a cache could store the redirect for other users, and `Host` is a text of one client.
    """
    path: str = request.scope["path"]
    other = path.rstrip("/") if path.endswith("/") else f"{path}/"

    def has_route(path: str) -> bool:
        scope = {**request.scope, "path": path}
        return any(route.matches(scope)[0] is not Match.NONE for route in request.app.routes)

    # Browsers take an address that starts with two slashes for a host.
    return other if has_route(other) and not has_route(path) and not other.startswith("//") else None


def _health_of(service: Served) -> Callable[[Request], Awaitable[Response]]:
    async def health(request: Request) -> Response:
        if service.runs.is_draining:
            return json_response({"status": "draining"}, 503, {"retry-after": "1"})
        if service.runs.is_failing:
            return json_response({"status": "failing"}, 503, {"retry-after": "1"})
        return json_response({"status": "ok"})

    return health
