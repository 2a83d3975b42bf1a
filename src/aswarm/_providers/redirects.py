"""Request of an `HTTPSource`, and the request that follows a redirect. This module sends nothing.

Security: The key and the headers of an `HTTPSource` reach only the origin of its base URL, no proxy and no target of a redirect.

The HTTP libraries remove `Authorization` from a request to another origin, but keep other headers, such as an `api-key`. So an
`HTTPSource` follows redirects itself. Without TLS, a proxy can read the whole request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urljoin, urlsplit

from .environment import Timeout

MOST_REDIRECTS = 10
_PUBLIC = frozenset({"accept", "content-type", "user-agent"})
_PORTS = {"http": 80, "https": 443}
# As browsers do it: these two statuses keep method and body, and the others change POST to GET.
_KEEPS_METHOD = (307, 308)
_STATUSES = (301, 302, 303, *_KEEPS_METHOD)


class Outgoing(NamedTuple):
    """One request. `timeout`: None for the timeout of the source."""

    method: str
    url: str
    content: bytes
    headers: Mapping[str, str]
    timeout: Timeout | None


def redirected(request: Outgoing, status: int, location: str | None) -> Outgoing | None:
    """Return the request that follows a response with this status, or None if the response leads to no other address."""
    if status not in _STATUSES or not location:
        return None
    try:
        url = urljoin(request.url, location)
        origin = _origin(url)
    except ValueError:
        return None
    if origin[0] not in _PORTS:
        return None
    headers = request.headers
    if origin != _origin(request.url):
        headers = {name: value for name, value in headers.items() if name.lower() in _PUBLIC}
    if status not in _KEEPS_METHOD:
        request = request._replace(method="GET", content=b"")
    return request._replace(url=url, headers=headers)


def _origin(url: str) -> tuple[str, str | None, int | None]:
    """Return scheme, host and port. Raises ValueError if the port is not a number from 0 to 65535."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme)
