"""JSON-like data: telling objects from arrays, in a way that type checkers follow, and showing it in a message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard


def is_object(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Whether it is a dict, or something that reads like one."""
    return isinstance(value, Mapping)


def is_array(value: object) -> TypeGuard[list[Any]]:
    """Whether it is a list (or a tuple, which reads like one)."""
    return isinstance(value, list | tuple)


def shown(value: object, limit: int) -> str:
    """The value as it would be written in Python, on one line of at most `limit` characters."""
    text = " ".join(repr(value).split())
    return text if len(text) <= limit else text[: limit - 3] + "..."
