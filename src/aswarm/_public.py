"""Public names report the package that exports them, not the module that defines them.

So a definition can move without a change in reprs, pickles and documentation.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any


def publish(namespace: dict[str, Any]) -> None:
    """Set `__module__` of the classes and functions in `__all__` to the package with this namespace."""
    for name in namespace["__all__"]:
        value = namespace[name]
        if isinstance(value, type | FunctionType):
            value.__module__ = namespace["__name__"]
