"""`Served`: what the routes of one `Service` share: its runs, and its keywords in the form that they read.

`Playground` has the rights of the users of the page, and its first questions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias
from weakref import WeakValueDictionary

import anyio
from starlette.requests import Request

from aswarm._values.errors import ConfigurationError
from aswarm.runs import DisconnectPolicy, Run, Runs, Show, WhileRunning

from ._auth import Auth


@dataclass(frozen=True, slots=True, kw_only=True)
class Playground:
    """The page of a service for developers, for `Service(page=Playground(...))`. By default its users may only talk to the agents.

    The rights also apply to requests without the page.

    Args:
        models: The models that a user may choose for a run, in place of the models of its agents; or "any".
        context_edits: Whether a user may change all context variables of their conversations.
        questions: First messages that the page offers in a new conversation.
        prompts: Open `MCPServer`s. A user may put their prompts into the message box, and see them before they are sent.

    Raises:
        ConfigurationError: If `models` is a text other than "any", or `questions` is a text.
    """

    models: Collection[str] | Literal["any"] = ()
    context_edits: bool = False
    questions: Sequence[str] = ()
    prompts: Sequence[Any] = ()  # the package of MCPServer is an extra

    def __post_init__(self) -> None:
        if isinstance(self.models, str) and self.models != "any":
            raise ConfigurationError(f'models must be a list of models, or "any", not {self.models!r}')
        if isinstance(self.questions, str):
            raise ConfigurationError("questions must be a list of texts, not a text")

    def allows(self, model: str) -> bool:
        """Return whether a user may choose this model."""
        return self.models == "any" or model in self.models


def playground_of(page: object) -> Playground | None:
    """Return the playground of the argument `page` of a service, or None for False."""
    if isinstance(page, Playground):
        return page
    if isinstance(page, bool):
        return Playground() if page else None
    raise ConfigurationError(f"page must be True, False or a Playground(...), not {page!r}")


WireName: TypeAlias = Literal["agui", "vercel", "openai"]
ClientNotes: TypeAlias = Literal["refuse", "message", "system"]
ContextHook: TypeAlias = Callable[[Request], Awaitable[Mapping[str, Any]]]


@dataclass(slots=True, kw_only=True)
class Served:
    """The runs and the settings of one service, and what its routes remember. For the settings, see `Service`.

    `all_runs`: the runs, also outside of the lifespan. `has_started`: whether the lifespan has started. `left_out`: the parts of
    requests that the log has named, because the service does not use them. `searching`: a lock for each user, so that the
    searches of one user do not delay those of others.
    """

    all_runs: Runs
    auth: Auth
    wires: frozenset[str]
    page: Playground | None
    context: ContextHook | None
    client_context: frozenset[str]
    show: Show
    on_disconnect: DisconnectPolicy
    while_running: WhileRunning
    heartbeat_seconds: float
    drain_seconds: float
    activity: bool
    client_tools: Literal["ignore", "offer"]
    client_system: bool
    agui_context: ClientNotes
    body_bytes: int
    text_characters: int
    has_started: bool = False
    left_out: set[str] = field(default_factory=set[str])
    searching: WeakValueDictionary[str, anyio.Lock] = field(default_factory=WeakValueDictionary[str, anyio.Lock])

    @property
    def runs(self) -> Runs:
        """The runs. Raises RuntimeError outside of the lifespan."""
        if not self.has_started:
            raise RuntimeError(
                "the service has not started: an app does not run the lifespan of a mounted service. Enter it in the lifespan "
                "of the app: `async with service.lifespan(app): yield`"
            )
        return self.all_runs

    async def get_run(self, run_id: str, *, user: str) -> Run:
        """Return a run of a user. Raises RunNotFound."""
        return await self.runs.get_run(run_id, user=user)
