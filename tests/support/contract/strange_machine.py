"""Run `nox -s tests` as on the machine of a stranger: busy, without a network, with other settings, as root and as another user.

`python -m tests.support.contract.strange_machine RUNS [LOAD [TOGETHER]]` makes RUNS runs (default 10) of the last commit, TOGETHER
at once (default 4), and starts busy processes until LOAD processes (default 15) want a processor. It needs nox, uv and git.

Each run has a clone in a path with a space, a random PYTHONHASHSEED, an old `~/.pgpass`, and one of the settings below. With root
on Linux, there is no network but the loopback, and every second clone belongs to the user `nobody`: then the Python that executes
this script must be one that all users may execute. Prints one line for each run, and fails if a run fails, or if the median of
the load of a run is below 90 % of LOAD.
"""

from __future__ import annotations

import os
import pwd
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import Queue
from statistics import median

PROJECT = Path(__file__).parents[3]
SETTINGS = [
    {"TZ": "Pacific/Chatham", "LC_ALL": "C"},  # 12:45 h or 13:45 h before UTC
    {"TZ": "America/St_Johns", "LC_ALL": "C.UTF-8"},
    {"TZ": "UTC", "LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    {"TZ": "Asia/Kathmandu", "LC_ALL": "C.UTF-8", "XDG_RUNTIME_DIR": "/nonexistent"},
    {"TZ": "Europe/Istanbul", "LC_ALL": "tr_TR.UTF-8", "LANGUAGE": "tr"},  # as C if the system does not have it
]
WORKERS = (os.cpu_count() or 1) * 3 // 2  # of `nox -s tests`
HAS_NAMESPACES = sys.platform == "linux" and os.geteuid() == 0 and shutil.which("unshare") is not None


class Place:
    """A clone of the last commit, with a home folder and an environment for nox, of root or of another user."""

    def __init__(self, folder: Path, number: int) -> None:
        self._project, self._home = folder / "a clone", folder / "home"
        self._prefix: list[str] = []
        self.user = pwd.getpwuid(os.geteuid()).pw_name
        self._home.mkdir(parents=True)
        subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", PROJECT, self._project], check=True)
        (self._home / ".pgpass").write_text("localhost:*:*:postgres:old\n*:*:*:*:older\n", encoding="utf-8")
        (self._home / ".pgpass").chmod(0o644)  # libpq warns about it
        if HAS_NAMESPACES and number % 2:
            self._give_to(folder, "nobody")

    def _give_to(self, folder: Path, user: str) -> None:
        entry, self.user = pwd.getpwnam(user), user
        subprocess.run(["chown", "-R", f"{entry.pw_uid}:{entry.pw_gid}", folder], check=True)
        self._prefix = ["setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups"]

    def install(self) -> None:
        """Make the environment of the session, with the network."""
        done = self._nox([], "--install-only")
        assert done.returncode == 0, done.stdout

    def test(self, settings: Mapping[str, str]) -> str:
        """Run the tests with these environment variables. Returns the output."""
        before: list[str] = []
        if HAS_NAMESPACES:
            before = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
        return self._nox(before, "--no-install", **settings).stdout

    def _nox(self, before: list[str], *options: str, **settings: str) -> subprocess.CompletedProcess[str]:
        env = os.environ | settings | {"HOME": str(self._home)}
        env.pop("PYTEST_ADDOPTS", None)
        if HAS_NAMESPACES:
            env["UV_CACHE_DIR"] = str(self._home / "cache")
        command = [
            *before,
            *self._prefix,
            sys.executable,
            "-m",
            "nox",
            "--reuse-existing-virtualenvs",
            *options,
            "-s",
            "tests",
        ]
        return subprocess.run(
            command,
            cwd=self._project,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )


def run_at(places: Queue[Place], number: int, load: int, results: Path) -> bool:
    """Run the tests once, in a free place. Returns whether they passed at this load."""
    place = places.get()
    settings = SETTINGS[number % len(SETTINGS)] | {"PYTHONHASHSEED": str(random.randrange(1, 2**32))}
    started, loads, ended = time.monotonic(), list[float](), threading.Event()

    def watch() -> None:
        while not ended.wait(10):
            loads.append(os.getloadavg()[0])

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        output = place.test(settings)
    finally:
        ended.set()
        watcher.join()
        places.put(place)
    (results / f"run {number}.log").write_text(output, encoding="utf-8")
    summary = re.findall(r"^=+ (.* passed.* in .*?) =+$", output, re.MULTILINE)
    passed, is_busy = "Session tests was successful" in output, median(loads or [0]) >= 0.9 * load
    shown = " ".join(f"{name}={value}" for name, value in settings.items())
    print(
        f"{number:2} {'FAILED' if not passed else 'passed' if is_busy else 'TOO IDLE'} {place.user} "
        f"network={'off' if HAS_NAMESPACES else 'on'} {shown}; load "
        f"{median(loads or [0]):.1f} ({min(loads or [0]):.1f} to {max(loads or [0]):.1f}), {time.monotonic() - started:.0f} s; "
        f"{'; '.join(summary)}",
        flush=True,
    )
    return passed and is_busy


def main(runs: int = 10, load: int = 15, together: int = 4) -> int:
    folder = Path(tempfile.mkdtemp(prefix="a strange machine "))
    folder.chmod(0o755)
    results = folder / "results"
    results.mkdir()
    print(f"results: {results}", flush=True)
    places: Queue[Place] = Queue()
    for number in range(min(together, runs)):
        place = Place(folder / str(number), number)
        place.install()
        places.put(place)
    with ExitStack() as stack:
        for _ in range(max(0, load - WORKERS * together)):
            busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            stack.callback(busy.wait)
            stack.callback(busy.kill)
        with ThreadPoolExecutor(together) as pool:
            passed = list(pool.map(lambda number: run_at(places, number, load, results), range(1, runs + 1)))
    for number in range(min(together, runs)):
        shutil.rmtree(folder / str(number))
    print(f"{sum(passed)} of {runs} runs passed")
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
