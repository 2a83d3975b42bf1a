"""The concierge in a Starlette application: `uvicorn app:app`.

`service` does the work: runs, conversations, streams, stopping. The application adds the page, and says who a guest is.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from agents import concierge
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route

from aswarm import AswarmError
from aswarm.serve import Limits, Service

PAGE = Path(__file__).with_name("page.html")
COOKIE = "guest"


async def guest_of(request: Request) -> str | None:
    """Who asks: the guest that the cookie names. A real service looks up its own session here."""
    return request.cookies.get(COOKIE)


def public_text(_: AswarmError) -> str:
    """What a guest reads when the model fails. The log of the process has the reason."""
    return "The concierge cannot answer just now."


service = Service(
    agents=concierge,
    auth=guest_of,
    store=os.environ.get("CHATS_FILE"),  # an SQLite file; without one, conversations end with the process
    limits=Limits(body=20_000, text=4000, max_turns=10, runs_per_user=2),
    error_text=public_text,
    drain=3,
)


async def page(request: Request) -> Response:
    """The page, and with it the cookie of a new guest."""
    response = FileResponse(PAGE)
    if COOKIE not in request.cookies:
        response.set_cookie(COOKIE, secrets.token_urlsafe(), httponly=True, samesite="strict")
    return response


# An app that is mounted does not run its lifespan, so it is that of the application.
app = Starlette(routes=[Route("/", page), Mount("/chat", service)], lifespan=service.lifespan)
