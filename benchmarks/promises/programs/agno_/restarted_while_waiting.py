"""The service is killed and restarted while a call waits.

Follows https://docs.agno.com/examples/agent-os/human-in-the-loop/basic: the paused run is in the database, `/continue` gets its
confirmed tools.
"""

from __future__ import annotations

import json

from common import PLACE, RUNS, get_run, post
from stage import GO_ON, main, refund


async def serve() -> None:
    """Serve."""
    import service  # noqa: PLC0415 - only this process needs agno
    from agno.tools import tool  # noqa: PLC0415

    await service.serve(tool(requires_confirmation=True)(refund))


async def ask() -> None:
    """Run until the call waits."""
    run = await post(RUNS, message="Refund order 7.")
    PLACE.write_text(json.dumps(run["run_id"]))


async def approve() -> None:
    """Approve the call at the new process."""
    run_id = json.loads(PLACE.read_text())
    tools = (await get_run(run_id))["tools"]
    confirmed = [{**call, "confirmed": True} for call in tools]
    await post(f"{RUNS}/{run_id}/continue", tools=json.dumps(confirmed))


async def go_on() -> None:
    """Continue the conversation."""
    await post(RUNS, message=GO_ON)


if __name__ == "__main__":
    main(serve, ask, approve, go_on)
