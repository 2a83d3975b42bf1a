"""Runs on the web: a run belongs to the service, and each request is a reader of its log.

The log of a run is a list of entries. A wire turns entries into the frames of one protocol, and reads what a client of
that protocol asks for. Everything here is a caller of `run()` and `stream()`: it never decides how a run goes. What a
client sends as history, as state or as an approval is data. It never becomes the history of the server.
"""

from aswarm import _public

from ._agui import AguiWire
from ._auth import Auth, bearer, local_only
from ._entries import Entry
from ._fold import Folded, fold
from ._local_runs import LocalRuns
from ._native import NativeWire
from ._openai import OpenAIWire
from ._own_routes import respond, stream_response
from ._requests import CallAnswer, ClientTool, RequestError
from ._responses import Encoder, frames
from ._runs import (
    AgentNotFound,
    AnswersRefused,
    ConversationNotFound,
    DisconnectPolicy,
    KeyReused,
    Limits,
    NewRun,
    Run,
    RunActive,
    RunLimit,
    RunNotFound,
    RunRecord,
    Runs,
    RunsError,
    ShuttingDown,
)
from ._service import Service, app
from ._show import answers, answers_with, everything
from ._shutdown import Draining
from ._vercel import VercelWire

__all__ = [
    "AgentNotFound",
    "AguiWire",
    "AnswersRefused",
    "Auth",
    "CallAnswer",
    "ClientTool",
    "ConversationNotFound",
    "DisconnectPolicy",
    "Draining",
    "Encoder",
    "Entry",
    "Folded",
    "KeyReused",
    "Limits",
    "LocalRuns",
    "NativeWire",
    "NewRun",
    "OpenAIWire",
    "RequestError",
    "Run",
    "RunActive",
    "RunLimit",
    "RunNotFound",
    "RunRecord",
    "Runs",
    "RunsError",
    "Service",
    "ShuttingDown",
    "VercelWire",
    "answers",
    "answers_with",
    "app",
    "bearer",
    "everything",
    "fold",
    "frames",
    "local_only",
    "respond",
    "stream_response",
]

_public.publish(globals())
