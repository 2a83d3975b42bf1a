"""What an executor of runs needs, and a program that serves them: a class of your own that executes runs, see `Runs`.

`Execution` is one execution of a run. `Registry` is the class of `Runs.registry`: the runs of this process, and the log of all runs.
The statements of `Runs.enqueue` are a `Transaction`: a generator that yields pairs of an SQL statement and its parameters. Instead
of a statement, it may yield a function that gets the connection.

The other names are for programs that serve runs, such as `aswarm.serve`.
"""

from aswarm._log.stored import asker
from aswarm._sql.transactions import Transaction

from ._attempt import Execution
from ._base import NO_USER
from ._deleting import purgeable
from ._live import LiveEntries, LiveLog
from ._notifier import Notifier
from ._prepared import TASK_MODEL, conversation_id, conversation_key, user_prefix
from ._registry import Registry
from ._requests import an_object, fault_at, invalid
from ._run import Run
from ._show import check_show, shown_messages

__all__ = [
    "NO_USER",
    "TASK_MODEL",
    "Execution",
    "LiveEntries",
    "LiveLog",
    "Notifier",
    "Registry",
    "Transaction",
    "an_object",
    "asker",
    "check_show",
    "conversation_id",
    "conversation_key",
    "fault_at",
    "invalid",
    "purgeable",
    "registry_of",
    "shown_messages",
    "user_prefix",
]


def registry_of(run: Run) -> Registry:
    """Return the registry of a run, which counts its readers and wakes them."""
    return run._registry  # noqa: SLF001 - the only access from outside
