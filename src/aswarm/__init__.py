"""aswarm: OpenAI's Swarm, grown up and async-first.

Agents (instructions and functions), handoffs (a function returns an agent), context variables, and a `run()` that repeats
completion, tool calls and handoff until the model answers. Importing aswarm does not import openai.
"""

from ._agent_tool import agent_tool
from ._blocking.sync_streams import SyncClassicStream, SyncEventStream
from ._blocking.sync_swarm import Swarm
from ._providers.compatible import completion_error
from ._providers.http import HTTPSource
from ._providers.openai import ResponsesSource
from ._rate_limits.policy import RateLimits
from ._run.current_call import CurrentCall, Progress, current_call, progress
from ._run.execution import ToolFailure
from ._run.shared_budget import SharedBudget
from ._run.streams import ClassicStream, EventStream
from ._swarm import AsyncSwarm
from ._tools.filled import Resource
from ._tools.tool import Approval, Tool, external_tool, function_to_json, function_tool, tool
from ._tools.triage import create_triage_agent
from ._values import public as _public
from ._values.agent import Agent, Response, Result, StopReason, UnknownCall
from ._values.budget import Budget
from ._values.content import File, Image
from ._values.decisions import AllApproved, Answer, Approve, Decision, Decisions, Deny, OpenCall, waiting
from ._values.errors import (
    AswarmError,
    BudgetError,
    CompletionError,
    ConfigurationError,
    Hold,
    OutputError,
    RunError,
    StoreError,
    StreamInterrupted,
    ToolArgumentsError,
    ToolError,
    ToolNotFound,
    ToolTimeout,
)
from ._values.events import (
    CallWaiting,
    CompletionFinished,
    Event,
    HandedOff,
    ReasoningDelta,
    RefusalDelta,
    RunFinished,
    TextDelta,
    ToolCallDelta,
    ToolCallFinished,
    ToolCallStarted,
    ToolProgress,
    TurnStarted,
)
from ._values.messages import Message
from ._values.output import Output
from ._values.run_keywords import Messages, RunKeywords
from ._values.settings import Limiter
from ._values.usage import Usage
from ._wire.request import CompletionRequest, CompletionSource

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "AllApproved",
    "Answer",
    "Approval",
    "Approve",
    "AswarmError",
    "AsyncSwarm",
    "Budget",
    "BudgetError",
    "CallWaiting",
    "ClassicStream",
    "CompletionError",
    "CompletionFinished",
    "CompletionRequest",
    "CompletionSource",
    "ConfigurationError",
    "CurrentCall",
    "Decision",
    "Decisions",
    "Deny",
    "Event",
    "EventStream",
    "File",
    "HTTPSource",
    "HandedOff",
    "Hold",
    "Image",
    "Limiter",
    "Message",
    "Messages",
    "OpenCall",
    "Output",
    "OutputError",
    "Progress",
    "RateLimits",
    "ReasoningDelta",
    "RefusalDelta",
    "Resource",
    "Response",
    "ResponsesSource",
    "Result",
    "RunError",
    "RunFinished",
    "RunKeywords",
    "SharedBudget",
    "StopReason",
    "StoreError",
    "StreamInterrupted",
    "Swarm",
    "SyncClassicStream",
    "SyncEventStream",
    "TextDelta",
    "Tool",
    "ToolArgumentsError",
    "ToolCallDelta",
    "ToolCallFinished",
    "ToolCallStarted",
    "ToolError",
    "ToolFailure",
    "ToolNotFound",
    "ToolProgress",
    "ToolTimeout",
    "TurnStarted",
    "UnknownCall",
    "Usage",
    "agent_tool",
    "completion_error",
    "create_triage_agent",
    "current_call",
    "external_tool",
    "function_to_json",
    "function_tool",
    "progress",
    "tool",
    "waiting",
]

_public.publish(globals())
