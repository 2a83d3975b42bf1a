"""Folders of skills for tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def write_skill(
    folder: Path, text: str | bytes | None = None, files: Mapping[str, str | bytes] | None = None, body: str = "Do it."
) -> Path:
    """Write a skill into this folder, and return the folder. `text`: its `SKILL.md`, by default a valid one with this body."""
    name = folder.name
    given = f"---\nname: {name}\ndescription: Task of {name}.\n---\n{body}\n" if text is None else text
    for path, content in {"SKILL.md": given, **(files or {})}.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder
