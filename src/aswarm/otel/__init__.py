"""OpenTelemetry: spans and metrics of runs, as middleware.

    from aswarm.otel import otel

    swarm = AsyncSwarm(middleware=[otel()])

Each run, each completion and each tool call has a span. This package uses only the API of OpenTelemetry: the program chooses
the SDK and the destination of the spans. Without an SDK, nothing is recorded. The package never changes a request, a call or
an answer. No span is current across a `yield`.
"""

from aswarm._values import public_names as _public
from aswarm._values.errors import ConfigurationError
from aswarm._values.text import how_to_install

try:
    from ._middleware import otel
except ImportError as error:
    raise ConfigurationError(f"aswarm.otel needs opentelemetry-api: {how_to_install('otel')}") from error

__all__ = ["otel"]

_public.publish(globals())
