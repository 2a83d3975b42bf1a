"""The steps of one run: what the engine has recorded of it, and what is recorded now.

Decides when a step that was recorded is another one than the code asks for now, and when another process has the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

import anyio

from aswarm._errors import ConfigurationError

if TYPE_CHECKING:
    from dbos import StepReservation


class Place(Protocol):
    """The place of a step among those of its run."""

    @property
    def step_id(self) -> int:
        """Its number."""
        ...


class Steps:
    """The steps of one run in this process. `recorded`: the outputs of those that were recorded before, by number."""

    is_over = False  # whether nothing may be recorded any more

    def __init__(self, recorded: Mapping[int, Any] | None = None) -> None:
        self._recorded = recorded or {}
        self._unseen = set(self._recorded)

    @property
    def is_replayed(self) -> bool:
        """Whether the run has come past all steps that were recorded before."""
        return not self._unseen

    def reserve(self) -> Place:
        """The next number. The order of these calls must be the same in each attempt."""
        from dbos import DBOS  # noqa: PLC0415 - of an extra

        return DBOS.reserve_step()

    def is_recorded(self, place: Place) -> bool:
        """Whether an earlier attempt has recorded the step at this place."""
        return place.step_id in self._recorded

    def output(self, place: Place) -> Any:
        """What an earlier attempt has recorded at this place, without a check of its name."""
        return self._recorded[place.step_id]

    def see(self, place: Place) -> None:
        """Note that the run has come past this place."""
        self._unseen.discard(place.step_id)

    async def require_open(self) -> None:
        """Return if the run may do something that is not recorded yet."""

    async def record(self, place: Place, name: str, data: str = "") -> str:
        """Record a step, and wait until the database has it. Returns what an earlier attempt has recorded, if it has.

        Raises ConfigurationError if that was another step, and what `is_lost` knows if another process has recorded it meanwhile.
        """
        from dbos import error as errors  # noqa: PLC0415 - of an extra

        is_written = False

        def output() -> str:
            nonlocal is_written
            is_written = True
            return data

        reserved = cast("StepReservation", place)
        try:
            found = await reserved.run_async({"name": name}, output)
            self.see(place)
            if not is_written and not self.is_recorded(place):
                raise errors.DBOSWorkflowConflictIDError(name)
            return found  # noqa: TRY300 - it belongs to the check
        except errors.DBOSUnexpectedStepError as error:
            if not self.is_recorded(place):
                raise errors.DBOSWorkflowConflictIDError(name) from error
            raise ConfigurationError(
                f"the run cannot be continued: its step {place.step_id} is {name!r} now, and another one was recorded "
                f"({error}). The agents, their middleware or the version of aswarm have changed since the run began; run the "
                "version that began it, or cancel the run"
            ) from error


class RecordedSteps(Steps):
    """The steps of a run that is over: nothing is recorded any more. `stop`: cancels the task when all has been replayed."""

    is_over = True

    def __init__(self, recorded: Mapping[int, Any], stop: Callable[[], None]) -> None:
        super().__init__(recorded)
        self._stop = stop
        self._places = 0

    def reserve(self) -> Place:
        """As of `Steps`; nothing is reserved in DBOS."""
        self._places += 1
        return _Numbered(self._places)

    async def require_open(self) -> None:
        """Stop: the run may do nothing more."""
        self._stop()
        await anyio.sleep_forever()

    async def record(self, place: Place, name: str, data: str = "") -> str:  # noqa: ARG002 - of the other class
        """What is recorded."""
        return str(self._recorded.get(place.step_id, data))


@dataclass(frozen=True, slots=True)
class _Numbered:
    step_id: int


def is_lost(error: BaseException) -> bool:
    """Whether DBOS says that another process runs this run now."""
    from dbos import error as errors  # noqa: PLC0415 - of an extra

    return isinstance(error, errors.DBOSWorkflowConflictIDError)


def is_cancelled(error: BaseException) -> bool:
    """Whether DBOS says that the workflow was cancelled."""
    from dbos import error as errors  # noqa: PLC0415 - of an extra

    return isinstance(error, errors.DBOSWorkflowCancelledError)
