"""aswarm: OpenAI's Swarm, grown up and async-first.

Agents (instructions and functions), handoffs (a function returns an agent), context variables, and a `run()` that repeats
completion, tool calls and handoff until the model answers. Importing aswarm does not import openai.
"""

import typing as _typing

from . import agents, decisions, errors, events, sources, tools, types, util
from ._blocking.sync_swarm import Swarm
from ._run.budget_middleware import SharedBudget
from ._swarm import AsyncSwarm
from ._values import public_names as _public
from ._values.agent import Agent, Response, Result
from ._values.budget import Budget
from ._values.output import Output
from ._values.usage import Usage
from .decisions import Approve, Deny, Hold, OpenCall, Reply, open_calls
from .errors import (
    AswarmError,
    BudgetError,
    CompletionError,
    ConfigurationError,
    OutputError,
    RunError,
    StoreError,
    ToolError,
)
from .events import (
    CallWaiting,
    CompletionFinished,
    Event,
    HandedOff,
    RunFinished,
    TextDelta,
    ToolCallFinished,
    ToolCallStarted,
)
from .sources import RateLimits
from .tools import File, Image, Resource, Tool, agent_tool, current_call, external_tool, progress, tool

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "Approve",
    "AswarmError",
    "AsyncSwarm",
    "Budget",
    "BudgetError",
    "CallWaiting",
    "CompletionError",
    "CompletionFinished",
    "ConfigurationError",
    "Deny",
    "Event",
    "File",
    "HandedOff",
    "Hold",
    "Image",
    "OpenCall",
    "Output",
    "OutputError",
    "RateLimits",
    "Reply",
    "Resource",
    "Response",
    "Result",
    "RunError",
    "RunFinished",
    "SharedBudget",
    "StoreError",
    "Swarm",
    "TextDelta",
    "Tool",
    "ToolCallFinished",
    "ToolCallStarted",
    "ToolError",
    "Usage",
    "agent_tool",
    "current_call",
    "external_tool",
    "open_calls",
    "progress",
    "tool",
]

_TOPICS = (decisions, errors, events, sources, tools, types, agents, util)

if not _typing.TYPE_CHECKING:  # with a visible `__getattr__`, type checkers would accept every name

    def __getattr__(name: str) -> object:
        """Return a name that has moved from here to the module of its topic. Version 0.1.0 removes this."""
        for topic in _TOPICS:
            if name in topic.__all__:
                return getattr(topic, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_public.publish(globals())
for _topic in _TOPICS:
    _public.publish(vars(_topic))
