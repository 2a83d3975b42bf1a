"""New files that only their owner can read, atomic replacement of files, and locks for files that only one process at a time may use."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Generator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from . import clocks, seams

_SECONDS_BETWEEN_ATTEMPTS = 0.02


@contextmanager
def replacing(path: Path) -> Generator[BinaryIO]:
    """Open a new file that replaces `path` at the end of the block. If the block raises, `path` does not change.

    The new file gets the mode of the old file before it has any content. It is synced before the replacement. So after a power
    failure, either the old or the new file is complete. Raises OSError.
    """
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(fresh, "xb", opener=_for_owner if path.exists() else None) as file:
            if path.exists():
                shutil.copymode(path, fresh)
            yield file
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def create_for_owner(path: str | os.PathLike[str]) -> None:
    """Create an empty file with mode 0600, also behind a symbolic link. Do nothing if the file exists. Raises OSError."""
    # An existing file must not be opened: closing it would release the locks that SQLite holds on it in this process, see
    # https://sqlite.org/howtocorrupt.html#_posix_advisory_locks_canceled_by_a_separate_thread_doing_close_
    # O_EXCL does not follow a link, and SQLite would then create the file with the mode of the umask.
    target = os.path.realpath(path) if os.path.islink(path) else os.fspath(path)  # noqa: PTH114 - of any kind of path
    with suppress(FileExistsError):
        os.close(_for_owner(target, os.O_CREAT | os.O_EXCL | os.O_RDWR))


def _for_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


# --- locks ------------------------------------------------------------------------------------------------------------


def lock(file: FileIO) -> bool:
    """Lock a file until it is closed or the process ends. Return False if this or another process has already locked it.

    If the system does not support locks (Windows, some network file systems), always return True.
    """
    if find_spec("fcntl") is None:
        return True
    import fcntl  # noqa: PLC0415 - does not exist on Windows

    try:
        # Not `lockf`: its lock is lost when the process closes any other descriptor of the file.
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    seams.held.add(file)
    return True


class SideLock:
    """A lock for a SQLite file. It locks a side file, `<path>-lock`, because SQLite uses the locks of the file itself.

    Two paths of one file (a symbolic link) share one lock. The lock ends with `release`, or with the process. `release` removes
    the side file. After a killed process, the side file remains, which does no harm. On Windows, there is no lock and no side
    file.
    """

    def __init__(self, file: FileIO | None, name: str) -> None:
        self._file = file
        self._name = name

    @classmethod
    def acquire(cls, path: str, seconds: float) -> SideLock | None:
        """Return the lock, or None if the file stays locked for these seconds. Raises OSError if no side file can be made."""
        name = f"{os.path.realpath(path)}-lock"
        if find_spec("fcntl") is None:
            return cls(None, name)
        deadline = clocks.monotonic() + seconds
        while True:
            file = FileIO(name, "a", opener=_for_owner)
            is_locked = lock(file)
            if is_locked and _is_at(name, file):
                return cls(file, name)
            file.close()
            if is_locked:  # the last owner has just removed this side file: try again with a new file
                continue
            if clocks.monotonic() >= deadline:
                return None
            clocks.sleep(_SECONDS_BETWEEN_ATTEMPTS)

    def release(self) -> None:
        """Release the lock. In a forked child, do nothing: the lock belongs to the parent."""
        if self._file is not None and not self._file.closed:
            with suppress(OSError):  # other code may have deleted the folder
                Path(self._name).unlink()
            self._file.close()


def _is_at(name: str, file: FileIO) -> bool:
    # The last owner may have removed the file after this process has opened it. Other processes then lock a new file.
    with suppress(FileNotFoundError):
        return os.path.samestat(Path(name).stat(), os.fstat(file.fileno()))
    return False
