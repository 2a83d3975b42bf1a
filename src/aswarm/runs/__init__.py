"""Runs in the background, independent of requests. Each run has a log, which any number of readers can read at any time.

The package starts, stops, answers and continues runs. It also decides which process may write to the log of a run.
`LocalRuns` executes runs in this process; `aswarm.durable` executes them in any process that shares the database. This
package does not use HTTP: `aswarm.serve` adds it.
"""

from aswarm._log.stored import DisconnectPolicy, RunRecord, RunStatus
from aswarm._record.entries import Entry
from aswarm._record.entry_maker import ErrorText
from aswarm._record.fold import Folded, fold
from aswarm._values import public_names as _public

from ._base import Runs
from ._local_runs import LocalRuns
from ._requests import (
    AgentNotFound,
    AnswersRefused,
    CallAnswer,
    ClientTool,
    ContextEdit,
    ConversationNotFound,
    InvalidRequest,
    KeyReused,
    Limits,
    NewRun,
    RequestRefused,
    RunActive,
    RunNotFound,
    ShuttingDown,
    TooManyRuns,
    WhileRunning,
)
from ._run import Run
from ._show import Show, show_answers, show_answers_with, show_everything

__all__ = [
    "AgentNotFound",
    "AnswersRefused",
    "CallAnswer",
    "ClientTool",
    "ContextEdit",
    "ConversationNotFound",
    "DisconnectPolicy",
    "Entry",
    "ErrorText",
    "Folded",
    "InvalidRequest",
    "KeyReused",
    "Limits",
    "LocalRuns",
    "NewRun",
    "RequestRefused",
    "Run",
    "RunActive",
    "RunNotFound",
    "RunRecord",
    "RunStatus",
    "Runs",
    "Show",
    "ShuttingDown",
    "TooManyRuns",
    "WhileRunning",
    "fold",
    "show_answers",
    "show_answers_with",
    "show_everything",
]

_public.publish(globals())
