"""The tables that are made from the code: how runs end, what the model is told, exit codes, routes, dialects.

Each is a block of a page, between `<!-- made: name -->` and `<!-- end -->`. `write` brings the blocks up to date.
"""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import anyio

from aswarm import Agent
from aswarm.cli._exits import ExitCode
from aswarm.serve import Service, bearer
from aswarm.serve._routes import routes_of

from . import scenes

DOCS = Path(__file__).resolve().parents[1]
PROJECT = DOCS.parent
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
            assert left is not None  # noqa: S101 - one of the two can end so
            found.append([words, f"`{left.stop}`", left.raised or "", "<br>".join(map(_answer, left.calls))])
        return found

    return table(["how the run ends", "`stop`", "raises", "the calls of the run"], anyio.run(rows))


def matrix() -> str:
    """Every way to end by every way to run; "same" where it is that of the first column."""

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
    """What the model is told."""
    cases = anyio.run(scenes.told)
    return table(
        ["the call", "the tool message", "`ToolCallFinished.error`"],
        ([each.words, _code(each.text), each.error] for each in cases),
    )


# --- commands and routes ----------------------------------------------------------------------------------------------


def exit_codes() -> str:
    """What the commands end with."""
    return table(["code", "means"], ([str(code.value), code.meaning] for code in ExitCode))


ROUTES = {
    "GET /health": ("native", '`{"status": "ok"}`; 503 with `draining` while the service ends. It asks for no user'),
    "POST /conversations/{conversation}/runs": (
        "native",
        'starts a run with `{"text"}`, `{"answers"}`, `{"continue": true}` or `{"regenerate": true}`: 202 and `Location`; with `Accept: text/event-stream` the stream itself',
    ),
    "GET /runs": ("native", "the runs of the user; `?conversation=` those of one conversation"),
    "GET /runs/{run}": ("native", "what is known of a run; once it has ended, with its last entry as `result`"),
    "GET /runs/{run}/events": (
        "native",
        "the events after `Last-Event-ID` or `?after=`, then live; 204 once the run has ended and all is seen",
    ),
    "POST /runs/{run}/cancel": ("native", "stops the run, waits for its tools, and answers what happened"),
    "GET /conversations": ("native", "the conversations of the user, the last updated first; `?limit=`, `?before=`"),
    "GET /conversations/{conversation}": ("native", "messages, active agent, calls that wait, `active_run`"),
    "DELETE /conversations/{conversation}": (
        "native",
        "deletes the conversation and the logs of its runs: 204; 409 while one of them is active",
    ),
    "POST /conversations/{conversation}/fork": (
        "native",
        'a copy of the first `after` messages; 201 with `{"conversation"}`',
    ),
    "POST /agui/{agent}": ('`wires=["agui"]`', "a run, as a stream of AG-UI events"),
    "GET /agui/{agent}/{thread}/events": ('`wires=["agui"]`', "the run of a thread again, for `connect()`"),
    "POST /chat/{agent}": ('`wires=["vercel"]`', "a run, as `useChat` of Vercel's AI SDK reads it"),
    "GET /chat/{agent}/{conversation}/stream": (
        '`wires=["vercel"]`',
        "the active run again, for `resume`; 204 without one",
    ),
    "GET /v1/models": ('`wires=["openai"]`', "the agents, as models"),
    "GET /v1/models/{model}": ('`wires=["openai"]`', "one of them"),
    "POST /v1/chat/completions": ('`wires=["openai"]`', "a run, as a chat completion, whole or streamed"),
    "GET /graph": ("native", "the agents, their models, prices and handoffs"),
    "GET /runs/{run}/test": ("`page=True`", "the run as the code of a test"),
    "GET /": ("`page=True`", "the page to try the agents"),
}


def routes() -> str:
    """What a service answers to. Raises KeyError for a route that ROUTES does not describe."""
    service = Service(agents=Agent(), auth=bearer({"x": "y"}), wires=("agui", "vercel", "openai"), page=True)
    found = []
    for route in routes_of(service):
        if methods := getattr(route, "methods", None):
            (method,) = methods - {"HEAD"}
            path = re.sub(r":\w+}", "}", route.path)  # type: ignore[attr-defined]
            found.append(f"{method} {path}")
    assert sorted(found) == sorted(ROUTES), "ROUTES describes other routes"  # noqa: S101
    return table(["route", "with", "does"], ([f"`{name}`", *ROUTES[name]] for name in found))


def refusals() -> str:
    """The statuses and codes of requests that are not carried out, from the source."""
    found: dict[tuple[int, str], str] = {}
    for path in sorted((PROJECT / "src/aswarm/serve").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Refusal":
                given = [each.value if isinstance(each, ast.Constant) else None for each in node.args[:2]]
                if isinstance(given[0], int) and isinstance(given[1], str):
                    found.setdefault((given[0], given[1]), "")
            if isinstance(node, ast.ClassDef) and "RunsError" in map(ast.unparse, node.bases):
                values = {
                    ast.unparse(each.targets[0]): each.value for each in node.body if isinstance(each, ast.Assign)
                }
                if values.keys() >= {"status", "code"}:
                    found[ast.literal_eval(values["status"]), ast.literal_eval(values["code"])] = f"`{node.name}`"
    return table(
        ["status", "`code`", "exception of `Runs`"],
        ([str(status), f"`{code}`", name] for (status, code), name in sorted(found.items())),
    )


# --- dialects ---------------------------------------------------------------------------------------------------------

DIALECTS = {
    "test_answers.py": "Answers",
    "test_calls.py": "Calls of functions",
    "test_breaks.py": "Errors, and streams that break",
    "test_requests.py": "What is not sent",
    "test_responses_events.py": "The Responses API",
}


def dialects() -> str:
    """What the tests of the wire hold, by topic: a sentence for each test, and the shapes that it is run with."""
    parts = []
    for name, title in DIALECTS.items():
        tree = ast.parse((PROJECT / "tests/wire" / name).read_text(encoding="utf-8"))
        shapes = {_target(node): _keys(node) for node in tree.body if isinstance(node, ast.AnnAssign | ast.Assign)}
        tests = [
            node
            for node in tree.body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
        ]
        parts += [f"## {title}", "\n".join(line for test in tests for line in _test_lines(test, shapes))]
    return "\n\n".join(parts)


def _target(node: ast.AnnAssign | ast.Assign) -> str:
    return ast.unparse(node.target if isinstance(node, ast.AnnAssign) else node.targets[0])


def _keys(node: ast.AnnAssign | ast.Assign) -> list[str]:
    keys = node.value.keys if isinstance(node.value, ast.Dict) else []
    return [
        re.sub(r"^\d+[a-z]? ", "", key.value)
        for key in keys
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    ]


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


# --- blocks of pages --------------------------------------------------------------------------------------------------

MADE: dict[str, Callable[[], str]] = {
    "exits": exits,
    "matrix": matrix,
    "told": told,
    "exit_codes": exit_codes,
    "routes": routes,
    "refusals": refusals,
    "dialects": dialects,
}


def blocks() -> dict[str, Path]:
    """The pages that have a block, by its name."""
    found = {}
    for page in sorted(DOCS.rglob("*.md")):
        found.update({match["name"]: page for match in BLOCK.finditer(page.read_text(encoding="utf-8"))})
    return found


def current(name: str, text: str) -> str:
    """The text of a page with the block as the code makes it now."""
    return BLOCK.sub(
        lambda match: f"{match['head']}{MADE[name]()}\n{match['end']}" if match["name"] == name else match[0], text
    )


def write() -> None:
    """Bring all blocks up to date."""
    logging.getLogger("aswarm").setLevel(logging.CRITICAL)  # of what goes wrong in the runs on purpose
    for name, page in blocks().items():
        page.write_text(current(name, page.read_text(encoding="utf-8")), encoding="utf-8")
