"""`Service`: an ASGI app that serves a swarm. It runs alone, or mounted in Starlette or FastAPI.

Decides who may ask (`auth`, `Host`, `Origin`) and what happens at the beginning and at the end of the process. The routes
are in `_routes` and beside it; what runs do is decided by `Runs`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Literal, TypeAlias, cast

import anyio
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from aswarm._agent import Agent
from aswarm._errors import ConfigurationError
from aswarm._swarm import AsyncSwarm
from aswarm.conversations import MemoryStore, SQLiteStore, Store

from ._auth import Auth, is_host_allowed, is_origin_allowed, without_port
from ._entry_maker import ErrorText, general_error
from ._http import Refusal
from ._local_runs import LocalRuns
from ._requests import CallAnswer
from ._routes import not_here, refuse, routes_of
from ._runs import DisconnectPolicy, Limits, NewRun, Run, Runs, WhileRunning
from ._show import Show, answers_with, everything
from ._shutdown import on_shutdown_signal

WireName: TypeAlias = Literal["agui", "vercel", "openai"]
ContextHook: TypeAlias = Callable[[Request], Awaitable[Mapping[str, Any]]]
_SAFE = ("GET", "HEAD", "OPTIONS")
logger = logging.getLogger("aswarm")


class Service:
    """Serves agents: `uvicorn module:service`, or `Mount("/agents", service)` with `service.lifespan` in the app's own.

    `agents`: those that clients may name; a conversation begins with the first one. `swarm`: by default an `AsyncSwarm()`
    of the service's own. `auth`: a plain or async function that gets a request and returns the id of its user, or None,
    which refuses it with 401; `bearer(...)` and `local_only` are ready-made. `store`: where conversations are kept: a
    `Store`, the path of a SQLite file, or None for memory. `runs`: what executes and keeps the runs, by default
    `LocalRuns`.

    `wires`: the other protocols that are served beside the native routes: "agui", "vercel", "openai". `page`: whether
    the page to try the agents is served at the root. It is for developers: `show` is then `everything` by default.
    `prices`: dollars for a million tokens of input and of output, by model, for the costs on the page; the extra `prices`
    knows the prices of other models. `context`: an async function that gets the request of a new conversation and returns
    its context variables. `client_context`: the names of the context variables that a client may see, and may set where
    its protocol has a state. `show`: a function that gets an entry of the log of a run and returns what readers get of it,
    or None for nothing. By default readers get the answers, the calls and the results of functions, but no context
    variables and no error texts; `everything` shows all. The history of a conversation, `GET /conversations/{c}`, is not
    passed through it. `error_text`: a function that gets an exception and returns the text of the error for readers.

    `on_disconnect`: what happens to a run whose last reader has gone: "finish", "cancel", or a number of seconds after
    which it is cancelled. `while_running`: what a message to a conversation with an active run gets: "refuse" (409 with the
    id of the run), "wait", or "replace" (the active run is stopped). `heartbeat`: seconds of silence after which a stream
    sends a comment. `drain`: seconds that runs have to end when the process ends. `origins`: origins of other sites whose
    pages may use the service, such as "https://shop.example"; by default only pages of its own origin may. `hosts`: the
    host names under which the service may be asked; by default all.

    `limits`: the size of a request, the runs at once, and how long runs and their logs may be.

    `task_agent`: an agent for titles and the like, which the OpenAI wire offers as a model "helper". `activity`: whether
    the OpenAI wire shows calls and handoffs as reasoning. `client_tools`: what the OpenAI and AG-UI wires do with functions
    that a client sends, "ignore" or "offer" (the model may call them, and the client answers). `client_system`: whether the
    OpenAI wire takes the system text of a client into the history of a request without a conversation.

    Raises `ConfigurationError` for an argument that cannot be used.
    """

    def __init__(
        self,
        swarm: AsyncSwarm | None = None,
        *,
        agents: Agent | Iterable[Agent] | Mapping[str, Agent],
        auth: Auth,
        store: Store | str | os.PathLike[str] | None = None,
        runs: Runs | None = None,
        wires: Collection[WireName] = (),
        page: bool = False,
        prices: Mapping[str, tuple[float, float]] | None = None,
        context: ContextHook | None = None,
        client_context: Collection[str] = (),
        show: Show | None = None,
        error_text: ErrorText = general_error,
        on_disconnect: DisconnectPolicy = "finish",
        while_running: WhileRunning = "refuse",
        limits: Limits = Limits(),  # noqa: B008 - frozen
        heartbeat: float = 15,
        drain: float = 20,
        origins: Sequence[str] = (),
        hosts: Sequence[str] = (),
        task_agent: Agent | None = None,
        activity: bool = False,
        client_tools: Literal["ignore", "offer"] = "ignore",
        client_system: bool = False,
    ) -> None:
        _check(auth, origins)
        self.auth = auth
        self.limits = limits
        self.wires, self.page = frozenset(wires), page
        self.context = context
        self.client_context = frozenset(client_context)
        self.show = show or (everything if page else answers_with(client_context))
        self.prices = dict(prices or {})
        self.heartbeat = heartbeat
        self.on_disconnect: DisconnectPolicy = on_disconnect
        self.while_running: WhileRunning = while_running
        self.task_agent, self.activity = task_agent, activity
        self.client_tools, self.client_system = client_tools, client_system
        self.drain_seconds = drain
        self._origins, self._hosts = frozenset(origins), frozenset(map(without_port, hosts))
        self._own_swarm = swarm is None
        self._own_store = store is None or isinstance(store, str | os.PathLike)
        self.store = _store(store)
        self._local = LocalRuns(swarm or AsyncSwarm(), self.store, agents=agents, limits=limits, error_text=error_text)
        self.drivers = self._local.drivers
        self.drivers.task_agent, self.drivers.logs_requests = task_agent, self.show is everything
        self._given_runs, self._runs = runs, cast("Runs | None", None)
        self._app = self._make_app()

    def _make_app(self) -> ASGIApp:
        told: dict[Any, Any] = {404: not_here, 405: not_here}
        app: ASGIApp = Starlette(routes=routes_of(self), lifespan=self.lifespan, exception_handlers=told)
        if self._origins:
            app = CORSMiddleware(
                app,
                allow_origins=sorted(self._origins),
                allow_methods=["GET", "POST", "DELETE"],
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

    # --- the life of the service ---

    @property
    def runs(self) -> Runs:
        """The runs. Raises RuntimeError outside of the lifespan."""
        if self._runs is None:
            raise RuntimeError(
                "the service has not started: an app that mounts it does not run its lifespan. Enter it in the lifespan of the "
                "app: `async with service.lifespan(app): yield`"
            )
        return self._runs

    @asynccontextmanager
    async def lifespan(self, app: Any = None) -> AsyncGenerator[None]:  # noqa: ARG002 - frameworks pass their app
        """Runs can be started in this block; at its end they have ended. For the lifespan of an app that mounts the service."""
        async with AsyncExitStack() as stack:
            if self._own_swarm:
                await stack.enter_async_context(self.drivers.swarm)
            if self._own_store:
                await stack.enter_async_context(cast("AbstractAsyncContextManager[object]", self.store))
            runs: Runs = self._local if self._given_runs is None else self._given_runs
            if self._given_runs is None:
                await stack.enter_async_context(self._local)
            tasks = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(tasks.cancel_scope.cancel)
            tasks.start_soon(self._drain_on, runs, signalled := anyio.Event())
            stack.enter_context(on_shutdown_signal(signalled.set))
            resources = stack.pop_all()
        self._runs = runs
        try:
            yield
        finally:
            await runs.drain(self.drain_seconds)
            self._runs = None
            await resources.aclose()  # the exception of the block leaves as itself, not in a group

    async def _drain_on(self, runs: Runs, signalled: anyio.Event) -> None:
        # A task that waits, because nothing can be started from the handler of a signal.
        await signalled.wait()
        await runs.drain(self.drain_seconds)

    # --- requests ---

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI app."""
        refused = self._refusal(scope) if scope["type"] == "http" else None
        await (self._app if refused is None else refuse(scope, refused))(scope, receive, send)

    def _refusal(self, scope: Scope) -> Refusal | None:
        headers = Headers(scope=scope)
        if not is_host_allowed(headers, self._hosts):
            return Refusal(421, "wrong_host", "this service is not known under this name; see hosts= of the service")
        if scope["method"] not in _SAFE and not is_origin_allowed(headers, self._origins):
            return Refusal(403, "wrong_origin", "a page of another origin may not do this; see origins= of the service")
        return None

    # --- for routes of one's own ---

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

        `text`: the message. `conversation`: the id of a conversation of the user, new or not. `agent`: the name of the
        agent that a new conversation begins with. `context_variables`: those of a new conversation. `key`: a second call
        with the same key returns the same run. `on_disconnect`: by default that of the service.

        Raises what `Runs.start` raises.
        """
        new = NewRun(
            user,
            conversation,
            () if text is None else ({"role": "user", "content": text},),
            answers,
            agent=agent,
            key=key,
            context_variables=context_variables,
            on_disconnect=self.on_disconnect if on_disconnect is None else on_disconnect,
            while_running=self.while_running,
        )
        return Run(self.runs, await self.runs.start(new))

    async def run(self, run_id: str, *, user: str) -> Run:
        """A run of a user. Raises RunNotFound."""
        return Run(self.runs, await self.runs.get(run_id, user=user))


def _check(auth: object, origins: Sequence[str]) -> None:
    if not callable(auth):
        raise ConfigurationError(
            "auth must be a function from a request to a user id: bearer(token), local_only, or your own"
        )
    if "*" in origins:
        raise ConfigurationError("origins lists the origins of pages, such as https://example.com; it takes no *")


def _store(store: Store | str | os.PathLike[str] | None) -> Store:
    if store is None:
        return MemoryStore()
    return SQLiteStore(store) if isinstance(store, str | os.PathLike) else store


app = Service
"""`Service` by a name that reads better in `app = serve.app(agents=...)`."""
