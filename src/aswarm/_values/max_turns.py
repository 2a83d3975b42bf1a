"""The maximum of completions in a run: `max_turns`, and its defaults. None means no limit."""

from __future__ import annotations

from .errors import ConfigurationError
from .json import is_count_from_0

# A single run, and each message of a conversation or a chat: the caller reads the answers. The run logs a warning after
# UNWATCHED completions.
OF_A_RUN: int | None = None
# Items of a batch, cases of an evaluation, calls of a served agent, and runs of the command line: their caller does not watch them.
UNWATCHED = 100
# A run of a web service, whose users pay nothing for it: `Limits.web()`.
OF_A_WEB_SERVICE = 50


def checked_max_turns(value: object) -> int | None:
    """Return the value of `max_turns`. Raises ConfigurationError if it is neither None nor a whole number from 0."""
    if value is None or is_count_from_0(value):
        return value
    raise ConfigurationError(
        f"max_turns must be a whole number of completions, not {value!r}; leave it out, or pass None, for no limit"
    )
