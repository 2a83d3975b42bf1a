"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: Path, *, private: bool = False) -> Generator[BinaryIO]:
    """A new file, which takes the place of `path` at the end of the block; where that raises, nothing has changed.

    It has the mode of the old one, or, `private`, is for its owner only; from the beginning. It is on the disk before it
    takes the place: after a power cut there is the one or the other. Raises OSError.
    """
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(fresh, "xb", opener=_for_owner if private or path.exists() else None) as file:
            if path.exists() and not private:
                shutil.copymode(path, fresh)
            yield file
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def _for_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
