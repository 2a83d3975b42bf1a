"""The parts for your own extension: handlers, runs and calls, and requests.

aswarm's own middleware, guards, traces, MCP and code mode are built on these parts. The page "Write an extension" of the design
shows how.
"""

from ._providers.openai import is_openai, takes_breakpoints
from ._rate_limits.tokens import estimated_tokens
from ._run.call import ToolCall
from ._run.current_call import CurrentCall, Progress, current_call, failing_exits, progress, without_current_call
from ._run.handlers import (
    CompletionHandler,
    Handlers,
    Middleware,
    MiddlewareWithTools,
    Started,
    ToolHandler,
    source_for,
)
from ._run.inner_calls import InnerCalls, calling_tool
from ._run.options import ResultStore
from ._run.outcome import ToolOutcome
from ._run.run_info import InnerRun, RunInfo
from ._run.state import EndCallback
from ._run.streams import EventStream
from ._runtime.backend import BackgroundTask
from ._tools.directory import AgentDirectory
from ._tools.effects import Effects
from ._tools.tool import Approval, Tool, function_tool, tool
from ._tools.toolbox import offered_tools, tools_of
from ._values import public_names as _public
from ._values.decisions import CallDecision
from ._wire.accumulator import Accumulator, Completion
from ._wire.request import CompletionRequest, CompletionSource

__all__ = [
    "Accumulator",
    "AgentDirectory",
    "Approval",
    "BackgroundTask",
    "CallDecision",
    "Completion",
    "CompletionHandler",
    "CompletionRequest",
    "CompletionSource",
    "CurrentCall",
    "Effects",
    "EndCallback",
    "EventStream",
    "Handlers",
    "InnerCalls",
    "InnerRun",
    "Middleware",
    "MiddlewareWithTools",
    "Progress",
    "ResultStore",
    "RunInfo",
    "Started",
    "Tool",
    "ToolCall",
    "ToolHandler",
    "ToolOutcome",
    "calling_tool",
    "current_call",
    "estimated_tokens",
    "failing_exits",
    "function_tool",
    "is_openai",
    "offered_tools",
    "progress",
    "source_for",
    "takes_breakpoints",
    "tool",
    "tools_of",
    "without_current_call",
]

_public.publish(globals())
