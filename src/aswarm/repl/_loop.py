"""The two loops: ask the user, run what was said, show it. They differ only in what is awaited."""

from __future__ import annotations

import logging
import math
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import anyio

from aswarm._agent import Agent
from aswarm._blocking.sync_swarm import Swarm
from aswarm._swarm import AsyncSwarm

from ._chat import NO_LINE, Chat
from ._choice import face_and_reader
from ._display import Reader
from ._interrupts import on_interrupt
from ._session import Session, Turn

logger = logging.getLogger("aswarm")


@dataclass(frozen=True, slots=True)
class _Options:
    """What every run of a loop has in common."""

    stream: bool
    debug: bool
    model_override: str | None
    max_turns: float

    def asked(self, turn: Turn) -> dict[str, Any]:
        """What `stream` is to be called with. Without `stream`, completions come whole; tools are live all the same."""
        return {
            "agent": turn.agent,
            "messages": turn.messages,
            "context_variables": turn.context,
            "model_override": self.model_override,
            "debug": self.debug,
            "max_turns": self.max_turns,
            "resume": turn.resume,
            "deltas": self.stream,
        }


@contextmanager
def _conversation(
    agent: Agent, context_variables: Mapping[str, Any] | None, options: _Options
) -> Generator[tuple[Chat, Reader]]:
    session = Session(agent, context_variables)
    face, reader = face_and_reader(session, live=options.stream)
    with _quiet(debug=options.debug):
        yield Chat(session, face), reader


def run_demo_loop(
    starting_agent: Agent,
    context_variables: Mapping[str, Any] | None = None,
    stream: bool = False,
    debug: bool = False,
    *,
    client: Any = None,
    model_override: str | None = None,
    max_turns: float = math.inf,
) -> None:
    """Chat in the terminal with an agent, and those it hands over to, until the user leaves.

    `stream`: answers are shown as they come. `client`: what `Swarm` takes; without one, an `OpenAI()` of its own.
    `model_override`, `max_turns` (completions for each message) and `debug` are those of `Swarm.run`. Changed context
    variables stay from one message to the next; the dict that was passed in stays as it is.

    A message that fails is shown as one line and taken out of the conversation, which goes on. Ctrl-C stops an answer;
    what has happened until then is kept. Raises ConfigurationError for an agent, context or client of the wrong kind.
    """
    options = _Options(stream, debug, model_override, max_turns)
    with Swarm(client) as swarm, _conversation(starting_agent, context_variables, options) as (chat, reader):
        while not chat.is_over:
            try:
                turn = chat.take(reader.read())
                if turn is not None:
                    _answer(swarm, chat, turn, options)
            except NO_LINE as error:
                chat.no_line(error)


def _answer(swarm: Swarm, chat: Chat, turn: Turn, options: _Options) -> None:
    with chat.answering(turn) as answer, swarm.stream(**options.asked(turn)) as answer.run:
        for event in answer.run:
            chat.face.show(event)


async def run_demo_loop_async(
    starting_agent: Agent,
    context_variables: Mapping[str, Any] | None = None,
    stream: bool = False,
    debug: bool = False,
    *,
    client: Any = None,
    model_override: str | None = None,
    max_turns: float = math.inf,
) -> None:
    """`run_demo_loop` for code that runs in an event loop, which goes on while the user thinks.

    Takes what `run_demo_loop` takes; `client` is what `AsyncSwarm` takes. Plain functions run in worker threads here:
    one that calls `input` belongs to `run_demo_loop`.
    """
    options = _Options(stream, debug, model_override, max_turns)
    async with AsyncSwarm(client) as swarm:
        with _conversation(starting_agent, context_variables, options) as (chat, reader):
            while not chat.is_over:
                try:
                    turn = chat.take(await _read_async(chat, reader))
                    if turn is not None:
                        await _answer_async(swarm, chat, turn, options)
                except NO_LINE as error:
                    chat.no_line(error)


async def _read_async(chat: Chat, reader: Reader) -> str:
    with anyio.CancelScope() as reading:

        def interrupted() -> None:
            chat.no_line(KeyboardInterrupt())
            if chat.is_over:  # not before: a thread that waits in `input` waits on, and a second must not join it
                reading.cancel()

        with on_interrupt(interrupted):
            return await reader.read_async()
    return ""


async def _answer_async(swarm: AsyncSwarm, chat: Chat, turn: Turn, options: _Options) -> None:
    with chat.answering(turn) as answer, anyio.CancelScope() as asking, on_interrupt(asking.cancel):
        async with swarm.stream(**options.asked(turn)) as answer.run:
            async for event in answer.run:
                chat.face.show(event)


@contextmanager
def _quiet(*, debug: bool) -> Generator[None]:
    """What tools do wrong is shown by the face; without a handler, Python would print the log's tracebacks between."""
    handler = logging.NullHandler()
    if not debug:
        logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
