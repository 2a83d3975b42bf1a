"""A lock on a file that is written. It holds off others who ask for it, and nobody else."""

from __future__ import annotations

from importlib.util import find_spec
from io import RawIOBase


def is_free(file: RawIOBase) -> bool:
    """Lock it until it is closed, or its process ends. False where somebody else has locked it.

    Where there are no such locks (on Windows, on some file systems of a network) everything is free.
    """
    if find_spec("fcntl") is None:
        return True
    import fcntl  # noqa: PLC0415 - as above

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
