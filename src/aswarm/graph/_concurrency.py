"""Sentences about the tools of an agent: which tools run together within a turn, and which run alone. See `_run.plan`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from aswarm._values.agent import Agent
from aswarm.extensions import Tool, tools_of


def concurrency_notes(agent: Agent) -> Iterator[str]:
    """Yield a sentence about the tools that run together, and a sentence for each reason why other tools run alone."""
    tools = tools_of(agent)
    together = {name: tool for name, tool in tools.items() if tool.effects.runs_together}
    changing = [
        name for name, tool in together.items() if tool.effects.may_return_result or tool.effects.writes_context
    ]
    waiting = [name for name, tool in together.items() if changing and tool.effects.must_see_order]
    if len(waiting) < len(together) or len(changing) < len(together):
        yield f"calls of {', '.join(together)} run together."
    for name in waiting:
        yield (
            f"{name} waits for earlier calls of {', '.join(changing)}, which may return a Result that changes the context; "
            "a return hint such as -> str excludes it."
        )
    alone = {name: _reason(tool) for name, tool in tools.items() if name not in together}
    for reason in dict.fromkeys(alone.values()):
        yield f"calls of {', '.join(name for name in alone if alone[name] == reason)} run alone, {reason}."


def _reason(tool: Tool[..., Any]) -> str:
    if tool.concurrent is not None:
        return "because of @tool(concurrent=False)"
    if tool.is_async:
        return "because they may change context_variables; with the hint Mapping, or a read-only type, they only read"
    return "because plain functions run one at a time"
