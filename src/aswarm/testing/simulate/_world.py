"""`World`: one universe as its program sees it: choices from a seed, delays, files, swarms, recorded runs and calls."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio

from aswarm._record.entries import Entry
from aswarm._record.entry_maker import EntryMaker, LiveState
from aswarm._swarm import AsyncSwarm
from aswarm._values.agent import Agent, Response
from aswarm._values.budget import Budget
from aswarm._values.errors import Hold
from aswarm._values.events import Event
from aswarm._values.usage import Usage
from aswarm.extensions import Handlers, Middleware, Started, ToolCall, ToolOutcome

from ._loop import Owner, UniverseLoop

if TYPE_CHECKING:
    from ._crash import Process


class RunEntries:
    """Makes the entries of one run from its events. `name`: the id of the run, and of its conversation."""

    def __init__(
        self,
        entries: list[Entry],
        name: str,
        agent: Agent,
        messages: Sequence[Any],
        context_variables: Mapping[str, Any] | None,
    ) -> None:
        self._entries = entries
        self._maker = EntryMaker(error_text=str)
        entries.append(self._maker.started(name, name, agent, messages, context_variables=context_variables))

    def add(self, event: Event, state: LiveState) -> None:
        """Add the entries of an event. `state`: the state of the run at this moment."""
        self._entries += self._maker.event(event, state)

    def end(self, state: LiveState, error: BaseException | None) -> None:
        """Add the last entries, unless the run has finished."""
        if self._entries[-1].is_last:
            return
        if error is not None:
            self._entries += self._maker.failed(error, state.response, state.turn)
        else:
            self._entries += self._maker.stopped("no_reader", state.response, state.turn)


# Seconds of a drawn delay. The short ones are often equal, so that arrivals coincide.
DELAYS = (0.0, 0.0, 0.001, 0.001, 0.002, 0.005, 0.02, 0.1)
"""The delays that `World.delay` chooses from, in seconds."""
Place: TypeAlias = tuple[str, int, int, int | None]
START = 1_800_000_000.0
"""The time at which each universe starts, in seconds since the epoch."""
_MEMORY = "/dev/shm"  # noqa: S108 - a file system in memory: a universe needs no disk


@dataclass(slots=True)
class SimulatedRun:
    """A run of `World.run`.

    Args:
        name: The name of the run in its program.
        messages: The messages that were passed in.
        events: The typed events, each with its virtual time in seconds.
        response: The response; None before the end.
        error: The exception of the run, or None.
        budget: The budget of the run, or None.
        entries: The entries that a log of the run would have, in the report of a failure.
        is_numbered: Whether the name is the number of the run, which depends on the order of the starts.
        id: The id of the run, as in `SimulatedCall`.
    """

    name: str
    messages: list[Any]
    events: list[tuple[float, Event]] = field(default_factory=list[tuple[float, Event]])
    response: Response | None = None
    error: BaseException | None = None
    budget: Budget | None = None
    entries: list[Entry] = field(default_factory=list[Entry])
    is_numbered: bool = False
    id: str = ""


@dataclass(frozen=True, slots=True)
class SimulatedCall:
    """A function that a swarm of `World.swarm` has started.

    Args:
        at: The virtual time in seconds.
        run: The id of its run. A run that continues after a crash has the same id.
        turn: The number of completions of the run, from 1; 0 for the calls that a resumed run starts with.
        index: The position of the call in its message.
        id: The id of the call.
        name: The name of the tool.
        arguments: The arguments as JSON text.
        repeatable: Whether the function may run again after a crash; also true for a handoff to an agent, which runs no function,
            and for code, whose calls are checked by their own places.
        outer: The position of the outer call, for a call that code makes; otherwise None.
    """

    at: float
    run: str
    turn: int
    index: int
    id: str
    name: str
    arguments: str
    repeatable: bool
    outer: int | None = None

    @property
    def place(self) -> Place:
        """The run, the turn and the positions of the call, which identify it also after a crash."""
        return self.run, self.turn, self.index, self.outer


@dataclass(slots=True)
class SimulatedAnswer:
    """A successful response of a `Provider`.

    Args:
        at: The virtual time of its first byte, in seconds.
        provider: The name of the provider.
        size: The number of its bytes.
        usage: The usage that it reports; None for bytes of a `RawAnswer`.
        left: The number of bytes that were not read.
        closed_at: The virtual time at which it was closed, or None.
        owner: The process that has sent the request, or None.
    """

    at: float
    provider: str
    size: int
    usage: Usage | None
    left: int
    closed_at: float | None = None
    owner: Owner | None = None


class World:
    """A universe. A program gets its world as the first argument; two worlds with equal arguments are the same universe.

    Args:
        seed: The number of the universe.
        choices: The only choices other than 0, by name; None draws every choice from the seed.
        sequential: Run the calls of each turn one after another.

    Attributes:
        runs: The runs of `run`, in the order of their starts.
        calls: The functions that the swarms of `swarm` have started.
        answers: The successful responses of the providers, in the order of their first bytes.
        logs: The entries of recorded runs, by the id of the run, as `Clients` have read them.
        notes: The time line: virtual times and texts.
        drawn: The choices other than 0 so far, by name.
        seconds: The time of its loop at the end of the program; a universe starts at 0.
    """

    def __init__(self, seed: int, *, choices: Mapping[str, int] | None = None, sequential: bool = False) -> None:
        self.seed = seed
        self.sequential = sequential
        self.runs: list[SimulatedRun] = []
        self.calls: list[SimulatedCall] = []
        self.answers: list[SimulatedAnswer] = []
        self.held: set[Place] = set()  # the calls whose functions have raised Hold
        self.logs: dict[str, Sequence[Entry]] = {}
        self.notes: list[tuple[float, str]] = []
        self.processes: list[Process] = []
        self.providers: list[Any] = []
        self._counts_all = True  # whether `answers` has the answers of all completions, see `usage_adds_up`
        self.synced: dict[str, int] = {}  # by path, the bytes of a write-ahead log that are on disk
        self.drawn: dict[str, int] = {}
        self.seconds: float = 0.0
        self.has_entries: bool = False  # whether runs have `entries`
        self._choices = choices
        self._counts: Counter[str] = Counter()
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    # --- choices ---

    def draw(self, name: str, below: int) -> int:
        """Return a number from 0 to `below` - 1. It depends only on the seed, the name, and the earlier draws of this name.

        A shrunk schedule has as many zeros as possible, so let 0 be the ordinary case.
        """
        self._counts[name] += 1
        key = f"{name} {self._counts[name]}"
        if self._choices is None:
            value = int.from_bytes(blake2b(f"{self.seed} {key}".encode(), digest_size=8).digest()) % below
        else:
            value = self._choices.get(key, 0) % below
        if value:
            self.drawn[key] = value
        return value

    def delay(self, name: str) -> float:
        """Return a drawn delay in seconds; often 0."""
        return DELAYS[self.draw(name, len(DELAYS))]

    async def pause(self, name: str) -> None:
        """Wait for a drawn time, as for I/O: the place where a real function would wait for its server."""
        delay, loop = self.delay(name), asyncio.get_running_loop()
        if not isinstance(loop, UniverseLoop):
            await anyio.sleep(delay)
            return
        arrived = loop.create_future()
        loop.arrive(delay, lambda: None if arrived.done() else arrived.set_result(None))
        await arrived

    def note(self, text: str) -> None:
        """Add a line to the time line."""
        self.notes.append((asyncio.get_running_loop().time(), text))

    # --- files ---

    def path(self, name: str) -> str:
        """Return the path of a file of this universe. The files are deleted at its end."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(dir=_MEMORY if Path(_MEMORY).is_dir() else None)
        return os.fspath(Path(self._folder.name, name))

    def delete_files(self) -> None:
        """Delete the files of this universe."""
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    # --- runs ---

    def swarm(self, model: Any, *, middleware: Iterable[Middleware] = (), **options: Any) -> AsyncSwarm:
        """Return an `AsyncSwarm` whose tool calls start and finish after drawn delays. `options`: as for `AsyncSwarm`."""
        own = [*middleware]
        self._counts_all = self._counts_all and model in self.providers and not own
        return AsyncSwarm(model, middleware=[*own, self._middleware], **options)

    def _middleware(self, handlers: Handlers) -> Handlers:
        lock = anyio.Lock() if self.sequential else nullcontext()

        async def call_tool(call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
            async def note_start() -> None:
                await started()
                self.calls.append(_simulated_call(handlers, call))

            async with lock:
                await self.pause(f"start of {call.name}")
                try:
                    outcome = await handlers.call_tool(call, context, note_start)
                except Hold:
                    self.held.add(_simulated_call(handlers, call).place)
                    raise
                await self.pause(f"end of {call.name}")
                return outcome

        return replace(handlers, call_tool=call_tool)

    async def run(
        self,
        swarm: AsyncSwarm,
        agent: Agent,
        messages: Any,
        context_variables: Mapping[str, Any] | None = None,
        *,
        name: str = "",
        may_leave: bool = False,
        **keywords: Any,
    ) -> Response:
        """Run an agent, and record the events for the invariants. Returns the response; raises the error of the run.

        Args:
            swarm: A swarm of this world.
            agent: The first agent.
            messages: As for `AsyncSwarm.run`.
            context_variables: As for `AsyncSwarm.run`.
            name: The name of the run in the time line; by default its number.
            may_leave: The reader leaves after a drawn number of events, in some universes.
            **keywords: As for `AsyncSwarm.stream`.
        """
        history = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
        recorded = SimulatedRun(name or f"run {len(self.runs) + 1}", history, budget=keywords.get("budget"))
        recorded.is_numbered = not name
        self.runs.append(recorded)
        leaves_after = self.draw(f"reader of {recorded.name}", 24) if may_leave else 0
        stream = swarm.stream(agent, messages, context_variables, **keywords)
        entries = None
        if self.has_entries:
            run_id = f"seed {self.seed} {recorded.name}"
            entries = RunEntries(recorded.entries, run_id, agent, history, context_variables)
        try:
            async with stream as run:
                recorded.id = run.run_id
                async for event in run:
                    recorded.events.append((anyio.current_time(), event))
                    if entries is not None:
                        entries.add(event, run._state)  # noqa: SLF001 - the entries need the calls of the turn
                    if len(recorded.events) == leaves_after:
                        break
        except BaseException as error:
            recorded.error = error
            raise
        finally:
            recorded.response = stream.response
            if entries is not None:
                entries.end(stream._state, recorded.error)  # noqa: SLF001
        return recorded.response


def _simulated_call(handlers: Handlers, call: ToolCall) -> SimulatedCall:
    tool = call.tool
    repeatable = call.is_repeatable or (tool is not None and (tool.is_handoff or tool._is_replayed))  # noqa: SLF001 - its inner calls are checked one by one
    outer = None if call.parent is None else call.parent.index
    return SimulatedCall(
        anyio.current_time(), handlers.run.run_id, handlers.run.turn, call.index, call.id, call.name, call.arguments,
        repeatable=repeatable, outer=outer,
    )  # fmt: skip
