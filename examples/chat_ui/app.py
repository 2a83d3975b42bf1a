"""The gardener on two wires: `useChat` of Vercel's AI SDK, and AG-UI. `uvicorn app:app`.

Build the pages in the folder `web` first. The service has one user: everyone who can reach the loopback of this machine.
"""

from __future__ import annotations

from pathlib import Path

from agents import gardener
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from aswarm.serve import create_app, local_only

WEB = Path(__file__).with_name("web")

service = create_app(
    agents=gardener,
    auth=local_only,
    wires=("vercel", "agui"),
    client_context=("watered",),  # the page may see it, and set it
)
app = Starlette(
    routes=[Mount("/agents", service), Mount("/", StaticFiles(directory=WEB, html=True))], lifespan=service.lifespan
)
