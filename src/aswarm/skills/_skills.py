"""The skills of some folders: the text for the instructions of an agent, and its two functions.

The module decides what the model reads of a skill, and in which parts.

Security: The functions of skills open no file: they return texts that were read when the skills were made.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import os
import posixpath
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from aswarm._values.agent import Agent
from aswarm._values.errors import ConfigurationError, ToolError
from aswarm.extensions import Tool, tool

from ._skill import FILE, Skill, is_visible, read_skill, warn

A = TypeVar("A", bound=Agent[Any])
_PART = 30_000  # characters of a text in a result
_SHOWN = 200  # files in a result
_INTRODUCTION = (
    "Skills are instructions for special tasks. Before you do a task that fits the description of a skill, call load_skill with "
    "its name, and follow its instructions. The skills are:"
)


def skills(folder: str | os.PathLike[str], *folders: str | os.PathLike[str]) -> Skills:
    """Read the skills of these folders. Each folder is a skill, or contains folders of skills.

    All files are read now, in this thread. In an event loop, use `await anyio.to_thread.run_sync(skills, "folder")`.

    A skill without a description, or with a front matter that cannot be parsed, is left out, and logged as a warning. Of two
    skills with the same name, the second one is left out. Links and hidden files are ignored. Raises ConfigurationError if a
    folder cannot be read, or has no skill.
    """
    by_name: dict[str, Skill] = {}
    for each in (folder, *folders):
        place = Path(os.path.abspath(each))  # noqa: PTH100 - `resolve` would change the name of a link
        try:
            found = [*_read(place)]
        except (OSError, RecursionError) as error:
            raise ConfigurationError(f"skills: the folder {place} cannot be read: {error}") from error
        if not found:
            raise ConfigurationError(f"skills: there is no skill in {place}: no usable {FILE} there or in its folders")
        for skill in found:
            if by_name.setdefault(skill.name, skill) is not skill:
                warn(skill.folder, f"left out, because {by_name[skill.name].folder} has the same name {skill.name!r}")
    return Skills(dict(sorted(by_name.items())))


def _read(folder: Path) -> Iterator[Skill]:
    for path in [folder] if FILE in os.listdir(folder) else _subfolders(folder):  # noqa: PTH208 - the exact name
        if FILE in os.listdir(path):  # noqa: PTH208 - as above
            try:
                yield read_skill(path)
            except ValueError as error:
                warn(path, f"left out, because {error}")


def _subfolders(folder: Path) -> list[Path]:
    with os.scandir(folder) as listed:
        entries = sorted((entry for entry in listed if is_visible(entry.name)), key=lambda entry: entry.name)
    for entry in entries:
        if entry.is_symlink() and entry.is_dir():
            warn(folder / entry.name, "left out, because it is a link; pass its target to skills()")
    return [folder / entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]


@dataclass(frozen=True, eq=False, repr=False)
class Skills:
    """The skills of an agent, made by `skills`. Any number of agents may have them.

    Args:
        by_name: The skills by name, in the order of their names.
    """

    by_name: Mapping[str, Skill]

    def __repr__(self) -> str:
        return f"Skills({', '.join(map(repr, self.by_name))})"

    @functools.cached_property
    def instructions(self) -> str:
        """The text for the instructions of an agent: the names and descriptions of the skills."""
        lines = [f"- {skill.name}: {skill.description}" for skill in self.by_name.values()]
        return "\n".join([_INTRODUCTION, *lines])

    @functools.cached_property
    def functions(self) -> list[Tool[..., Any]]:
        """The functions for an agent: `load_skill` and `read_skill_file`."""
        load = tool(repeatable=True, name="load_skill")
        read = tool(repeatable=True, name="read_skill_file")
        return [load(self._load_skill), read(self._read_skill_file)]

    def add_to(self, agent: A) -> A:
        """Add the text and the functions to an agent, and return the agent. An agent that has them does not change.

        The text stands after a text of the agent. It stands before the text of a function, so that the prompt cache keeps it if
        the function returns another text.
        """
        if self.functions[0] not in agent.functions:
            own = agent.instructions
            agent.instructions = _before(self.instructions, own) if callable(own) else _joined(own, self.instructions)
            agent.functions = [*agent.functions, *self.functions]
        return agent

    def read(self, name: str, path: str) -> str:
        """Return the text of a file of a skill, for a function of your own. Raises ToolError for any other file.

        The arguments may come from a model. `SKILL.md` has the instructions of the skill.
        """
        skill = self._skill(name)
        path = posixpath.normpath(path)
        if path == FILE:
            return skill.instructions
        text = skill.files.get(path)
        if text is not None:
            return text
        if path in skill.files:
            raise ToolError(f"The file {path!r} of the skill {name!r} is not a text, or too large.")
        near = difflib.get_close_matches(path, skill.files, cutoff=0.5)
        hint = f" Similar files: {', '.join(near)}." if near else ""
        raise ToolError(f"The skill {name!r} has no file {path!r}.{hint} load_skill lists its files.")

    async def _load_skill(self, name: str) -> str:
        """Get the instructions of a skill, and the names of its files."""
        skill = self._skill(name)
        needs = [f"Compatibility: {skill.compatibility}"] if skill.compatibility else []
        paths = [f"- {path}{'' if text is not None else ' (not a text)'}" for path, text in skill.files.items()]
        more = [f"- and {len(paths) - _SHOWN:,} more"] if len(paths) > _SHOWN else []
        listed = ["\n".join(["Files, for read_skill_file:", *paths[:_SHOWN], *more])] if paths else []
        return "\n\n".join([*needs, _part(skill.instructions, 0, f"{FILE!r}, "), *listed])

    async def _read_skill_file(self, name: str, path: str, start: int = 0) -> str:
        """Read a file of a skill. A long file is read in parts: `start` is the index of the first character."""
        return _part(self.read(name, path), start)

    def _skill(self, name: str) -> Skill:
        if name in self.by_name:
            return self.by_name[name]
        raise ToolError(f"There is no skill {name!r}. The skills are: {', '.join(self.by_name)}.")


def _part(text: str, start: int, path: str = "") -> str:
    if start == 0 and len(text) <= _PART:
        return text
    start = max(start, 0)
    end = min(start + _PART, len(text))
    rest = f" The rest: read_skill_file({path}start={end})." if end < len(text) else ""
    return f"{text[start:end]}\n\n[Characters {start} to {end} of {len(text)}.{rest}]"


def _joined(first: object, second: object) -> str:
    return "\n\n".join(str(text) for text in (first, second) if text)


def _before(text: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function for instructions: the text, and then the text of the function."""

    @functools.wraps(function)
    def instructions(*args: Any, **kwargs: Any) -> Any:
        value = function(*args, **kwargs)
        return later(value) if inspect.isawaitable(value) else _joined(text, value)

    async def later(value: Awaitable[object]) -> str:
        return _joined(text, await value)

    return instructions
