"""Files that are written whole or not at all, and files that only one process at a time may use."""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from io import FileIO
from pathlib import Path
from typing import BinaryIO
from weakref import WeakSet

_SECONDS_BETWEEN_ATTEMPTS = 0.02


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


# --- locks ------------------------------------------------------------------------------------------------------------

_locked_files: WeakSet[FileIO] = WeakSet()


def lock(file: FileIO) -> bool:
    """Lock a file until it is closed or the process ends. False if it is locked already, here or in another process.

    If there are no such locks (on Windows, on some network file systems), every file counts as locked by the caller.
    """
    if find_spec("fcntl") is None:
        return True
    import fcntl  # noqa: PLC0415 - as above

    try:
        # Not `lockf`: such a lock is lost as soon as the process closes any descriptor of the file, such as that of a copy.
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    _locked_files.add(file)
    return True


def _close_in_child() -> None:
    # A forked child has the lock too, and would keep it for as long as it lives.
    for file in _locked_files:
        file.close()


if hasattr(os, "register_at_fork"):  # pragma: no branch - not on Windows
    os.register_at_fork(after_in_child=_close_in_child)


class SideLock:
    """The lock of a file that this process must not lock itself, because SQLite does. It is a file `<path>-lock` beside it.

    Two paths of one file (a symbolic link) have one lock. The lock ends with `release` and with the process. `release`
    removes the side file; a process that was killed leaves it behind, which does no harm. Where there are no locks (on
    Windows), there is no side file.
    """

    def __init__(self, file: FileIO | None, name: str) -> None:
        self._file = file
        self._name = name

    @classmethod
    def acquire(cls, path: str, seconds: float) -> SideLock | None:
        """Lock it, or return None if it stays locked for this long. Raises OSError if there can be no side file."""
        name = f"{os.path.realpath(path)}-lock"
        if find_spec("fcntl") is None:
            return cls(None, name)
        deadline = time.monotonic() + seconds
        while True:
            file = FileIO(name, "a")
            is_locked = lock(file)
            if is_locked and _is_at(name, file):
                return cls(file, name)
            file.close()
            if is_locked:  # the file of an owner that has just removed it: the next one is free
                continue
            if time.monotonic() >= deadline:
                return None
            time.sleep(_SECONDS_BETWEEN_ATTEMPTS)

    def release(self) -> None:
        """Give the lock up. In a forked child nothing happens: the lock is that of the parent."""
        if self._file is not None and not self._file.closed:
            with suppress(OSError):  # its folder may be gone
                Path(self._name).unlink()
            self._file.close()


def _is_at(name: str, file: FileIO) -> bool:
    # The owner before us may have removed the file after we had opened it. Others then lock another file of this name.
    with suppress(FileNotFoundError):
        return os.path.samestat(Path(name).stat(), os.fstat(file.fileno()))
    return False
