"""Kills workers of durable runs with SIGKILL at random moments, and checks what all of them together have done.

    PYTHONPATH=tests/support python tests/durable/durable_kills.py KILLS SEED

On SQLite and on PostgreSQL, two rounds each: one worker that is started again after each kill; and three workers, of which one at a
time is killed, the last one without being started again. The processes share nothing but the database; the file of effects is
for the checker. Every run must end, no call may begin twice, and what the model was told must be what has happened.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from durable_process import check, responses, started
from stores import emptied_database, postgres_server

RUNS = 60


def wait_for(process: subprocess.Popen[str]) -> None:
    """Wait until the process executes runs."""
    assert process.stdout is not None
    process.stdout.readline()


def round_of(url: str, folder: Path, workers: int, kills: int, rand: random.Random) -> str:
    """One round. Returns a line about it. Raises AssertionError for a fault."""
    folder.mkdir()
    began = time.monotonic()
    runs = RUNS * workers
    processes = [started(url, folder, runs) for _ in range(workers)]
    for process in processes:
        wait_for(process)
    made = 0
    for number in range(kills):
        time.sleep(rand.random())
        chosen = rand.randrange(workers)
        if processes[chosen].poll() is None:
            made += 1
        processes[chosen].kill()
        processes[chosen].wait()
        if workers == 1 or number < kills - 1:
            processes[chosen] = started(url, folder, runs)
            wait_for(processes[chosen])
    for process in processes:
        process.communicate(timeout=600)
    found = check(responses(url, runs), (folder / "effects.txt").read_text())
    assert not found.faults, found.faults
    assert found.ended == runs
    seconds = time.monotonic() - began
    return f"{workers} workers, {made} kills: {found.ended} runs ended, {found.unknown} calls unknown, {seconds:.0f} s"


def main(kills: int, seed: int) -> None:
    """All rounds."""
    os.environ.setdefault("DURABLE_PAUSE", "0.1")
    rand = random.Random(seed)
    with tempfile.TemporaryDirectory() as name, postgres_server(Path(name)) as server:
        for kind in ("sqlite", "postgresql"):
            for workers in (1, 3):
                folder = Path(name, f"{kind}-{workers}")
                url = f"sqlite:///{name}/{kind}-{workers}.db" if kind == "sqlite" else emptied_database(server)
                print(kind, round_of(url, folder, workers, kills // 4, rand), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
