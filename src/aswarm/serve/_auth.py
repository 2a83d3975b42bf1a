"""Authentication: ready-made functions for `auth=`, and the checks of `Host` and `Origin`.

An `auth` function gets a request and returns the id of its user, or None to refuse the request. All data of a service belongs
to a user.

Security: A page of another origin changes nothing.

Security: `local_only` refuses other machines, names other than those of loopback, and requests of a proxy.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TypeAlias
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request

from aswarm._values.errors import ConfigurationError
from aswarm._values.json import shown

Auth: TypeAlias = Callable[[Request], Awaitable[str | None] | str | None]
"""Type of an `auth` function: it gets a request and returns the id of its user, or None to refuse the request with 401."""
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
# Proxies and content delivery networks send the address of the client in many headers: CF-Connecting-IP, True-Client-IP, ...
_PROXY_HEADERS = re.compile(
    r"via|cdn-loop|(x-)?forwarded.*|x-(envoy|original)-.*|(.*-)?(client|connecting|real|user)-?ip"
)


def bearer(tokens: str | Mapping[str, str]) -> Auth:
    """Return an `auth` function for requests with `Authorization: Bearer <token>`.

    `tokens`: a dict from tokens to user ids, or a single token for the user "user". Raises ConfigurationError if there is no
    token, or if a token or a user is empty.
    """
    if not isinstance(tokens, str | Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - such as None from os.environ.get
        raise ConfigurationError(f"bearer needs a token, or a dict from tokens to users, not {type(tokens).__name__}")
    users = {tokens: "user"} if isinstance(tokens, str) else dict(tokens)
    if not users or not all(users) or not all(users.values()):
        raise ConfigurationError("bearer needs at least one token, and no token and no user may be empty")
    tokens_of_users = [(token.encode(), user) for token, user in users.items()]

    async def auth(request: Request) -> str | None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        received = token.strip().encode("latin-1", "replace")  # Starlette decodes headers as latin-1
        # Compare with every token. If the comparison stopped at the first match, its duration would show which token matched.
        matches = [user for expected, user in tokens_of_users if hmac.compare_digest(expected, received)]
        return matches[0] if matches and scheme.lower() == "bearer" else None

    return auth


async def local_only(request: Request) -> str | None:
    """Accept requests from this machine to localhost, 127.0.0.1 or [::1], as the user "local".

    A request with a header of a proxy is refused. But behind a proxy that sends no such header, every client looks local. Use
    `bearer` behind a proxy, and on a machine with several users. The 401 response of a service contains the cause.
    """
    request.state.why_not_local = cause = _why_not_local(request)
    return "local" if cause is None else None


def _why_not_local(request: Request) -> str | None:
    if header := next(filter(_PROXY_HEADERS.fullmatch, request.headers), None):
        return f"local_only refuses requests of a proxy, and this request has the header {header}; use auth=bearer(...)"
    if (name := host_name(request.headers)) not in _LOOPBACK_NAMES:
        return f"local_only accepts requests to localhost, 127.0.0.1 or [::1], not to {shown(name, 100)}"
    if request.client is None or not _is_loopback(request.client.host):
        return "local_only accepts requests from this machine only; for other machines use auth=bearer(...)"
    return None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_name(headers: Headers) -> str:
    """Return the `Host` of a request without its port.

    The service checks the name because of DNS rebinding: the owner of a site can make the name of the site resolve to this
    machine.
    """
    return without_port(headers.get("host", ""))


def is_origin_allowed(headers: Headers, scheme: str, origins: Collection[str]) -> bool:
    """Return whether the origin is allowed: a page of this service, a page of a listed origin, or a client that is no page."""
    origin = headers.get("origin")
    if origin is None or origin in origins:
        return True
    try:
        page = urlsplit(origin)
    except ValueError:  # such as "http://[::1"
        return False
    if not page.netloc or page.netloc != headers.get("host"):  # a page without an origin sends "null"
        return False
    # A proxy in front of the service may have changed the scheme, so the browser's own Sec-Fetch-Site decides
    # (https://www.w3.org/TR/fetch-metadata/). Browsers do not send this header over plain HTTP; then the scheme decides.
    site = headers.get("sec-fetch-site")
    return page.scheme == scheme if site is None else site == "same-origin"


def without_port(host: str) -> str:
    """Return the host name in lower case, without its port."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host).lower()
