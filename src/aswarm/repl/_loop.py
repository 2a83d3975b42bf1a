"""The two loops of a chat: read a line, run the agent, show what it does. They differ only in what is awaited.

Decides also which display a chat has, and what Ctrl-C does while an event loop runs.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio

from aswarm._agent import Agent
from aswarm._blocking.sync_swarm import Swarm
from aswarm._errors import AswarmError
from aswarm._providers.apis import ApiName
from aswarm._run.streams import EventStream
from aswarm._runtime.backend import scheduler
from aswarm._swarm import AsyncSwarm
from aswarm._text import how_to_install, one_line

from ._chat import READ_ERRORS, Chat
from ._display import Display, Reader
from ._kept import KeptChat
from ._plain import PlainDisplay, PlainReader
from ._saved import SavedConversation
from ._session import Session, StartRun
from ._text import is_terminal

if TYPE_CHECKING:
    from aswarm.conversations import PostgresStore, SQLiteStore

    OpenStore: TypeAlias = PostgresStore | SQLiteStore

logger = logging.getLogger("aswarm")


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """The options that are the same for every run of a chat."""

    stream: bool
    debug: bool
    model_override: str | None
    max_turns: float
    api: ApiName = "auto"

    def arguments(self, start: StartRun) -> dict[str, Any]:
        """The arguments of `stream`. With `stream=False` completions come whole; tools are shown live all the same."""
        return {
            "agent": start.agent,
            "messages": start.messages,
            "context_variables": start.context,
            "resume": start.resume,
            **self.of_any_run,
        }

    @property
    def of_any_run(self) -> dict[str, Any]:
        """The arguments that do not depend on the run."""
        return {
            "model_override": self.model_override,
            "debug": self.debug,
            "max_turns": self.max_turns,
            "deltas": self.stream,
        }


# --- the blocking loop ---


def run_demo_loop(
    starting_agent: Agent,
    context_variables: Mapping[str, Any] | None = None,
    stream: bool = False,
    debug: bool = False,
    *,
    client: Any = None,
    api: ApiName = "auto",
    model_override: str | None = None,
    max_turns: float = math.inf,
) -> None:
    """Chat in the terminal with an agent, and with the agents that it hands off to, until the user leaves.

    `stream`: show answers while the model writes them. `client` and `api`: as for `Swarm`; by default a new `OpenAI()`.
    `max_turns`: completions for each message at most. `model_override` and `debug`: as for `Swarm.run`.

    Changed context variables are kept from one message to the next; the caller's dict is not changed. If a message fails,
    one line shows the error, and the chat continues without that message. Ctrl-C stops an answer; what has happened until
    then is kept. Raises ConfigurationError for an agent, context or client of the wrong kind.
    """
    options = ChatOptions(stream, debug, model_override, max_turns, api)
    chat_with(starting_agent, context_variables, options, client)


def chat_with(
    agent: Agent,
    context_variables: Mapping[str, Any] | None,
    options: ChatOptions,
    client: Any,
    saved: SavedConversation | None = None,
) -> None:
    """`run_demo_loop`, which can continue a saved conversation."""
    with _new_swarm(client, options.api) as swarm, _new_chat(agent, context_variables, options) as (chat, reader):
        if saved is not None:
            chat.display.show_text(chat.session.load(saved))
        while not chat.is_over:
            try:
                start = chat.process_line(reader.read())
                if isinstance(start, StartRun):
                    _run(swarm, chat, start, options)
            except READ_ERRORS as error:
                chat.on_read_error(error)


def _new_swarm(client: Any, api: ApiName) -> Swarm:
    from .repl import Swarm as Made  # noqa: PLC0415 - tests that were written for Swarm replace the class there

    options: dict[str, Any] = {} if api == "auto" else {"api": api}
    return Made(**options) if client is None else Made(client, **options)


def _run(swarm: Swarm, chat: Chat, start: StartRun, options: ChatOptions) -> None:
    with chat.running(start) as active, swarm.stream(**options.arguments(start)) as active.run:
        for event in active.run:
            chat.display.show_event(event)


# --- the async loop ---


async def run_demo_loop_async(
    starting_agent: Agent,
    context_variables: Mapping[str, Any] | None = None,
    stream: bool = False,
    debug: bool = False,
    *,
    client: Any = None,
    api: ApiName = "auto",
    model_override: str | None = None,
    max_turns: float = math.inf,
) -> None:
    """`run_demo_loop` for code in an event loop. Other tasks run while the user types.

    Takes what `run_demo_loop` takes; `client`: as for `AsyncSwarm`. Plain functions run in worker threads here, so use
    `run_demo_loop` for a function that calls `input`.
    """
    options = ChatOptions(stream, debug, model_override, max_turns, api)
    async with AsyncSwarm(client, api=api) as swarm:
        with _new_chat(starting_agent, context_variables, options) as (chat, reader):
            while not chat.is_over:
                try:
                    start = chat.process_line(await _read_async(chat, reader))
                    if isinstance(start, StartRun):
                        await _run_async(partial(swarm.stream, **options.arguments(start)), chat, start)
                except READ_ERRORS as error:
                    chat.on_read_error(error)


async def chat_in_store(
    agent: Agent,
    context_variables: Mapping[str, Any] | None,
    options: ChatOptions,
    swarm: AsyncSwarm,
    store: OpenStore,
    conversation_id: str,
) -> None:
    """`run_demo_loop_async` with a conversation of a store, which is continued if there is one."""
    with _new_chat(agent, context_variables, options) as (chat, reader):
        conversation_of = partial(store.conversation, swarm=swarm, agent=agent, context_variables=context_variables)
        kept = KeptChat(store, conversation_of, conversation_id, chat)
        if about := await kept.begin():
            chat.display.show_text(about)
        while not chat.is_over:
            try:
                action = chat.process_line(await _read_async(chat, reader))
                if isinstance(action, StartRun):
                    await _run_async(partial(kept.stream, action, options), chat, action)
                    await kept.end_run()
                elif action is not None:
                    chat.display.show_text(await kept.perform(action))
                await kept.keep()
            except READ_ERRORS as error:
                chat.on_read_error(error)
            except AswarmError as error:
                chat.display.show_error(f"{type(error).__name__}: {one_line(error, 600)}")


async def _read_async(chat: Chat, reader: Reader) -> str:
    with anyio.CancelScope() as reading:

        def interrupted() -> None:
            chat.on_read_error(KeyboardInterrupt())
            if chat.is_over:  # not at the first Ctrl-C: `input` keeps its thread, and a second thread must not read too
                reading.cancel()

        with on_interrupt(interrupted):
            return await reader.read_async()
    return ""


async def _run_async(
    begin: Callable[[], AbstractAsyncContextManager[EventStream]], chat: Chat, start: StartRun
) -> None:
    with chat.running(start) as active, anyio.CancelScope() as scope, on_interrupt(scope.cancel):
        async with begin() as run:
            active.run = run
            async for event in run:
                chat.display.show_event(event)


@contextmanager
def on_interrupt(react: Callable[[], None]) -> Generator[None]:
    """Within the block, SIGINT (Ctrl-C) calls `react` on the running event loop and does nothing else.

    Nothing changes outside of Python's main thread, which alone can set a signal handler, and in a process that ignores
    SIGINT.
    """
    previous = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or previous in (signal.SIG_IGN, None):
        yield
        return
    schedule = scheduler()

    def handle(_signal: int, _frame: FrameType | None) -> None:
        schedule(react)

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


# --- what both loops begin with ---


@contextmanager
def _new_chat(
    agent: Agent, context_variables: Mapping[str, Any] | None, options: ChatOptions
) -> Generator[tuple[Chat, Reader]]:
    session = Session(agent, context_variables)
    display, reader = display_and_reader(session, live=options.stream)
    with _without_log(debug=options.debug):
        yield Chat(session, display), reader


@contextmanager
def _without_log(*, debug: bool) -> Generator[None]:
    """The display shows the errors of tools. Without a handler Python would print their tracebacks in between."""
    handler = logging.NullHandler()
    if not debug:
        logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def display_and_reader(session: Session, *, live: bool) -> tuple[Display, Reader]:
    """The display, which has greeted the user, and the reader for stdin and stdout. Rich where the terminal can do it.

    `live`: answers are shown while the model writes them.
    """
    if not _is_capable_terminal():
        return _plain("", live=live)
    if not all(importlib.util.find_spec(name) for name in ("prompt_toolkit", "rich")):
        hint = f"For editing and colours, {how_to_install('repl')}\n/help lists the commands."
        return _plain(hint, live=live)
    # Imported here, because they are an extra, and slow to import.
    from rich.console import Console  # noqa: PLC0415

    from ._prompt import Prompt, user_history  # noqa: PLC0415
    from ._rich import RichDisplay  # noqa: PLC0415

    display = RichDisplay(Console(highlight=False), live=live)
    display.greet(f"You are talking to {session.agent.name}. /help lists the commands, Ctrl-D leaves.")
    return display, Prompt(session, user_history())


def _plain(hint: str, *, live: bool) -> tuple[Display, Reader]:
    display = PlainDisplay(live=live)
    display.greet(hint)
    return display, PlainReader()


def _is_capable_terminal() -> bool:
    encoding = str(getattr(sys.stdout, "encoding", None) or "").lower()
    return (
        is_terminal(sys.stdin)
        and is_terminal(sys.stdout)
        and os.environ.get("TERM") != "dumb"
        and encoding.replace("-", "").startswith("utf")
    )
