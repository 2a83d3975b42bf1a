"""Request of an `HTTPSource`, and the request that follows a redirect. This module sends nothing.

Security: The key and the headers of an `HTTPSource` reach only the origin of its base URL, no proxy and no target of a redirect.
The same host over TLS, at the standard ports, is no other origin: a server may redirect http to https.

The HTTP libraries remove `Authorization` from a request to another origin, but keep other headers, such as an `api-key`. So an
`HTTPSource` follows redirects itself. Without TLS, a proxy can read the whole request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias
from urllib.parse import urljoin, urlsplit

from .environment import Timeout

MOST_REDIRECTS = 10
_PUBLIC = frozenset({"accept", "content-type", "user-agent"})
_PORTS = {"http": 80, "https": 443}
# As browsers do it: these two statuses keep method and body, and the others change POST to GET.
_KEEPS_METHOD = (307, 308)
_STATUSES = (301, 302, 303, *_KEEPS_METHOD)
_Origin: TypeAlias = tuple[str, str | None, int | None]


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
    if origin != (old := _origin(request.url)) and not _is_upgrade(old, origin):
        headers = {name: value for name, value in headers.items() if name.lower() in _PUBLIC}
    if status not in _KEEPS_METHOD:
        request = request._replace(method="GET", content=b"")
    return request._replace(url=url, headers=headers)


def _is_upgrade(old: _Origin, new: _Origin) -> bool:
    """Return whether the redirect leads from http to https of the same host. HTTP libraries keep the headers then, too."""
    return old[1] == new[1] and (old[0], old[2], new[0], new[2]) == ("http", 80, "https", 443)


def _origin(url: str) -> _Origin:
    """Return scheme, host and port. Raises ValueError if the port is not a number from 0 to 65535."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme)
