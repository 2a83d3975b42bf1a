"""Tools, and what their functions use: progress, resources, images and files, the current call."""

from ._agent_tool import agent_tool
from ._run.current_call import CurrentCall, Progress, current_call, progress
from ._run.execution import ToolFailure
from ._tools.filled import Resource
from ._tools.tool import Tool, external_tool, function_tool, tool
from ._tools.tool_search import tool_search
from ._values.content import File, Image
from ._values.settings import Limiter

__all__ = [
    "CurrentCall",
    "File",
    "Image",
    "Limiter",
    "Progress",
    "Resource",
    "Tool",
    "ToolFailure",
    "agent_tool",
    "current_call",
    "external_tool",
    "function_tool",
    "progress",
    "tool",
    "tool_search",
]
