"""Kills and disturbs processes with durable runs, and checks the results of all of them together.

    python -m tests.durable.durable_kills KILLS SEED [ROUND ...]

Each process works in its own folder and shares only the database. Meanwhile, the processes start runs, answer waiting approvals,
and cancel sleeping runs, also of other processes. Rounds, each on SQLite and PostgreSQL:

    alone      one worker, killed with SIGKILL at random moments and restarted each time
    together   three workers, killed one at a time; one of them is not restarted
    crash      three workers, and a run that kills its process: it ends, and the other runs are not affected
    clock      three workers, killed too; the clocks of two of them jump by an hour, forward and back, again and again
    deploy     two workers of one version stop with SIGTERM, one by one, and workers of the next version replace them
    restart    PostgreSQL only: its server is restarted in immediate mode, as after a crash
    cut        PostgreSQL only: its connections are cut again and again, while workers are killed
    suspend    three workers, killed too; one or two of them are stopped with SIGSTOP for up to four seconds, and continued
    load       three workers, killed too, beside 15 processes that use the CPU
    locked     SQLite only: another program holds the lock of the file again and again, while workers are killed
    full       SQLite only: the disk is full again and again, while workers are killed; needs root, to mount its own disk

Every run must end, no call may start twice, and the messages to the model must match the facts; see `durable_checker`. The
log of each run must match its conversation and its answer; see `record_checker`.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg

from tests.support.conversations.stores import emptied_database
from tests.support.durable.durable_checker import Checked, notes_of, runs_of
from tests.support.durable.durable_process import Process, forked, prepare, records_checked
from tests.support.serve import chaos
from tests.support.sql.postgres import PostgresServer, postgres_server

ALL = ("go", "pay", "go", "sleep")
SECONDS = 120  # after which a process, or a run, has been lost


class Worker:
    """A process that is started again and again."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.start()

    def start(self) -> None:
        self.running, self.ready = forked(self.process)

    def wait(self) -> None:
        if not self.ready.closed:
            assert self.ready.poll(SECONDS), f"no process in {self.process.folder}"
            self.ready.close()

    @property
    def pid(self) -> int:
        assert self.running.pid is not None
        return self.running.pid

    def kill(self) -> None:
        self.running.kill()
        self.running.join()

    def end(self) -> None:
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
        for worker in self.workers:
            Path(worker.process.folder, "enough").touch()

    def end(self, *, is_cut_off: bool = False) -> str:
        """Wait for the end of all runs, and check them. Returns their counts. Raises AssertionError for a fault.

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
        faults = [*found.faults, *records_checked(self.url, str(self.folder))]
        assert not faults, f"{self.name}: {len(faults)} faults, {faults[:20]}, see {self.folder}"
        assert is_cut_off or not found.counts["failed"], f"{self.name}: calls have failed, see {self.folder}"
        return ", ".join(f"{name} {number}" for name, number in sorted(found.counts.items()) if number)


# --- the rounds -------------------------------------------------------------------------------------------------------


def alone(given: Round, kills: int) -> str:
    worker = given.add()
    for _ in range(kills):
        given.kill(worker)
    return given.end()


def together(given: Round, kills: int) -> str:
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
    said = [line for line in log.read_text().splitlines() if "queued runs need the version 'v1'" in line]
    assert bool(said) == bool(waiting), (said, waiting)
    given.add(version="v1", count=0)
    return f"v1 left waiting {len(waiting)}, {given.end()}"


def restart(given: Round, _: int) -> str:
    for _ in range(3):
        given.add()
    for _ in range(3):
        time.sleep(given.rand.uniform(1, 3))
        given.server.restart(given.rand.random())
    return given.end(is_cut_off=True)


def cut(given: Round, kills: int) -> str:
    workers = [given.add() for _ in range(3)]
    for number in range(kills * 3):
        time.sleep(given.rand.random() * 0.5)
        given.server.cut()
        if number % 3 == 0:
            given.kill(given.rand.choice(workers))
    return given.end(is_cut_off=True)


def suspend(given: Round, kills: int) -> str:
    workers = [given.add() for _ in range(3)]
    for number in range(kills):
        chosen = given.rand.sample(workers, given.rand.choice([1, 1, 2]))
        for worker in chosen:
            worker.wait()
        chaos.suspend([worker.pid for worker in chosen], given.rand.uniform(0.5, 4))
        if number % 2:
            given.kill(given.rand.choice(workers))
    return given.end()


def load(given: Round, kills: int) -> str:
    with chaos.load():
        return together(given, max(2, kills))


def locked(given: Round, kills: int) -> str:
    workers = [given.add() for _ in range(3)]
    for _ in range(kills):
        chaos.lock(Path(given.url.removeprefix("sqlite:///")), given.rand.uniform(0.2, 6))
        given.kill(given.rand.choice(workers))
    return given.end(is_cut_off=True)


def full(given: Round, kills: int) -> str:
    workers = [given.add() for _ in range(3)]
    for _ in range(kills):
        time.sleep(given.rand.random())
        chaos.fill(Path(given.url.removeprefix("sqlite:///")).parent, given.rand.uniform(0.2, 3))
        given.kill(given.rand.choice(workers))
    return given.end(is_cut_off=True)


class Server:
    """The PostgreSQL server of these rounds."""

    def __init__(self, server: PostgresServer) -> None:
        self.uri = server.uri
        self._server = server

    def restart(self, seconds: float) -> None:
        """Stop it at once, as a crash does, and start it again so many seconds later."""
        self._server.stop("immediate")
        time.sleep(seconds)
        self._server.start()

    def cut(self) -> None:
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
    suspend: ("sqlite postgresql", 4),
    load: ("sqlite postgresql", 4),
    locked: ("sqlite", 2),
    full: ("sqlite", 2),
}


def main(kills: int, seed: int, *names: str) -> None:
    rand = random.Random(seed)
    folder = Path(tempfile.mkdtemp())
    prepare(str(folder))
    with postgres_server() as postgres, ExitStack() as stack:
        server = Server(postgres)
        uri = server.uri
        total = 0
        for made, (kinds, share) in ROUNDS.items():
            for kind in kinds.split() if not names or made.__name__ in names else ():
                name, began = f"{kind} {made.__name__}", time.monotonic()
                own = folder / f"{kind}-{made.__name__}"
                own.mkdir()
                disk = stack.enter_context(chaos.small_disk(own / "disk")) if made is full else own
                url = f"sqlite:///{disk}/runs.db" if kind == "sqlite" else emptied_database(uri)
                given = Round(name, url, own, rand, server)
                print(f"{name:22}", end=" ", flush=True)
                found = made(given, kills * share // 100)
                total += given.kills
                print(f"{given.kills:4} kills, {time.monotonic() - began:4.0f} s: {found}", flush=True)
        print(f"{total} kills, no fault")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
