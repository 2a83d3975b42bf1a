"""Checks of an API key. No error shows the key."""

from __future__ import annotations

from aswarm._values.errors import ConfigurationError, MissingKeyError


def clean_key(key: str, swarm: str, kind: str) -> str:
    """Return the key without white space around it: the output of `echo` and mounted secrets end with a line break."""
    stripped = key.strip()
    if key and not stripped:
        raise missing_key(swarm, kind, " OPENAI_API_KEY is set, but contains only white space.")
    if not (stripped.isascii() and stripped.isprintable()):
        raise ConfigurationError(
            "OPENAI_API_KEY has a character that is invalid in an HTTP header: a line break, another control character, or a "
            "letter or quotation mark outside ASCII; copy the key again (it is not shown here)"
        )
    return stripped


def missing_key(swarm: str, kind: str, reason: str) -> ConfigurationError:
    """Return the error for an environment without a key. `kind`: the class name of the client in the example."""
    return MissingKeyError(
        f"no client: set OPENAI_API_KEY, or pass {swarm}(client=...), for example {kind}(base_url=..., api_key=...)."
        f"{reason}"
    )
