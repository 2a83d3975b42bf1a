"""The question of `aswarm run`: asked in memory, in a conversation of two files, or in a conversation of a store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import click

from aswarm._agent import Agent, Response, as_response
from aswarm._blocking.sync_swarm import Swarm
from aswarm._budget import Budget
from aswarm._decisions import Decisions
from aswarm._errors import AswarmError
from aswarm._events import Event
from aswarm._providers.apis import ApiName

from ._continued import Beginning, ContinuedConversation, NewConversation
from ._mcp_servers import with_async_mcp_servers, with_mcp_servers
from ._stored import StoreTarget

if TYPE_CHECKING:
    from aswarm._run.streams import EventStream
    from aswarm.conversations import Conversation, ConversationStream


class EventWriter(Protocol):
    """Writes a run to stdout."""

    def show(self, event: Event) -> None:
        """Write one event."""
        ...

    def show_response(self, response: Response) -> None:
        """Write a run that was not streamed."""
        ...

    def show_failure(self, response: Response, error: BaseException, /) -> None:
        """Write that the run ended early, with its partial response."""
        ...


@dataclass(frozen=True, slots=True)
class AskOptions:
    """How a question is asked. `output`: the type of the answer, or None. `servers`: those of `--mcp`."""

    model: str | None
    max_turns: float
    debug: bool
    output: Any
    is_streamed: bool
    api: ApiName
    budget: Budget | None
    servers: tuple[str, ...]

    @property
    def of_run(self) -> dict[str, Any]:
        """The keyword arguments of a run."""
        return {
            "model_override": self.model,
            "max_turns": self.max_turns,
            "debug": self.debug,
            "output": self.output,
        }


class Question:
    """A question, or decisions about open calls, in memory or in a conversation of two files."""

    def __init__(
        self, conversation: NewConversation | ContinuedConversation, text: str, decisions: bool | Decisions
    ) -> None:
        self._conversation = conversation
        self._start: Beginning = conversation.begin(text, decisions)

    def ask(self, options: AskOptions, writer: EventWriter) -> Response:
        """Ask, write the events, and keep the conversation. Raises the errors of the run."""
        swarm = Swarm(api=options.api, budget=options.budget)
        with swarm, with_mcp_servers(self._start.agent, options.servers):
            response = (
                self._streamed(swarm, options, writer) if options.is_streamed else self._whole(swarm, options, writer)
            )
        self._end(response)
        return response

    def _streamed(self, swarm: Swarm, options: AskOptions, writer: EventWriter) -> Response:
        start = self._start
        run = swarm.stream(start.agent, start.messages, start.context, resume=start.resume, **options.of_run)
        try:
            with run:
                for event in run:
                    writer.show(event)
        except (AswarmError, KeyboardInterrupt) as error:
            self._fail(run.response, error, writer)
            raise
        return run.response

    def _whole(self, swarm: Swarm, options: AskOptions, writer: EventWriter) -> Response:
        start = self._start
        run: Any = swarm.run  # type checkers do not know which overload an output of any type means
        try:
            response: Response = run(start.agent, start.messages, start.context, resume=start.resume, **options.of_run)
        except (AswarmError, KeyboardInterrupt) as error:
            self._fail(response_of(error, start.agent), error, writer)
            raise
        writer.show_response(response)
        return response

    def _fail(self, response: Response, error: BaseException, writer: EventWriter) -> None:
        writer.show_failure(response, error)
        self._end(response, failed=True)

    def _end(self, response: Response, *, failed: bool = False) -> None:
        warn_of_unknown_calls(response)
        self._conversation.end(response, failed=failed)


@dataclass
class StoredQuestion:
    """A question, or decisions about open calls, in a conversation of a store, which keeps each step as it happens."""

    target: StoreTarget
    agent: Agent
    context: dict[str, Any]
    text: str
    decisions: bool | Decisions
    _run: EventStream | None = None

    def ask(self, options: AskOptions, writer: EventWriter) -> Response:
        """Ask, and write the events. Raises the errors of the run and of the store."""
        import anyio  # noqa: PLC0415 - only once it is needed

        try:
            return anyio.run(self._ask, options, writer)
        except (AswarmError, KeyboardInterrupt) as error:
            partial = response_of(error, self.agent) if self._run is None else self._run.response
            writer.show_failure(partial, error)
            warn_of_unknown_calls(partial)
            raise

    async def _ask(self, options: AskOptions, writer: EventWriter) -> Response:
        from aswarm import AsyncSwarm  # noqa: PLC0415 - as above

        async with AsyncSwarm(api=options.api, budget=options.budget) as swarm, self.target.open() as store:
            _ = swarm.client  # a missing key is reported before the question is written
            async with with_async_mcp_servers(self.agent, options.servers):
                conversation = store.conversation(self.target.conversation, swarm, agent=self.agent)
                async with self._begin(conversation, options) as self._run:
                    async for event in self._run:
                        if options.is_streamed:
                            writer.show(event)
        response = self._run.response
        if not options.is_streamed:
            writer.show_response(response)
        warn_of_unknown_calls(response)
        return response

    def _begin(self, conversation: Conversation, options: AskOptions) -> ConversationStream:
        arguments: dict[str, Any] = {**options.of_run, "deltas": options.is_streamed}
        if self.decisions is False:
            return conversation.stream(self.text, self.context, **arguments)
        return conversation.resume_stream(self.decisions, self.context, **arguments)


def response_of(error: BaseException, agent: Agent) -> Response:
    """The partial response of a run that ended with this error."""
    return as_response(getattr(error, "response", None)) or Response(agent=agent, stop="error")


def warn_of_unknown_calls(response: Response) -> None:
    """Print a warning to stderr if the outcome of a call is unknown."""
    names = ", ".join(call.name for call in response.unknown_calls)
    if names:
        click.echo(f"Warning: the outcome of these calls is unknown: {names}", err=True)
