"""The service is killed and restarted while a call waits. Follows docs/guides/serving.md."""

from __future__ import annotations

import service
from common import agent, approved
from stage import GO_ON, main, refund

DESK = agent(approved(refund))


async def serve() -> None:
    """Serve."""
    await service.serve(DESK)


async def send(body: dict[str, object]) -> None:
    """Start a run, and read it to its end."""
    async with service.browser() as client:
        started = await client.post(service.RUNS, json=body)
        assert started.status_code == 202, started.text
        await client.get(started.headers["location"])


async def ask() -> None:
    """Run until the call waits."""
    await send({"text": "Refund order 7."})


async def approve() -> None:
    """Approve the call at the new process."""
    async with service.browser() as client:
        [call] = (await client.get("/conversations/7")).json()["waiting"]
    await send({"answers": [{"call": call["id"], "run": call["run"], "approve": True}]})


async def go_on() -> None:
    """Continue the conversation."""
    await send({"text": GO_ON})


if __name__ == "__main__":
    main(serve, ask, approve, go_on)
