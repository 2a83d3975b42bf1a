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


REFUSALS = {
    (400, "content_filter"): "a guard has blocked the run (Chat Completions)",
    (400, "incomplete"): "the request ended before its body did",
    (400, "invalid_request"): "a fault in the body, whose place is in `param` (Chat Completions)",
    (400, "invalid_position"): "`Last-Event-ID` or `after` is not the number of an entry",
    (400, "unsupported"): "a setting that would make the answer wrong, such as `n` above 1 (Chat Completions)",
    (401, "unauthorized"): "`auth` knows no user of the request",
    (403, "wrong_origin"): "a page of another origin, which is not in `origins`",
    (404, "agent_not_found"): "the service has no agent of this name",
    (404, "conversation_not_found"): "the user has no such conversation",
    (404, "model_not_found"): "no agent has the name of this model (Chat Completions)",
    (404, "not_found"): "there is no such route",
    (404, "run_not_found"): "the user has no such run, or its log has been deleted",
    (405, "method_not_allowed"): "the route has other methods",
    (409, "call_not_open"): "an answer to a call that waits for none, perhaps because it was answered already",
    (409, "exists"): "the id of a fork is that of a conversation",
    (409, "interrupt_open"): "a new message while a call waits for an answer (AG-UI)",
    (409, "nothing_new"): "the conversation has everything in the request already",
    (409, "run_active"): "another run of the conversation is active; `run` has its id",
    (413, "too_large"): "the request has more bytes, or a message more characters, than `limits` allows",
    (415, "not_json"): "the content type is not `application/json`",
    (421, "wrong_host"): "the service was asked under a name that is not in `hosts`",
    (422, "answers_missing"): "another call waits too, and has no answer in the request",
    (
        422,
        "invalid_request",
    ): "a fault in the body or in a parameter, whose place is in `param`",
    (422, "not_an_approval"): "a call asks for an approval, and the answer is not one",
    (422, "key_reused"): "the `Idempotency-Key` belongs to another request",
    (429, "rate_limit_exceeded"): "the provider has refused for its limits (Chat Completions)",
    (429, "too_many_runs"): "the user has as many runs as `limits` allows",
    (499, "client_gone"): "the client has gone before its run had begun; no run was started",
    (500, "internal"): "the service has failed; its log says why",
    (502, "run_failed"): "the run has failed (Chat Completions)",
    (503, "service_full"): "the service has as many runs as `limits` allows",
    (503, "shutting_down"): "the service ends, and starts no run",
    (503, "unavailable"): "the store cannot be used now",
}
# The exception of `Runs` where the source does not have status, code and exception in one place.
COMPUTED = {
    (400, "content_filter"): "",
    (404, "not_found"): "",
    (405, "method_not_allowed"): "",
    (409, "call_not_open"): "`AnswersRefused`",
    (422, "answers_missing"): "`AnswersRefused`",
    (422, "not_an_approval"): "`AnswersRefused`",
    (429, "rate_limit_exceeded"): "",
    (429, "too_many_runs"): "`RunLimit`",
    (502, "run_failed"): "",
    (503, "service_full"): "`RunLimit`",
}
# Where the status and the code stand among the arguments.
REFUSED_BY = {"Refusal": (0, 1), "RequestError": (0, 1), "ChatRequestError": (0, 1), "AnswersRefused": (2, 1)}


def refusals() -> str:
    """The statuses and codes of requests that are not carried out, from the source. REFUSALS must describe each of them."""
    found = dict(COMPUTED)
    for path in sorted((PROJECT / "src/aswarm/serve").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and (places := REFUSED_BY.get(name := ast.unparse(node.func))):
                given = {at: each.value for at, each in enumerate(node.args) if isinstance(each, ast.Constant)}
                status, code = (given.get(at) for at in places)
                if isinstance(status, int) and isinstance(code, str):
                    found.setdefault((status, code), f"`{name}`" if name == "AnswersRefused" else "")
            if isinstance(node, ast.ClassDef) and "RunsError" in map(ast.unparse, node.bases):
                values = {
                    ast.unparse(each.targets[0]): each.value for each in node.body if isinstance(each, ast.Assign)
                }
                if values.keys() >= {"status", "code"}:
                    found[ast.literal_eval(values["status"]), ast.literal_eval(values["code"])] = f"`{node.name}`"
    other = found.keys() ^ REFUSALS.keys()
    assert not other, f"REFUSALS has too much or too little: {sorted(other)}"  # noqa: S101
    return table(
        ["status", "`code`", "means", "exception of `Runs`"],
        ([str(status), f"`{code}`", REFUSALS[status, code], name] for (status, code), name in sorted(found.items())),
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
