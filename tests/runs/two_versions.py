"""Two versions of aswarm over one store: an upgrade, a rolling deploy, and the way back, with real processes of both.

    python -m tests.runs.two_versions PYTHON_OF_THE_OLDER_VERSION PYTHON_OF_THIS_VERSION

`nox -s deep -- upgrade` makes both environments. In each case, one version starts the work, and the other version continues it:
"old, new" is the upgrade, "new, old" is the way back. "together": both versions run at once. Otherwise the first process has left
or was killed before the second process starts. If this version has another format, there is no way back and nothing runs together,
and the older version must refuse the store afterwards.

After each scene: no function has run twice, none is missing, each log agrees with its conversation, and the context has each item.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import httpx
import psycopg

from aswarm.runs import Entry
from tests.support.serve.record_checker import record_faults
from tests.support.serve.service_process import wait_until_it_answers
from tests.support.sql.postgres import postgres_server

PROGRAM = Path(__file__).parents[1] / "support/runs/version_process.py"
SECONDS = 60.0  # after which a process, or an answer, is lost
UNKNOWN = "cancelled; its outcome is unknown"
Json = dict[str, Any]


class Process:
    """A process of one version. `ready`: its first line, with an error if it could not open the store."""

    def __init__(self, python: str, given: Json) -> None:
        command = [python, str(PROGRAM), json.dumps(given)]
        self._log = Path(given["folder"], "log.txt").open("a")  # noqa: SIM115 - `leave` and `kill` close it
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        pipes: Json = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._log}
        self.running = subprocess.Popen(command, text=True, cwd=given["folder"], env=environment, **pipes)
        self._lines: SimpleQueue[Json] = SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        self._number = 0
        self._answers: dict[int, Json] = {}
        self.ready = self._lines.get(timeout=SECONDS)

    def _read(self) -> None:
        assert self.running.stdout is not None
        for line in self.running.stdout:
            self._lines.put(json.loads(line))
        self._lines.put({"id": -1, "ready": False, "error": "the process has ended"})

    def begin(self, do: str, *arguments: Any) -> int:
        self._number += 1
        assert self.running.stdin is not None
        self.running.stdin.write(json.dumps({"id": self._number, "do": do, "with": arguments}) + "\n")
        self.running.stdin.flush()
        return self._number

    def ask(self, do: str, *arguments: Any) -> Any:
        number = self.begin(do, *arguments)
        while number not in self._answers:
            try:
                line = self._lines.get(timeout=SECONDS)
            except Empty:
                raise AssertionError(f"no answer to {do}{arguments}") from None
            self._answers[line["id"]] = line
            assert line["id"] >= 0, f"{do}{arguments}: the process has ended"
        answer = self._answers.pop(number)
        assert "error" not in answer, f"{do}{arguments}: {answer['error']}"
        return answer["value"]

    def leave(self) -> None:
        """End it as a deploy does: it starts no more runs, and requeues or stops its runs after a second."""
        if self.running.poll() is None:
            self.ask("leave")
            assert self.running.wait(SECONDS) == 0
        self._log.close()

    def kill(self) -> None:
        self.running.kill()
        self.running.wait()
        self._log.close()


@dataclass
class Case:
    """A store and two versions. `names`, `pythons`: of the version that starts the work, and of the version that continues it."""

    kind: str
    store: str
    folder: Path
    names: tuple[str, str]
    pythons: tuple[str, str]
    together: bool
    runs: dict[str, str] = field(default_factory=dict[str, str])  # the conversation of each run
    processes: list[Process | None] = field(default_factory=lambda: [None, None])
    number: int = 0

    @property
    def title(self) -> str:
        base = "PostgreSQL" if self.store.startswith("postgres") else "SQLite"
        return f"{self.kind}, {base}, {' then '.join(self.names)}{', together' if self.together else ''}"

    def item(self, scene: str) -> str:
        self.number += 1
        return f"{scene}{self.number}"

    def open(self, which: int, **more: Any) -> Process:
        """Start a process of the first (0) or the second (1) version."""
        given = {"kind": self.kind, "store": self.store, "folder": str(self.folder), "version": self.names[which]}
        made = Process(self.pythons[which], {**given, **more})
        assert made.ready["ready"], f"{self.names[which]} cannot open {self.store}: {made.ready}"
        self.processes[which] = made
        return made

    def use(self, which: int) -> Process:
        """Return the running process of a version, or start one."""
        return self.processes[which] or self.open(which)

    def first(self) -> Process:
        """Start the first version; together, start the second version too."""
        if self.together:
            self.use(1)
        return self.use(0)

    def second(self) -> Process:
        """Return the second version. If they are not together, the first version leaves, and the second one starts."""
        if not self.together:
            first = self.processes[0]
            assert first is not None
            first.leave()
            self.open(1)
        second = self.processes[1]
        assert second is not None
        return second

    def close(self) -> None:
        self._end(Process.leave)

    def kill(self) -> None:
        self._end(Process.kill)

    def _end(self, end: Callable[[Process], None]) -> None:
        for process in self.processes:
            if process is not None:
                end(process)
        self.processes = [None, None]

    def start(self, process: Process, plan: str, item: str, conversation: str = "") -> str:
        self.runs[f"run-{item}"] = conversation or item
        process.ask("start", f"run-{item}", conversation or item, f"{plan} {item}")
        return f"run-{item}"

    def allow(self, item: str) -> None:
        """Let the function or the stream of this item end."""
        (self.folder / f"go-{item}").touch()

    def ledger(self) -> list[list[str]]:
        """Return the executions of the functions: name, item, key, version."""
        file = self.folder / "ledger.txt"
        return [line.split() for line in file.read_text().splitlines()] if file.exists() else []

    def wait_for_call(self, name: str, item: str) -> None:
        for _ in range(int(SECONDS / 0.02)):
            if any(line[:2] == [name, item] for line in self.ledger()):
                return
            time.sleep(0.02)
        raise AssertionError(f"{name} {item} does not run")

    def executions(self) -> Counter[tuple[str, str]]:
        return Counter((name, item) for name, item, *_ in self.ledger())


# --- checks ---


def check_records(case: Case, reader: Process) -> None:
    """Check each run of the case, from its log and its conversation, with either version as the reader."""
    for run, conversation in case.runs.items():
        entries = [Entry.from_dict(each) for each in reader.ask("entries", run)]
        stored = reader.ask("load", conversation)
        faults = record_faults(entries, stored["messages"])
        assert not faults, f"{run}, read by {reader}: {faults}"
        written = [line[1] for line in case.ledger() if line[0] == "write"]
        own = [item for item in written if case.runs.get(f"run-{item}") == conversation]
        assert stored["context"].get("written", []) == own, (conversation, stored["context"], own)


def check_ledger(case: Case) -> None:
    """Check that no function has run twice, unless it may."""
    twice = {call: times for call, times in case.executions().items() if times > 1 and call[0] != "look"}
    assert not twice, twice
    if case.kind == "batch":  # a batch gives a repeated item a new id, so its calls have other keys
        return
    keys = {(line[1], line[2]) for line in case.ledger() if line[0] == "look"}
    assert len(keys) == len({item for item, _ in keys}), f"a repeated call has another key: {keys}"


def check_answer(end: Json, item: str, *, unknown: int = 0) -> None:
    """Check that a run finished with the answer about its item."""
    assert end["type"] == "RunFinished", end
    response = end["response"]
    assert response["stop"] == "answer", end
    assert response["text"].endswith(f"done {item}"), end
    assert item in response.get("context_variables", {"written": [item]})["written"], end  # a service hides the context
    assert len(response["unknown_calls"]) == unknown, end


# --- refused ---


def refused(case: Case) -> None:
    """Both versions refuse a store of a newer format, and name the remedy."""
    case.close()
    if case.store.startswith("postgres"):
        with psycopg.connect(case.store, autocommit=True) as connection:
            connection.execute("UPDATE aswarm_format_61737763 SET version = version + 1")
    else:
        with closing(sqlite3.connect(case.store.removeprefix("sqlite:///"))) as connection:
            (number,) = connection.execute("PRAGMA user_version").fetchone()
            connection.execute(f"PRAGMA user_version = {number + 1}")
    for which in (0, 1):
        given = {"kind": case.kind, "store": case.store, "folder": str(case.folder), "version": case.names[which]}
        process = Process(case.pythons[which], given)
        text = str(process.ready)
        assert "ConfigurationError" in text, text
        assert "version of aswarm" in text, text
        assert case.names[which] == "old" or "upgrade aswarm" in text, text


# --- scenes of runs ---


def waits(case: Case) -> None:
    """A run waits for an approval, and is answered, denied or cancelled under the other version; then both continue the conversation."""
    paid, denied, cancelled = (case.item("pay") for _ in range(3))
    first = case.first()
    for item in (paid, denied, cancelled):
        end = first.ask("end", case.start(first, "pay", item))
        assert end["response"]["stop"] == "waiting", end
    second = case.second()
    for item, approve in ((paid, True), (denied, False)):
        run = second.ask("answer", f"run-{item}", f"{item}-1", approve)
        case.runs[run] = item
        check_answer(second.ask("end", run), item)
        assert second.ask("get", f"run-{item}")["reason"] == "continued"
    if "durable" in case.kind:
        assert second.ask("cancel", f"run-{cancelled}")["reason"] == "cancelled"
    executed = case.executions()
    assert (executed["pay", paid], executed["pay", denied], executed["pay", cancelled]) == (1, 0, 0)
    more = case.item("write")
    check_answer(second.ask("end", case.start(second, "write", more, paid)), more)


def finished(case: Case) -> None:
    """Finished runs, with a handoff, are read and continued by the other version."""
    plain, moved = case.item("write"), case.item("move")
    first = case.first()
    check_answer(first.ask("end", case.start(first, "write", plain)), plain)
    check_answer(first.ask("end", case.start(first, "move", moved)), moved)
    second = case.second()
    assert second.ask("load", moved)["agent"] == "Clerk"
    for conversation in (plain, moved):
        more = case.item("write")
        check_answer(second.ask("end", case.start(second, "write", more, conversation)), more)


def killed(plan: str, unknown: int) -> Callable[[Case], None]:
    """Return a scene: the first version is killed in a call or a stream, and the second version continues the run."""

    def scene(case: Case) -> None:
        item = case.item(plan)
        first = case.first()
        run = case.start(first, plan, item)
        owner = case.processes[1] if case.together else None
        if plan == "stream":
            first.ask("reach", run, "TextDelta")
        else:
            case.wait_for_call(plan, item)
        on_first = any(line[0] == "write" and line[1] == item and line[3] == case.names[0] for line in case.ledger())
        (first if on_first or owner is None else owner).kill()
        case.allow(item)
        if owner is not None and not on_first:  # a queue gave the run to the second version: the first one continues it
            case.processes[1] = None
            check_answer(first.ask("end", run), item, unknown=unknown)
            return
        case.processes[0] = None
        second = case.use(1)
        check_answer(second.ask("end", run), item, unknown=unknown)
        assert case.executions()["write", item] == 1

    scene.__name__ = f"killed in {plan}"
    return scene


def queued(case: Case) -> None:
    """Runs that a process without executions queued are executed by the other version."""
    case.close()
    first = case.open(0, concurrency=0)
    items = [case.item("write") for _ in range(5)]
    for item in items:
        case.start(first, "write", item)
        assert first.ask("get", f"run-{item}")["is_queued"]
    if not case.together:
        first.leave()
        case.processes[0] = None
    second = case.open(1)
    for item in items:
        check_answer(second.ask("end", f"run-{item}"), item)


def rolling(case: Case) -> None:
    """Both versions execute runs; the first version leaves in the middle, and nothing is lost."""
    first = case.first()
    second = case.processes[1]
    assert second is not None
    plans = ("write", "look", "move", "stream")
    items = {case.item(plan): plan for plan in plans * 4}
    for number, (item, plan) in enumerate(items.items()):
        case.start((first, second)[number % 2], plan, item)
    for item in list(items)[::2]:
        case.allow(item)
    leaving = threading.Thread(target=first.leave)
    leaving.start()
    for item in items:
        case.allow(item)
    leaving.join()
    case.processes[0] = None
    for item in items:
        check_answer(second.ask("end", f"run-{item}"), item)


def records(case: Case) -> None:
    for which in (0, 1):
        check_records(case, case.use(which))
        if not case.together:
            case.close()


RUNS = [finished, waits, killed("hold", 1), killed("look", 0), killed("stream", 0)]
SCENES: dict[str, list[Callable[[Case], None]]] = {
    "local": [*RUNS, records, refused],
    "durable": [*RUNS, queued, rolling, records, refused],
}


# --- conversations without runs ---


def chats(case: Case) -> None:
    """A conversation continues in turns under both versions: plain turns, a handoff, an approval."""
    conversation, items = case.item("chat"), list[str]()
    for plan in ("write", "move", "pay"):
        for which in (0, 1):
            talker = case.use(which)
            items.append(case.item(plan))
            said = talker.ask("say", conversation, f"{plan} {items[-1]}")
            if not case.together:
                talker.leave()
                case.processes[which] = None
            if plan == "pay":
                assert said["stop"] == "waiting", said
                other = case.use(1 - which)
                said = other.ask("resume", conversation, dict.fromkeys(said["waiting"], True))
                if not case.together:
                    other.leave()
                    case.processes[1 - which] = None
            assert said == {"text": f"done {items[-1]}", "stop": "answer", "waiting": []}, said
    reader = case.use(1)
    stored = reader.ask("load", conversation)
    assert stored["context"]["written"] == items, stored
    assert sum(message["role"] == "user" for message in stored["messages"]) == len(items)


def killed_chat(case: Case) -> None:
    """A process is killed in a function; the other version resumes the conversation."""
    item = case.item("hold")
    first = case.use(0)
    first.begin("say", item, f"hold {item}")
    case.wait_for_call("hold", item)
    first.kill()
    case.processes[0] = None
    second = case.use(1)
    assert second.ask("load", item)["stop"] is None
    assert second.ask("resume", item)["text"] == f"done {item}"
    stored = second.ask("load", item)
    assert any(UNKNOWN in str(message["content"]) for message in stored["messages"])
    assert stored["context"]["written"] == [item]


SCENES["store"] = [chats, killed_chat, refused]


# --- batches ---


def batches(case: Case) -> None:
    """A batch is killed while its functions run; the other version continues its journal, and this version reads the end."""
    texts = ["write b1", "move b2", "pay b3", "hold b4", "look b5", "write b6"]
    first = case.open(0)
    first.begin("batch", texts)
    for name, item in (("write", "b1"), ("write", "b6"), ("hold", "b4"), ("look", "b5")):
        case.wait_for_call(name, item)
    time.sleep(0.5)  # the other items end
    first.kill()
    for item in ("b4", "b5"):
        case.allow(item)
    for which in (1, 0):
        process = case.open(which)
        outcomes = process.ask("batch", texts)
        process.leave()
        case.processes = [None, None]
        for text, outcome in outcomes.items():
            plan, item = text.split()
            assert outcome["error"] is None, outcome
            assert outcome["written"] == [item], outcome
            assert outcome["text"] == ("" if plan == "pay" else f"done {item}"), outcome
    assert case.executions()["look", "b5"] == 2
    assert not case.executions()["pay", "b3"]


SCENES["batch"] = [batches]


# --- services ---


class Services:
    """Two services over one store, and a client that sends its requests to them in turn."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.clients: list[httpx.Client] = []
        for which in (0, 1):
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            opened = case.open(which, port=port)
            headers = {"authorization": "Bearer token"}
            url = f"http://127.0.0.1:{port}"
            self.clients.append(httpx.Client(base_url=url, headers=headers, timeout=SECONDS, trust_env=False))
            wait_until_it_answers(self.clients[-1], opened.running, attempts=500)
        self.turn = 0

    def send(self, method: str, path: str, body: Any = None) -> Json:
        self.turn += 1
        answered = self.clients[self.turn % 2].request(method, path, json=body)
        assert answered.status_code < 300, answered.text
        result: Json = answered.json()
        return result

    def ended(self, run: str) -> Json:
        """Wait for the end of a run, at both services in turn."""
        for _ in range(int(SECONDS / 0.02)):
            state = self.send("GET", f"/runs/{run}")
            if state["status"] != "running":
                return state
            time.sleep(0.02)
        raise AssertionError(f"{run} does not end")

    def events(self, run: str, after: str | None = None, most: int = 10**6) -> Iterator[tuple[str, Json]]:
        """Read the events of a run, from the next service."""
        self.turn += 1
        headers = {} if after is None else {"last-event-id": after}
        number = ""
        with self.clients[self.turn % 2].stream("GET", f"/runs/{run}/events", headers=headers) as stream:
            for line in stream.iter_lines():
                if line.startswith("id: "):
                    number = line[4:]
                elif line.startswith("data: ") and most:
                    most -= 1
                    yield number, json.loads(line[6:])
                if not most:
                    return

    def close(self) -> None:
        for client in self.clients:
            client.close()
        for process in self.case.processes:
            if process is not None:
                process.running.terminate()
                process.running.wait(SECONDS)
        self.case.processes = [None, None]


def services(case: Case) -> None:
    """A client whose requests alternate between both versions starts, reads, answers and continues runs."""
    both = Services(case)
    for number in range(4):
        item = case.item("pay")
        conversation = f"/conversations/{item}/runs"
        run = both.send("POST", conversation, {"text": f"pay {item}", "agent": "Boss"})["run"]
        begun = list(both.events(run, most=3))
        rest = list(both.events(run, after=begun[-1][0]))
        types = [event["type"] for _, event in (*begun, *rest)]
        assert (types[0], types[-1], types.count("CallWaiting")) == ("RunStarted", "RunFinished", 1), types
        assert both.ended(run)["reason"] == "waiting"
        both.turn += number // 2  # so that each version answers runs of both
        answers = [{"call": f"{item}-1", "run": run, "approve": True}]
        resumed = both.send("POST", conversation, {"answers": answers})["run"]
        again = both.send("POST", conversation, {"answers": answers})["run"]  # a retry that reaches the other version
        assert resumed == again
        state = both.ended(resumed)
        check_answer(state["result"], item)
        more = case.item("write")
        last = both.send("POST", conversation, {"text": f"write {more}"})["run"]
        check_answer(both.ended(last)["result"], more)
    both.close()


SCENES["service"] = SCENES["durable service"] = [services]


# --- all cases ---


@dataclass
class Runner:
    """Runs the cases. `versions`: the Python of each version; `server`: the URL of a PostgreSQL server.

    `chosen`: only cases whose title contains one of these texts; empty for all cases.
    """

    versions: dict[str, str]
    server: str
    folder: Path
    chosen: list[str]
    number: int = 0
    scenes: int = 0
    failures: int = 0

    def case(self, kind: str, base: str, names: tuple[str, str], *, together: bool) -> Case:
        self.number += 1
        folder = self.folder / str(self.number)
        folder.mkdir()
        store = str(folder / "store.db")
        if base == "PostgreSQL":
            with psycopg.connect(self.server, autocommit=True) as connection:
                connection.execute(f"CREATE DATABASE upgrade_{self.number}".encode())
            store = self.server.replace("/postgres?", f"/upgrade_{self.number}?")
        elif "durable" in kind:
            store = f"sqlite:///{store}"
        first, second = names
        return Case(kind, store, folder, names, (self.versions[first], self.versions[second]), together)

    def run(self, case: Case, scenes: list[Callable[[Case], None]]) -> None:
        """Run the scenes of a case one after another, over one store; then both versions read everything."""
        for scene in scenes:
            began = time.monotonic()
            try:
                scene(case)
                if scene is scenes[-1] or not case.together:
                    case.close()
                check_ledger(case)
            except Exception:
                self.failures += 1
                traceback.print_exc()
                print(f"FAILED {case.title}: {scene.__name__}; see {case.folder}/log.txt", flush=True)
                case.kill()
            else:
                self.scenes += 1
                print(f"{case.title}: {scene.__name__}, {time.monotonic() - began:.1f} s", flush=True)

    def is_migrated(self) -> bool:
        """Return whether this version migrates the store of the older version."""
        case = self.case("store", "SQLite", ("old", "new"), together=False)
        for which in (0, 1):
            case.open(which).leave()
        given = {"kind": "store", "store": case.store, "folder": str(case.folder), "version": "old"}
        again = Process(case.pythons[0], given)
        if again.ready["ready"]:
            again.leave()
            return False
        assert "newer version of aswarm" in str(again.ready), again.ready
        return True

    def run_all(self) -> None:
        migrated = self.is_migrated()
        print("the formats differ: upgrades only" if migrated else "the formats are equal: both directions", flush=True)
        directions = [("old", "new")] if migrated else [("old", "new"), ("new", "old")]
        for names in directions:
            self.run_case("batch", "SQLite", names, together=False)
            for base in ("SQLite", "PostgreSQL"):
                for kind in ("store", "local", "durable"):
                    for together in (False,) if migrated else (False, True):
                        self.run_case(kind, base, names, together=together)
                for kind in () if migrated else ("service", "durable service"):
                    self.run_case(kind, base, names, together=True)

    def run_case(self, kind: str, base: str, names: tuple[str, str], *, together: bool) -> None:
        """Run the scenes of a case over one store, if the case is chosen."""
        case = self.case(kind, base, names, together=together)
        if self.chosen and not any(text in case.title for text in self.chosen):
            return
        self.run(case, [scene for scene in SCENES[kind] if together or scene is not rolling])


def main(old: str, new: str, *chosen: str) -> None:
    folder = Path(tempfile.mkdtemp(prefix="aswarm-upgrade-"))
    began = time.monotonic()
    with postgres_server() as server:
        runner = Runner({"old": old, "new": new}, server.uri, folder, list(chosen))
        runner.run_all()
    if runner.failures:
        sys.exit(f"{runner.failures} scenes have failed")
    shutil.rmtree(folder, ignore_errors=True)
    print(f"{runner.scenes} scenes in {time.monotonic() - began:.0f} s, no fault")


if __name__ == "__main__":
    main(*sys.argv[1:])
