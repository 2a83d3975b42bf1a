"""The concierge in a Starlette application: `uvicorn app:app`.

`service` runs the agents, keeps the conversations, streams the answers and stops runs. The application adds the page and the
authentication.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import replace
from pathlib import Path

from agents import concierge
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route

from aswarm.runs import Limits, LocalRuns
from aswarm.serve import Service

PAGE = Path(__file__).with_name("page.html")
COOKIE = "guest"


async def guest_of(request: Request) -> str | None:
    """Return the guest from the cookie. A real service would look up its own session here."""
    return request.cookies.get(COOKIE)


def public_text(_: BaseException) -> str:
    """Return the text for a guest if the model fails. The log of the process has the reason."""
    return "The concierge cannot answer just now."


runs = LocalRuns(
    store=os.environ.get("CHATS_FILE"),  # an SQLite file; without one, conversations end with the process
    agents=concierge,
    limits=replace(Limits.web(), max_turns=10, runs_per_user=2),
    error_text=public_text,
)
service = Service(runs, auth=guest_of, drain_seconds=3, body_bytes=20_000, text_characters=4000)


async def page(request: Request) -> Response:
    """Return the page, and set the cookie of a new guest."""
    response = FileResponse(PAGE)
    if COOKIE not in request.cookies:
        response.set_cookie(COOKIE, secrets.token_urlsafe(), httponly=True, samesite="strict")
    return response


# A mounted app does not run its lifespan, so the application has the lifespan of the service.
app = Starlette(routes=[Route("/", page), Mount("/chat", service)], lifespan=service.lifespan)
