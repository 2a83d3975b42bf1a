"""The skills of some folders: the text for the instructions of an agent, and its two functions.

The module decides what the model reads of a skill, and in which parts.

Security: The functions of skills open no file: they return texts that were read when the skills were made.

A skill has the fields of its `SKILL.md`, its instructions and its files, read once from its folder.

Security: A skill reads only the regular files of its folder, no links and no hidden files, and at most 1 MB of each file.
Security: The front matter of a skill creates no objects: its values are texts, lists and dicts. Aliases are refused.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import json
import logging
import os
import posixpath
import re
import stat
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml

from aswarm._values.agent import Agent
from aswarm._values.errors import ConfigurationError, ToolError
from aswarm._values.json import is_array, is_object
from aswarm._values.text import NO_RUN, one_line
from aswarm.extensions import Tool, tool

logger = logging.getLogger("aswarm")

FILE = "SKILL.md"
_BYTES = 1_000_000  # of a file
_FILES = 1_000
_FRONT_MATTER_LENGTH = 16_000  # the longest of 13,000 public skills has 3,500 characters
_NAME_LENGTH, _DESCRIPTION_LENGTH = 64, 1024  # of the specification
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_FRONT_MATTER = re.compile(r"---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
# A line such as `description: Use it if: ...` is not YAML, but many programs accept it, so public skills have such lines
# (agentskills.io/client-implementation/adding-skills-support).
_WITH_COLON = re.compile(r"^([\w-]+):[ \t]+([^\s\"'\[{>|&*!].*:(?:[ \t].*)?)$", re.MULTILINE)
_NULL = ("~", "null", "Null", "NULL")
# A link is not followed, a FIFO does not block, and Windows changes no byte.
_FLAGS = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """A skill, as it was when it was read.

    Args:
        name: The name for the model.
        description: The task of the skill, on one line.
        instructions: The text of `SKILL.md` after its front matter.
        folder: The folder of the skill.
        files: The texts of its other files by path, such as `references/forms.md`; None for a file without a text in UTF-8.
        license: The license, or the name of its file. This field and the next two are empty if `SKILL.md` does not have them.
        compatibility: The programs and the packages that the skill needs.
        allowed_tools: The tools that the skill asks for. They are only shown: the field approves no call.
        metadata: Further fields, whose values are texts, lists and dicts.
    """

    name: str
    description: str
    instructions: str = field(repr=False)
    folder: Path
    files: Mapping[str, str | None] = field(repr=False)
    license: str
    compatibility: str
    allowed_tools: str
    metadata: Mapping[str, Any]


def read_skill(folder: Path) -> Skill:
    """Read a skill. Raises ValueError with the fault if the skill cannot be used; logs a warning for a smaller fault."""
    fields, instructions = _split((_read_text(folder / FILE) or "").replace("\r\n", "\n"))
    name = one_line(_text_of(fields.get("name")) or folder.name, _NAME_LENGTH)
    if name != folder.name or not _NAME.fullmatch(name):
        warn(folder, f"its name {name!r} should be the name of its folder, of lower-case letters, digits and hyphens")
    description = _text_of(fields.get("description"))
    if not description:
        raise ValueError("it has no description")
    if len(description) > _DESCRIPTION_LENGTH:
        warn(folder, f"its description has more than {_DESCRIPTION_LENGTH:,} characters, and is cut")
    metadata = fields.get("metadata")
    return Skill(
        name=name,
        description=one_line(description, _DESCRIPTION_LENGTH),
        instructions=instructions,
        folder=folder,
        files=_read_files(folder),
        license=_text_of(fields.get("license")),
        compatibility=_text_of(fields.get("compatibility")),
        allowed_tools=_text_of(fields.get("allowed-tools")),
        metadata=metadata if is_object(metadata) else {},
    )


def warn(folder: Path, fault: str) -> None:
    """Log a warning about a skill."""
    logger.warning("the skill %s: %s", folder, fault, extra=NO_RUN)


def is_visible(name: str) -> bool:
    """Return whether a file or a folder of this name belongs to a skill."""
    return not name.startswith(".") and name != "__pycache__" and name.isprintable()


def _text_of(value: object) -> str:
    """Return the value of a field on one line; empty for a value of a wrong type. Skills also list texts in `allowed-tools`."""
    texts = value if is_array(value) else [value]
    return " ".join(" ".join(text.split()) for text in texts if isinstance(text, str))


# --- the front matter -------------------------------------------------------------------------------------------------


def _split(text: str) -> tuple[Mapping[str, Any], str]:
    """Return the fields of the front matter, and the instructions after it."""
    found = _FRONT_MATTER.match(text)
    if found is None or len(found[1]) > _FRONT_MATTER_LENGTH:
        raise ValueError(
            f"{FILE} is not a text of at most {_BYTES:,} bytes that starts with front matter between two lines ---, of at most "
            f"{_FRONT_MATTER_LENGTH:,} characters"
        )
    try:
        fields = _parse(found[1])
    except ValueError:
        fields = _parse(_WITH_COLON.sub(lambda line: f"{line[1]}: {json.dumps(line[2])}", found[1]))
    return fields, text[found.end() :].strip()


class _Loader(yaml.BaseLoader):
    """A loader that makes only texts, lists and dicts. It refuses aliases, because ten lines can be a billion elements.

    It also refuses repeated keys: a person may read one description, and the model the other.
    """

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):  # pyright: ignore[reportUnknownMemberType] - the stubs have no types for it
            raise yaml.YAMLError("it has an alias")
        return super().compose_node(parent, index)

    def construct_scalar(self, node: yaml.ScalarNode) -> str:
        """Return the text; empty for the null of YAML, which would be the text "~"."""
        return "" if node.style is None and node.value in _NULL else str(super().construct_scalar(node))

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        if len(mapping) < len(node.value):
            raise yaml.YAMLError("it has a key twice")
        return mapping


def _parse(text: str) -> Mapping[str, Any]:
    try:
        fields: object = yaml.load(text, _Loader)  # noqa: S506 - a BaseLoader creates no objects
    # pyyaml lets a ValueError and an OverflowError of a wrong escape through.
    except (yaml.YAMLError, RecursionError, ValueError, OverflowError) as error:
        raise ValueError(f"its front matter is not YAML: {one_line(error, 200)}") from error
    return fields if is_object(fields) else {}


# --- the files --------------------------------------------------------------------------------------------------------


def _read_files(folder: Path) -> dict[str, str | None]:
    files: dict[str, str | None] = {}
    for path in _paths(folder):
        if len(files) == _FILES:
            warn(folder, f"it has more than {_FILES:,} files, and the others are left out")
            break
        files[path.relative_to(folder).as_posix()] = _read_text(path)
    return files


def _paths(folder: Path) -> Iterator[Path]:
    """Yield the regular files of a skill, except its `SKILL.md`, in the same order on each machine."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(filter(is_visible, folders))
        for path in (Path(place, name) for name in sorted(filter(is_visible, names))):
            if stat.S_ISREG(path.lstat().st_mode) and path != folder / FILE:
                yield path


def _read_text(path: Path) -> str | None:
    """Return the text of a regular file; None for a link, another kind of file, too many bytes, or no UTF-8."""
    with suppress(OSError, UnicodeDecodeError), os.fdopen(os.open(path, _FLAGS), "rb") as file:
        # The file may have been replaced since it was listed.
        data = file.read(_BYTES + 1) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b"\0"
        text = data.decode("utf-8-sig")
        return None if len(data) > _BYTES or "\0" in text else text
    return None


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
