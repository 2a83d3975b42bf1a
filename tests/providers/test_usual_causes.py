"""The end of the text of a failed request: server, model, and the usual cause."""

from __future__ import annotations

import socket
import ssl
from types import SimpleNamespace
from typing import Any

import pytest

from aswarm._providers.usual_causes import place_and_cause


class StatusError(Exception):
    """As an SDK has it: a text, and the request that failed."""

    def __init__(self, text: str, url: str) -> None:
        super().__init__(text)
        self.request = SimpleNamespace(url=url)


class WithoutRequestError(Exception):
    """As httpx has it where no request is known."""

    @property
    def request(self) -> Any:
        """It cannot be read."""
        raise RuntimeError("the request property has not been set")


class ReadTimeout(Exception):
    """A timeout by its name."""


URL = "http://host:8080/v1/chat/completions"


def test_the_address_that_litellm_makes_up_is_not_shown() -> None:
    """Its exceptions have a request to its own site; the advice is not about that."""
    made = type("NotFoundError", (StatusError,), {"__module__": "litellm.exceptions"})("?", "https://litellm.ai")
    assert (
        place_and_cause(made, 404, "m")
        == " (model 'm'; the server does not have this address or this model; check both)"
    )


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (URL, "http://host:8080/v1"),
        ("https://user:secret@host/v1/chat/completions?key=secret#secret", "https://host/v1"),
        ("http://[::1]:8080/v1/chat/completions", "http://[::1]:8080/v1"),
        ("https://host/openai/deployments/d/chat/completions?api-version=1", "https://host/openai/deployments/d"),
    ],
)
def test_an_address_without_what_may_be_secret(url: str, shown: str) -> None:
    """User, password, query and fragment of the URL are left out, and the end that every request has."""
    assert place_and_cause(StatusError("?", url), 500, "m") == f" (model 'm' at {shown})"


@pytest.mark.parametrize(
    "error", [Exception("?"), WithoutRequestError("?"), StatusError("?", "<a mock>"), StatusError("?", "http://[::/v1")]
)
def test_an_address_that_is_not_known(error: Exception) -> None:
    """The model alone is named."""
    assert place_and_cause(error, 500, "m") == " (model 'm')"


@pytest.mark.parametrize(
    ("status", "text", "url", "cause"),
    [
        (400, "?", URL, ""),
        # The texts of OpenAI: BerriAI/litellm#34569, n8n-io/n8n#18352.
        (
            400,
            "Function tools with reasoning_effort are not supported for m in /v1/chat/completions. Use /v1/responses.",
            URL,
            (
                'this model needs the Responses API for functions: AsyncSwarm(api="responses") or --api responses; or '
                'model_settings={"reasoning_effort": "none"}'
            ),
        ),
        (
            404,
            "This model is only supported in v1/responses and not in v1/chat/completions.",
            URL,
            "this model is served over the Responses API only",
        ),
        (400, "Encrypted content is not supported with this model.", URL, "this model does not reason"),
        (
            400,
            "Reasoning input items can only be provided to a reasoning or computer use model. Remove reasoning items",
            URL,
            (
                "this model does not reason, and the history has reasoning; to send the history without reasoning, pass "
                "model_settings={'include': []}, or remove 'responses_output' from its messages)"
            ),
        ),
        (
            400,
            (
                "{'message': 'The encrypted content for item rs_1 could not be verified. Reason: Encrypted content "
                "organization_id did not match the target organization.', 'code': 'invalid_encrypted_content'}"
            ),
            URL,
            (
                "the history has reasoning that was made with the key of another organization, or was edited; use that key, "
                "or to send the history without reasoning, pass model_settings={'include': []}"
            ),
        ),
        (400, "{'code': 'model_not_found'}", URL, "the server does not have this model"),
        (403, "{'code': 'model_not_found'}", URL, "the server does not have this model"),
        (400, "{'code': 'model_decommissioned'}", URL, "the server does not have this model"),
        (404, "{'code': 'model_not_found'}", URL, "the server does not have this model"),
        (410, "?", URL, "the server does not have this model"),
        (401, "?", URL, "the server refused the API key; check api_key or OPENAI_API_KEY)"),
        (403, "?", URL, "the API key has no access to this model)"),
        (404, "The model `m` does not exist", URL, "the server does not have this model"),
        (404, "Not Found", "http://host/chat/completions", "this address is not found: most base URLs end with /v1"),
        (404, "Not Found", URL, "the server does not have this address or this model; check both)"),
        (
            404,
            "Not Found",
            "http://host/v1/responses",
            'this server may not have the Responses API; use AsyncSwarm(client, api="chat"))',
        ),
        (404, "The model `m` does not exist", "http://host/v1/responses", "the server does not have this model"),
    ],
)
def test_the_cause_of_a_status(status: int, text: str, url: str, cause: str) -> None:
    """The error names the usual cause of a status."""
    shown = f"; {cause}" if cause else " (model '`m`' at http://host:8080/v1)"
    assert shown in place_and_cause(StatusError(text, url), status, "`m`")


def caused(cause: BaseException) -> Exception:
    """An error of an SDK with this cause, in a loop of causes as frameworks make them."""
    error, group = StatusError("Connection error.", URL), ExceptionGroup("all failed", [OSError("?"), ValueError("?")])
    group.exceptions[1].__cause__ = cause
    cause.__context__ = error
    error.__cause__ = group
    return error


def test_the_code_of_an_error_counts_too() -> None:
    """openai 3 has it as an attribute only."""
    error = StatusError("The encrypted content gAAA could not be verified.", URL)
    error.code = "invalid_encrypted_content"  # type: ignore[attr-defined]
    assert "use that key, or to send the history without reasoning" in place_and_cause(error, 400, "m")


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (caused(ConnectionRefusedError()), "; nothing listens there; check that the server runs, and the port)"),
        (caused(socket.gaierror()), "; no server has this name; check the spelling and the network)"),
        (caused(ssl.SSLError()), "; TLS failed; check http against https, and the certificate)"),
        (ReadTimeout(), "; no answer in time"),
        (caused(ConnectionResetError()), "http://host:8080/v1)"),
    ],
    ids=str,
)
def test_the_cause_of_a_lost_connection(error: Exception, cause: str) -> None:
    """It is found among the causes of the error."""
    assert cause in place_and_cause(error, None, "m")


@pytest.mark.parametrize(
    ("model", "status", "text", "is_prefix"),
    [
        ("openai:gpt-5", 404, "The model `openai:gpt-5` does not exist", True),
        ("google-gla:gemini-3", 400, "invalid model ID", True),
        ("openai:gpt-5", 400, "invalid temperature", False),
        ("mistral:7b", 404, "model 'mistral:7b' not found", False),
        ("ft:gpt-5:me::1", 404, "The model `ft:gpt-5:me::1` does not exist", False),
    ],
)
def test_a_model_with_the_prefix_of_its_provider(model: str, status: int, text: str, is_prefix: bool) -> None:
    """Names of models in other libraries contain the provider; names of local and of fine-tuned models have a colon too."""
    cause = place_and_cause(StatusError(text, URL), status, model)
    assert ("write the model without the prefix of its provider" in cause) is is_prefix
