"""Public names report the package that exports them, not the module that defines them.

So a definition can move without a change in reprs, pickles and documentation.
"""

from __future__ import annotations

import inspect
import sys
from types import FunctionType
from typing import Any


def publish(namespace: dict[str, Any]) -> None:
    """Set `__module__` of the classes and functions in `__all__` to the package with this namespace."""
    for name in namespace["__all__"]:
        value = namespace[name]
        if isinstance(value, type):
            _evaluate_hints(value, namespace)
        if isinstance(value, type | FunctionType):
            value.__module__ = namespace["__name__"]


def _evaluate_hints(kind: type, namespace: dict[str, Any]) -> None:
    """Evaluate the annotations of a class that are text: `typing.get_type_hints` would do it in the wrong module."""
    if any(isinstance(hint, str) for hint in vars(kind).get("__annotations__", {}).values()):
        names = {**namespace, **vars(sys.modules[kind.__module__])}
        kind.__annotations__ = inspect.get_annotations(kind, globals=names, eval_str=True)
