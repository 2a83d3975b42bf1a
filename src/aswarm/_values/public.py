"""Sets `__module__` of public names to the package that exports them, instead of the module that defines them.

So a definition can move to another module without a change in reprs, pickles and documentation. Also warns about names that a
later version removes.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from types import FunctionType
from typing import Any

from .foreign_names import explain_names


def publish(namespace: dict[str, Any]) -> None:
    """Set `__module__` of the classes and functions in `__all__` to the package with this namespace.

    A name that another package has already published does not change, unless that package is inside of this package.
    """
    package = namespace["__name__"]
    explain_names(namespace)
    for name in namespace["__all__"]:
        value: Any = namespace.get(name)  # `aswarm.types` imports some names later
        home = getattr(value, "__module__", package)
        if "._" not in home and not home.startswith(package):
            continue
        # Now resolve annotations that are strings. Later, `typing.get_type_hints` would evaluate them in the new module.
        hints: dict[str, Any] = vars(value).get("__annotations__", {}) if isinstance(value, type) else {}
        if any(isinstance(hint, str) for hint in hints.values()):
            names = {**vars(sys.modules["aswarm"]), **namespace, **vars(sys.modules[value.__module__])}
            value.__annotations__ = inspect.get_annotations(value, globals=names, eval_str=True)
        if isinstance(value, type | FunctionType):
            value.__module__ = package


def call_of(value: object) -> str:
    """Return the call of a function that aswarm exports, with its required arguments; empty for any other value.

    For error texts: `functions=[tool_search]` and `middleware=[guard_input]` have no call, and both functions are callable.
    """
    if not isinstance(value, FunctionType):
        return ""
    module = str(value.__module__)  # None for code without a module
    if module.partition(".")[0] != "aswarm" or value.__name__ not in getattr(sys.modules.get(module), "__all__", ()):
        return ""
    parameters = inspect.signature(value).parameters.values()
    required = [each.name for each in parameters if each.default is each.empty and each.kind is not each.VAR_POSITIONAL]
    return f"{value.__name__}({', '.join(required)})"


def warn_deprecated(name: str, *, since: str, removed: str, instead: str, stacklevel: int = 3) -> None:
    """Warn the caller of the deprecated name, once for each line.

    Args:
        name: The full name, such as "aswarm.old" or "aswarm.run(old=)".
        since: The version that deprecates the name.
        removed: The version that removes the name. The tests fail if the name still exists in that version.
        instead: The name to use.
        stacklevel: The line to show: 3 for the caller of the function that calls `warn_deprecated`.
    """
    text = f"{name} is deprecated since aswarm {since}, and aswarm {removed} removes it; use {instead}"
    warnings.warn(text, DeprecationWarning, stacklevel=stacklevel)
