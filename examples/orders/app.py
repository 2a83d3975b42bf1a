"""A web service for orders: `python app.py` starts one process. All processes share the file of the runs."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import uvicorn
from agents import desk
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from aswarm.runs import Limits, LocalRuns, Run

USER = "shop"
# With a `version`, each process continues the runs of a dead process. It looks for dead processes five times in a second.
runs = LocalRuns(
    agents=desk,
    store=os.environ.get("ORDERS_FILE", "orders.sqlite"),
    version="1",
    limits=Limits.web(),
    failover_seconds=0.2,
)


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncGenerator[None]:
    """Execute runs for as long as the application runs."""
    async with runs:
        yield


async def newest(request: Request) -> Run:
    """Return the newest run of the order."""
    (record,) = await runs.list(user=USER, conversation=request.path_params["order"], limit=1)
    return await runs.get_run(record.id, user=USER)


async def start(request: Request) -> JSONResponse:
    """Start the run of an order. A request that is sent again gets the same run."""
    order = request.path_params["order"]
    run = await runs.start(desk, (await request.json())["text"], user=USER, conversation=order, key=f"start {order}")
    return JSONResponse({"run": run.id}, 202)


async def show(request: Request) -> JSONResponse:
    """Wait for the newest run of the order, wherever it is executed. Return its answer and the calls that wait."""
    response = await (await newest(request)).result()
    waiting = {call.id: call.arguments for call in response.waiting}
    return JSONResponse({"stop": response.stop, "text": response.text, "waiting": waiting})


async def approve(request: Request) -> JSONResponse:
    """Approve the calls that wait. A real service first checks that the user may do this."""
    run = await newest(request)
    if waiting := (await run.result()).waiting:  # otherwise it has been approved before
        run = await run.answer({call.id: True for call in waiting})
    return JSONResponse({"run": run.id}, 202)


app = Starlette(
    routes=[
        Route("/orders/{order}", start, methods=["POST"]),
        Route("/orders/{order}", show),
        Route("/orders/{order}/approve", approve, methods=["POST"]),
    ],
    lifespan=lifespan,
)

if __name__ == "__main__":
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])
