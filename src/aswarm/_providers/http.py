"""`HTTPSource`: completions over HTTP without the openai package, on aiohttp or (on trio) httpx.

The module decides the address, the headers and the bytes of a request, and retries failed requests. The APIs, the decoders
and the errors are the same as for openai's clients.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, Protocol, Self, final
from urllib.parse import urlencode, urlsplit

import anyio
import sniffio
from pydantic_core import from_json, to_json

from aswarm._runtime.backend import PerLoop
from aswarm._values.errors import SDK_BACKOFF, AswarmError, CompletionError, ConfigurationError
from aswarm._values.json import is_json, is_object
from aswarm._values.settings import ApiName
from aswarm._wire.failures import provider_text
from aswarm._wire.request import CompletionRequest

from . import prompt_cache
from .answers import OpenResponse, streamed
from .apis import BUILT, api_at, checked_api
from .compatible import failed_post
from .environment import (
    CONNECT_SECONDS,
    REQUEST_SECONDS,
    Timeout,
    as_timeout,
    clean_key,
    custom_headers,
    merged_headers,
    missing_key,
    proxy_for,
)
from .redirects import MOST_REDIRECTS, Outgoing, redirected

logger = logging.getLogger("aswarm")

_OPENAI = "https://api.openai.com/v1"
_OPTIONS = frozenset({"extra_headers", "extra_query", "extra_body", "timeout"})
_LONGEST_WAIT = 120.0  # seconds; after a longer Retry-After, the SDK does not retry
_FIRST_ERROR = 300
_USE_SDK = "use the client of the openai package instead: AsyncSwarm(AsyncOpenAI(...))"


class Connections(Protocol):
    """Protocol of the connections of one event loop."""

    async def send(self, request: Outgoing) -> OpenResponse: ...
    async def aclose(self) -> None: ...


class HTTPStatusError(Exception):
    """The server has answered with an HTTP error status. It is the cause of a `CompletionError`."""

    def __init__(self, response: OpenResponse, content: bytes) -> None:
        body: Any = content.decode(errors="replace").strip()
        with suppress(ValueError):
            body = from_json(content)
        inner = body.get("error") if is_object(body) else None
        self.body = inner if is_object(inner) else body
        said = provider_text(body)
        super().__init__(f"Error code: {response.status}" + (f" - {said}" if said else ""))
        self.response = response
        self.status_code = response.status
        self.code = self.body.get("code") if is_object(self.body) else None


@final
class HTTPSource:
    """A `CompletionSource` that sends its requests itself, without the openai package.

        async with HTTPSource("http://127.0.0.1:8000/v1", "none") as source:
            response = await AsyncSwarm(source).run(Agent(model="Qwen/Qwen3-8B"), "Hi!")

    It starts faster and needs less CPU time than a client of openai. On asyncio it uses aiohttp if the extra `aiohttp` is
    installed and no SOCKS proxy is set; otherwise it uses httpx. Proxies and certificates come from the environment. Any
    number of runs and several event loops may share a source. `aclose()` closes the connections of the running event loop.

    Args:
        base_url: The address of the API; by default OPENAI_BASE_URL, or OpenAI's address.
        api_key: The API key; by default OPENAI_API_KEY.
        api: "chat" or "responses". "auto": the Responses API for OpenAI itself and Azure's v1 API, otherwise Chat Completions.
        organization: The organization of OpenAI; by default OPENAI_ORG_ID.
        project: The project of OpenAI; by default OPENAI_PROJECT_ID.
        headers: More headers of each request. They override OPENAI_CUSTOM_HEADERS, which overrides the standard headers.
        timeout: Seconds to connect, and to wait for the next bytes; None: no limit. By default 60 and 600 seconds.
        max_retries: The number of retries of a failed request. After the first byte of an answer, there is no retry.

    Raises:
        ConfigurationError: For an unusable argument, or if there is no key.
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        api: ApiName = "auto",
        organization: str | None = None,
        project: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = REQUEST_SECONDS,
        max_retries: int = 2,
    ) -> None:
        self.base_url: str = _checked_url(base_url or os.environ.get("OPENAI_BASE_URL") or _OPENAI)
        self.api: ApiName = checked_api(api, for_openai=True)
        self.max_retries = max_retries
        self._api = api_at(self.base_url, api)
        self._url = self.base_url + self._api.path
        is_default = timeout == REQUEST_SECONDS
        self._timeout = Timeout(CONNECT_SECONDS, REQUEST_SECONDS) if is_default else as_timeout(timeout)
        standard = {
            "Accept": "application/json",
            "Authorization": f"Bearer {_key(api_key)}",
            "Content-Type": "application/json",
            "User-Agent": "aswarm",
            "OpenAI-Organization": organization or os.environ.get("OPENAI_ORG_ID", ""),
            "OpenAI-Project": project or os.environ.get("OPENAI_PROJECT_ID", ""),
        }
        standard_headers = {name: value for name, value in standard.items() if value}
        self._headers = merged_headers(standard_headers, custom_headers(), headers or {})
        self._connections: PerLoop[Connections] = PerLoop(
            # This is not a method of the source, because a reference to the source would create a cycle.
            functools.partial(_connections, self.base_url, self._timeout)
        )

    def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yield the chunks of one completion; see `CompletionSource`."""
        if request.stream:
            return streamed(functools.partial(self._sent, request, _checked), self._api.make_decoder)
        return self._whole(request)

    async def aclose(self) -> None:
        """Close the connections of the running event loop. A later request opens new connections."""
        if (connections := self._connections.pop()) is not None:
            await connections.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _whole(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        for chunk in self._api.read_whole(await self._sent(request, _read)):
            yield chunk

    async def _sent(self, request: CompletionRequest, use: Callable[[OpenResponse], Awaitable[Any]]) -> Any:
        """Send the request until it succeeds or its retries are used up. Return the result of `use(response)`."""
        if self._api.is_openai:
            request = prompt_cache.accepted(self, request)
        outgoing = self._outgoing(request)
        retries = self.max_retries if request.max_retries is None else request.max_retries
        failures = 0
        while True:
            try:
                return await use(await self._exchanged(outgoing))
            except AswarmError:
                raise
            except Exception as error:
                failed = failed_post(error, request, self._url)
                plainer = prompt_cache.repeatable(self, request, failed) if self._api.is_openai else None
                if plainer is not None:
                    request, outgoing = plainer, self._outgoing(plainer)
                    continue
                failures += 1
                seconds = _seconds_until_retry(failed, failures)
                if failures > retries or seconds is None:
                    raise failed from error
            fields = {"run_id": None, "agent": request.agent.name}
            logger.info("retry %d of %d in %.1f s: %s", failures, retries, seconds, failed, extra=fields)
            await anyio.sleep(seconds)

    async def _exchanged(self, request: Outgoing) -> OpenResponse:
        """Send the request, follow redirects, and return the last response."""
        connections = self._connections.get()
        for _ in range(MOST_REDIRECTS):
            response = await connections.send(request)
            following = redirected(request, response.status, response.headers.get("location"))
            if following is None:
                return response
            await response.aclose()
            request = following
        return await connections.send(request)

    def _outgoing(self, request: CompletionRequest) -> Outgoing:
        body = self._api.body(request)
        url, headers, timeout = self._url, self._headers, None
        if not body.keys().isdisjoint(_OPTIONS):
            query: Mapping[str, Any] = body.get("extra_query") or {}
            url = f"{url}?{urlencode(query, doseq=True)}" if query else url
            headers = merged_headers(headers, body.get("extra_headers") or {})
            timeout = as_timeout(body["timeout"]) if "timeout" in body else None
            extra: Mapping[str, Any] = body.get("extra_body") or {}
            body = {**{key: value for key, value in body.items() if key not in _OPTIONS}, **extra}
        return Outgoing("POST", url, _content(request, body), headers, timeout)


def _connections(base_url: str, timeout: Timeout) -> Connections:
    """Return an object for the connections of the running event loop. This call opens no connection yet."""
    proxy = proxy_for(base_url)
    is_socks = proxy is not None and proxy.lower().startswith("socks")
    is_tls = base_url.startswith("https:") or (proxy or "").startswith("https:")
    if sniffio.current_async_library() == "asyncio" and not is_socks and find_spec("aiohttp") is not None:
        from .on_aiohttp import AiohttpConnections  # noqa: PLC0415 - aiohttp is slow to import, and optional

        return AiohttpConnections(timeout, proxy, is_tls=is_tls)
    from .on_httpx import HttpxConnections  # noqa: PLC0415 - httpx is slow to import

    return HttpxConnections(timeout, proxy, is_tls=is_tls)


def _checked_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query or parts.fragment:
        raise ConfigurationError(
            "base_url must be an address such as https://host/v1, without a user, a password and a query (it is not shown "
            f"here, because it may contain a secret); for other addresses, {_USE_SDK}"
        )
    return url.rstrip("/")


def _key(api_key: Any) -> str:
    if api_key is not None and not isinstance(api_key, str):
        raise ConfigurationError(
            f"api_key of HTTPSource must be a str, not {type(api_key).__name__}; for a function that returns a token, for "
            f"example of Azure AD (Entra ID), {_USE_SDK}"
        )
    key = os.environ.get("OPENAI_API_KEY", "") if api_key is None else api_key
    if not key:
        raise missing_key("HTTPSource", "HTTPSource", "")
    return clean_key(key, "HTTPSource", "HTTPSource")


def _content(request: CompletionRequest, body: Mapping[str, Any]) -> bytes:
    for key, value in body.items():
        if key not in BUILT and not is_json(value):
            raise ConfigurationError(f"{key!r} of model_settings is not JSON; convert it, or {_USE_SDK}")
    with suppress(ValueError):  # also raised for a valid text that contains the letters NaN
        return request.json(body)
    try:
        json.dumps(body, allow_nan=False)
        return to_json(body)
    except (ValueError, TypeError, RecursionError) as error:
        raise ConfigurationError(f"the request is not JSON: {error}") from error


async def _read(response: OpenResponse) -> bytes:
    """Return the body of the response. Raises HTTPStatusError for an error status."""
    try:
        content = await response.read()
    except BaseException:
        await response.aclose()
        raise
    if not 200 <= response.status < _FIRST_ERROR:  # noqa: PLR2004 - HTTP's number
        raise HTTPStatusError(response, content)
    return content


async def _checked(response: OpenResponse) -> OpenResponse:
    """Return the response without reading its body. Raises HTTPStatusError for an error status."""
    if not 200 <= response.status < _FIRST_ERROR:  # noqa: PLR2004 - HTTP's number
        await _read(response)
    return response


def _seconds_until_retry(failed: AswarmError, failures: int) -> float | None:
    """Return the seconds before a retry. None means no retry: it would fail again, or the server demands a long wait."""
    if not (isinstance(failed, CompletionError) and failed.retryable):
        return None
    wait = failed.retry_after or 0.0
    if wait > _LONGEST_WAIT:
        return None
    return wait or SDK_BACKOFF.seconds(failures, random.random())  # noqa: S311 - not for cryptography
