"""The environments of the frameworks: made once for each version of `peers.toml` and of `locks`, with uv.

`python environments.py lock [FRAMEWORK ...]` writes the versions of all dependencies to `locks`, as of today.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
LOCKS = HERE / "locks"
# The lowest Python that all frameworks support. A lock is for this version and later ones, on each platform.
_LOWEST = "3.11"


def requirements() -> dict[str, list[str]]:
    """Return the requirements of each environment in `peers.toml`."""
    peers = tomllib.loads((HERE / "peers.toml").read_text(encoding="utf-8"))
    return {name: peer["requires"] for name, peer in peers.items()}


def environment_of(framework: str) -> str | None:
    """Return the name of the environment of a folder of programs, or None for the Python that plays.

    Several folders may share an environment: `strands_sync` uses the one of `strands_`, unless it has its own.
    """
    names = [name for name in requirements() if framework.startswith(name)]
    return max(names, key=len, default=None)


def python_of(name: str, folder: Path) -> str:
    """Return the Python of an environment in `folder`. Makes the environment if it is missing or out of date."""
    home = folder / name
    wanted = _wanted(name)
    stamp = home / "made-for.txt"
    python = next((path for path in (home / "bin/python", home / "Scripts/python.exe") if path.exists()), None)
    if python and stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return os.fspath(python)
    print(f"makes the environment of {name}", flush=True)
    shutil.rmtree(home, ignore_errors=True)
    _uv("venv", "--python", sys.executable, os.fspath(home))
    lock = LOCKS / f"{name}.txt"
    constraint = ["--constraint", os.fspath(lock)] if lock.exists() else []
    _uv("pip", "install", "--python", os.fspath(home), *constraint, *requirements()[name])
    stamp.write_text(wanted, encoding="utf-8")
    return python_of(name, folder)


def _wanted(name: str) -> str:
    lock = LOCKS / f"{name}.txt"
    lines = [sys.version, *requirements()[name], lock.read_text(encoding="utf-8") if lock.exists() else ""]
    return "\n".join(lines)


def write_lock(name: str) -> None:
    """Write the versions of all packages of an environment."""
    LOCKS.mkdir(exist_ok=True)
    options = ["--universal", "--python-version", _LOWEST, "--no-header", "--no-annotate"]
    given = "\n".join(requirements()[name]).encode()
    found = _uv("pip", "compile", *options, "-", given=given)
    (LOCKS / f"{name}.txt").write_bytes(found)


def _uv(*arguments: str, given: bytes | None = None) -> bytes:
    uv = shutil.which("uv") or "uv"
    done = subprocess.run([uv, *arguments, "--quiet"], input=given, stdout=subprocess.PIPE, check=True)
    return done.stdout


if __name__ == "__main__":
    if sys.argv[1:2] != ["lock"]:
        sys.exit(__doc__)
    for each in sys.argv[2:] or requirements():
        write_lock(each)
