"""OpenTelemetry: spans and metrics of runs, as middleware.

    from aswarm.otel import otel

    swarm = AsyncSwarm(middleware=[otel()])

Decides what a span of a run, a completion and a tool call is called, which attributes it has, and how long it is current.
It uses the API of OpenTelemetry only, so that the program decides about the SDK and where the spans go; without an SDK
it does nothing. It never changes a request, a call or an answer, and holds no span current across a `yield`.
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
