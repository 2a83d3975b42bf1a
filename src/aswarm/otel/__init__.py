"""OpenTelemetry: spans and metrics of runs, as middleware.

    from aswarm.otel import otel

    swarm = AsyncSwarm(middleware=[otel()])

Decides the names of the spans of a run, a completion and a tool call, their attributes, and how long they are current. It uses
the API of OpenTelemetry only, so the program decides about the SDK and where the spans go. Without an SDK nothing is
recorded. It never changes a request, a call or an answer, and holds no span current across a `yield`.
"""

from aswarm import _public
from aswarm._errors import ConfigurationError
from aswarm._text import how_to_install

try:
    from ._middleware import otel
except ImportError as error:
    raise ConfigurationError(f"aswarm.otel needs opentelemetry-api; {how_to_install('otel')}") from error

__all__ = ["otel"]

_public.publish(globals())
