"""Checks whether a client is openai's own, without patched methods.

They read types and the globals of functions: instrumentation copies names, and imitates a function by `__class__`.
"""

from __future__ import annotations

import types
from typing import Any

from .apis import Api

# Methods of a client below `create`. Their patches read the body as a dict, and the answer as an object of the SDK.
_SENDING = ("post", "request")


def type_of(client: object) -> type:
    """Return the type of the client; not its `__class__`, which a mock with a spec replaces."""
    return type(client)


def is_blocking_openai(kind: type) -> bool:
    """Return whether this is the class of a blocking `OpenAI`."""
    if not _is_of_openai(kind):
        return False
    from openai import OpenAI  # noqa: PLC0415 - loaded by now

    return issubclass(kind, OpenAI)


def is_plain_openai(client: Any, api: Api) -> bool:
    """Return whether the client is an `AsyncOpenAI` or `OpenAI` without a patch of a method that sends requests."""
    if not is_unpatched_instance(client, api):
        return False
    create = vars(type_of(api.resource_of(client))).get("create")
    return all(map(_is_defined_by_openai, (create, *(getattr(type_of(client), name, None) for name in _SENDING))))


def is_unpatched_instance(client: Any, api: Api) -> bool:
    """Return whether the client is an `AsyncOpenAI` or `OpenAI` without a patch on the instance; its class may have one."""
    kind = type_of(client)
    if not _is_of_openai(kind):
        return False
    from openai import AsyncOpenAI, OpenAI  # noqa: PLC0415 - loaded by now

    if not issubclass(kind, AsyncOpenAI | OpenAI):
        return False
    resource = api.resource_of(client)
    return (
        _package(type_of(resource)) == "openai"
        and "create" not in vars(resource)
        and not any(name in vars(client) for name in _SENDING)
    )


def _is_of_openai(kind: type) -> bool:
    return any(_package(base) == "openai" for base in kind.__mro__)


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _is_defined_by_openai(method: object) -> bool:
    # Not isinstance: a wrapper of wrapt has the `__class__` of a function.
    return type(method) is types.FunctionType and str(method.__globals__["__name__"]).partition(".")[0] == "openai"
