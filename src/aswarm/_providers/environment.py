"""Settings of connections: timeouts, and the certificates, the proxy, the headers and the key from the environment.

No error shows the key.
"""

from __future__ import annotations

import base64
import os
import ssl
import warnings
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from aswarm._runtime.backend import Work
from aswarm._values.errors import ConfigurationError, MissingKeyError

# The SDK allows 5 s to open a connection. If thousands of runs start at once, the event loop may be busy for a longer time.
CONNECT_SECONDS = 60.0
REQUEST_SECONDS = 600.0  # as in the SDK
_PROXY_SCHEMES = ("http", "https", "socks5", "socks5h")  # as in httpx


class Timeout(NamedTuple):
    """Seconds to open a connection (`connect`), and between two pieces of an answer (`read`). None: no limit."""

    connect: float | None
    read: float | None


def as_timeout(value: Any) -> Timeout:
    """Convert a number of seconds, None, or a timeout of httpx. Raises ConfigurationError for any other value."""
    if value is None or isinstance(value, int | float):
        return Timeout(value, value)
    if hasattr(value, "connect") and hasattr(value, "read"):
        return Timeout(value.connect, value.read)
    raise ConfigurationError(f"timeout must be a number of seconds or None, not {value!r}")


def ssl_context() -> ssl.SSLContext:
    """Return a context that trusts SSL_CERT_FILE, SSL_CERT_DIR, or the certificates of the system."""
    if file := os.environ.get("SSL_CERT_FILE"):
        return ssl.create_default_context(cafile=file)
    if folder := os.environ.get("SSL_CERT_DIR"):
        return ssl.create_default_context(capath=folder)
    context = ssl.create_default_context()
    if not (context.cert_store_stats()["x509_ca"] or ssl.get_default_verify_paths().capath):
        import certifi  # noqa: PLC0415 - a dependency of httpx, needed only for a Python without certificates

        context.load_verify_locations(certifi.where())
    return context


def proxy_for(url: str) -> str | None:
    """Return the proxy for an address, or None. The proxy comes from the environment or the system settings.

    Raises ConfigurationError if the proxy cannot be used.
    """
    from urllib.request import getproxies, proxy_bypass  # noqa: PLC0415 - most programs have not imported it

    parts = urlsplit(url)
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(parts.hostname or "") or proxy_bypass(parts.netloc):
        return None
    return _checked_proxy(proxy)


def check_proxies() -> None:
    """Raise ConfigurationError if a proxy of the environment cannot be used. The HTTP libraries show its password then."""
    for proxy in used_proxies():
        _checked_proxy(proxy)


def used_proxies() -> list[str]:
    """Return the proxies that httpx takes from the environment or the system settings."""
    from urllib.request import getproxies  # noqa: PLC0415 - as above

    proxies = getproxies()
    if "*" in (host.strip() for host in proxies.get("no", "").split(",")):
        return []
    return [proxies[scheme] for scheme in ("http", "https", "all") if proxies.get(scheme)]


def _checked_proxy(proxy: str) -> str:
    """Return the URL of a proxy, with its scheme."""
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    with suppress(ValueError):  # the port is no number, or an IPv6 address has no end
        parts = urlsplit(proxy)
        # With an `@` behind the host, a part of the password would be the host: "http://user:pass/word@host".
        is_whole = "@" not in parts.path + parts.query + parts.fragment
        if parts.scheme in _PROXY_SCHEMES and parts.hostname and parts.port != 0 and is_whole:
            return proxy
    raise ConfigurationError(
        "a proxy of the environment (HTTP_PROXY, HTTPS_PROXY or ALL_PROXY) is not a URL such as http://user:password@host:8080, "
        "with the scheme http, https, socks5 or socks5h; encode the characters : / ? # @ % of its user and password as %3A %2F "
        "%3F %23 %40 %25 (it is not shown here, because it may contain a password)"
    )


def without_credentials(proxy: str | None) -> tuple[str | None, dict[str, str]]:
    """Return the URL of the proxy without user and password, and the header that sends them to the proxy, if any."""
    parts = urlsplit(proxy or "")
    credentials, at, host = parts.netloc.rpartition("@")
    if not at:
        return proxy, {}
    user, _, password = credentials.partition(":")
    encoded = base64.b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode()
    return parts._replace(netloc=host).geturl(), {"Proxy-Authorization": f"Basic {encoded}"}


def custom_headers() -> dict[str, str]:
    """Return the headers of OPENAI_CUSTOM_HEADERS. The variable has one line `name: value` for each header, as in the SDK."""
    lines = os.environ.get("OPENAI_CUSTOM_HEADERS", "").split("\n")
    pairs = (line.partition(":") for line in lines if ":" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}


def merged_headers(*headers: Mapping[str, str]) -> dict[str, str]:
    """Return all headers. A later header replaces an earlier header of the same name. Case does not matter."""
    named = {name.lower(): (name, value) for mapping in headers for name, value in mapping.items()}
    return dict(named.values())


def close_forgotten(
    owner: str,
    is_closed: Callable[[], bool],
    aclose: Callable[[], Coroutine[Any, Any, None]],
    start_task: Callable[[Work], object],
) -> None:
    """Close connections after their owner was garbage-collected. Otherwise aiohttp logs errors about unclosed objects."""
    if is_closed():
        return
    try:
        start_task(aclose)
    except RuntimeError:  # the event loop is closed, so `aclose` has nothing to await: one step completes `aclose`
        with suppress(StopIteration):
            aclose().send(None)
    text = f"{owner} was not closed: use `async with AsyncSwarm()`, or await its aclose()"
    warnings.warn(text, ResourceWarning, stacklevel=1)


def clean_key(key: str, swarm: str, kind: str, name: str = "OPENAI_API_KEY") -> str:
    """Return the key without white space around it: the output of `echo` and mounted secrets end with a line break."""
    stripped = key.strip()
    if key and not stripped:
        raise missing_key(swarm, kind, f" {name} is set, but contains only white space.", name)
    if not (stripped.isascii() and stripped.isprintable()):
        raise ConfigurationError(
            f"{name} has a character that is invalid in an HTTP header: a line break, another control character, or a "
            "letter or quotation mark outside ASCII; copy the key again (it is not shown here)"
        )
    return stripped


def missing_key(swarm: str, kind: str, reason: str, name: str = "OPENAI_API_KEY") -> ConfigurationError:
    """Return the error for an environment without a key. `kind`: the class name of the client in the example."""
    return MissingKeyError(
        f"no client: set {name}, or pass {swarm}(client=...), for example {kind}(base_url=..., api_key=...).{reason}"
    )
