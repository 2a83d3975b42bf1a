"""A hook that lets a route cancel the calls of a run.

Follows https://docs.agno.com/tools/hooks, https://docs.agno.com/tools/exceptions (`StopAgentRun` ends the run and keeps its messages)
and https://docs.agno.com/agent-os/custom-fastapi/overview.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from agno.exceptions import StopAgentRun
from agno.run import RunContext
from agno.run.cancel import acancel_run
from fastapi import FastAPI

app = FastAPI()
CALLS: defaultdict[str, set[asyncio.Task[Any]]] = defaultdict(set)  # of each run


async def stoppable(run_context: RunContext, function_call: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Call the function of a tool so that `stop` can cancel it."""
    call = asyncio.create_task(function_call(**arguments))
    CALLS[run_context.run_id].add(call)
    try:
        await asyncio.wait([call])
    finally:
        call.cancel()  # if the service stops
        CALLS[run_context.run_id].discard(call)
    if call.cancelled():
        raise StopAgentRun("Cancelled by the user while it ran. The outcome is unknown.")
    return call.result()


@app.post("/stop/{run_id}")
async def stop(run_id: str) -> dict[str, int]:
    """Cancel the calls of a run. Without calls, the run stops before its next step."""
    calls = CALLS.pop(run_id, set())
    for call in calls:
        call.cancel()
    if not calls:
        await acancel_run(run_id)
    return {"cancelled": len(calls)}
