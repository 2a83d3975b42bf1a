"""Checks whether a client is an object of openai without patched methods.

Instrumentation copies the names of a function, and imitates its `__class__`. So the checks read types and the globals of
functions, which instrumentation does not imitate.
"""

from __future__ import annotations

import types
from typing import Any

from .apis import Api

# Methods that `create` calls. A patched method expects the body as a dict, and the answer as an object of the SDK.
_SENDING = ("post", "request")


def type_of(client: object) -> type:
    """Return the real type of the client. A mock with a `spec` replaces its `__class__`."""
    return type(client)


def is_blocking_openai(kind: type) -> bool:
    """Return whether the class is `OpenAI`, the blocking client, or a subclass."""
    if not is_of_openai(kind):
        return False
    from openai import OpenAI  # noqa: PLC0415 - the client has already imported it

    return issubclass(kind, OpenAI)


def is_plain_openai(client: Any, api: Api) -> bool:
    """Return whether the client is an `AsyncOpenAI` or `OpenAI`, and no method that sends requests is patched."""
    if not is_unpatched_instance(client, api):
        return False
    create = vars(type_of(api.resource_of(client))).get("create")
    return all(map(_is_defined_by_openai, (create, *(getattr(type_of(client), name, None) for name in _SENDING))))


def is_unpatched_instance(client: Any, api: Api) -> bool:
    """Return whether the client is an `AsyncOpenAI` or `OpenAI` without patches on the instance. Its class may be patched."""
    kind = type_of(client)
    if not is_of_openai(kind):
        return False
    from openai import AsyncOpenAI, OpenAI  # noqa: PLC0415 - the client has already imported it

    if not issubclass(kind, AsyncOpenAI | OpenAI):
        return False
    resource = api.resource_of(client)
    return (
        _package(type_of(resource)) == "openai"
        and "create" not in vars(resource)
        and not any(name in vars(client) for name in _SENDING)
    )


def is_of_openai(kind: type) -> bool:
    """Return whether the class is a class of the openai package, or a subclass."""
    return any(_package(base) == "openai" for base in kind.__mro__)


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _is_defined_by_openai(method: object) -> bool:
    # `isinstance` would accept a wrapper of wrapt, which imitates the `__class__` of a function.
    return type(method) is types.FunctionType and str(method.__globals__["__name__"]).partition(".")[0] == "openai"
