"""Reads all skills below some folders, and prints their faults: `python -m tests.support.skills.collection FOLDER ...`."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

from aswarm import ConfigurationError
from aswarm.extensions import estimated_tokens
from aswarm.skills import Skills, skills


def main(*places: str) -> int:
    """Return the exit code: 1 if there is no skill, or if a function fails for a file that it lists."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    found = [*folders(map(Path, places))]
    read = [made for folder in found if (made := usable(folder)) is not None]
    if not read:
        print("no skill could be used")
        return 1
    files = sum(asyncio.run(walk(made)) for made in read)
    size = sum(estimated_tokens({"messages": [{"role": "system", "content": made.instructions}]}) for made in read)
    print(
        f"{len(read)} of {len(found)} skills can be used; {files} files can be read; about {size} tokens of descriptions"
    )
    return 0


def folders(places: Iterator[Path]) -> Iterator[Path]:
    """Yield each folder with a `SKILL.md`."""
    for place in places:
        yield from (path.parent for path in sorted(place.rglob("SKILL.md")))


def usable(folder: Path) -> Skills | None:
    """Return the skill in this folder; None if it is left out."""
    try:
        return skills(folder)
    except ConfigurationError:
        return None


async def walk(made: Skills) -> int:
    """Load the skill and read each of its text files to the end, as a model would. Returns the number of files."""
    load, read = made.functions
    (skill,) = made.by_name.values()
    await load.function(skill.name)
    texts = {path: text for path, text in skill.files.items() if text is not None}
    for path, text in texts.items():
        parts = [await read.function(skill.name, path, start) for start in range(0, len(text) + 1, 30_000)]
        assert "".join(part[:30_000] for part in parts).startswith(text), (skill.folder, path)
    return len(texts)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
