"""Place and usual cause of a failed request: the last part of the text of a `CompletionError`.

The text shows the address of the server and the model. It never shows a header, or a part of a URL that may contain a secret
(user, password, query). The module reads only the exception of an SDK.
"""

from __future__ import annotations

import functools
import re
import ssl
from contextlib import suppress
from socket import gaierror
from typing import Any
from urllib.parse import urlsplit

from aswarm._values.errors import error_and_causes
from aswarm._values.json import shown
from aswarm._values.text import clean

_MODEL = 80  # characters of a model's name that are shown
_VERSION = re.compile(r"/v\d")  # in the path of a base URL
_RESPONSES = "/responses"
_ENDPOINTS = ("/chat/completions", _RESPONSES, "/v1/messages")
_CONNECTION = (
    (ConnectionRefusedError, "nothing listens there; check that the server runs, and the port"),
    (gaierror, "no server has this name; check the spelling and the network"),
    (ssl.SSLError, "TLS failed; check http against https, and the certificate"),
)
# Texts of the RuntimeErrors of asyncio, anyio and trio for a connection of another event loop.
_OTHER_LOOP = (
    "event loop is closed",
    "no running event loop",
    "different loop",
    "different event loop",
    "must be called from async context",
)
_NEW_CLIENT = (
    "this client has connections of another event loop, for example of an earlier asyncio.run(); create a client in each event "
    "loop, with `async with AsyncOpenAI(...) as client`, or use AsyncSwarm() without a client, which creates one for each loop"
)
_NOT_FOUND = 404
_NO_MODEL = (
    "the server does not have this model (any more); choose another one with Agent(model=...), AsyncSwarm(model=...) or "
    "OPENAI_DEFAULT_MODEL"
)
_PREFIX = re.compile(
    r"(openai|anthropic|azure|bedrock|google|groq)[a-z_-]*:"
)  # as in the names of models in pydantic-ai
_NO_PREFIX = "write the model without the prefix of its provider; the base URL of the client selects the provider"
_FUNCTIONS_OVER_RESPONSES = (
    'this model needs the Responses API for functions: AsyncSwarm(api="responses") or --api responses; or '
    'model_settings={"reasoning_effort": "none"}'
)
_ONLY_RESPONSES = 'this model is served over the Responses API only: AsyncSwarm(api="responses") or --api responses'
_DOES_NOT_REASON = "this model does not reason: pass model_settings={'include': []}"
_REMOVE_REASONING = (
    "to send the history without reasoning, pass model_settings={'include': []}, or remove 'responses_output' from its "
    "messages"
)
_NO_REASONING = f"this model does not reason, and the history has reasoning; {_REMOVE_REASONING}"
_OTHER_KEY = (
    "the history has reasoning that was made with the key of another organization, or was edited; use that key, or "
    + _REMOVE_REASONING
)
# Each row: the statuses, the words that the text must contain in lower case, and the advice. The first match is used.
_STATUSES: tuple[tuple[tuple[int, ...], tuple[str, ...], str], ...] = (
    ((400,), ("function tools", "/v1/responses"), _FUNCTIONS_OVER_RESPONSES),
    ((400, 404), ("v1/responses", "chat/completions"), _ONLY_RESPONSES),
    ((400,), ("encrypted content is not supported",), _DOES_NOT_REASON),
    # OpenAI sends these two errors for a history that was made with another model or API key.
    ((400,), ("reasoning input items",), _NO_REASONING),
    ((400,), ("invalid_encrypted_content",), _OTHER_KEY),
    ((400, 403, 404), ("model_not_found",), _NO_MODEL),
    ((400, 404), ("model_decommissioned",), _NO_MODEL),
    ((410,), (), _NO_MODEL),
    ((401,), ("authentication_error",), "the server refused the API key; check api_key or ANTHROPIC_API_KEY"),
    ((401,), (), "the server refused the API key; check api_key or OPENAI_API_KEY"),
    ((403,), (), "the API key has no access to this model"),
)


def place_and_cause(error: Exception, status: int | None, model: object, url: str = "", text: str = "") -> str:
    """Return a text such as " (model 'gpt-6-luna' at http://127.0.0.1:8080/v1; nothing listens there; ...)".

    `text`: what the provider said, if it is not in the text of the exception.
    """
    url = _without_secrets(url) or _url(error)
    base_url = functools.reduce(str.removesuffix, _ENDPOINTS, url)
    place = f"model {shown(model, _MODEL)}" + (f" at {clean(base_url)}" if url else "")
    cause = _of_connection(error) if status is None else _of_status(error, status, url, model, text)
    return f" ({place}; {cause})" if cause else f" ({place})"


def _url(error: Exception) -> str:
    if type(error).__module__.partition(".")[0] == "litellm":
        return ""  # the exceptions of LiteLLM contain the address of its web site, not of the server
    request: Any = None
    with suppress(RuntimeError):  # an httpx exception without a request raises RuntimeError for `request`
        request = getattr(error, "request", None)
    return _without_secrets(str(getattr(request, "url", "")))


def _without_secrets(url: str) -> str:
    with suppress(ValueError):
        parts = urlsplit(url)
        if parts.scheme and parts.hostname:
            host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
            port = "" if parts.port is None else f":{parts.port}"
            return f"{parts.scheme}://{host}{port}{parts.path}"
    return ""


def _of_connection(error: Exception) -> str:
    errors = error_and_causes(error)
    for kind, text in _CONNECTION:
        if any(isinstance(cause, kind) for cause in errors):
            return text
    texts = [str(cause).lower() for cause in errors if isinstance(cause, RuntimeError)]
    if any(words in text for text in texts for words in _OTHER_LOOP):
        return _NEW_CLIENT
    # With aiohttp, the SDK's transport raises ConnectTimeout for every lost connection. Only the cause of the ConnectTimeout,
    # an exception of aiohttp, is exact.
    failure = next((cause for cause in errors if type(cause).__module__.startswith("aiohttp.")), error)
    is_late = any("Timeout" in base.__name__ for base in type(failure).__mro__)
    return "no answer in time; the client's `timeout` is the limit" if is_late else ""


def _of_status(error: Exception, status: int, url: str, model: object, text: str) -> str:
    # With openai 3, the text does not contain the code. `vars`, because aiohttp emits a DeprecationWarning for its `code`.
    said = f"{error} {text} {vars(error).get('code')}"
    if isinstance(model, str) and (advice := _of_model(status, model, said)):
        return advice
    text = said.lower()
    if status == _NOT_FOUND and url and not _VERSION.search(url):
        return "this address is not found: most base URLs end with /v1"
    for statuses, words, advice in _STATUSES:
        if status in statuses and all(word in text for word in words):
            return advice
    if status != _NOT_FOUND:
        return ""
    if url.endswith(_RESPONSES):
        return 'this server may not have the Responses API; use AsyncSwarm(client, api="chat")'
    return "the server does not have this address or this model; check both"


def _of_model(status: int, model: str, said: str) -> str:
    if _PREFIX.match(model) and status in (400, _NOT_FOUND) and "model" in said:
        return _NO_PREFIX
    return _NO_MODEL if status == _NOT_FOUND and model and model in said else ""
