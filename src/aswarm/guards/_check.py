"""Calling the check of a user: which verdicts it may give, and what follows if it fails.

If a check fails, the thing that it should have judged does not happen. The code that a check calls is not guarded itself:
else a check that runs an agent on the same swarm would call itself without end.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

import anyio

from aswarm._errors import ConfigurationError, Hold
from aswarm._json import shown
from aswarm._run.handlers import Handlers, Middleware
from aswarm._runtime.backend import raise_if_own

from ._checked import Checked
from ._verdicts import Replace, Verdict, refusal

logger = logging.getLogger("aswarm")
OnError: TypeAlias = Literal["block", "pass"]
_is_checking: ContextVar[bool] = ContextVar("aswarm_is_checking", default=False)
_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Check:
    """One check of a user.

    `place`: what it judges, for error texts. `kinds`: the verdicts that it may give. `fits`: whether the value of a `Replace`
    can be used there.
    """

    function: Callable[[Any], Any]
    place: str
    kinds: tuple[type, ...]
    fits: Callable[[Any], bool]
    on_error: OnError

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ConfigurationError(
                f"a check of {self.place} must be a function, plain or async, not {shown(self.function, _SHOWN)}"
            )
        if self.on_error not in ("block", "pass"):
            raise ConfigurationError(f"on_error must be 'block' or 'pass', not {shown(self.on_error, _SHOWN)}")

    @property
    def name(self) -> str:
        """The name of the function."""
        function: Any = self.function
        while isinstance(function, functools.partial):
            function = cast("Any", function.func)
        return str(getattr(function, "__name__", type(function).__name__))

    def begin(self, checked: Checked) -> Verdict | Pending:
        """Call the check. Returns the verdict of a plain check, and a Pending for an async one. Raises Blocked if it fails."""
        with _unguarded():
            try:
                returned: Any = self.function(checked)
            except Exception as error:  # noqa: BLE001 - of any check
                return self._accepted(self._of_failure(error, checked), checked)
        return Pending(self, returned, checked) if inspect.isawaitable(returned) else self._accepted(returned, checked)

    async def judge(self, checked: Checked) -> Verdict:
        """Call the check, and wait for its verdict. Raises Blocked if the check fails."""
        verdict = self.begin(checked)
        return await verdict.verdict() if isinstance(verdict, Pending) else verdict

    async def finish(self, returned: Awaitable[Any], checked: Checked) -> Verdict:
        """Wait for the verdict of an async check that was called. Raises Blocked if it fails."""
        with _unguarded():
            try:
                verdict = await returned
            except anyio.get_cancelled_exc_class() as error:
                await raise_if_own(error)
                raise refusal(self.name, "the check was cancelled, but not by its run") from error
            except Exception as error:  # noqa: BLE001 - of any check
                verdict = self._of_failure(error, checked)
        return self._accepted(verdict, checked)

    def _of_failure(self, error: Exception, checked: Checked) -> Verdict:
        """The verdict of a check that has raised this error. Raises Blocked, unless `on_error` is "pass"."""
        if isinstance(error, Hold):  # a check may raise it, as a function does
            return error.with_traceback(None)
        if isinstance(error, ConfigurationError):  # a mistake in the program, which `on_error` must not hide
            raise error
        reason = f"the check failed: {type(error).__name__}: {error}"
        if self.on_error == "block":
            raise refusal(self.name, reason) from error
        logger.warning("the check %s lets pass: %s", self.name, reason, exc_info=error, extra=checked.run.log_fields)
        return None

    def _accepted(self, verdict: Any, checked: Checked) -> Verdict:
        """The verdict. Raises ConfigurationError for another value, which could mean yes as well as no."""
        is_known = verdict is None or isinstance(verdict, self.kinds)
        if not is_known or (isinstance(verdict, Replace) and not self.fits(verdict.value)):
            names = ", ".join(kind.__name__ for kind in self.kinds)
            raise ConfigurationError(
                f"the check {self.name} returned {shown(verdict, _SHOWN)}; a check of {self.place} returns None to let pass, "
                f"or one of {names} (see aswarm.guards)"
            )
        if verdict is not None:
            logger.info("the check %s says %s", self.name, type(verdict).__name__, extra=checked.run.log_fields)
        return cast("Verdict", verdict)


@dataclass(frozen=True, slots=True)
class Pending:
    """An async check that was called. `verdict` is awaited at most once, and `close` is called in any case."""

    check: Check
    returned: Awaitable[Any]
    checked: Checked

    async def verdict(self) -> Verdict:
        """Wait for the verdict. Raises Blocked if the check fails."""
        return await self.check.finish(self.returned, self.checked)

    def close(self) -> None:
        """Close a coroutine that was never awaited: a run may be left before its check has begun."""
        if inspect.iscoroutine(self.returned):
            self.returned.close()


def guarding(wrap: Middleware) -> Middleware:
    """The middleware, for all runs except those that a check has begun."""

    def guarded(handlers: Handlers) -> Handlers:
        return handlers if _is_checking.get() else wrap(handlers)

    return guarded


@contextmanager
def _unguarded() -> Generator[None]:
    token = _is_checking.set(True)
    try:
        yield
    finally:
        _is_checking.reset(token)
