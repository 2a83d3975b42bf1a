"""`Runs`: the base class of the classes that execute runs. It starts, reads, cancels and deletes runs, and keeps their log.

A subclass decides which process executes a run, and what happens to the runs of a dead process.

The object owns its runs. A request only reads the log of a run, from a position that the reader keeps. There is no buffer for
each reader, so a slow reader delays nothing. A caller may repeat each method with the same ids; the repeated call has no further
effect. Each subclass must pass the tests in `tests/runs/contract`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias, Unpack, overload

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from aswarm._log import runs as log
from aswarm._log.runs import TakeOptions
from aswarm._log.stored import Conflict, RunRecord, RunStatus, database_text, is_database_text
from aswarm._record.entries import Entry
from aswarm._record.entry_maker import ErrorText
from aswarm._runtime import clocks
from aswarm._sql.transactions import Transaction
from aswarm._swarm import AsyncSwarm, require_client
from aswarm._values.agent import Agent
from aswarm._values.errors import ConfigurationError
from aswarm._values.messages import normalize
from aswarm._values.run_keywords import Messages
from aswarm.conversations._base import SQLStore

from . import _starting
from ._attempt import Execution
from ._notifier import Notifier, Poll
from ._prepared import Setup
from ._registry import Registry
from ._requests import ConversationNotFound, Limits, NewRun, RunActive, RunNotFound, ShuttingDown, TooManyRuns
from ._run import Run

_Records: TypeAlias = list[RunRecord]  # in the class, `list` is a method

NO_USER = "-"  # the user of a run that was started without a user; an empty id is not allowed
_CHECK_EVERY = 1.0  # seconds
_FORGET_EVERY = 60.0


class Runs(AbstractAsyncContextManager[Any], ABC):
    """Starts, reads, cancels and lists runs: the base class of `LocalRuns` and `DurableRuns`. Use it in an `async with` block.

    Each run belongs to a user. For a run of another user, the methods raise `RunNotFound`.

    To write an executor of your own, implement `open`, `enqueue`, `recover` and `stop`; `aswarm.runs.executors` has what they need.
    Their `registry` has the runs of this process, and the log in the database.

    Args:
        swarm: The swarm that runs the agents.
        agents: A list, or a dict by name. A new conversation starts with the first agent.
        store: The conversations of all users. The runs are in its database.
        version: The version of the agents' code.
        limits: The limits of the runs.
        failover_seconds: The interval of the check for dead processes.
        error_text: A function that gets the exception of a failed run, and returns its text for readers.
        task_agent: An agent for titles and similar tasks; its name for clients is "helper".

    Raises:
        ConfigurationError: For an argument of the wrong type, and agents without unique names.
    """

    _resources: AsyncExitStack

    def __init__(
        self,
        swarm: AsyncSwarm,
        *,
        agents: Agent | Iterable[Agent] | Mapping[str, Agent],
        store: SQLStore,
        version: str = "",
        limits: Limits = Limits(),  # noqa: B008 - frozen
        failover_seconds: float = 3,
        error_text: ErrorText | None = None,
        task_agent: Agent | None = None,
    ) -> None:
        setup = self._setup = Setup(swarm, agents, limits, error_text, task_agent)
        self.swarm, self.store, self.version = swarm, store, version
        self.agents: Mapping[str, Agent] = setup.agents
        self.limits: Limits = limits
        self.is_open: bool = False
        if not isinstance(store, SQLStore):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may pass anything
            raise ConfigurationError(f"store must be a store with a database, not {type(store).__name__}")
        setup.results = store.results
        database = self._database = store._database  # noqa: SLF001 - the runs are in the database of the conversations
        self.registry: Registry = Registry(self, setup, database, version)
        self._waiting: Counter[str] = Counter()  # for each user, the number of messages that wait for an active run
        self._deadline = math.inf  # when `drain` stops the runs
        self._failover_seconds = failover_seconds

    @property
    def known_agents(self) -> Mapping[str, Agent]:
        """`agents`, `task_agent`, and the agents that they can hand off to, by name."""
        return self._setup.known

    @property
    def task_agent(self) -> Agent | None:
        """The agent for titles and similar tasks; its name for clients is "helper"."""
        return self._setup.task_agent

    @property
    def is_draining(self) -> bool:
        """Whether this process shuts down and starts no more runs."""
        return self.registry.notifier.is_draining

    @property
    def is_failing(self) -> bool:
        """Whether runs cannot be recorded now."""
        return self._database.is_failing

    def log_requests(self) -> None:
        """Add an entry for each request to the model to the logs. A service with `show=show_everything` needs these entries."""
        self._setup.logs_requests = True

    @property
    def tasks(self) -> TaskGroup:
        """The task group of the attempts in this process: `runs.tasks.start_soon(attempt.execute)`."""
        return self.registry.tasks

    # --- the decisions of an executor ---

    async def prepare(self, stack: AsyncExitStack) -> None:  # noqa: ARG002 - for subclasses
        """Open what the runs need, before this process joins the processes of the database. The stack closes it."""
        require_client(self.swarm)

    @abstractmethod
    async def open(self, stack: AsyncExitStack) -> None:
        """Start what executes the runs in this process, for example a task in `tasks`. The stack closes it."""

    @abstractmethod
    def enqueue(self, run_id: str) -> Transaction[None] | None:
        """Return the statements that put a new run into a queue, in the transaction that records the run.

        This only returns statements, and does nothing else: it may be called more than once for a run.

        The run then has the status "queued", until a process calls `take`. None: this process executes the run at once.
        """

    @abstractmethod
    async def recover(self, run_id: str) -> bool:
        """Continue or close a run of a dead process, or return it to the queue. Returns whether the run is over."""

    @abstractmethod
    def stop(self, attempt: Execution) -> None:
        """Stop an attempt at the end of `drain`: end its run with `cancel`, or return it to the queue with `requeue`."""

    async def take_over(self) -> bool:
        """Find the dead processes, and `recover` their runs. Returns whether one of these runs is over.

        A process is dead if its lock is free: of a file with SQLite, of a session with PostgreSQL.
        """
        registry = self.registry
        return registry.processes.is_shared and await registry.whole(partial(registry.take_over, self.recover)).join()

    async def take(self, run_id: str, **options: Unpack[TakeOptions]) -> Execution | None:
        """Start the next attempt of a run, in this process. Returns None for an ended run, and while this process drains.

        Afterwards, no earlier attempt can write to the run. With `is_queued`, a run that is not in the queue is not taken. With
        `most_deaths`, a run is not taken if more processes have died while they executed it. The attempt of a run that is not
        taken has `has_started` False. If this call is cancelled, it stops the attempt with `stop`.
        """
        return await self.registry.take(run_id, **options)

    # --- opening and closing ---

    async def __aenter__(self) -> Self:
        if self.is_open:
            raise RuntimeError("these runs are already open; share this object, or create another one")
        self.registry.notifier = Notifier(self._database, self.registry.live)
        self._deadline, self._resources = math.inf, AsyncExitStack()
        self._resources.callback(self.registry.notifier.close)
        # The outermost scope: `_close` shields it, so that no cancellation interrupts the closing.
        self._closing = self._resources.enter_context(anyio.CancelScope())
        try:
            await self.prepare(self._resources)
            await self.registry.join(self._resources)
            await self.open(self._resources)
            self._watch()
        except BaseException:
            await self._close()
            raise
        self.is_open = True
        return self

    def _watch(self) -> None:
        processes, notifier = self.registry.processes, self.registry.notifier
        self._forgetting = Poll(
            "old runs cannot be deleted", _FORGET_EVERY, self.registry.deleter.forget_old, is_long=True
        )
        notifier.add(self._forgetting)
        if processes.is_shared:
            failure = "the runs of other processes cannot be looked up"
            notifier.add(Poll(failure, self._failover_seconds, self.take_over, is_long=True))
        if processes.may_lose_lock:
            failure = "the lock of this process cannot be checked"
            notifier.add(Poll(failure, _CHECK_EVERY, processes.check, is_long=True))
        self.registry.background.start_soon(notifier.poll, processes, self.registry.background)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._close()

    async def _close(self) -> None:
        self._closing.shield = True
        try:
            await self.drain(0)
        finally:
            self.is_open = False
            # Not `__aexit__` with the exception of the block: the task groups would wrap it into an exception group.
            await self._resources.aclose()

    async def drain(self, seconds: float) -> None:
        """Start no more runs, and wait until all runs end. After this number of seconds, `stop` them; their logs stay.

        A second call can shorten the time, but not extend it.
        """
        registry = self.registry
        registry.notifier.drain()
        self._deadline = min(self._deadline, anyio.current_time() + seconds)
        with anyio.CancelScope(shield=True):
            with anyio.CancelScope(deadline=self._deadline):
                await registry.ended()
            while registry.starts:
                await next(iter(registry.starts)).wait()
            for live in list(registry.live.values()):
                live.stop()
            await registry.ended()

    def check_open(self) -> None:
        """Raise RuntimeError if the runs are not open, and ShuttingDown while this process shuts down."""
        if not self.is_open:
            name = type(self).__name__
            raise RuntimeError(f"the runs are not open: use `async with {name}(...)`, or the lifespan of the service")
        if self.is_draining:
            raise ShuttingDown

    # --- starting ---

    @overload
    async def start(self, agent: NewRun, /) -> Run: ...

    @overload
    async def start(
        self,
        agent: str | Agent,
        messages: Messages,
        context_variables: Mapping[str, Any] | None = None,
        *,
        run_id: str | None = None,
        user: str = "",
        conversation: str | None = None,
        key: str | None = None,
    ) -> Run: ...

    async def start(
        self,
        agent: NewRun | str | Agent,
        messages: Messages | None = None,
        context_variables: Mapping[str, Any] | None = None,
        *,
        run_id: str | None = None,
        user: str = "",
        conversation: str | None = None,
        key: str | None = None,
    ) -> Run:
        """Start a run, and record it with its messages. If a run with this `run_id` or `key` exists, return that run.

        Args:
            agent: The agent, or its name: another process finds the agent by its name. Or a `NewRun` without other arguments.
            messages: The new messages; a str is a message of the user.
            context_variables: The context variables of a new conversation.
            run_id: The id of the run; with None, this creates an id.
            user: The id of the user who owns the run; without a user, it is "-".
            conversation: The id of the conversation; with None, this creates a conversation that has the id of the run.
            key: An idempotency key of the user.

        Raises:
            RunActive, TooManyRuns, KeyReused, ConversationNotFound, AgentNotFound, InvalidRequest,
            ShuttingDown, ConfigurationError: Then no run was started.
        """
        if isinstance(agent, NewRun):
            if (messages, context_variables, run_id, user, conversation, key) != (None, None, None, "", None, None):
                raise ConfigurationError("start() with a NewRun takes no other arguments; set them in the NewRun")
            new, given = agent, (agent.run_id, agent.conversation, agent.key)
        else:
            given, name = (run_id, conversation, key), self._setup.name_of(agent, messages)
            run_id = clocks.urandom(16).hex() if run_id is None else run_id
            new = NewRun(
                user or NO_USER, run_id if conversation is None else conversation, normalize(messages or ()), agent=name,
                run_id=run_id, key=key, context_variables=context_variables,
            )  # fmt: skip
        # No other run can have a new id, the conversation with this id, or no key: then there is nothing to look up.
        return Run(self, await self._start(new, is_new=given == (None, None, None)))

    async def _start(self, new: NewRun, *, is_new: bool) -> RunRecord:
        """Start a run. `is_new`: start without a look-up in the first try."""
        self._setup.agent(new.agent)
        run_id = new.run_id or clocks.urandom(16).hex()  # the same in each try
        has_changed = had_conversation = False
        while True:
            self.check_open()
            try:
                with anyio.CancelScope(shield=True):
                    found = _starting.Found(None) if is_new else await self.registry.look_up(new, run_id)
                    # The conversation may have been deleted since an earlier try. Then nothing may start in it.
                    exists = found.stored is not None or found.active is not None
                    if found.same is None and had_conversation and not exists:
                        raise ConversationNotFound(str(new.conversation))
                    had_conversation = exists
                    prepared = _starting.prepare(self._setup, run_id, new, found, has_changed=has_changed)
                    if isinstance(prepared, RunRecord):
                        record = prepared
                    else:
                        self.check_open()
                        record = await self.registry.start(prepared, new)
            except RunActive as active:
                await self._after_active(active, new)
            except Conflict:
                has_changed, is_new = True, False
            except _starting.StartAgain:  # or the insert was committed, but the answer of the database was lost
                is_new = False
            else:
                await anyio.lowlevel.checkpoint_if_cancelled()
                return record  # pyright: ignore[reportPossiblyUnboundVariable] - nothing cancels the shielded scope

    async def _after_active(self, active: RunActive, new: NewRun) -> None:
        if await self.take_over():
            return
        if new.while_running == "refuse":
            raise active
        most = self.limits.runs_per_user
        if most is not None and self._waiting[new.user] >= most:
            raise TooManyRuns("user")
        self._waiting[new.user] += 1
        try:
            with suppress(RunNotFound), anyio.CancelScope() as scope, self.registry.notifier.stops_scope(scope):
                if new.while_running == "replace":
                    await self.stop_run(active.run_id, new.user, "replaced")  # the request may answer its calls
                await self.registry.wait_for_end(await self.get(active.run_id, user=new.user))
        finally:
            self._waiting[new.user] -= 1
            self._waiting = +self._waiting  # removes zeros

    # --- reading ---

    async def get(self, run_id: str, *, user: str) -> RunRecord:
        """Return the current record of a run."""
        return await self.registry.find(run_id, user)

    async def get_run(self, run_id: str, *, user: str = "") -> Run:
        """Return a run of the user. Raises RunNotFound."""
        return Run(self, await self.get(run_id, user=user or NO_USER))

    async def find_run(self, run_id: str) -> Run:
        """Return the run with this id, of any user, for the tools of an operator. Raises RunNotFound."""
        return Run(self, await self.registry.find(run_id, None))

    async def list(self, *, user: str, conversation: str | None = None, limit: int = 100) -> list[RunRecord]:
        """Return the runs of a user, or of one conversation of the user: at most `limit`, the newest first."""
        if not is_database_text(user, conversation):
            return []
        return await self._database.submit(lambda: log.of_user(user, conversation, limit), reads_only=True)

    async def records(
        self, *, status: RunStatus | Literal["queued", "unreachable"] | None = None, limit: int = 100
    ) -> _Records:
        """Return the newest runs of all users, for the tools of an operator. `status`: return only runs with this status.

        "waiting": ended runs whose calls still wait for an answer. "queued": runs that wait for a process. "unreachable":
        queued runs that this process cannot execute, because they need another version or another agent.
        """
        if status == "unreachable":
            agents = [*self._setup.known]
            return await self._database.submit(lambda: log.unreachable(self.version, agents, limit), reads_only=True)
        return await self._database.submit(lambda: log.of_all(status, limit), reads_only=True)

    async def read(self, run_id: str, after: int = -1, *, user: str) -> Sequence[Entry]:
        """Wait for entries with numbers above `after`, and return one or more in order.

        After the last entry, the result is empty. The caller keeps the position, so it may cancel this call and repeat it.
        """
        return await self.registry.read(run_id, after, user)

    # --- cancelling and deleting ---

    async def cancel(self, run_id: str, *, user: str, reason: str = "cancelled") -> RunRecord:
        """Stop a run, in whichever process it is, and wait for its end. Returns its record.

        The calls that the run has left open are closed, and a later answer is refused. A run that waited for an answer then counts
        as stopped; any other end keeps its status and its reason.

        `reason`: a code for the record and the log, such as "cancelled".
        """
        reason = database_text(reason)
        last = await self.stop_run(run_id, user, reason)
        record = await self.get(run_id, user=user)
        if last.response.get("waiting", True):
            await _starting.close_open_calls(self._database, record, reason)
            record = await self.get(run_id, user=user)
        return record

    async def stop_run(self, run_id: str, user: str, reason: str) -> Entry:
        """Stop a run, in whichever process it is, and wait for its end. Returns its last entry. Its open calls stay open."""
        record, live = await self.get(run_id, user=user), self.registry.live.get(run_id)
        if live is None and record.is_running:
            cancel = partial(log.request_cancel, run_id, reason)
            await self._database.submit(cancel, notifies=True)  # wakes the process that executes the run
            live = self.registry.live.get(run_id)  # it may be this process, since the first look
        if live is not None:
            live.cancel(reason)
            await live.wait_for_end()
        return await self.registry.wait_for_end(record)

    async def forget(self, conversation: str, *, user: str) -> None:
        """Delete the runs of a conversation. If one of them is running, this raises RunActive and deletes nothing."""
        if is_database_text(user, conversation):
            await self.registry.deleter.clear(conversation, user, with_conversation=False)

    async def delete_conversation(self, conversation: str, *, user: str) -> None:
        """Delete a conversation with its runs, in one transaction.

        Raises ConversationNotFound. If a run of the conversation is running, this raises RunActive and deletes nothing. A
        message or an answer that arrives at the same time either starts its run first, or is refused.
        """
        if not is_database_text(user, conversation):
            raise ConversationNotFound(conversation)
        await self.registry.deleter.clear(conversation, user)
