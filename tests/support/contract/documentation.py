"""Runs the blocks of code in the Markdown pages of the project, and compares their output.

A page is run from top to bottom in an empty folder. A Python block that starts with an import is a separate program: it has
an empty namespace, as if it were copied into a file. Any other Python block continues the blocks above it. It may use
`await` outside of a function, as in `python -m asyncio` and in notebooks. Requests to a model go to a server on loopback, at
OPENAI_BASE_URL. HTML comments directly above a block have instructions that the page does not show:

    <!-- model: [call("look_up", order_id=42), "It came."] -->   the model's answers, in order, all of which are used
    <!-- model: lambda request: "Fine." -->                      or a function that returns each answer; see ScriptedModel
    <!-- continues -->                                           the block starts with an import, but continues the program
    <!-- file: agents.py -->                                     the block is also written to this file
    <!-- imported -->                                            the file is not run here; a later block imports it
    <!-- needs: django -->                                       it runs only if this is installed; type checkers do not read it
    <!-- setup: import agents; agents.disable() -->              code that runs before the block
    <!-- input: Hi! | /exit -->                                  the lines that the block reads from stdin
    <!-- exit: 4 -->                                             the exit code of the command
    <!-- figure -->                                              a text block that is not an output

A `text` block directly below a Python or console block is its output, word for word; only the seconds of pytest may differ.
A file whose name starts with `test_` is run by pytest. In a console block, `aswarm`, `python file.py`, `pytest file.py` and
`export NAME=value` are run, all in this process except pytest; other commands must be in `NOT_RUN`. A file that a command of
the page runs is not run at its block. A command that starts a server (`SERVERS`) is checked and not run: its options must
exist, and its application must be in a file of the page.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import importlib
import inspect
import io
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import anyio.from_thread

from aswarm import AsyncSwarm, Swarm
from aswarm.testing import Failure, Request, ScriptedAnswer, ScriptedCall, ScriptedModel, call
from tests.support.providers.loopback import Reply, serve, spoken

PROJECT = Path(__file__).resolve().parents[3]
PAGES = [PROJECT / "README.md", *sorted(PROJECT.glob("docs/**/*.md"))]
TUTORIAL = PROJECT / "docs/tutorial"
DATA = {"html", "js", "json", "jsonl", "markdown", "yaml", "csv", "mermaid", "toml"}
# Commands that change the machine, wait for a person, or are run by CI in another way. `pytest` is run with its file;
# `aswarm demo` has its own test, and changes orders for the rest of this process.
NOT_RUN = (
    "aswarm demo",
    "llm ",
    "aider ",
    "python -m pip ",
    "python -m venv ",
    ". ",
    "python -m nox ",
    "pip ",
    "opentelemetry-instrument ",
    "git ",
    "cd ",
    "curl ",
    "python examples/",
    "python benchmarks/",
)
# Tests of the command line, of the service and of the examples start these as processes.
SERVERS = ("aswarm serve", "aswarm mcp", "uvicorn ")

_FENCE = re.compile(r"^(?P<fence>`{3,})(?P<language>\S*)[^\n]*\n(?P<code>.*?)^(?P=fence)$\n?", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(
    r"<!-- (?P<key>model|continues|file|imported|needs|setup|input|exit|figure)(?:: (?P<value>(?:(?!-->).)*?))? -->\s*\Z",
    re.DOTALL,
)
_IMPORT = re.compile(r"\A(?:#[^\n]*\n)*(?:import|from) ")


@dataclass(frozen=True)
class Block:
    """A fenced block. `line`: the number of its first line of code, from 1. `notes`: the comments above it."""

    page: Path
    line: int
    language: str
    code: str
    notes: dict[str, str]
    output: str | None = None

    def __str__(self) -> str:
        return f"{self.page}, line {self.line}"

    @property
    def is_program(self) -> bool:
        """Whether it is a separate program."""
        return _IMPORT.match(self.code) is not None and "continues" not in self.notes


def name_of(page: Path) -> str:
    """Return the name of a page in tests: its path inside of `docs`, or of the project."""
    docs = PROJECT / "docs"
    return page.relative_to(docs if docs in page.parents else PROJECT).as_posix()


def earlier_files(page: Path) -> dict[str, str]:
    """Return the files of the previous pages of the tutorial, which are in the order of their names."""
    pages = [each for each in PAGES if each.parent == page.parent == TUTORIAL and each < page]
    return {block.notes["file"]: block.code for each in pages for block in blocks_of(each) if "file" in block.notes}


def blocks_of(page: Path) -> list[Block]:
    """Return the blocks of a page, with their outputs. Raises AssertionError for an output without a program."""
    text = page.read_text(encoding="utf-8")
    found: list[Block] = []
    end = 0
    for match in _FENCE.finditer(text):
        between = text[end : match.start()]
        block = Block(page, text.count("\n", 0, match.start()) + 2, match["language"], match["code"], _notes(between))
        end = match.end()
        if block.language == "text" and "figure" not in block.notes:
            assert found and not between.strip(), f"{block}: this output does not follow a block that prints it"
            found[-1] = Block(**{**vars(found[-1]), "output": block.code})
        else:
            found.append(block)
    assert text.count("```") == 2 * len(_FENCE.findall(text)), f"{page}: a fence is not closed, or is indented"
    return found


def _notes(text: str) -> dict[str, str]:
    notes: dict[str, str] = {}
    while match := _COMMENT.search(text):
        notes[match["key"]] = match["value"] or ""
        text = text[: match.start()]
    return notes


# --- the model --------------------------------------------------------------------------------------------------------


def _hello(_: Request) -> str:
    return "Hello! How can I help?"


@dataclass
class ModelServer:
    """The model of the current block, on loopback."""

    base_url: str = ""
    model: ScriptedModel = field(default_factory=lambda: ScriptedModel(_hello))

    def reply(self, body: dict[str, Any]) -> Reply:
        """Return the answer to one request, as a correct server would send it."""
        try:
            step = self.model._next_step(Request(body, {}))
        except Exception as error:  # an AssertionError here would stop the server, but not fail the test
            step = Failure(400, f"{type(error).__name__}: {error}")
        assert isinstance(step, str | ScriptedCall | list | ScriptedAnswer | Failure), step
        if isinstance(step, Failure):
            return Reply([f'{{"error": {{"message": "{step.message}"}}}}'.encode()], status=f"{step.status} -")
        answer = step if isinstance(step, ScriptedAnswer) else _answer(step)
        words: Any = _words
        return spoken(answer, body, cut=words)


def _answer(step: str | ScriptedCall | list[ScriptedCall]) -> ScriptedAnswer:
    if isinstance(step, str):
        return ScriptedAnswer(step)
    return ScriptedAnswer(calls=[step] if isinstance(step, ScriptedCall) else step)


def _words(text: str) -> list[str]:
    return re.findall(r"\S+\s*|\s+", text)


@contextmanager
def model_server() -> Iterator[ModelServer]:
    """Run a server in a thread; `model` may be replaced between blocks."""
    server = ModelServer()
    with (
        anyio.from_thread.start_blocking_portal() as portal,
        portal.wrap_async_context_manager(serve(server.reply)) as listening,
    ):
        server.base_url = listening.base_url
        yield server


# --- running ----------------------------------------------------------------------------------------------------------


class PageRun:
    """Runs the blocks of one page, in the current folder and environment.

    `namespaces`: the names defined by the programs of the page, in order.
    """

    def __init__(self, server: ModelServer) -> None:
        self._server = server
        self._run_by_commands: set[str] = set()
        self.namespaces: list[dict[str, Any]] = []

    def run(self, blocks: list[Block]) -> None:
        """Run all blocks. An error names the block."""
        self._run_by_commands = {words[-1] for block in blocks for words in _commands(block) if words[0] in _RUN_FILES}
        environment = dict(os.environ)
        with asyncio.Runner() as runner:
            try:
                for block in blocks:
                    try:
                        self._run_block(block, runner)
                    except BaseException as error:
                        error.add_note(str(block))
                        raise
            finally:
                runner.run(self._close())
                os.environ.clear()
                os.environ.update(environment)

    def _run_block(self, block: Block, runner: asyncio.Runner) -> None:
        if not _is_installed(block.notes.get("needs", "aswarm")):
            return
        exec(block.notes.get("setup", ""), {})
        script = block.notes.get("model")
        steps = None if script is None else eval(script, {"call": call, "Answer": ScriptedAnswer, "Failure": Failure})
        waiting = steps if callable(steps) or steps is None else list(steps)
        self._server.model = model = ScriptedModel(_hello if waiting is None else waiting)
        if "file" in block.notes:
            Path(block.notes["file"]).parent.mkdir(parents=True, exist_ok=True)
            Path(block.notes["file"]).write_text(block.code, encoding="utf-8")
            sys.modules.pop(Path(block.notes["file"]).stem, None)  # an installed package may have the same name
        printed = self._printed_by(block, runner)
        if block.output is not None:
            assert _untimed(printed).splitlines() == _untimed(block.output).splitlines()
        if isinstance(waiting, list):
            assert len(model.requests) == len(waiting), "the block did not use all answers of its model"

    def _printed_by(self, block: Block, runner: asyncio.Runner) -> str:
        match block.language:
            case "python" if "imported" in block.notes or block.notes.get("file") in self._run_by_commands:
                return ""
            case "python" if block.notes.get("file", "").startswith("test_"):
                return _run_pytest(block.notes["file"])
            case "python":
                return self._run_python(block, runner)
            case "console":
                return "".join(_run_command(words, block) for words in _commands(block))
            case language:
                assert language in DATA or "figure" in block.notes, (
                    f"a block in {language!r} is neither run nor known as data"
                )
                return ""

    def _run_python(self, block: Block, runner: asyncio.Runner) -> str:
        if block.is_program:
            self.namespaces.append({"__name__": "__main__"})
        assert self.namespaces, "the first block of a page must begin with its imports"
        namespace = self.namespaces[-1]
        # Empty lines in front, so that a traceback has the line number of the page.
        source = "\n" * (block.line - 1) + block.code
        code = compile(source, str(block.page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        with contextlib.redirect_stdout(io.StringIO()) as stdout, _stdin(block.notes.get("input", "")):
            result = eval(code, namespace)
            if inspect.iscoroutine(result):
                runner.run(result)
        return stdout.getvalue()

    async def _close(self) -> None:
        for namespace in self.namespaces:
            for value in namespace.values():
                if isinstance(value, AsyncSwarm):
                    await value.aclose()
                elif isinstance(value, Swarm):
                    value.close()


def _is_installed(distribution: str) -> bool:
    try:
        return bool(version(distribution))
    except PackageNotFoundError:
        return distribution == "aswarm"  # it may only be on the path


@contextmanager
def _stdin(lines: str) -> Iterator[None]:
    before = sys.stdin
    sys.stdin = io.StringIO("".join(f"{line}\n" for line in lines.split(" | ") if line))
    try:
        yield
    finally:
        sys.stdin = before


_RUN_FILES = ("python", "pytest")


def _commands(block: Block) -> Iterator[list[str]]:
    """Yield the commands of a console block that are run."""
    if block.language != "console":
        return
    for line in block.code.splitlines():
        words = shlex.split(line, comments=True)
        if words and not line.startswith(NOT_RUN):
            assert words[0] in ("aswarm", "uvicorn", "export", *_RUN_FILES), (
                f"{line!r} is neither run nor known as not to be run"
            )
            yield words


def _run_command(words: list[str], block: Block) -> str:
    """Run a command in this process, and return its stdout."""
    match words[0]:
        case "export":
            name, _, value = words[1].partition("=")
            os.environ[name] = value
            return ""
        case "pytest":
            return _run_pytest(words[-1])
        case "python":
            return run_script(words[1:], block.notes.get("input", ""))
        case _ if " ".join(words).startswith(SERVERS):
            _check_server(words)
            return ""
        case _:
            return _run_aswarm(words, int(block.notes.get("exit", 0)))


def _check_server(words: list[str]) -> None:
    """Raise an error for an unknown option, and for a missing application or agent."""
    import click  # an extra, as below
    import uvicorn

    from aswarm.cli._app import app

    if words[0] == "uvicorn":
        context = uvicorn.main.make_context("uvicorn", words[1:])
        served = [context.params["app"]]
    else:
        parent = click.Context(app)
        command = app.get_command(parent, words[1])
        assert command is not None
        context = command.make_context(words[1], words[2:], parent=parent)
        served = [word for word in words[2:] if re.fullmatch(r"\w+:\w+", word)]
    for name in served:
        module, _, attribute = name.partition(":")
        if module != "agents":  # the reader's own agents; a page about the command line has such a file
            assert Path(f"{module}.py").exists(), f"no block of the page is saved as {module}.py"
            assert hasattr(importlib.import_module(module), attribute), name


def _run_aswarm(words: list[str], exit_code: int) -> str:
    from click.testing import CliRunner  # an extra that few pages need

    from aswarm.cli._app import app

    done = CliRunner(env={"COLUMNS": "120", "NO_COLOR": "1"}).invoke(app, words[1:])
    assert done.exit_code == exit_code, f"{words}: exit code {done.exit_code}\n{done.output}"
    return done.stdout


def run_script(command: list[str], typed: str) -> str:
    """Run a file like `python file.py`, in this process. Returns the output, with the typed lines, as in a terminal."""
    for name, module in list(sys.modules.items()):
        if Path(str(getattr(module, "__file__", None))).parent == Path.cwd():
            del sys.modules[name]  # another process would import it again
    terminal = _Terminal(typed)
    before = sys.argv, sys.stdin
    sys.argv, sys.stdin = command, terminal
    try:
        with contextlib.redirect_stdout(terminal):
            runpy.run_path(command[0], run_name="__main__")
    finally:
        sys.argv, sys.stdin = before
    return terminal.getvalue()


class _Terminal(io.StringIO):
    """stdout and stdin of a script; echoes the lines that are read."""

    def __init__(self, typed: str) -> None:
        super().__init__()
        self._lines = iter([f"{line}\n" for line in typed.split(" | ") if line])

    def readline(self, _: int | None = -1, /) -> str:
        line = next(self._lines, "")
        self.write(line)
        return line


def _untimed(text: str) -> str:
    """Return the text without the seconds of pytest."""
    return re.sub(r"\b(passed|failed) in [0-9.]+s", r"\1", text)


def _run_pytest(file: str) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "anyio", file]
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # importing plugins would take most of the time
    done = subprocess.run(command, check=False, env=env, capture_output=True, encoding="utf-8", timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# --- for type checkers ------------------------------------------------------------------------------------------------


def write_programs(folder: Path) -> None:
    """Write the Python of all pages as modules for a type checker, one for each program."""
    for page in PAGES:
        programs: list[list[str]] = []
        for block in blocks_of(page):
            if block.language == "python" and "needs" not in block.notes:
                programs += [[]] if block.is_program else []
                programs[-1].append(block.code)
        for number, codes in enumerate(programs, 1):
            name = re.sub(r"\W", "_", f"{name_of(page).removesuffix('.md')}_{number}").lower()
            (folder / f"{name}.py").write_text(_as_module("\n".join(codes)), encoding="utf-8")


def _as_module(code: str) -> str:
    """Return the code, inside an async function if it awaits; imports stay outside, for other modules."""
    lines = code.splitlines()
    tree = ast.parse(code)
    imported = {
        line
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for line in range(node.lineno - 1, (node.end_lineno or 0))
    }
    head = [lines[number] for number in sorted(imported)]
    rest = [f"    {line}" for number, line in enumerate(lines) if number not in imported]
    return "\n".join([*head, "", "", "async def program() -> None:", *rest, ""])


if __name__ == "__main__":
    write_programs(Path(sys.argv[1]))
