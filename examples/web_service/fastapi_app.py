"""The concierge in a FastAPI application, which also has its own route: `uvicorn fastapi_app:app`."""

from __future__ import annotations

from typing import Annotated

from app import page, service
from fastapi import Body, Cookie, FastAPI, Request
from starlette.responses import Response

from aswarm import StoreError
from aswarm.runs import RequestRefused
from aswarm.serve import NativeWire, error_response, respond

app = FastAPI(title="Hotel Linden", lifespan=service.lifespan)
app.add_api_route("/", page, include_in_schema=False)
app.mount("/chat", service)
for kind in (RequestRefused, StoreError):  # such as 409 for a message during a run
    app.add_exception_handler(kind, error_response)


@app.post("/rooms/{room}/ask", response_class=Response)
async def ask(
    request: Request,
    room: Annotated[int, "the conversation of a room has its number"],
    guest: Annotated[str, Cookie()],
    text: Annotated[str, Body(embed=True, min_length=1, max_length=4000)],
) -> Response:
    """Stream the answer to a message from the tablet in a room. FastAPI checks the parameters."""
    run = await service.start(text, conversation=f"room-{room}", user=guest)
    return respond(run, NativeWire(), request)
