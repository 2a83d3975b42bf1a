"""Which user a request belongs to: ready-made functions for `auth=`, and the checks of `Host` and `Origin`.

An `auth` function gets the request and returns the id of the user, or None for a request that is refused. Everything that a
service has belongs to a user.
"""

from __future__ import annotations

import hmac
import inspect
import ipaddress
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request

from aswarm._errors import ConfigurationError
from aswarm._json import shown

Auth: TypeAlias = Callable[[Request], Awaitable[str | None] | str | None]
"""Finds out which user a request belongs to: returns the id of the user, or None to refuse the request with 401."""
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
_FORWARDED = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip")


def bearer(tokens: str | Mapping[str, str]) -> Auth:
    """The `auth` for requests with `Authorization: Bearer <token>`.

    `tokens`: the user id of each token, or one token for the user "user". Raises ConfigurationError if there is no token, or
    if a token or a user is empty.
    """
    users = {tokens: "user"} if isinstance(tokens, str) else dict(tokens)
    if not users or not all(users) or not all(users.values()):
        raise ConfigurationError("bearer needs at least one token, and neither a token nor a user may be empty")
    known = [(token.encode(), user) for token, user in users.items()]

    async def auth(request: Request) -> str | None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        given = token.strip().encode("latin-1", "replace")
        # Every token is compared, so that the time says nothing of which one is near.
        found = [user for expected, user in known if hmac.compare_digest(expected, given)]
        return found[0] if found and scheme.lower() == "bearer" else None

    return auth


async def local_only(request: Request) -> str | None:
    """Requests of this machine, all of one user, "local", under the names localhost, 127.0.0.1 and [::1].

    A request with a header of a proxy is refused, but a proxy need not send one. A proxy on this machine makes every client
    local: use `bearer` behind a proxy, and on a machine with several users.
    """
    if any(name in request.headers for name in _FORWARDED) or host_name(request.headers) not in _LOOPBACK_NAMES:
        return None
    return "local" if request.client is not None and _is_loopback(request.client.host) else None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def user_of(request: Request, auth: Auth) -> str | None:
    """The user of a request, or None. Raises ConfigurationError if `auth` returns something else."""
    found = auth(request)
    user: Any = await found if inspect.isawaitable(found) else found
    if user is not None and not isinstance(user, str):
        raise ConfigurationError(f"auth must return the id of a user, a str or None, not {shown(user, 100)}")
    return user or None


def is_host_allowed(headers: Headers, hosts: Collection[str]) -> bool:
    """Whether the request names this service. `hosts`: as `without_port` makes them, none for all."""
    return not hosts or host_name(headers) in hosts


def host_name(headers: Headers) -> str:
    """The name under which the request asks, without a port: a page of another name may resolve to this machine."""
    return without_port(headers.get("host", ""))


def is_origin_allowed(headers: Headers, origins: Collection[str]) -> bool:
    """Whether a request that changes something comes from a page of this service, from a listed one, or from no page."""
    origin = headers.get("origin")
    if origin is None or origin in origins:
        return True
    try:
        place = urlsplit(origin).netloc
    except ValueError:  # such as "http://[::1"
        return False
    return place != "" and place == headers.get("host")  # a page without an origin of its own sends "null"


def without_port(host: str) -> str:
    """The name in lower case."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host).lower()
