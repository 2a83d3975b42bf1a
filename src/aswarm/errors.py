"""All exceptions. Those for the caller of a run derive from `AswarmError`, those for the model from `ToolError`."""

from ._values.errors import (
    AswarmError,
    BudgetError,
    CompletionError,
    ConfigurationError,
    OutputError,
    RunError,
    StoreError,
    StreamInterrupted,
    ToolArgumentsError,
    ToolError,
    ToolNotFound,
    ToolTimeout,
)

__all__ = [
    "AswarmError",
    "BudgetError",
    "CompletionError",
    "ConfigurationError",
    "OutputError",
    "RunError",
    "StoreError",
    "StreamInterrupted",
    "ToolArgumentsError",
    "ToolError",
    "ToolNotFound",
    "ToolTimeout",
]
