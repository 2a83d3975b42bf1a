"""One attempt of a run in this process.

An attempt ends in one of three ways: the run ends, another attempt takes over the run, or the run returns to the queue.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import anyio

from aswarm._log import runs as log
from aswarm._log.runs import Takeover
from aswarm._log.stored import RunRecord
from aswarm._record.entries import Entry
from aswarm._record.entry_maker import EntryMaker
from aswarm._record.entry_recorder import EntryRecorder
from aswarm._run.current_call import failing_exits
from aswarm._values.agent import Response
from aswarm._values.errors import AswarmError, ConfigurationError, RunError, StoreError, is_exit
from aswarm.conversations import Change, Conflict

from . import _starting
from ._live import LiveLog
from ._prepared import PreparedRun
from ._requests import in_trace

if TYPE_CHECKING:
    from ._registry import Registry

logger = logging.getLogger("aswarm")


def _error_of(failure: BaseException) -> Exception:
    """Return the error that ends the run. A SystemExit, for example of a guard, must not end the process of other runs."""
    if isinstance(failure, Exception):
        return failure
    if not is_exit(failure):
        raise failure
    error = RunError(f"the code of the run ended with {failure!r}")
    error.__cause__ = failure
    return error


_REQUEUED = "requeued"  # the reason of an attempt that returns its run to the queue


class Execution:
    """One execution of a run in this process, made by `Runs.take`. Call `execute`, `close` or `release`.

    `has_started`: whether the run was taken, see `Runs.take`. `deaths`: the number of processes that died while they executed
    the run. `cancel_reason`: the reason of a request to cancel the run, or None. `version`: the version that started it.
    `is_exact`: whether another process can continue it; false if its context variables are not JSON.
    """

    awaits_results = False

    def __init__(
        self,
        registry: Registry,
        live: LiveLog,
        run: PreparedRun,
        takeover: Takeover | None = None,
        recorded: Sequence[Entry] = (),
    ) -> None:
        self.live = live
        self.add = live.add
        live.stop = partial(registry.stop, self)
        self.has_started = takeover is None or takeover.has_started
        self.deaths = 0 if takeover is None else takeover.deaths
        self.cancel_reason = None if takeover is None else takeover.cancel
        self.version = registry.version if takeover is None else takeover.version
        self.is_exact = not run.first.fields.get("_is_inexact")
        self._registry = registry
        self._run = run
        self._recorded = recorded
        self._reason: str | None = None  # why the run stops

    @property
    def record(self) -> RunRecord:
        """The record of the run at the start of the attempt."""
        return self.live.record

    @property
    def is_superseded(self) -> bool:
        """Whether another attempt continues the run, or can continue it."""
        return self.live.is_fenced

    def cancel(self, reason: str) -> None:
        """Stop the execution. The run ends with this reason."""
        self.live.cancel(reason)

    def requeue(self) -> None:
        """Stop the execution, and return the run to the queue. A run that has just finished ends."""
        self.live.cancel(_REQUEUED)

    async def release(self) -> None:
        """Return the run to the queue. It must not be executing in this process."""
        await self._registry.whole(self._release).join()

    async def _release(self) -> None:
        await self._registry.database.run(log.release, self.record.id, self.live.attempt)
        self._registry.detach(self.live)

    async def execute(self) -> None:
        """Execute the run until its end is written, or until another attempt can continue it."""
        live, record = self.live, self.live.record
        if record.on_disconnect not in ("finish", "cancel") and not live.readers:
            self._registry.notifier.mark_unread(live)
        error: Exception | None = None
        try:
            limit = anyio.move_on_after(self._run.setup.limits.run_seconds)
            with failing_exits(), in_trace(self._run.trace), live.scope, limit:
                try:
                    recorder = self._recorder()
                    async with aclosing(self._run.open(recorder)) as events:
                        async for event in events:
                            recorder.record(event)
                except (Exception, SystemExit, BaseExceptionGroup) as failure:
                    error = _error_of(failure)
                    logger.warning("the run %s failed", record.id, exc_info=failure, extra=record.log_fields)
            self._reason = live.reason or "time_limit"
        finally:
            if self._reason is None:  # a cancellation from outside
                self._registry.stop(self)
                self._reason = live.reason
            with anyio.CancelScope(shield=True):
                await self._registry.whole(partial(self._conclude, error)).join()

    async def close(self, reason: str, error: Exception | None = None) -> None:
        """End the run without new requests or calls, for a reason or with an error. Its recorded answers and calls stay."""
        with anyio.CancelScope(shield=True):
            await self._registry.whole(partial(self._close, reason, error)).join()

    async def _close(self, reason: str, error: Exception | None) -> None:
        self._reason = reason
        await self._replay()
        await self._end(error)

    async def _replay(self) -> None:
        """Replay the recorded answers and calls, and stop after them. Afterwards, the response contains them."""
        try:
            with failing_exits(), in_trace(self._run.trace), anyio.CancelScope() as scope:
                recorder = self._recorder(stop=scope.cancel)
                async with aclosing(self._run.open(recorder)) as events:
                    async for event in events:
                        recorder.record(event)
        # For example, this process does not have the agent.
        except (Exception, SystemExit, BaseExceptionGroup) as failure:
            record, error = self.live.record, _error_of(failure)
            what = "the run %s cannot be replayed, so it ends with its recorded messages"
            logger.warning(what, record.id, exc_info=error, extra=record.log_fields)
            self._run.use_record(self._recorded)

    def _recorder(self, stop: Callable[[], None] | None = None) -> EntryRecorder:
        """Return a recorder for the run. `stop`: see `EntryRecorder`."""
        run = self._run
        return EntryRecorder(self, run.maker, run.agents, self._mismatch, recorded=self._recorded, stop=stop)

    async def _conclude(self, error: Exception | None) -> None:
        live, run = self.live, self._run
        if live.is_fenced:
            self._registry.detach(live)
            return
        if live.reason == _REQUEUED and error is None and not run.has_finished:
            try:
                await self._registry.database.run(log.release, live.record.id, live.attempt)
            except Exception:  # each driver of a database has its own errors
                text = "a run cannot be returned to the queue; another process takes it over when this process ends"
                logger.exception(text, extra=live.record.log_fields)
            self._registry.detach(live)
            return
        if self._recorded and not run.has_finished and (run.recorder is None or run.recorder.is_behind):
            with suppress(StoreError):  # `_end` gets the same error, and logs it
                if await self._registry.retry(live.flush):
                    await self._replay_again(error)
        await self._end(error)

    async def _replay_again(self, error: Exception | None) -> None:
        """Replay all entries of the run, because the attempt ended before it had replayed them."""
        self._recorded = await self._registry.recorded(self._run.run_id)
        self._run.restart()
        await self._replay()
        if isinstance(error, AswarmError):
            error.response = self._run.response_after(None)

    async def _end(self, error: Exception | None) -> None:
        """Write the end of the run, whatever happens, and show it to the readers."""
        live, run_id = self.live, self._run.run_id
        try:
            try:
                await self.finish(self._run.response_after(error), error)
            except StoreError:
                raise
            except (Exception, SystemExit) as failure:  # a bug, or a failing __repr__, must not stop other runs
                what = "the response of the run %s cannot be recorded"
                logger.exception(what, run_id, extra=live.record.log_fields)
                await self._write_end(EntryMaker(error_text=self._run.setup.error_text).failed(failure))
        except StoreError:  # `retry` raises it only while this process drains; the next process ends the run
            logger.exception("the end of the run %s cannot be recorded", run_id, extra=live.record.log_fields)
            live.schedule()  # so that the next attempt can use the entries before the end
            self._registry.detach(live)

    async def _write_end(self, endings: Sequence[Entry], change: Change | None = None) -> None:
        """Write the last entries, unless another attempt has taken over the run. Then show the end to the readers."""
        live = self.live
        *more, last = endings
        for entry in more:
            self.add(entry)
        last = replace(last, seq=live.last + 1)
        live.unschedule()
        finish = partial(_starting.finish, live, last, self._run, change)
        write = partial(self._registry.database.submit, finish, durable=True, notifies=True)
        is_written = await self._registry.retry(write, live.fail)
        self._registry.detach(live, last if is_written else None)

    # --- the sink of the recorder ---

    async def commit(self) -> None:
        """Wait until all entries are committed."""
        await self._registry.retry(self.live.commit)

    async def finish(self, response: Response | None, error: Exception | None) -> None:
        """Write the end of the run and its messages to the database, in one transaction."""
        run = self._run
        try:
            change = run.last_change(response, error) if run.key and response is not None else None
            await self._write_end(run.endings(self._reason, error), change)
        except Conflict as conflict:  # do not overwrite the change of the other program
            conflict.response = response
            await self._write_end(run.endings(self._reason, conflict))

    def _mismatch(self, turn: int, parts: str) -> ConfigurationError:
        return ConfigurationError(
            f"the run {self._run.run_id!r} cannot be continued: request {turn} differs from the recorded request in its {parts}. "
            f"This process has the version {self._registry.version!r}. Change version= whenever the agents change, and put text "
            "that changes from day to day, such as the date, into the messages and not into the instructions"
        )
