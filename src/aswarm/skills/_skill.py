"""One skill: the fields of its `SKILL.md`, its instructions and its files, read once from its folder.

Security: A skill reads only the regular files of its folder, no links and no hidden files, and at most 1 MB of each file.
Security: The front matter of a skill creates no objects: its values are texts, lists and dicts. Aliases are refused.
"""

from __future__ import annotations

import json
import logging
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from aswarm._values.json import is_array, is_object
from aswarm._values.text import NO_RUN, one_line

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
