"""The tables of pages that are made by running code: ends of runs, texts for the model, exit codes, dialects, costs.

Each is a block of a page, between `<!-- made: name -->` and `<!-- end -->`. `python -m docs._site write` brings them up to date.
"""

from __future__ import annotations

import ast
import importlib
import logging
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import anyio

from aswarm._log.conversations import SCHEMA as STORE
from aswarm._log.items import SCHEMA as JOURNAL
from aswarm.cli._command import ExitCode
from docs._site import reference, signatures
from tests.support.contract import scenes

PROJECT = Path(__file__).resolve().parents[3]
DOCS = PROJECT / "docs"
BLOCK = re.compile(r"(?P<head><!-- made: (?P<name>\w+) -->\n).*?(?P<end><!-- end -->)", re.DOTALL)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table. A line break in a cell becomes a space, and a bar is escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(_cell(each) for each in line)} |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _code(text: str) -> str:
    """Inline code, of a text that may have backticks or line breaks."""
    return "<br>".join(f"`{line}`" for line in text.splitlines())


# --- how runs end -----------------------------------------------------------------------------------------------------


def exits() -> str:
    """One row a way to end, of `run()`."""

    async def rows() -> list[list[str]]:
        found = []
        for words in [each.words for each in scenes.exits()]:
            left = await scenes.outcome(_exit(words), scenes.by_run) or await scenes.outcome(
                _exit(words), scenes.by_stream
            )
            assert left is not None
            found.append([words, f"`{left.stop}`", left.raised or "", "<br>".join(map(_answer, left.calls))])
        return found

    return table(["how the run ends", "`stop`", "raises", "the calls of the run"], anyio.run(rows))


def matrix() -> str:
    """Every way to end by every way to run; "same" if it equals the first column."""

    async def rows() -> list[list[str]]:
        found = []
        for words in [each.words for each in scenes.exits()]:
            left = [await scenes.outcome(_exit(words), way) for way in scenes.WAYS.values()]
            first = next(each for each in left if each)
            found.append(
                [
                    words,
                    *(
                        "-" if each is None else "same" if each == first and each is not first else str(each)
                        for each in left
                    ),
                ]
            )
        return found

    return table(["how the run ends", *scenes.WAYS], anyio.run(rows))


def _exit(words: str) -> Any:
    return next(each for each in scenes.exits() if each.words == words)


def _answer(text: str) -> str:
    return "open" if text == "(open)" else f"`{text}`"


def told() -> str:
    """Return the texts for the model."""
    cases = anyio.run(scenes.told)
    return table(
        ["the call", "the tool message", "`ToolCallFinished.error`"],
        ([each.words, _code(each.text), each.error] for each in cases),
    )


def exit_codes() -> str:
    """Return the exit codes of the commands."""
    return table(["code", "means"], ([str(code.value), code.meaning] for code in ExitCode))


# --- formats ----------------------------------------------------------------------------------------------------------


def formats() -> str:
    """The formats of the databases that this version writes and reads."""
    rows = []
    for name, schema in {
        "a store, with conversations and runs (including durable runs)": STORE,
        "the journal of a batch": JOURNAL,
    }.items():
        older = ", ".join(map(str, sorted(schema.migrations))) or "none released"
        rows.append([name, str(schema.format), older, f"`0x{schema.application:x}`"])
    return table(["database", "format", "older formats that it migrates", "SQLite's `application_id`"], rows)


# --- dialects ---------------------------------------------------------------------------------------------------------

DIALECTS = {
    "test_answers.py": "Answers",
    "test_calls.py": "Calls of functions",
    "test_breaks.py": "Errors, and streams that break",
    "test_requests.py": "What is not sent",
    "test_responses_events.py": "The Responses API",
    "test_claude_answers.py": "Claude's Messages API",
}


def dialects() -> str:
    """Return the facts that the tests of the wire prove, by topic: a sentence for each test, and the shapes that it is run with."""
    parts = []
    bodies = ast.parse((PROJECT / "tests/support/wire/wire_bodies.py").read_text(encoding="utf-8"))
    for name, title in DIALECTS.items():
        tree = ast.parse((PROJECT / "tests/wire" / name).read_text(encoding="utf-8"))
        shapes: dict[str, list[str]] = {}
        for node in (*bodies.body, *tree.body):
            if isinstance(node, ast.AnnAssign | ast.Assign):
                shapes[_target(node)] = _keys(node, shapes)
        tests = [
            node
            for node in tree.body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
        ]
        parts += [f"## {title}", "\n".join(line for test in tests for line in _test_lines(test, shapes))]
    return "\n\n".join(parts)


def _target(node: ast.AnnAssign | ast.Assign) -> str:
    return ast.unparse(node.target if isinstance(node, ast.AnnAssign) else node.targets[0])


def _keys(node: ast.AnnAssign | ast.Assign, known: dict[str, list[str]]) -> list[str]:
    """Return the keys of a dict, and the keys of a known dict that it includes with `**`."""
    found: list[str] = []
    for key, value in zip(node.value.keys, node.value.values, strict=True) if isinstance(node.value, ast.Dict) else ():
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            found.append(re.sub(r"^\d+[a-z]? ", "", key.value))
        elif key is None:
            found += known.get(ast.unparse(value), [])
    return found


def _test_lines(test: ast.FunctionDef | ast.AsyncFunctionDef, shapes: dict[str, list[str]]) -> list[str]:
    name = re.sub(r"^rows?_\d+(_and_\d+)?_", "", test.name.removeprefix("test_")).replace("_", " ")
    used = [
        shape
        for decorator in test.decorator_list
        for each in getattr(decorator, "args", ())
        for shape in shapes.get(ast.unparse(each), ())
    ]
    doc = re.sub(r"^[\d, ]+: ", "", " ".join((ast.get_docstring(test) or "").split()))
    return [
        f"- **{name[0].upper()}{name[1:]}.** {doc[:1].upper()}{doc[1:]}",
        *([f"  Shapes: {'; '.join(used)}."] if used else []),
    ]


# --- costs ------------------------------------------------------------------------------------------------------------


def costs() -> str:
    """The cost of a turn, from the committed results of the benchmarks."""
    return str(_module("report").costs())


def costs_short() -> str:
    """Its medians, for README."""
    return str(_module("report").costs_short())


def _promises() -> dict[str, Callable[[], str]]:
    """The verdicts of all frameworks, from the committed results of the promises."""
    made: dict[str, Callable[[], str]] = _module("page", "promises").BLOCKS
    return made


def _module(name: str, folder: str = "") -> Any:
    sys.path.append(str(PROJECT / "benchmarks" / folder))  # at the end: its modules have short names
    try:
        return importlib.import_module(name)
    finally:
        sys.path.pop()


# --- public names -----------------------------------------------------------------------------------------------------


def public_names() -> str:
    """All public names with their signatures, by module."""
    return signatures.listing()


def made_by_aswarm() -> str:
    """The classes whose constructors are no promise."""
    return "\n" + ", ".join(f"`{name}`" for name in reference.MADE_BY_ASWARM) + "\n"


# --- blocks of pages --------------------------------------------------------------------------------------------------

MADE: dict[str, Callable[[], str]] = {
    "exits": exits,
    "matrix": matrix,
    "told": told,
    "exit_codes": exit_codes,
    "formats": formats,
    "dialects": dialects,
    "costs": costs,
    "costs_short": costs_short,
    **_promises(),
    "public_names": public_names,
    "made_by_aswarm": made_by_aswarm,
}


def blocks() -> dict[str, Path]:
    """The pages that have a block, by its name."""
    found = {}
    for page in [PROJECT / "README.md", *sorted(DOCS.rglob("*.md"))]:
        found.update({match["name"]: page for match in BLOCK.finditer(page.read_text(encoding="utf-8"))})
    return found


def current(name: str, text: str) -> str:
    """The text of a page with the block as the code makes it now."""
    return BLOCK.sub(
        lambda match: f"{match['head']}{MADE[name]()}\n{match['end']}" if match["name"] == name else match[0], text
    )


def write() -> None:
    """Bring all blocks up to date."""
    logging.getLogger("aswarm").setLevel(logging.CRITICAL)  # some runs fail on purpose
    for name, page in blocks().items():
        page.write_text(current(name, page.read_text(encoding="utf-8")), encoding="utf-8")
