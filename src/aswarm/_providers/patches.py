"""Whether a client is openai's own, with nothing in the place of its methods.

Decides by types and by the globals of functions: instrumentation copies names, and claims to be a function by `__class__`.
"""

from __future__ import annotations

import types
from typing import Any

from .apis import Api

# Methods of a client below `create`. A hook in their place reads the body as a dict, and the answer as an object of the SDK.
_SENDING = ("post", "request")


def type_of(client: object) -> type:
    """The type of the client; not its `__class__`, which a mock with a spec replaces."""
    return type(client)


def is_blocking_openai(kind: type) -> bool:
    """Whether it is the class of a blocking `OpenAI`."""
    if not _is_of_openai(kind):
        return False
    from openai import OpenAI  # noqa: PLC0415 - loaded by now

    return issubclass(kind, OpenAI)


def is_plain_openai(client: Any, api: Api) -> bool:
    """Whether it is an `AsyncOpenAI` or `OpenAI`, and no method that sends a request of this API was patched."""
    if not is_unpatched_instance(client, api):
        return False
    create = vars(type_of(api.resource_of(client))).get("create")
    return all(map(_is_defined_by_openai, (create, *(getattr(type_of(client), name, None) for name in _SENDING))))


def is_unpatched_instance(client: Any, api: Api) -> bool:
    """Whether it is an `AsyncOpenAI` or `OpenAI` that was not patched on the instance; its classes may be."""
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
