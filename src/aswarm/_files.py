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
    """A new file that replaces `path` at the end of the block. If the block raises, nothing has changed.

    The new file has the mode of the old one from the beginning; with `private`, only its owner can read it. It is synced
    before it replaces the old one, so after a power failure one of the two is there whole. Raises OSError.
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
