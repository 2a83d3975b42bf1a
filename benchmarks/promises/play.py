"""Plays one program, prints its verdict, and exits with it: `python play.py FRAMEWORK SCENARIO [--python PATH] [--seconds N]`."""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from judges import NAMES, REFUSED, Facts, StepEnd, verdict
from scenarios import SCENARIOS, Step

HERE = Path(__file__).parent
NO_VERDICT, TIMED_OUT = 1, 124
_AFTER_THE_LINE = 0.3  # seconds until a process is killed; a framework may use them to write


@dataclass
class Play:
    """A program that is played. All its processes end with the `stack`."""

    framework: str
    scenario: str
    python: str
    folder: Path
    deadline: float
    stack: ExitStack
    url: str = ""
    port: int = 0
    serving: subprocess.Popen[str] | None = None
    ends: list[StepEnd] = field(default_factory=list)

    def start_model(self) -> None:
        """Start the scripted server."""
        command = [sys.executable, os.fspath(HERE / "server.py"), self.scenario]
        server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.stack.callback(_end, server)
        assert server.stdout
        self.url = f"http://127.0.0.1:{int(server.stdout.readline())}"

    def ask_model(self, path: str, *, post: bool = False) -> Any:
        """Send a request about the script to the server."""
        request = urllib.request.Request(self.url + path, data=b"" if post else None)  # noqa: S310 - our own server
        with urllib.request.urlopen(request) as answer:  # noqa: S310
            return json.load(answer)

    def effects(self) -> list[dict[str, Any]]:
        """Return the lines of the tools so far."""
        path = self.folder / "effects.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def program(self) -> Path:
        """The file of the program."""
        return HERE / "programs" / self.framework / f"{self.scenario}.py"

    def steps(self) -> list[Step]:
        """Return the steps of the scenario, without the optional ones that the program does not have."""
        code = self.program.read_text()
        return [step for step in SCENARIOS[self.scenario] if not step.optional or f"async def {step.name}(" in code]

    def play(self, step: Step) -> None:
        """Run one step to its end. A step that serves only starts."""
        if step.kills and self.serving:
            self.serving.kill()
            self.serving.wait()
        if not step.serves:
            self.ask_model(f"/step/{step.name}", post=True)
        before = len(self.effects())
        processes = [self.start(step, number) for number in range(step.times)]
        if step.serves:
            self.serving = processes[0]
            self.wait_for("ready", before, processes[0])
            if processes[0].poll() is not None:
                self.ends.append(StepEnd(step.name, processes[0].wait(), self.output(step, 0)))
            return
        if step.times > 1:
            self.wait_for("ready", before, processes[0], count=step.times)
            (self.folder / "go").touch()
        if step.killed_at:
            self.wait_for(step.killed_at, before, processes[0])
            time.sleep(_AFTER_THE_LINE)
            processes[0].kill()
        for number, process in enumerate(processes):
            code = process.wait(self.left())
            planned = step.killed_at and code == -signal.SIGKILL
            self.ends.append(StepEnd(step.name, None if planned else code, self.output(step, number)))

    def start(self, step: Step, number: int) -> subprocess.Popen[str]:
        """Start a process of the program."""
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([os.fspath(HERE), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
            "PROMISES_URL": f"{self.url}/v1",
            "PROMISES_FOLDER": os.fspath(self.folder),
            "PROMISES_PORT": str(self.port),
            "PROMISES_STEP": step.name,
            "PROMISES_HANGS": step.hangs,
            "OPENAI_API_KEY": "none",
            "OPENAI_BASE_URL": f"{self.url}/v1",
        }
        with self.log_of(step, number).open("w") as log:
            process = subprocess.Popen(
                [self.python, os.fspath(self.program), step.name],
                env=environment,
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                text=True,
            )
        self.stack.callback(_end, process)
        return process

    def log_of(self, step: Step, number: int) -> Path:
        """Return the path of the output of a process."""
        return self.folder / f"{len(self.ends)}-{step.name}-{number}.log"

    def output(self, step: Step, number: int) -> str:
        """Return the last lines of a process."""
        path = self.folder / f"{len(self.ends) - number}-{step.name}-{number}.log"
        return path.read_text(errors="replace")[-2000:].strip()

    def wait_for(self, what: str, before: int, process: subprocess.Popen[str], count: int = 1) -> None:
        """Wait until a tool has written a line, `count` times, or the process has ended."""
        while sum(line["what"] == what for line in self.effects()[before:]) < count:
            if process.poll() is not None:
                return
            self.left()
            time.sleep(0.02)

    def left(self) -> float:
        """Return the seconds that are left. Raises TimeoutError if there are none."""
        if (left := self.deadline - time.monotonic()) <= 0:
            raise TimeoutError
        return left


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe:
            pipe.close()


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def facts_of(framework: str, scenario: str, python: str, seconds: float, folder: Path) -> Facts:
    """Play a program, and return its facts. Raises TimeoutError."""
    with ExitStack() as stack:
        play = Play(framework, scenario, python, folder, time.monotonic() + seconds, stack, port=_free_port())
        play.start_model()
        for step in play.steps():
            play.play(step)
            if play.ends and play.ends[-1].code not in (None, 0, REFUSED):
                break  # a later step could not mean anything
        return Facts(play.ask_model("/requests"), play.effects(), play.ends)


def judge(framework: str, scenario: str, python: str = sys.executable, seconds: float = 60) -> tuple[int, str]:
    """Play a program. Returns its exit code, and the line that shows why."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return verdict(scenario, facts_of(framework, scenario, python, seconds, Path(folder)))
        except (TimeoutError, subprocess.TimeoutExpired):
            logs = "\n".join(path.read_text(errors="replace")[-800:] for path in sorted(Path(folder).glob("*.log")))
            return TIMED_OUT, f"no verdict after {seconds} seconds\n{logs}"
        except RuntimeError as error:
            return NO_VERDICT, str(error)


def main() -> None:
    """Play the program of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("framework", choices=sorted(path.name for path in (HERE / "programs").iterdir()))
    parser.add_argument("scenario", choices=SCENARIOS)
    parser.add_argument("--python", default=sys.executable, help="the Python of the framework's environment")
    parser.add_argument("--seconds", type=float, default=60)
    given = parser.parse_args()
    code, line = judge(given.framework, given.scenario, given.python, given.seconds)
    print(f"{given.framework} {given.scenario}: {NAMES.get(code, 'no verdict')}. {line}")
    sys.exit(code)


if __name__ == "__main__":
    main()
