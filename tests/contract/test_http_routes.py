"""`docs/reference/http-routes.md` lists each route of a service, and each way in which it refuses a request."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from aswarm import Agent
from aswarm.runs import show_everything
from aswarm.serve import bearer, create_app
from aswarm.serve._endpoints import STATUSES
from aswarm.serve._service import routes_of
from tests.support.contract.documentation import PROJECT

PAGE = (PROJECT / "docs/reference/http-routes.md").read_text(encoding="utf-8")
SOURCES = [*(PROJECT / "src/aswarm/runs").glob("*.py"), *(PROJECT / "src/aswarm/serve").rglob("*.py")]
# The place of the code among the arguments of each refusal. The first argument of `Refusal` is the status.
REFUSED_BY: dict[str, int | str] = {"Refusal": 1, "InvalidRequest": "code", "AnswersRefused": "code"}
# Refusals whose status and code do not stand in one place of the source.
COMPUTED = {
    (400, "content_filter", ""),
    (400, "invalid_request", ""),  # on Chat Completions
    (404, "not_found", ""),
    (405, "method_not_allowed", ""),
    (409, "arguments_changed", "AnswersRefused"),
    (409, "call_not_open", "AnswersRefused"),
    (422, "answers_missing", "AnswersRefused"),
    (422, "not_an_approval", "AnswersRefused"),
    (422, "run_missing", "AnswersRefused"),
    (429, "rate_limit_exceeded", ""),
    (429, "too_many_runs", "TooManyRuns"),
    (502, "run_failed", ""),
    (503, "service_full", "TooManyRuns"),
}


def test_the_page_lists_every_route_of_a_service() -> None:
    """The routes of all wires, in the order of the service."""
    wires = ("agui", "vercel", "openai")
    service = create_app(agents=Agent(), auth=bearer({"x": "y"}), wires=wires, page=True, show=show_everything)
    routes = [(getattr(route, "methods", None), getattr(route, "path", "")) for route in routes_of(service)]
    names = [f"{(methods - {'HEAD'}).pop()} {path}" for methods, path in routes if methods]
    listed = re.findall(r"^\| `([A-Z]+ /[^`]*)` \|", PAGE, re.MULTILINE)
    assert listed == [re.sub(r":\w+}", "}", name) for name in names]


def test_the_page_lists_every_refusal_with_its_exception() -> None:
    """The status, the code and the exception of `Runs`, as the source has them."""
    rows = re.findall(r"^\| (\d{3}) \| `(\w+)` \|.*\| (?:`(\w+)`)? \|$", PAGE, re.MULTILINE)
    listed = {(int(status), code): error for status, code, error in rows}
    assert len(rows) == len(listed)
    in_source = sorted({*refusals(), *COMPUTED}, key=lambda refusal: refusal[2])  # one with an exception is the last
    assert listed == {(status, code): error for status, code, error in in_source}


def refusals() -> Iterator[tuple[int, str, str]]:
    """Status, code and exception of each refusal in the source."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and (place := REFUSED_BY.get(name := ast.unparse(node.func))):
                arguments = [*enumerate(node.args), *((each.arg, each.value) for each in node.keywords)]
                values = {at: each.value for at, each in arguments if isinstance(each, ast.Constant)}
                code = values.get(place)
                status = values.get(0) if name == "Refusal" else STATUSES.get(str(code), 400)
                if isinstance(status, int) and isinstance(code, str):
                    yield status, code, name if name == "AnswersRefused" else ""
            if isinstance(node, ast.ClassDef) and "RequestRefused" in map(ast.unparse, node.bases):
                assigned = [each for each in node.body if isinstance(each, ast.Assign)]
                members = {ast.unparse(each.targets[0]): each.value for each in assigned}
                if "code" in members:
                    code = ast.literal_eval(members["code"])
                    yield STATUSES[code], code, node.name
