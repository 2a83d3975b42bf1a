"""Checks the options of `@tool` and `function_tool`: their names and their values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aswarm._values.errors import ConfigurationError

# The options of `@tool`, in the order of its documentation. They are fields of Tool.
_NAMES = (
    "concurrent",
    "limiter",
    "timeout",
    "thread",
    "abandon_on_cancel",
    "repeatable",
    "polls",
    "strict",
    "approve",
    "may_wait",
    "name",
    "description",
)
_APPROVE = "pass approve=True, or a function that decides for each call"
_RETRIES = "raise ToolError in the function: the model gets its text, and may call again"
_SCHEMA = "pass your own JSON schema to function_tool(function, name=..., description=..., parameters=...)"
_OPTIONS_OF_OTHER_LIBRARIES = {
    "needs_approval": _APPROVE,
    "requires_approval": _APPROVE,
    "max_retries": _RETRIES,
    "retries": _RETRIES,
    "name_override": "pass name=...",
    "description_override": "pass description=...",
    "strict_mode": "pass strict=True",
    "args_schema": _SCHEMA,
    "parameters": _SCHEMA,
    "is_external": "external_tool(...) makes a tool without a function",
}


def check_names(options: Mapping[str, Any]) -> None:
    """Raise TypeError, which starts with Python's own text, for an option that `@tool` does not have."""
    for name in options:
        if name not in _NAMES:
            remedy = _OPTIONS_OF_OTHER_LIBRARIES.get(name)
            hint = f"{remedy}; " if remedy else ""
            raise TypeError(
                f"tool() got an unexpected keyword argument {name!r}; {hint}the options are {', '.join(_NAMES)}"
            )


def check_options(options: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for an option with a wrong value."""
    timeout = options.get("timeout")
    if timeout is not None and not (isinstance(timeout, int | float) and timeout > 0):
        raise ConfigurationError(f"timeout must be a positive number of seconds, not {timeout!r}")
    limiter = options.get("limiter")
    if limiter is not None and not callable(getattr(limiter, "acquire_on_behalf_of", None)):
        raise ConfigurationError(f"limiter must be an anyio.CapacityLimiter, or have its methods, not {limiter!r}")
    approve = options.get("approve", False)
    if not (isinstance(approve, bool) or callable(approve)):
        raise ConfigurationError(
            f"approve must be True, False or a function of the arguments and the context, not {approve!r}"
        )
