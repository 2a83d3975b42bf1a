"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def replace_file(path: Path, content: bytes) -> None:
    """Put the content where `path` is; a new file is for its owner only. Raises OSError."""
    mode = path.stat().st_mode if path.exists() else None
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", delete=False) as file:
        fresh = Path(file.name)
        try:
            file.write(content)
            file.close()  # Windows replaces no open file
            if mode is not None:
                fresh.chmod(mode)
            fresh.replace(path)
        except BaseException:
            os.unlink(fresh)  # noqa: PTH108 - as plain as it gets
            raise
