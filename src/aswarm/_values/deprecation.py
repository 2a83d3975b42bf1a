"""The warning about a public name that a later version removes.

A renamed function stays for at least one minor version, and warns:

    def old(text: str) -> str:
        warn_deprecated("aswarm.old", since="0.2", removed="0.4", instead="aswarm.new")
        return new(text)

Add `@typing_extensions.deprecated` to show the text in editors. For a renamed name of a module, warn in its `__getattr__`.
"""

from __future__ import annotations

import warnings


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
