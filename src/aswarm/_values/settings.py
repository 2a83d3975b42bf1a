"""Settings of an agent, which the request must be able to contain, and the values of options of a swarm and of its runs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Any, Literal, Protocol, TypeAlias

from pydantic import BaseModel

from .errors import ConfigurationError
from .json import fault_of_json, is_object

_HEADERS = "extra_headers"
_OPTIONS = frozenset({"timeout", _HEADERS})  # not part of the JSON


def check_settings(name: str, model: object, settings: Mapping[str, Any], tool_choice: object) -> None:
    """Raise ConfigurationError for a name, a model or a setting of an agent that cannot be sent, with its place."""
    fault = fault_of_json(name, "name") or fault_of_json(model, "model")
    fault = fault or fault_of_json(tool_choice, "tool_choice", _is_of_client)
    for key, value in settings.items():
        if key not in _OPTIONS:
            fault = fault or fault_of_json(value, f"model_settings[{key!r}]", _is_of_client)
    headers = settings.get(_HEADERS)
    for key, value in headers.items() if is_object(headers) else ():
        fault = fault or _fault_of_header(key, value)
    if fault is not None:
        raise ConfigurationError(f"the agent {name!r}: {fault}, so no request can contain it")


def _is_of_client(value: object) -> bool:
    """Return whether only the client knows how to send the value.

    openai's clients convert dates and models, and have their own marks (`NOT_GIVEN`). A patched client takes classes.
    """
    return isinstance(value, date | BaseModel | type) or type(value).__module__.partition(".")[0] == "openai"


def _fault_of_header(key: Any, value: Any) -> str | None:
    place = f"model_settings[{_HEADERS!r}][{key!r}]"
    if not (isinstance(key, str) and key.isascii() and key.isprintable()):
        return f"{place} has a name that is not a line of ASCII"
    if _is_of_client(value):
        return None
    if not isinstance(value, str | bytes):
        return f"{place} has the type {type(value).__name__}, and a header is a str"
    # The value may be a secret, so no text shows it.
    text = value if isinstance(value, str) else value.decode("latin-1")
    if any(sign in text for sign in "\r\n\0"):
        return f"{place} has a line break or a NUL character"
    return fault_of_json(value, place) if isinstance(value, str) else None


ApiName: TypeAlias = Literal["auto", "chat", "responses", "anthropic"]
"""The API of a provider. "auto": the Messages API for a client of Anthropic, the Responses API for OpenAI's own hosts, otherwise
Chat Completions."""
Transport: TypeAlias = Literal["auto", "httpx", "aiohttp", "direct"]
"""The HTTP library of the default client."""


class Limiter(Protocol):
    """The type of `@tool(limiter=…)`, for example an `anyio.CapacityLimiter`."""

    async def acquire_on_behalf_of(self, borrower: object) -> None:
        """Wait for a token and give it to `borrower`."""
        ...

    def release_on_behalf_of(self, borrower: object) -> None:
        """Release the token of `borrower`."""
        ...
