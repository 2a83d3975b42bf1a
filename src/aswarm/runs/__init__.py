"""Runs in the background, independent of requests. Each run has a log, which any number of readers can read at any time.

The package starts, stops, answers and continues runs. It also decides which process may write to the log of a run.
`LocalRuns` executes runs in this process; `aswarm.durable` executes them in any process that shares the database. This
package does not use HTTP: `aswarm.serve` adds it.
"""

from aswarm._record.entries import Entry
from aswarm._record.fold import Folded, fold
from aswarm._values import public as _public

from ._local_runs import LocalRuns
from ._requests import CallAnswer, ClientTool, RequestError, RunsError
from ._run import Run
from ._runs import (
    AgentNotFound,
    AnswersRefused,
    ConversationNotFound,
    DisconnectPolicy,
    KeyReused,
    Limits,
    NewRun,
    RunActive,
    RunLimit,
    RunNotFound,
    RunRecord,
    Runs,
    ShuttingDown,
)
from ._show import Show, show_answers, show_answers_with, show_everything
from ._shutdown import Draining

__all__ = [
    "AgentNotFound",
    "AnswersRefused",
    "CallAnswer",
    "ClientTool",
    "ConversationNotFound",
    "DisconnectPolicy",
    "Draining",
    "Entry",
    "Folded",
    "KeyReused",
    "Limits",
    "LocalRuns",
    "NewRun",
    "RequestError",
    "Run",
    "RunActive",
    "RunLimit",
    "RunNotFound",
    "RunRecord",
    "Runs",
    "RunsError",
    "Show",
    "ShuttingDown",
    "fold",
    "show_answers",
    "show_answers_with",
    "show_everything",
]

_public.publish(globals())
