"""The methods that code for Swarm overrides, and that no run calls: what to do instead.

Decides when an override is an error. A class with a `run` of its own may call whatever it likes.
"""

from __future__ import annotations

from typing import Any

from aswarm._errors import ConfigurationError

REPLACEMENTS = {
    "get_chat_completion": "wraps `complete`",
    "handle_function_result": "wraps `call_tool`",
    "handle_tool_calls": "wraps `call_tool`",
}


def refuse_overrides(kind: Any, base: Any) -> None:
    """Raise ConfigurationError if a subclass of `base` overrides one of these methods, and not `run` as well."""
    if kind.run is not base.run:
        return
    for name in REPLACEMENTS:
        if getattr(kind, name, None) is not getattr(base, name, None):
            raise override_error(kind.__name__, name)


def override_error(owner: str, name: str) -> ConfigurationError:
    """The error for an override that no run would call."""
    return ConfigurationError(
        f"{owner} replaces {name}, which run() never calls; pass middleware=[...] with a function that "
        f"{REPLACEMENTS[name]} (see aswarm.middleware), or write a run() that does not call super().run()"
    )
