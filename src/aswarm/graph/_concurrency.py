"""Which tools of an agent run together within a turn, and why another one runs alone, in sentences.

The rule itself is decided where a run plans the calls of a turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from aswarm._agent import Agent
from aswarm._run.plan import must_see_order
from aswarm._tools.tool import Tool, may_return_result, runs_together, writes_context
from aswarm._tools.toolbox import tools_of

_DECLARED = "because @tool(concurrent=False) says so"
_PLAIN = "because plain functions run one at a time"
_WRITES = "because they may change context_variables; with the hint Mapping they only read"


def concurrency_notes(agent: Agent) -> Iterator[str]:
    """One sentence for the tools that run together, and one for each reason why others do not."""
    tools = tools_of(agent)
    together = {name: tool for name, tool in tools.items() if runs_together(tool)}
    earlier = {name: _changing(together) for name, tool in together.items() if must_see_order(tool)}
    if any(len(earlier.get(name, ())) < len(together) for name in together):
        yield f"calls of {_list(together)} run together."
    for name, changing in earlier.items():
        if changing:
            yield (
                f"{name} waits for earlier calls of {_list(changing)}, which may return a Result and so change what it "
                "reads; a return hint such as -> str says that they do not."
            )
    alone = {name: _reason(tool) for name, tool in tools.items() if name not in together}
    for reason in dict.fromkeys(alone.values()):
        yield f"calls of {_list(name for name in alone if alone[name] == reason)} run alone, {reason}."


def _changing(tools: dict[str, Tool[..., Any]]) -> list[str]:
    return [name for name, tool in tools.items() if may_return_result(tool) or writes_context(tool)]


def _reason(tool: Tool[..., Any]) -> str:
    if tool.concurrent is not None:
        return _DECLARED
    return _WRITES if tool.is_async else _PLAIN


def _list(names: Iterable[str]) -> str:
    return ", ".join(names)
