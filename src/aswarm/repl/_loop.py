"""The loop of a chat: read a line, run the agent, show its events. It blocks, or runs on an event loop.

The module also chooses the display, and handles Ctrl-C while an event loop runs.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import aclosing, closing, contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import anyio

from aswarm import Swarm
from aswarm._blocking.sync_swarm import engine_of, wait_on_event_loop
from aswarm._runtime.backend import scheduler
from aswarm._swarm import AsyncSwarm
from aswarm._values.agent import Agent
from aswarm._values.run_keywords import ItemKeywords, checked_keywords
from aswarm._values.settings import ApiName
from aswarm._values.text import how_to_install

from ._chat import Chat
from ._display import Display, PlainDisplay, is_capable, is_terminal, rich_display
from ._kept import ID, ChatOptions, KeptChat
from ._reader import PlainReader, restored_terminal
from ._session import Session

if TYPE_CHECKING:
    from ._prompt import Prompt

T = TypeVar("T")
logger = logging.getLogger("aswarm")


class ChatKeywords(ItemKeywords, total=False):
    """Keywords of both loops."""

    client: Any
    api: ApiName
    prompts: Sequence[Any]  # of MCPServer, whose package is an extra


def _options(method: str, stream: bool, debug: bool, keywords: Mapping[str, Any]) -> tuple[dict[str, Any], ChatOptions]:
    """Return the arguments of the swarm, and of its runs."""
    checked_keywords(method, keywords, ChatKeywords)
    swarm, run = dict[str, Any](), dict[str, Any]()
    for name, value in keywords.items():
        (run if name in ItemKeywords.__annotations__ else swarm)[name] = value
    return swarm, ChatOptions(stream, debug, run, swarm.pop("prompts", ()))


# --- blocking ---


def run_demo_loop(
    starting_agent: Agent,
    context_variables: Mapping[str, Any] | None = None,
    stream: bool = False,
    debug: bool = False,
    **keywords: Unpack[ChatKeywords],
) -> None:
    """Chat in the terminal with an agent, and with the agents that it hands off to, until the user leaves the chat.

    The chat keeps changed context variables for the next message; the caller's dict does not change. If a run fails, one line
    shows the error, and the chat continues without the message of this run. Ctrl-C stops an answer; the chat keeps the messages
    until then.

    Args:
        starting_agent: The agent that gets the first message.
        context_variables: The context variables of the first run.
        stream: Whether to show answers while the model writes them.
        debug: See `RunKeywords`.
        **keywords: `client` and `api`, as for `Swarm`; by default a new `OpenAI()`. `model_override`, `max_turns`, `budget` and
            `resources` of the run of each message; see `RunKeywords`. `prompts`: open `MCPServer`s, whose prompts the user can
            send with `/prompt`.

    Raises:
        ConfigurationError: If the agent, the context variables or the client has the wrong type.
    """
    client_options, options = _options("run_demo_loop", stream, debug, keywords)
    from .repl import Swarm as Made  # noqa: PLC0415 - tests that were written for Swarm replace this class

    # Not entered, because the chat itself shows that a key is missing, and reads stored conversations without a key.
    with closing(Made(**client_options)) as swarm:
        chat_with(starting_agent, context_variables, options, swarm)


def chat_with(
    agent: Agent,
    context_variables: Mapping[str, Any] | None,
    options: ChatOptions,
    swarm: Swarm,
    store: str | None = None,
    conversation_id: str = ID,
) -> None:
    """Do the work of `run_demo_loop` with this Swarm. `store`: the file or the URL of the store of the conversation."""
    with _shown(agent, context_variables, options) as (session, display, reader):

        async def read() -> str:
            return reader.read()

        chat = Chat(session, KeptChat(session, engine_of(swarm), options), display, read, _wait)
        # Without an event loop: all that the coroutine awaits blocks, so it never suspends.
        with suppress(StopIteration):
            chat.talk(store, conversation_id).send(None)


async def _wait(work: Callable[[], Awaitable[T]]) -> T:
    return wait_on_event_loop(work)


# --- for an event loop ---


async def run_demo_loop_async(
    starting_agent: Agent,
    context_variables: Mapping[str, Any] | None = None,
    stream: bool = False,
    debug: bool = False,
    **keywords: Unpack[ChatKeywords],
) -> None:
    """Chat like `run_demo_loop`, but on an event loop. Other tasks run while the user types.

    For the arguments, see `run_demo_loop`; for `client`, see `AsyncSwarm`. Plain functions run in worker threads, so use
    `run_demo_loop` if a function calls `input`.
    """
    client_options, options = _options("run_demo_loop_async", stream, debug, keywords)
    async with aclosing(AsyncSwarm(**client_options)) as swarm:  # not entered, as above
        with restored_terminal(), _shown(starting_agent, context_variables, options) as (session, display, reader):
            kept, interrupts = KeptChat(session, swarm, options), _Interrupts()
            with interrupts.handled():
                chat = Chat(session, kept, display, partial(interrupts.do, reader.read_async), interrupts.do)
                await chat.talk(None, ID)


class _Interrupts:
    """Ctrl-C during a chat: it cancels the work, or the next work if it comes between two of them."""

    def __init__(self) -> None:
        self._scope = anyio.CancelScope()

    @contextmanager
    def handled(self) -> Generator[None]:
        """Within the block, SIGINT (Ctrl-C) only cancels the work.

        The block has no effect in a process that ignores SIGINT. It also has no effect outside the main thread, because only the
        main thread can set a signal handler.
        """
        previous = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is not threading.main_thread() or previous in (signal.SIG_IGN, None):
            yield
            return
        schedule = scheduler()

        def handle(_signal: int, _frame: object) -> None:
            schedule(self._cancel)

        signal.signal(signal.SIGINT, handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, previous)

    def _cancel(self) -> None:
        self._scope.cancel()

    async def do(self, work: Callable[[], Awaitable[T]]) -> T:
        """Await the work. Raises KeyboardInterrupt if Ctrl-C has cancelled it."""
        try:
            with self._scope:
                return await work()
        finally:
            self._scope = anyio.CancelScope()
        raise KeyboardInterrupt


# --- for both ---


@contextmanager
def _shown(
    agent: Agent, context_variables: Mapping[str, Any] | None, options: ChatOptions
) -> Generator[tuple[Session, Display, PlainReader | Prompt]]:
    session = Session(agent, context_variables)
    display, reader = display_and_reader(session, live=options.deltas)
    # The display shows the errors of tools. Without a handler, `logging` would also print their tracebacks.
    handler = logging.NullHandler()
    if not options.debug:
        logger.addHandler(handler)
    try:
        yield session, display, reader
    finally:
        logger.removeHandler(handler)


def display_and_reader(session: Session, *, live: bool) -> tuple[Display, PlainReader | Prompt]:
    """Greet the user, and return the display and the reader for stdin and stdout.

    In a capable terminal, they use rich and prompt_toolkit. `live`: whether to show answers while the model writes them.
    """
    has_editing = is_terminal(sys.stdin) and is_capable(sys.stdout)
    if has_editing and find_spec("prompt_toolkit") and (rich := rich_display(sys.stdout, live=live)):
        from ._prompt import Prompt, user_history  # noqa: PLC0415 - of an extra, and its import is slow

        rich.greet(f"You are talking to {session.agent.name}. /help lists the commands, Ctrl-D leaves.")
        return rich, Prompt(session, user_history())
    plain = PlainDisplay(live=live)
    plain.greet(f"For editing and colours, {how_to_install('repl')}\n/help lists the commands." if has_editing else "")
    return plain, PlainReader()
