"""Imports modules of an example as its own scripts do: by their plain names, from its folder."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from tests.examples.transcripts import EXAMPLES


def load(example: str, name: str) -> ModuleType:
    """A module of the example, made anew; its neighbours are left to no other test that has modules of these names."""
    folder = EXAMPLES / example
    neighbours = {path.stem for path in folder.glob("*.py")}
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(folder))
        for neighbour in neighbours:
            sys.modules.pop(neighbour, None)
