"""Context variables: the caller's dict, of which a run has its own copy."""

from __future__ import annotations

import copy
from typing import Any, TypeGuard

from ._json import is_array, is_object


def copy_containers(value: Any) -> Any:
    """A copy of dicts, lists and sets, recursively; everything else (locks, clients, models) is shared by reference.

    Another kind of mapping becomes a dict.
    """
    return _copy(dict(value) if is_object(value) and not _is_dict(value) else value, {})


def _copy(value: Any, known: dict[int, Any]) -> Any:
    identity = id(value)
    if identity in known:  # a container may contain itself
        return known[identity]
    if not (_is_dict(value) or is_array(value) or isinstance(value, set)) or isinstance(value, tuple):
        return value
    made = known[identity] = _shallow(value)
    if _is_dict(made):
        made.update({key: _copy(item, known) for key, item in made.items()})
    elif is_array(made):
        made[:] = [_copy(item, known) for item in made]
    return made


def _shallow(value: Any) -> Any:
    return copy.copy(value)


def _is_dict(value: object) -> TypeGuard[dict[Any, Any]]:
    return isinstance(value, dict)
