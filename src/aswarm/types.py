"""Types for annotations: messages, streams, the reason of a stop. Swarm's import path for types, too.

Swarm also exports classes of the SDK here. They are imported at the first access, so importing this module does not import
openai.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

from ._blocking.sync_streams import SyncClassicStream, SyncEventStream
from ._run.streams import ClassicStream, EventStream
from ._values.agent import Agent, Response, Result, StopReason, UnknownCall
from ._values.messages import Message
from ._values.run_keywords import Messages, RunKeywords

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionMessage
    from openai.types.chat.chat_completion_message_tool_call import ChatCompletionMessageToolCall, Function

__all__ = [
    "Agent",
    "AgentFunction",
    "ChatCompletionMessage",
    "ChatCompletionMessageToolCall",
    "ClassicStream",
    "EventStream",
    "Function",
    "Message",
    "Messages",
    "Response",
    "Result",
    "RunKeywords",
    "StopReason",
    "SyncClassicStream",
    "SyncEventStream",
    "UnknownCall",
]

AgentFunction: TypeAlias = Callable[..., Any]
"""Swarm's name for the type of an agent's function. It may return anything; see `aswarm.Result`."""

_OF_OPENAI = {
    "ChatCompletionMessage": "openai.types.chat",
    "ChatCompletionMessageToolCall": "openai.types.chat.chat_completion_message_tool_call",
    "Function": "openai.types.chat.chat_completion_message_tool_call",
}


def __getattr__(name: str) -> Any:
    if name not in _OF_OPENAI:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_OF_OPENAI[name]), name)
