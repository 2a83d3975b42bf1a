"""The client disconnects in the middle of the text, and returns.

Follows https://docs.agno.com/examples/agent-os/run-lifecycle/sse-reconnect: a background run, `event_index` and `/resume`.
"""

from __future__ import annotations

import json

from common import PLACE, RUNS, events
from stage import look_up, main, read


async def serve() -> None:
    """Serve."""
    import service  # noqa: PLC0415 - only this process needs agno

    await service.serve(look_up)


async def leave() -> None:
    """Start a run, read three pieces of the text, and disconnect."""
    pieces = 0
    async for event in events(RUNS, message="Where is order 7?", background="true", stream="true"):
        if event["event"] == "RunContent" and event["content"]:
            read(event["content"])
            pieces += 1
        if pieces == 3:
            PLACE.write_text(json.dumps([event["run_id"], event["event_index"]]))
            return


async def come_back() -> None:
    """Read the rest."""
    run_id, index = json.loads(PLACE.read_text())
    async for event in events(f"{RUNS}/{run_id}/resume", last_event_index=str(index)):
        if event["event"] == "RunContent" and event["content"]:
            read(event["content"])


if __name__ == "__main__":
    main(serve, leave, come_back)
