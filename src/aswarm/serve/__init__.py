"""Serves runs over HTTP. The service owns a run, and each request reads the log of the run.

The log of a run is a list of entries. A wire turns entries into the frames of one protocol, and reads the requests of its
clients. This package uses `aswarm.runs`, and decides nothing inside a run. The history, the state and the approvals that a
client sends are only data: they never replace the history of the server.

Security: A service does not start without `auth`, and answers a request without a user with 401.
"""

from aswarm._values import public_names as _public
from aswarm._values.errors import ConfigurationError
from aswarm._values.text import how_to_install

try:
    from ._auth import Auth, bearer, local_only
    from ._endpoints import error_response
    from ._own_routes import respond, stream_response
    from ._responses import Wire, frames
    from ._served import Playground
    from ._service import Service, create_app
    from .wires.agui.encoder import AGUIWire
    from .wires.native.wire import NativeWire
    from .wires.openai.encoder import OpenAIWire
    from .wires.vercel.encoder import VercelWire
except ImportError as error:
    raise ConfigurationError(f"serving needs the package starlette: {how_to_install('serve')} ({error})") from error

__all__ = [
    "AGUIWire",
    "Auth",
    "NativeWire",
    "OpenAIWire",
    "Playground",
    "Service",
    "VercelWire",
    "Wire",
    "bearer",
    "create_app",
    "error_response",
    "frames",
    "local_only",
    "respond",
    "stream_response",
]

_public.publish(globals())
