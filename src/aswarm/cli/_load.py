"""Finding the agent that a command is given: `module:attribute` or `path/to/file.py:attribute`.

Imports somebody's code, and calls a factory without parameters. What is wrong is said with what to do about it.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from aswarm._agent import Agent
from aswarm._json import shown
from aswarm._tools.hints import signature_of

from ._exits import Mistake
from ._output import own_stdout


def load_agent(target: str) -> Agent:
    """The agent that `target` names. Raises Mistake where there is none."""
    place, _, attribute = target.rpartition(":")
    if not place or not all(part.isidentifier() for part in attribute.split(".")):
        raise Mistake(f"expected module:attribute or path/to/file.py:attribute, not {target!r}")
    with own_stdout(), _told(target):
        module = _import_file(Path(place)) if place.endswith(".py") else _import_module(place)
        return _as_agent(_attribute(module, place, attribute), target)


def put_on_path(folder: Path) -> None:
    """Let modules of this folder be imported, before others of their names."""
    path = str(folder.resolve())
    if path not in sys.path:
        sys.path.insert(0, path)


def _import_module(name: str) -> ModuleType:
    put_on_path(Path())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise
        here = (path.stem for path in Path().iterdir() if path.suffix == ".py" or path.is_dir())
        near = "" if "." in name else _nearest(name, here)
        raise Mistake(
            f"there is no module {name!r}{near} (looked for in {Path.cwd()} and among what is "
            "installed; a file is named as path/to/file.py:attribute)"
        ) from error


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        near = _nearest(path.name, (file.name for file in path.parent.glob("*.py")))
        raise Mistake(f"there is no file {str(path)!r}{near}")
    root, parts = path.resolve().parent, [] if path.stem == "__init__" else [path.stem.replace(".", "_")]
    while (root / "__init__.py").is_file():  # a module of a package: its relative imports need the package
        root, parts = root.parent, [root.name, *parts]
    put_on_path(root)
    if len(parts) > 1:
        importlib.import_module(".".join(parts[:-1]))
    return _load_file(".".join(parts), path.resolve())


def _load_file(name: str, path: Path) -> ModuleType:
    known = sys.modules.get(name)
    if known is not None and Path(getattr(known, "__file__", None) or "").resolve() == path:  # by its package, say
        return known
    if known is not None:  # the name of another module, such as json.py
        name = f"aswarm_target_{name}"
    spec = cast("Any", importlib.util.spec_from_file_location(name, path))  # a .py file has one
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@contextmanager
def _told(target: str) -> Generator[None]:
    """Around somebody's code: what it raises, which may be anything, is told in a line."""
    try:
        yield
    except Mistake:
        raise
    except ModuleNotFoundError as error:
        raise Mistake(f"{target} needs the module {error.name!r}, which is not installed") from error
    except SystemExit as error:
        hint = 'put what the module runs under `if __name__ == "__main__":`'
        raise Mistake(f"loading {target} ended the process; {hint}") from error
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{at.filename}, line {at.lineno}"
        raise Mistake(f"{target} cannot be loaded: {type(error).__name__}: {error} ({where})") from error


def _attribute(module: ModuleType, place: str, attribute: str) -> Any:
    found: Any = module
    for name in attribute.split("."):
        if not hasattr(found, name):
            agents = ", ".join(key for key, value in vars(module).items() if isinstance(value, Agent))
            near = _nearest(name, dir(found)) or (
                f"; agents in it: {agents}" if agents else "; there is no agent in it"
            )
            raise Mistake(f"{place} has no attribute {attribute!r}{near}")
        found = getattr(found, name)
    return found


def _as_agent(found: Any, target: str) -> Agent:
    if isinstance(found, Agent):
        return found
    if not callable(found) or _needs_arguments(found):
        raise Mistake(f"{target} is no Agent, nor a function without parameters that returns one: {shown(found, 60)}")
    made = found()
    if not isinstance(made, Agent):
        raise Mistake(f"{target}() returned no Agent but {shown(made, 60)}")
    return made


def _needs_arguments(function: Any) -> bool:
    try:
        signature_of(function).bind()
    except (TypeError, ValueError):  # it does, or nobody knows
        return True
    return False


def _nearest(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
