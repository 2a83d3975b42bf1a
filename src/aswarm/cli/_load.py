"""Loads the agent of a command from its name: `module:attribute` or `path/to/file.py:attribute`.

This module imports the user's code. If the attribute is a function without parameters, the module calls it.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

import click

from aswarm._tools.hints import signature_of
from aswarm._values.agent import Agent, is_agent
from aswarm._values.json import shown
from aswarm._values.text import how_to_install

from ._command import SetupError, reserve_stdout

T = TypeVar("T")

_LINE = 60  # characters of a value in a message


def load_agent(target: str) -> Agent:
    """Return the agent with this name. Raises SetupError if there is no such agent."""
    if ":" not in target and (target.endswith(".py") or _is_name(target)):
        with reserve_stdout(), _explained(target):
            raise SetupError(_which_agent(_module(target), target))
    return _load(target, _as_agent)


def load_runs(target: str) -> Any:
    """Return the object with this name or, if it is a function without parameters, its result. Raises SetupError."""
    return _load(target, lambda value, _: value() if callable(value) and not _needs_arguments(value) else value)


def load_output(target: str) -> Any:
    """Return the type of the answer, or the `Output`, with this name. Raises SetupError if there is no such attribute."""
    return _load(target, lambda value, _: value, "--output: ")


def _load(target: str, made_of: Callable[[Any, str], T], option: str = "") -> T:
    place, _, attribute = target.rpartition(":")
    if not (place and _is_name(attribute)):
        raise SetupError(f"{option}expected module:attribute or path/to/file.py:attribute, not {target!r}")
    with reserve_stdout(), _explained(target):
        return made_of(_attribute(_module(place), place, attribute), target)


def _is_name(text: str) -> bool:
    return all(part.isidentifier() for part in text.split("."))


def _module(place: str) -> ModuleType:
    return _import_file(Path(place)) if place.endswith(".py") else _import_module(place)


def _which_agent(module: ModuleType, target: str) -> str:
    """Return the error text for a target that names only a module."""
    agents = [f"{target}:{name}" for name in _agents_in(module)]
    if not agents:
        return f"{target} is a module without agents; expected module:attribute"
    context = click.get_current_context(silent=True)
    command = "run" if context is None else context.info_name
    option = "--agent " if command == "eval" else ""
    return (
        f"{target} is a module; name one of its agents: {', '.join(agents)} (aswarm {command} {option}{agents[0]} ...)"
    )


def _agents_in(module: ModuleType) -> list[str]:
    return [name for name, value in vars(module).items() if is_agent(value)]


def put_on_path(folder: Path) -> None:
    """Make the modules of this folder importable. They are found before other modules of the same name."""
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
        raise SetupError(
            f"there is no module {name!r}{near} (looked for in {Path.cwd()} and among the installed modules; "
            "name a file as path/to/file.py:attribute)"
        ) from error


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        near = _nearest(path.name, (file.name for file in path.parent.glob("*.py")))
        raise SetupError(f"there is no file {str(path)!r}{near}")
    root, parts = path.resolve().parent, [] if path.stem == "__init__" else [path.stem.replace(".", "_")]
    while (root / "__init__.py").is_file():  # the file is in a package; relative imports in the file need the package
        root, parts = root.parent, [root.name, *parts]
    put_on_path(root)
    if len(parts) > 1:
        importlib.import_module(".".join(parts[:-1]))
    return _load_file(".".join(parts), path.resolve())


def _load_file(name: str, path: Path) -> ModuleType:
    loaded = sys.modules.get(name)
    # The package of the file may already have imported the file.
    if loaded is not None and Path(getattr(loaded, "__file__", None) or "").resolve() == path:
        return loaded
    if loaded is not None:  # another module has this name, for example json if the file is json.py
        name = f"aswarm_target_{name}"
    spec = cast("Any", importlib.util.spec_from_file_location(name, path))  # a .py file always has a spec
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before its execution: `dataclasses`, for example, looks up the module of a class
    spec.loader.exec_module(module)
    return module


@contextmanager
def extra(name: str, subject: str) -> Generator[None]:
    """Turn a failed import in the block into a SetupError, which names the extra to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        raise SetupError(f"{subject} the package {package}: {how_to_install(name)}") from error


@contextmanager
def _explained(target: str) -> Generator[None]:
    """Turn any exception of the user's code in the block into a SetupError with the remedy."""
    try:
        yield
    except SetupError:
        raise
    except ModuleNotFoundError as error:
        raise SetupError(f"{target} needs the module {error.name!r}, which is not installed") from error
    except SystemExit as error:
        hint = 'put the code that the module runs under `if __name__ == "__main__":`'
        raise SetupError(f"loading {target} ended the process; {hint}") from error
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{at.filename}, line {at.lineno}"
        raise SetupError(f"{target} cannot be loaded: {type(error).__name__}: {error} ({where})") from error


def _attribute(module: ModuleType, place: str, attribute: str) -> Any:
    value: Any = module
    for name in attribute.split("."):
        if not hasattr(value, name):
            agents = ", ".join(_agents_in(module))
            near = _nearest(name, dir(value)) or (f"; its agents: {agents}" if agents else "; it has no agents")
            raise SetupError(f"{place} has no attribute {attribute!r}{near}")
        value = getattr(value, name)
    return value


def _as_agent(value: Any, target: str) -> Agent:
    if is_agent(value):
        return value
    wanted = "an Agent, or a function without parameters that returns one"
    if not callable(value):
        raise SetupError(f"{target} must be {wanted}; it is {shown(value, _LINE)}")
    if _needs_arguments(value):
        raise SetupError(f"{target} must be {wanted}; it needs arguments")
    returned = value()
    if not is_agent(returned):
        raise SetupError(f"{target}() must return an Agent; it returned {shown(returned, _LINE)}")
    return returned


def _needs_arguments(function: Any) -> bool:
    try:
        signature_of(function).bind()
    except (TypeError, ValueError):  # `function` needs arguments, or has no signature
        return True
    return False


def _nearest(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
