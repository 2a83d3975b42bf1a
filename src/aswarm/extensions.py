"""The parts for your own extension: handlers, runs and calls, and requests.

aswarm's own middleware, guards, traces and code mode are built on these parts.
"""

from ._run.call import ToolCall
from ._run.current_call import CurrentCall, Progress, current_call, progress
from ._run.handlers import CompletionHandler, Handlers, Middleware, Started, ToolHandler
from ._run.inner_run import InnerRun
from ._run.outcome import ToolOutcome
from ._run.run_info import RunInfo
from ._run.state import EndCallback
from ._values import public as _public
from ._values.decisions import CallDecision
from ._wire.request import CompletionRequest, CompletionSource

__all__ = [
    "CallDecision",
    "CompletionHandler",
    "CompletionRequest",
    "CompletionSource",
    "CurrentCall",
    "EndCallback",
    "Handlers",
    "InnerRun",
    "Middleware",
    "Progress",
    "RunInfo",
    "Started",
    "ToolCall",
    "ToolHandler",
    "ToolOutcome",
    "current_call",
    "progress",
]

_public.publish(globals())
