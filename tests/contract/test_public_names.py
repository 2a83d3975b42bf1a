"""The public face of `aswarm`: its names, their docstrings, and the cost of the import."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import aswarm
import aswarm.core
import aswarm.testing
import aswarm.types
import aswarm.util

SOURCE = Path(aswarm.__file__).parent
# `Event` and the like: an alias has no docstring of its own.
ALIASES = {"Approval", "Event", "Message", "Messages", "StopReason"}


def public(module: Any) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and not inspect.ismodule(value) and name != "annotations"
    }


def test_all_is_what_the_package_exports() -> None:
    """`__all__` has each name without an underscore once."""
    assert sorted(aswarm.__all__) == sorted(public(aswarm))


def test_the_names_of_swarm_are_there() -> None:
    """Code that comes from Swarm finds its names."""
    assert {"Swarm", "Agent", "Result", "Response"} <= set(aswarm.__all__)


@pytest.mark.parametrize("name", sorted(set(aswarm.__all__) - ALIASES))
def test_every_public_name_says_what_it_is(name: str) -> None:
    """A docstring of its own, not one that dataclass or a base class made."""
    value = getattr(aswarm, name)
    doc = value.__doc__ or ""
    assert doc.strip()
    assert not doc.startswith(f"{name}("), "the docstring that dataclass makes"
    if inspect.isclass(value):
        assert "__doc__" in vars(value)
        assert all(doc != base.__doc__ for base in value.__mro__[1:])


def test_no_name_is_left_over() -> None:
    """Every function, class and constant of a module is used somewhere in the package, or is public."""
    defined: dict[str, str] = {}
    used: Counter[str] = Counter()
    for path in SOURCE.glob("**/*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        defined.update(dict.fromkeys(_defined(tree), path.name))
        used.update(_used(tree))
    exported = {*aswarm.__all__, *public(aswarm.testing), "__all__", "__version__"}
    exported |= {*aswarm.core.__all__, *aswarm.types.__all__, *aswarm.util.__all__, "__getattr__"}
    exported.add("warn_deprecated")  # it waits for the first deprecated name
    exported |= {"pytest_addoption", "pytest_configure"}  # pytest finds its hooks by their names
    left = {name: place for name, place in defined.items() if not used[name] and name not in exported}
    assert not left


def test_no_class_name_stands_twice() -> None:
    """One name, one class, in the whole package."""
    places: dict[str, list[str]] = {}
    for path in SOURCE.glob("**/*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(str(path.relative_to(SOURCE)))
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def _defined(tree: ast.Module) -> list[str]:
    names: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign):
            names += [target.id for target in node.targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.append(node.target.id)
    return names


def _used(tree: ast.Module) -> list[str]:
    """Return the names that are read; a definition or an import is not enough."""
    read = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    attributes = [node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    quoted = [
        part
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for part in node.value.replace("[", " ").replace("]", " ").split()
    ]
    return read + attributes + quoted


def _run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# The modules that are imported only by what needs them. openai is imported when a client is made; httpx, httpx2 and trio not at
# all; a database once a store is opened.
CLIENTS = ("openai", "httpx", "httpx2", "httpcore", "trio", "aiohttp", "anthropic", "aswarm._wire.anthropic")
DATABASES = ("sqlite3", "psycopg")
ROOMS = ("aswarm.graph", "aswarm.conversations", "aswarm.evals")


@pytest.mark.processes
@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("aswarm", (*CLIENTS, *DATABASES, *ROOMS)),
        *((module, CLIENTS) for module in ("aswarm._providers.openai", "aswarm.core", "aswarm.types", "aswarm.util")),
        ("aswarm.conversations", (*CLIENTS, *DATABASES)),
        ("aswarm.evals", (*CLIENTS, "yaml", "rich")),
        ("aswarm.repl", ("openai", "rich", "prompt_toolkit")),
    ],
)
def test_an_import_imports_nothing_that_only_a_later_step_needs(module: str, heavy: tuple[str, ...]) -> None:
    """No client, no database, no extra, and no room that this module does not need."""
    code = f"import {module}, sys; print([name for name in sys.modules if name.startswith({heavy})])"
    assert _run(code) == "[]"


@pytest.mark.processes
def test_importing_aswarm_says_nothing() -> None:
    """No output, no warning, no logging handler of ours."""
    code = "import warnings; warnings.simplefilter('error'); import aswarm, logging; print(logging.root.handlers)"
    assert _run(code) == "[]"


@pytest.mark.processes
def test_star_import_gives_the_public_names() -> None:
    """`from aswarm import *` works and gives `__all__`."""
    code = "from aswarm import *; import aswarm; print(set(aswarm.__all__) <= set(dir()))"
    assert _run(code) == "True"


def test_the_package_is_typed() -> None:
    """`py.typed` is there for type checkers."""
    assert (SOURCE / "py.typed").exists()


@pytest.mark.parametrize(
    "topic", [aswarm.events, aswarm.errors, aswarm.decisions, aswarm.tools, aswarm.sources, aswarm.types]
)
def test_a_topic_has_all_its_names(topic: Any) -> None:
    """Those at the top level are the same; until 0.1.0, the others are found at the top level too."""
    for name in set(topic.__all__) - {"ChatCompletionMessage", "ChatCompletionMessageToolCall", "Function"}:
        assert getattr(aswarm, name) is getattr(topic, name)
    assert len(aswarm.__all__) <= 48
